"""Faults at every phase of a run: what is planted, and how it must end."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import lab_faults_disks as disks
import lab_faults_network as network
import lab_faults_processes as processes
import lab_faults_settings as settings
import pytest
from lab_host import Host
from lab_site import Ended, LabSite, expect_nothing_left, wait_until

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"
Phase = Literal["before launch", "rendezvous", "collective", "checkpoint", "end"]
# What the test of each phase is, beside one before it whose record must stay.
TESTS = {"checkpoint": "test_training", "end": "test_last"}
# A guard that lost its session ends its ranks after 30 s.
EMPTY_SECONDS = 45.0


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One case. `named` is the culprit in the record's findings, `words` stand in its reason.

    `seconds` bounds the whole run of pytest. `disk` puts a shared disk below the checkpoints first. `options` are those
    of the launcher, `full_run` replaces parts of that section.
    """

    what: str
    phase: Phase
    plant: Callable[[LabSite, Host], AbstractContextManager[Any]]
    verdict: Literal["ERROR", "PASS", "FAIL"] = "ERROR"
    named: str = ""
    words: str = ""
    seconds: float = 75.0
    test: str = ""
    disk: bool = False
    quick: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    full_run: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.what}-{self.phase}".replace(" ", "_")


@contextmanager
def once(action: Callable[[], object]) -> Iterator[None]:
    action()
    yield


def rank(host_rank: int) -> processes.Match:
    return processes.environ(RANK=host_rank)


def agent() -> processes.Match:
    return processes.argv("torch.distributed.run")


UNREACHABLE = (
    "not (?:been heard of|responding|answer)|timed out|No route to host|closed by remote host|send disconnect|failure"
)
KILLED = "was killed by SIGKILL"
FULL = "/checkpoints-.*: no space left for the checkpoint"
# `host` is node2; rank 1 sits there.
EVERYWHERE = (
    Fault(what="nothing", phase="before launch", plant=lambda site, host: nullcontext(), verdict="PASS", quick=True),
    # before launch
    Fault(what="older version of the package", phase="before launch",
          plant=lambda site, host: settings.old_version(host, "pytest_clusterqual", "0.0.1"),
          named="node2", words="node2 has pytest-clusterqual 0.0.1.*install the same version", quick=True),
    Fault(what="wrong interface name", phase="before launch", plant=lambda site, host: nullcontext(),
          options={"interface": "ib7"}, named="node2", words="node2 has no interface ib7"),
    Fault(what="clock 60 s behind", phase="before launch", plant=lambda site, host: settings.clock_behind(host, 60),
          verdict="PASS"),
    Fault(what="too little memory to start", phase="before launch",
          plant=lambda site, host: processes.memory_limit(host, 150 << 20), named="node2", words="for want of memory"),
    Fault(what="ports of the ranks dropped", phase="before launch",
          plant=lambda site, host: network.blocked_port(host, "1024-65535", how="drop"), named="node2",
          words="node2", options={"start_timeout": "30 s"}),
    Fault(what="ports of the ranks rejected", phase="before launch",
          plant=lambda site, host: network.blocked_port(host, "1024-65535", how="reject"), named="node2",
          words="node2", options={"start_timeout": "30 s"}),
    Fault(what="packets between two hosts dropped", phase="before launch",
          plant=lambda site, host: network.blocked_pair(site.lab["node1"], host), named="node1 - node2",
          words="node1 - node2: neither can connect to the other"),
    Fault(what="link at 50 Mbit/s", phase="before launch", test="test_training",
          plant=lambda site, host: network.link_rate(host, "50mbit"), verdict="PASS"),
    Fault(what="1 % of packets lost", phase="before launch", test="test_training",
          plant=lambda site, host: network.packet_loss(host, 0.01), verdict="PASS"),
    Fault(what="host has 0.5 cores", phase="before launch", test="test_training",
          plant=lambda site, host: processes.cpu_quota(host, 0.5), verdict="PASS"),
    Fault(what="disk is read-only", phase="before launch", test="test_training", disk=True,
          plant=lambda site, host: disks.now_read_only(host, site.checkpoints), named="node2",
          words="the checkpoint folder cannot be written"),
    # during rendezvous
    Fault(what="host dies", phase="rendezvous", plant=lambda site, host: processes.kill_host(site.lab, host.name),
          named="node2", words=UNREACHABLE),
    Fault(what="link goes down", phase="rendezvous", plant=lambda site, host: network.link_down(host),
          named="node2", words=UNREACHABLE),
    Fault(what="agent is killed", phase="rendezvous", plant=lambda site, host: once(
        lambda: processes.sigkill(host, agent())), named="node2", words="the torchrun agent was killed by SIGKILL"),
    Fault(what="agent is stopped", phase="rendezvous", plant=lambda site, host: processes.sigstop(host, agent()),
          named="node2", words="node2", options={"start_timeout": "30 s"}),
    # during a collective
    Fault(what="host dies", phase="collective", plant=lambda site, host: processes.kill_host(site.lab, host.name),
          named="rank 1 on node2", words="rank 1 on node2 does not answer, nor does its supervisor", quick=True),
    Fault(what="host loses power", phase="collective",
          plant=lambda site, host: processes.kill_host(site.lab, host.name, power_loss=True),
          named="rank 1 on node2", words="rank 1 on node2 does not answer, nor does its supervisor"),
    Fault(what="link goes down", phase="collective", plant=lambda site, host: network.link_down(host),
          named="rank 1 on node2", words="rank 1 on node2 does not answer, nor does its supervisor"),
    Fault(what="rank is killed", phase="collective", plant=lambda site, host: once(
        lambda: processes.sigkill(host, rank(1))), named="rank 1 on node2", words=KILLED, quick=True),
    Fault(what="rank is stopped", phase="collective", plant=lambda site, host: processes.sigstop(host, rank(1)),
          named="rank 1 on node2", words="rank 1 on node2 does not answer"),
    Fault(what="rank is stopped 50 of every 500 ms", phase="collective",
          plant=lambda site, host: processes.pulses(host, rank(1), on_ms=50, off_ms=450), verdict="PASS"),
    Fault(what="1 % of packets lost", phase="collective", plant=lambda site, host: network.packet_loss(host, 0.01),
          verdict="PASS"),
    Fault(what="ports of the ranks dropped", phase="collective",
          plant=lambda site, host: network.blocked_port(host, "1024-65535", how="drop"),
          named="rank 1 on node2", words="did not end within its limit of 20 s"),
    Fault(what="ports of the ranks rejected", phase="collective",
          plant=lambda site, host: network.blocked_port(host, "1024-65535", how="reject"),
          named="rank 1 on node2", words="rank 1 on node2"),
    Fault(what="link at 50 Mbit/s", phase="collective", plant=lambda site, host: network.link_rate(host, "50mbit"),
          verdict="PASS"),
    Fault(what="host has 0.3 cores", phase="collective", plant=lambda site, host: processes.cpu_quota(host, 0.3),
          verdict="PASS"),
    Fault(what="host runs out of memory", phase="collective", test="test_memory_of_last_rank",
          plant=lambda site, host: processes.memory_limit(host, 700 << 20),
          named="rank 1 on node2", words="rank 1 on node2 was killed by the kernel for want of memory"),
    # during a checkpoint
    Fault(what="host dies", phase="checkpoint", plant=lambda site, host: processes.kill_host(site.lab, host.name),
          named="node2", words=f"node2.*(?:{UNREACHABLE})"),
    Fault(what="link goes down", phase="checkpoint", plant=lambda site, host: network.link_down(host),
          named="node2", words=f"node2.*(?:{UNREACHABLE})"),
    Fault(what="rank is killed", phase="checkpoint", plant=lambda site, host: once(
        lambda: processes.sigkill(host, rank(1))), named="local rank 0 on node2", words=KILLED),
    Fault(what="rank is stopped", phase="checkpoint", plant=lambda site, host: processes.sigstop(host, rank(1)),
          named="local rank 0 on node2", words="local rank 0 on node2 is stopped"),
    Fault(what="disk is full", phase="checkpoint", disk=True,
          plant=lambda site, host: disks.full_disk(host, site.checkpoints), words=FULL, quick=True),
    Fault(what="disk is full, saves by a thread", phase="checkpoint", disk=True,
          plant=lambda site, host: disks.full_disk(host, site.checkpoints), words=FULL,
          full_run={"checkpoint": {"every": 2, "mode": "async"}}),
    Fault(what="disk is full, saves by a process", phase="checkpoint", disk=True,
          plant=lambda site, host: disks.full_disk(host, site.checkpoints), words=FULL, seconds=120.0,
          full_run={"checkpoint": {"every": 2, "mode": "async-process"}}),
    Fault(what="rank is killed, saves by a process", phase="checkpoint", plant=lambda site, host: once(
        lambda: processes.sigkill(host, rank(1))), named="local rank 0 on node2", words=KILLED, seconds=120.0,
          full_run={"checkpoint": {"every": 2, "mode": "async-process"}}),
    Fault(what="disk becomes read-only", phase="checkpoint", disk=True,
          plant=lambda site, host: disks.now_read_only(host, site.checkpoints), named="node2",
          words="the checkpoint folder cannot be written"),
    Fault(what="disk at 4 MB/s", phase="checkpoint", disk=True,
          plant=lambda site, host: disks.throttled(host, site.checkpoints, 4_000_000), verdict="PASS"),
    Fault(what="disk at 2 MB/s, saves within 600 ms are required", phase="checkpoint", disk=True,
          plant=lambda site, host: disks.throttled(host, site.checkpoints, 2_000_000), verdict="FAIL",
          words=r"checkpoint_completion .* is above the required <= 600 ms.*/checkpoints", seconds=120.0,
          full_run={"require": [{"checkpoint_completion": "<= 600 ms"}]}),
    # at the end
    Fault(what="host dies", phase="end", plant=lambda site, host: processes.kill_host(site.lab, host.name),
          verdict="PASS"),
    Fault(what="rank is killed", phase="end", plant=lambda site, host: once(
        lambda: processes.sigkill(host, rank(1))), verdict="PASS"),
    Fault(what="rank is stopped", phase="end", plant=lambda site, host: processes.sigstop(host, rank(1)),
          verdict="PASS"),
    Fault(what="link goes down", phase="end", plant=lambda site, host: network.link_down(host), verdict="PASS"),
)  # fmt: skip
SSH_ONLY = (
    Fault(what="host is dead", phase="before launch", plant=lambda site, host: processes.kill_host(site.lab, host.name),
          named="node2", words=UNREACHABLE, quick=True),
    Fault(what="ssh port rejected", phase="before launch",
          plant=lambda site, host: network.blocked_port(host, 22, how="reject"),
          named="node2", words="Connection refused: check that the host is up"),
    Fault(what="ssh port dropped", phase="before launch",
          plant=lambda site, host: network.blocked_port(host, 22, how="drop"),
          named="node2", words="Connection timed out: check that the host is up"),
    Fault(what="two hosts with swapped names", phase="before launch",
          plant=lambda site, host: settings.swapped_names(site.lab.login, "node1", "node2"),
          named="node1", words="the names of these hosts are exchanged"),
)  # fmt: skip
CASES = {"ssh": EVERYWHERE + SSH_ONLY, "slurm": EVERYWHERE}


def marked(launcher: str) -> list[Any]:
    """The cases of a launcher as test parameters; all but the quick ones belong to the full lab."""
    return [
        pytest.param(fault, id=str(fault), marks=() if fault.quick and launcher == "ssh" else pytest.mark.full)
        for fault in CASES[launcher]
    ]


def run(site: LabSite, fault: Fault) -> None:
    """Plant the fault at its phase and look at the end."""
    host = site.lab["node2"]
    site.settle()
    struck = fault.test or TESTS.get(fault.phase, "test_collectives")
    tests = ("test_before", struck) if fault.phase in ("collective", "checkpoint") else (struck,)
    try:
        with ExitStack() as undo:
            if fault.disk:
                site.checkpoints.mkdir(exist_ok=True)
                undo.enter_context(disks.shared_disk(site.lab, site.checkpoints, 24 << 20))
            if fault.phase == "before launch":
                undo.enter_context(fault.plant(site, host))
            # Where training is to fail it is long enough not to be over before the fault is there.
            length = {"steps": 2000} if fault.phase == "checkpoint" and fault.verdict == "ERROR" else {}
            running = undo.enter_context(site.start(*tests, full_run={**length, **fault.full_run}, **fault.options))
            if fault.phase == "rendezvous":
                wait_until(lambda: host.processes(agent()), seconds=240, what="the agent's start")
            elif fault.phase == "checkpoint":
                look = host.path(site.checkpoints)
                wait_until(lambda: any(look.glob("checkpoints-*/step-*")), seconds=240, what="a checkpoint")
            elif fault.phase != "before launch":
                wait_until(site.marker.exists, seconds=240, what="the collective")
            if fault.phase != "before launch":
                undo.enter_context(fault.plant(site, host))
            ended = running.end(10 * fault.seconds)
            expect_nothing_left(site.lab, seconds=EMPTY_SECONDS)  # while the fault still stands
        check(fault, struck, ended, before="test_before" in tests)
    finally:
        site.lab.revive()
    note(site.launcher, fault)


def check(fault: Fault, struck: str, ended: Ended, *, before: bool) -> None:
    """The verdict, the culprit, the words, the time; and what was recorded before is still there."""
    # The bound is one for hosts that have their cores: whatever else waits for these stretches it.
    crowded = max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))
    assert ended.seconds < fault.seconds * crowded, ended.out[-3000:]
    verdict, reason = ended.verdict(struck)
    open_ = fault.verdict == "FAIL" and verdict == "UNDECIDED" and "the machine was loaded" in reason
    assert verdict == fault.verdict or open_, f"{verdict}: {reason}\n{ended.out[-3000:]}"
    assert (ended.code == 0) == (verdict == "PASS"), ended.out[-3000:]
    if before:
        assert ended.verdict("test_before")[0] == "PASS"
    if verdict == "PASS":
        return
    found = " ".join(ended.suspects(struck))
    assert fault.named in found, f"{found}: {reason}"
    assert re.search(fault.words, reason, re.DOTALL), reason
    assert (ended.folder / "junit.xml").exists()


_seen: dict[str, dict[str, bool]] = {}


def note(launcher: str, fault: Fault) -> None:
    """A case that held goes to the page once all cases of all launchers have held, in one or in several processes."""
    _seen.setdefault(launcher, {})[str(fault)] = True
    if all(len(_seen.get(name, {})) == len(cases) for name, cases in CASES.items()):
        PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    """docs/faults.md, from the cases."""
    lines = [
        "# What happens when things break", "",
        "Each row is a test in the lab (`tests/lab/lab_fault_cases.py`): two hosts, the fault planted on `node2` for",
        "real, through ssh and, where marked, Slurm. All end within the bound; nothing of the run is left on any host;",
        "every record made before is kept. A fault planted before the launch stays for the whole run. This page is",
        "written by those tests (`make lab`).", "",
        "| when | fault | launchers | verdict | named | the message says | within |", "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for fault in CASES["ssh"]:
        launchers = "ssh, Slurm" if fault in CASES["slurm"] else "ssh"
        said = f"`{readable(fault.words)}`" if fault.words else "-"
        lines.append(
            f"| {fault.phase} | {fault.what} | {launchers} | {fault.verdict} | {fault.named or '-'} | {said} | "
            f"{fault.seconds:g} s |"
        )
    return "\n".join(lines) + "\n"


def readable(words: str) -> str:
    """A pattern as a person would write it."""
    if UNREACHABLE in words:
        return "not heard of, not responding, or the connection was closed"
    return words.replace(".*", " ... ").replace("|", " or ")

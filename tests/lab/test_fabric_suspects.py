"""Fabric names what is at fault: a slow link, a slow or jittering host, a blocked pair; and nobody where nothing is."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from lab_faults_network import blocked_pair, link_rate
from lab_faults_processes import cpu_quota, environ, pulses
from lab_hosts import Lab
from lab_site import expect_nothing_left, wait_until

pytestmark = pytest.mark.lab(hosts=4, pin=True)

SUITE = Path(__file__).parents[2] / "qualification"
PROJECT: dict[str, Any] = {
    "version": 1,
    "project": "suspects",
    "launcher": {"kind": "ssh", "device": "cpu", "job_timeout": "40 s"},
    "workload": {
        "model": {"layers": 2, "hidden": 128, "heads": 2, "kv_heads": 1, "ffn": 256, "vocab": 256},
        "optimizer": {"name": "adamw", "lr": 3.0e-4}, "precision": "fp32", "sequence_length": 64, "microbatch": 1,
        "global_batch": 4, "steps": 1, "seed": 1,
    },
    "layouts": [{"name": "ddp"}],
}  # fmt: skip
SWEEP = {
    "collectives": ["all_reduce"], "groups": ["world"], "sizes": {"from": "256 KiB", "to": "256 KiB", "factor": 2},
    "traffic": False,
}  # fmt: skip
# 200 Mbit/s are 25 MB/s; an all-reduce reads about 95 % of it.
LINKS = {**SWEEP, "require": [{"collective": "all_reduce", "busbw": ">= 18 MB/s"}]}
# Hosts share cores here, so chance is large: long enough to be told from it.
HEALTHY_RUNS = 20


class Run:
    """One run of the suite's Fabric tests from the login host, to its end."""

    def __init__(
        self, lab: Lab, fabric: dict[str, Any], name: str, *, nodes: int = 4, job_timeout: str = "40 s"
    ) -> None:
        self.lab = lab
        self.folder = lab.shared / name
        self.folder.mkdir()
        (self.folder / "test_fabric.py").write_text((SUITE / "test_fabric.py").read_text())
        launcher = {**PROJECT["launcher"], "hosts": lab.hosts_arg, "job_timeout": job_timeout}
        (self.folder / "clusterqual.yaml").write_text(json.dumps({**PROJECT, "launcher": launcher, "fabric": fabric}))
        argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--nodes={nodes}", "--qual-run-dir=run"]
        self._command = lab.login.popen(
            argv, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def end(self, timeout: float = 180) -> Run:
        try:
            self.out, _ = self._command.communicate(timeout=timeout)
        finally:
            if self._command.poll() is None:
                self._command.kill()
        print(self.out)
        return self

    @property
    def ended(self) -> bool:
        return self._command.poll() is not None

    @property
    def judgements(self) -> list[dict[str, Any]]:
        lines = (self.folder / "run" / "records.jsonl").read_text().splitlines()
        return [json.loads(line)["judgement"] for line in lines]

    @property
    def suspects(self) -> set[str]:
        return {f["suspect"] for j in self.judgements for f in j["findings"] if f["level"] == "suspect"}


@contextmanager
def links(lab: Lab, **slow: str) -> Iterator[None]:
    """Every host's link at 200 Mbit/s, those of the hosts named at a rate of their own."""
    with ExitStack() as stack:
        for host in lab.nodes:
            stack.enter_context(link_rate(host, slow.get(host.name, "200mbit")))
        yield


@pytest.mark.full
def test_equal_links_pass_and_nobody_is_named(lab: Lab) -> None:
    with links(lab):
        run = Run(lab, {**LINKS, "pairs": True}, "equal").end()
    assert {j["verdict"] for j in run.judgements} <= {"PASS", "MEASURED"}, run.out
    assert run.suspects == set()


@pytest.mark.parametrize(
    "rate", [pytest.param("100mbit", marks=pytest.mark.full), "40mbit", pytest.param("10mbit", marks=pytest.mark.full)]
)
def test_the_host_with_the_slow_link_is_named(lab: Lab, rate: str) -> None:
    with links(lab, node3=rate):
        run = Run(lab, LINKS, f"slow-{rate}").end()
    busbw = next(j for j in run.judgements if j["quantity"] == "busbw")
    # Other work on this machine makes a FAIL by time UNDECIDED; the link is named all the same.
    loaded = "the machine was loaded" in busbw["reason"]
    assert busbw["verdict"] == ("UNDECIDED" if loaded else "FAIL"), run.out
    assert run.suspects == {"node3"}
    assert "look at node3 (slow link of a node" in run.out


@pytest.mark.full
def test_the_host_with_half_of_its_cores_is_named(lab: Lab) -> None:
    # Two hosts, with a core each.
    with cpu_quota(lab["node2"], 0.5):
        run = Run(lab, {**SWEEP, "synchronization": ["ddp"]}, "half", nodes=2).end()
    assert {suspect.rpartition(" on ")[2] for suspect in run.suspects} == {"node2"}, run.out


@pytest.mark.full
@pytest.mark.parametrize(("on_ms", "off_ms"), [(50, 100), (200, 300)])
def test_the_rank_that_jitters_is_named(lab: Lab, on_ms: float, off_ms: float) -> None:
    run = Run(lab, {**SWEEP, "synchronization": ["ddp"]}, f"jitter-{on_ms}", nodes=2)
    rank = environ(RANK=1)
    wait_until(lambda: run.ended or lab["node2"].processes(rank), seconds=150, what="ranks being there")
    assert not run.ended, run.end().out
    with pulses(lab["node2"], rank, on_ms=on_ms, off_ms=off_ms):
        run.end()
    assert {suspect.rpartition(" on ")[2] for suspect in run.suspects} == {"node2"}, run.out


@pytest.mark.full
def test_a_blocked_pair_is_named(lab: Lab) -> None:
    with blocked_pair(lab["node2"], lab["node4"]):
        run = Run(lab, SWEEP, "blocked").end()
    assert any("node2" in suspect and "node4" in suspect for suspect in run.suspects), run.out
    expect_nothing_left(lab, seconds=30)


@pytest.mark.full
def test_nobody_is_named_in_many_healthy_runs(lab: Lab) -> None:
    accused = {}
    with links(lab):
        for number in range(HEALTHY_RUNS):
            run = Run(lab, {**LINKS, "pairs": True, "synchronization": ["ddp"]}, f"healthy-{number}").end()
            if run.suspects:
                accused[number] = run.out
    assert not accused, "\n".join(accused.values())

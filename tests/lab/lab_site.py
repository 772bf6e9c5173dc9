"""A small project in a lab's shared folder, and pytest runs on it from the login host."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab_host import Command, Host
from lab_hosts import Lab

JOBS = '''
"""Jobs that tell the outside how far they are."""

import time
from pathlib import Path

import torch
import torch.distributed as dist


def collectives(ctx, *, calls, marker):
    """So many all_reduces of 256 KiB, 50 ms apart; the marker appears when they are under way."""
    tensor = torch.ones(65536)
    for call in range(calls):
        dist.all_reduce(tensor)
        tensor.fill_(1.0)
        if call == 5 and ctx.rank == 0:
            Path(marker).touch()
        time.sleep(0.05)
    return calls


def allocate(ctx, *, marker):
    """Take memory, 64 MiB at a time, on the last rank; the others wait for it."""
    held = []
    if ctx.rank == ctx.world_size - 1:
        Path(marker).touch()
        for _ in range(64):
            held.append(torch.ones(16 << 20))
            time.sleep(0.05)
    dist.all_reduce(torch.ones(1))
    return len(held)
'''

TESTS = """
from pathlib import Path

MARKER = str(Path(__file__).with_name("marker"))


def test_before(cluster, qualify):
    cluster.run("jobs:collectives", calls=2, marker=MARKER)
    qualify.samples("calls", [2.0] * 6, unit="1", require=">= 2")


def test_collectives(cluster, qualify):
    done = cluster.run("jobs:collectives", calls=120, marker=MARKER)
    qualify.samples("calls", [float(min(done))] * 6, unit="1", require=">= 120")


def test_for_minutes(cluster, qualify):
    for _ in range(40):
        cluster.run("jobs:collectives", calls=80, marker=MARKER)
    qualify.samples("calls", [1.0] * 6, unit="1", require=">= 1")


def test_memory_of_last_rank(cluster, qualify):
    cluster.run("jobs:allocate", marker=MARKER)
    qualify.samples("calls", [1.0] * 6, unit="1", require=">= 1")


def test_last(cluster, qualify):
    cluster.run("jobs:collectives", calls=7, marker=MARKER + ".job")
    qualify.samples("calls", [7.0] * 6, unit="1", require=">= 7")
    Path(MARKER).touch()  # all is recorded; only the ends of ranks and reports are to come


def test_training(measurement, qualify):
    qualify(measurement)


import pytest

test_training = pytest.mark.criterion("full_run")(test_training)
"""

PROJECT: dict[str, Any] = {
    "version": 1,
    "project": "faults",
    "launcher": {"kind": "ssh", "device": "cpu", "job_timeout": "20 s", "start_timeout": "60 s"},
    "workload": {
        "model": {"layers": 2, "hidden": 128, "heads": 2, "kv_heads": 1, "ffn": 256, "vocab": 256},
        "optimizer": {"name": "adamw", "lr": 3.0e-4}, "precision": "fp32", "sequence_length": 32, "microbatch": 1,
        "global_batch": 4, "steps": 40, "seed": 1,
    },
    "layouts": [{"name": "ddp"}],
    "full_run": {
        "hang_timeout": "20 s",
        "checkpoint": {"every": 2, "mode": "sync"}, "require": [{"checkpoint_blocking": "<= 60 s"}],
        "alone": False, "apart": False,
    },
}  # fmt: skip


@dataclass(frozen=True)
class Ended:
    """A run that has ended."""

    code: int
    out: str
    folder: Path
    seconds: float

    @property
    def records(self) -> list[dict[str, Any]]:
        path = self.folder / "records.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def verdict(self, test: str) -> tuple[str, str]:
        """The verdict of a test and its reason: of what has a requirement, or did not run."""
        found = [
            r["judgement"] for r in self.records
            if r["test"].split("::")[-1].split("[")[0] == test and r["judgement"]["verdict"] != "MEASURED"
        ]  # fmt: skip
        return (found[-1]["verdict"], found[-1]["reason"]) if found else ("none", "")

    def suspects(self, test: str) -> list[str]:
        return [
            finding["suspect"]
            for record in self.records if record["test"].split("::")[-1].split("[")[0] == test
            for finding in record["judgement"]["findings"]
        ]  # fmt: skip


class LabSite:
    """One project on one lab, run again and again, each time with a run folder of its own."""

    def __init__(self, lab: Lab, launcher: str, **launcher_options: Any) -> None:
        self.lab = lab
        self.launcher = launcher
        self.folder = lab.shared / f"site-{launcher}"
        self.folder.mkdir(exist_ok=True)
        self.marker = self.folder / "marker"
        self.checkpoints = self.folder / "checkpoints"
        self._runs = 0
        options = {"kind": launcher, **launcher_options}
        if launcher in ("ssh", "mpi"):
            options["hosts"] = lab.hosts_arg
        self.project = {**PROJECT, "launcher": {**PROJECT["launcher"], **options}}
        (self.folder / "jobs.py").write_text(JOBS)
        (self.folder / "test_faults.py").write_text(TESTS)

    def start(
        self,
        *tests: str,
        nodes: int = 2,
        options: tuple[str, ...] = (),
        full_run: dict[str, Any] | None = None,
        **launcher_options: Any,
    ) -> Running:
        """Start pytest with these tests (by name) on the login host; `full_run` replaces parts of that section."""
        self._runs += 1
        self.marker.unlink(missing_ok=True)
        self.checkpoints.mkdir(exist_ok=True)
        project = {**self.project, "launcher": {**self.project["launcher"], **launcher_options}}
        asked = {**project["full_run"], **(full_run or {})}
        project["full_run"] = {**asked, "checkpoint": {**asked["checkpoint"], "folder": str(self.checkpoints)}}
        (self.folder / "clusterqual.yaml").write_text(json.dumps(project))
        resumed = Path(options[1]) if options[:1] == ("--qual-resume",) else None
        run = resumed or self.folder / f"run-{self._runs}"
        where = () if resumed else ("--qual-run-dir", str(run))
        argv = [
            sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--nodes", str(nodes), "--qual-keep-going",
            *where, *(f"test_faults.py::{test}" for test in tests), *options,
        ]  # fmt: skip
        command = self.lab.login.popen(
            argv, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        return Running(self, command, run)

    def settle(self) -> None:
        """Wait until Slurm has its nodes back after what was done to them."""
        if self.launcher == "slurm":
            states = ["sinfo", "--noheader", "--Node", "--partition", "debug", "--format", "%T"]
            wait_until(
                lambda: set(self.lab.login.run(states).stdout.split()) == {"idle"},
                seconds=120,
                what="all nodes being idle",
            )

    def resume(self, folder: Path, *tests: str, timeout: float = 120) -> Ended:
        """Go on with a run of this site."""
        with self.start(*tests, options=("--qual-resume", str(folder))) as running:
            return running.end(timeout)

    def run(self, *tests: str, timeout: float = 120, **options: Any) -> Ended:
        """The same, to its end."""
        with self.start(*tests, **options) as running:
            return running.end(timeout)


class Running:
    """A run under way. Leaving the block kills what is left of it."""

    def __init__(self, site: LabSite, command: Command, folder: Path) -> None:
        self.site = site
        self.command = command
        self.folder = folder
        self._began = time.monotonic()

    def read_until(self, words: str) -> None:
        """Wait until it has printed these words, or fail at its end; `end` tells what it prints after them."""
        assert self.command.stdout is not None
        said = ""
        while words not in said:
            said += (one := self.command.stdout.read(1))
            assert one, said

    def end(self, timeout: float) -> Ended:
        """Wait for the end; longer than `timeout` seconds is a failure of the test."""
        out, _ = self.command.communicate(timeout=timeout)
        return Ended(self.command.returncode, out, self.folder, time.monotonic() - self._began)

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        if self.command.poll() is None:
            self.command.kill()
        self.command.wait()
        assert self.command.stdout is not None
        self.command.stdout.close()


def wait_until(happened: Any, *, seconds: float, what: str) -> None:
    """Look every 20 ms."""
    deadline = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not happen within {seconds} s")
        time.sleep(0.02)


def expect_nothing_left(lab: Lab, *, seconds: float) -> None:
    """Within `seconds` no process of the product is left on any living host."""

    def empty(host: Host) -> bool:
        return not [p for p in host.processes() if "clusterqual" in " ".join(p.argv) or "RANK" in p.environ]

    for host in lab.nodes:
        if host.alive:
            wait_until(lambda host=host: empty(host), seconds=seconds, what=f"{host.name} being empty")


@contextmanager
def nothing_left(lab: Lab, *, seconds: float) -> Iterator[None]:
    """The same after the block."""
    yield
    expect_nothing_left(lab, seconds=seconds)

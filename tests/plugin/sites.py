"""A small project in a folder of its own, and pytest runs on it as a user would start them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SUITE = Path(__file__).parents[2] / "qualification"

# Small enough to be measured in seconds, with demands that hold on any machine.
SMALL: dict[str, Any] = {
    "version": 1,
    "project": "small",
    "launcher": {"kind": "local", "device": "cpu", "oversubscribe": True},
    "workload": {
        "model": {"layers": 1, "hidden": 32, "heads": 2, "kv_heads": 1, "ffn": 64, "vocab": 256},
        "optimizer": {"name": "adamw", "lr": 3.0e-4}, "precision": "fp32", "sequence_length": 32, "microbatch": 1,
        "global_batch": 4, "steps": 6, "seed": 1,
    },
    "layouts": [{"name": "ddp"}],
    "memory": {"require": [{"peak": "<= 1 GiB"}]},
    "fabric": {
        "collectives": ["all_reduce", "send_recv"], "groups": ["intra_node", "world"],
        "sizes": {"from": "4 KiB", "to": "64 KiB", "factor": 4},
        "require": [{"collective": "all_reduce", "busbw": ">= 1 B/s"},
                    {"collective": "send_recv", "latency": "<= 100 s"}],
    },
    "scaling": {"points": [1, 2], "repeats": 6, "warmup_steps": 1, "budget": "40 s",
                "require": [{"nodes": 2, "speedup": ">= 0.001"}]},
    "full_run": {
        "steps": 10, "checkpoint": {"every": 3, "mode": "sync"}, "failure": {"kill_rank": 1, "at_step": 5},
        "alone": False, "apart": False,  # test_run.py asks for both
        "require": [{"recovery": "<= 300 s"}],
    },
}  # fmt: skip


@dataclass
class Run:
    """One pytest run that has ended."""

    code: int
    out: str
    folder: Path

    @property
    def records(self) -> list[dict[str, Any]]:
        """The lines; what only the first one of a measurement says of its nodes is in all of them."""
        told = [json.loads(line) for line in (self.folder / "records.jsonl").read_text().splitlines()]
        first: dict[str, dict[str, Any]] = {}
        for record in told:
            if record["measurement"] and record["conditions"]:
                record["conditions"] = {**first.setdefault(record["measurement"], record["conditions"]),
                                        **record["conditions"]}  # fmt: skip
        return told

    def verdicts(self, criterion: str) -> list[str]:
        return [r["judgement"]["verdict"] for r in self.records if r["criterion"] == criterion]


@dataclass
class Site:
    """A folder with qualification tests and a project file. `into` is how its runs use the run folder."""

    path: Path
    into: str = "--qual-run-dir"
    environment: dict[str, str] = field(default_factory=dict)

    def configure(self, changes: dict[str, Any] | None = None) -> None:
        """Write the small project file with some sections replaced; None removes a section."""
        import yaml

        project = {**SMALL, **(changes or {})}
        text = yaml.safe_dump({key: value for key, value in project.items() if value is not None})
        (self.path / "clusterqual.yaml").write_text(text)

    def start(self, *args: str, nodes: int | None = 2) -> subprocess.Popen[str]:
        """Start pytest in this folder; a `--nodes` among `args` comes last and wins."""
        first = () if nodes is None else (f"--nodes={nodes}",)
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "CLUSTERQUAL_", "COV_"))}
        return subprocess.Popen(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", self.into, "run", *first, *args],
            cwd=self.path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**environment, **self.environment}, start_new_session=True,
        )  # fmt: skip

    def run(self, *args: str, nodes: int | None = 2, timeout: float = 240) -> Run:
        process = self.start(*args, nodes=nodes)
        try:
            out, _ = process.communicate(timeout=timeout)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        return Run(code=process.returncode, out=out, folder=self.path / "run")


def make_site(path: Path) -> Site:
    """The suite that sites run, with the small project file, ready for `Site.run`."""
    for criterion in ("memory", "fabric", "scaling", "full_run"):
        shutil.copy(SUITE / f"test_{criterion}.py", path)
    made = Site(path)
    made.configure()
    return made


def left_over(folder: Path) -> list[str]:
    """Processes that were started by a run in `folder`: its ranks find their modules there."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if b"CLUSTERQUAL_LAUNCH=" in (entry / "environ").read_bytes() and (entry / "cwd").readlink() == folder:
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
    return found


def nothing_left(folder: Path, within: float = 60.0) -> bool:
    """Wait up to `within` seconds until no process of a run in `folder` is left."""
    deadline = time.monotonic() + within
    while left_over(folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not left_over(folder)


def until(condition: Any, within: float = 120.0) -> bool:
    """Wait until `condition()` holds; False if it never does."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True

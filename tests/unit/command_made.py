"""Runs of a command as their processes leave them behind: what is written beside each rank, and by its probe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pytest_clusterqual.model.codec import to_json
from pytest_clusterqual.model.command import BESIDE, OUTPUT, OWN, PROBES, CommandJob, RankEnd, RankStart
from pytest_clusterqual.model.probe import ProbeStart
from pytest_clusterqual.model.topology import RankPlace
from pytest_clusterqual.session.command_launch import CommandRun
from pytest_clusterqual.session.command_trouble import processes_of

JOB = CommandJob(name="own", words=("train.py",), folder="/job")
GIB = 1024**3


def made_folder(path: Path) -> Path:
    for name in (BESIDE, OUTPUT, OWN, PROBES):
        (path / name).mkdir(parents=True)
    return path


def begins(folder: Path, rank: int, *, attempt: int = 0, **more: Any) -> None:
    usual: dict[str, Any] = {
        "local_rank": 0, "world": 2, "node": f"node{rank}", "host": "vm", "pid": 100 + rank, "device": "cpu",
        "cores": (rank,), "versions": {"python": "3.11"}, "script": "aa", "machine_memory": 8 * GIB,
        "group_memory": None, "group": "", "began": 1.0,
    }  # fmt: skip
    start = RankStart(rank=rank, attempt=attempt, **{**usual, **more})
    (folder / BESIDE / f"rank{rank}-attempt{attempt}.start.json").write_text(json.dumps(to_json(start)))


def ends(folder: Path, rank: int, code: int = 0, said: str = "", *, attempt: int = 0, **more: Any) -> None:
    usual: dict[str, Any] = {
        "ended": 9.0, "out_of_memory": False, "host_peak": GIB, "probed": 0, "taken": (0.0, 8.0),
    }  # fmt: skip
    end = RankEnd(code=code, said=said, **{**usual, **more})
    (folder / BESIDE / f"rank{rank}-attempt{attempt}.end.json").write_text(json.dumps(to_json(end)))


def probes(folder: Path, rank: int, *lines: dict[str, Any], attempt: int = 0, world: int = 2) -> None:
    start = ProbeStart(
        probe=1, rank=rank, world=world, attempt=attempt, restart=attempt, host="vm", clock="vm", pid=1, began=1.0,
        at=1.5, wall=1_796_000_001.5,
    )  # fmt: skip
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in (to_json(start), *lines))
    (folder / PROBES / f"rank{rank}-attempt{attempt}.jsonl").write_text(text)


def step(number: int, **more: Any) -> dict[str, Any]:
    return {"what": "step", "at": 1.0 + number, "seconds": 0.5, "step": number, **more}


def left_behind(folder: Path, ranks: int = 2) -> CommandRun:
    processes = processes_of(folder)
    places = tuple(
        RankPlace(
            rank=rank, local_rank=0, node=f"node{rank}", host="vm", pid=1, device="cpu", device_name="cpu",
            backend="backend not known", cores=(rank,), versions={},
        )
        for rank in range(ranks)
    )  # fmt: skip
    return CommandRun(folder=folder, processes=processes, places=places, began={}, ended={}, samples={})

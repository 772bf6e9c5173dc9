"""Runs of one memory test that were held against a good run, recorded as a run records itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from made import MIB, memory_measurement
from recorded_made import PROJECT, TEST

from pytest_clusterqual.folder.runs import RunFolder
from pytest_clusterqual.model.codec import to_json
from pytest_clusterqual.model.memory import MemoryMeasurement
from pytest_clusterqual.model.project import Project
from pytest_clusterqual.read.project import recorded_project
from pytest_clusterqual.recorded.baseline import with_baseline
from pytest_clusterqual.recorded.judging import judge_again


def peaking(mib: int, **under: Any) -> MemoryMeasurement:
    """A measurement whose highest peak is so high, under other conditions than usual."""
    made = memory_measurement()
    ranks = tuple(replace(rank, step_peaks=(mib * MIB, mib * MIB)) for rank in made.ranks)
    return replace(made, ranks=ranks, conditions=replace(made.conditions, **under))


def own() -> Project:
    """What the file alone demands: a peak of 1 GiB at most."""
    return recorded_project(PROJECT, name="clusterqual.yaml", nodes=2, nproc_per_node=1)


def run(
    path: Path, measurement: MemoryMeasurement, *, project: Project | None = None, tests: Sequence[str] = (TEST,)
) -> RunFolder:
    """A run named as its folder, judged by `project`, else by the file alone."""
    project = project or own()
    environment = {
        "project": "small", "project_file": PROJECT, "nodes": 2, "nproc_per_node": 1,
        "baseline": to_json(project.baseline),
    }  # fmt: skip
    folder = RunFolder.create(path, run=path.name, environment=environment, simulated=True)
    for test in tests:
        folder.add_measurement("memory", test, measurement)
    for record in judge_again(folder, project):
        folder.add_record(record)
    return RunFolder.open(path)


def good(path: Path, mib: int = 400, *, tests: Sequence[str] = (TEST,), **under: Any) -> Project:
    """The file's demands, and those of a good run with this peak."""
    folder = run(path, peaking(mib, **under), tests=tests)
    return with_baseline(own(), folder.path, tolerance=0.05)

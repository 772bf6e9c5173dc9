"""`clusterqual merge`: parts of one qualification that ran apart, such as jobs of a CI pipeline, as one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pytest_clusterqual.errors import RunFolderError
from pytest_clusterqual.runs import RunFolder

# What must be the same in all parts, else their verdicts are not about one thing.
_SAME = ("project_file", "nodes", "nproc_per_node", "simulated", "launcher", "device", "device_name", "versions")


def merge(shards: Sequence[Path], out: Path) -> RunFolder:
    """Make one run folder of several, each test from the one that has it.

    Raises:
        RunFolderError: they are parts of different runs, two of them have the same test, or one cannot be read.
    """
    parts = [RunFolder.open(path) for path in shards]
    for other in parts[1:]:
        _refuse_other(parts[0], other)
    _refuse_twice(parts)
    first = parts[0]
    environment = {**first.environment, "merged": [part.run for part in parts]}
    for part in parts:  # a part without a measurement has not met its machine
        environment = {**part.environment, **environment}
    folder = RunFolder.create(out, run=out.resolve().name, environment=environment, simulated=first.simulated)
    for part in parts:
        folder.select(part.tests)
        names = {
            name: folder.add_measurement(criterion, test, measurement)
            for name, (test, criterion, measurement) in part.measurements().items()
        }
        for record in part.records():
            measured = names.get(record.measurement or "")
            folder.add_record(replace(record, run=folder.run, measurement=measured, attempt=1))
    return folder


def _refuse_other(first: RunFolder, other: RunFolder) -> None:
    for key in _SAME:
        one, two = first.environment.get(key), other.environment.get(key)
        if one != two and None not in (one, two):
            what = "another text" if key == "project_file" else f"{one} in {first.path}, {two} in {other.path}"
            raise RunFolderError(f"{other.path}: is no part of the same qualification: {key}: {what}")


def _refuse_twice(parts: Sequence[RunFolder]) -> None:
    whose: dict[str, RunFolder] = {}
    for part in parts:
        for test in dict.fromkeys(record.test for record in part.records()):
            if test in whose:
                raise RunFolderError(
                    f"{part.path}: has {test}, which {whose[test].path} has too: leave one of them out"
                )
            whose[test] = part

"""A known good run as requirements: printed for a project file, or demanded of a run beside what the file demands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from pytest_clusterqual.judge.baseline import baseline_requirements
from pytest_clusterqual.model.project import Project
from pytest_clusterqual.model.requirement import Requirement
from pytest_clusterqual.runs import RunFolder

# Selectors of `Requirement` by the keys of a project file.
_KEYS = {"layout": "layout", "nodes": "nodes", "collective": "collective", "group": "group"}
_CRITERIA = ("memory", "fabric", "scaling", "full_run")


def requirements_of(path: Path, *, tolerance: float) -> list[Requirement]:
    """What the run in `path` demands of a later one.

    Raises:
        RunFolderError: there is no such run.
        MeasurementError: it did not pass.
    """
    folder = RunFolder.open(path)
    return baseline_requirements(folder.records(), tolerance=tolerance, run=folder.run)


def with_baseline(project: Project, path: Path, *, tolerance: float) -> Project:
    """The project with the demands of a known good run beside its own, in every section that it has."""
    required = requirements_of(path, tolerance=tolerance)
    changed = {}
    for criterion in _CRITERIA:
        plan = getattr(project, criterion)
        more = tuple(each for each in required if each.criterion == criterion)
        if plan is not None and more:
            changed[criterion] = replace(plan, require=plan.require + more)
    return replace(project, **changed)


def as_yaml(required: Sequence[Requirement], *, run: str, tolerance: float) -> str:
    """Entries for the `require` lists of a project file, with what each rests on."""
    lines = [f"# No worse than run {run} by more than {tolerance:.3g} of it; put the entries into your own sections."]
    for criterion, entries in groupby(sorted(required, key=_place), key=lambda each: each.criterion):
        lines += [f"{criterion}:", "  require:", *map(_entry, entries)]
    return "\n".join(lines) + "\n"


def _place(required: Requirement) -> int:
    return _CRITERIA.index(required.criterion)


def _entry(required: Requirement) -> str:
    return f"    - {{{', '.join(_pairs(required))}}}  # {required.source}"


def _pairs(required: Requirement) -> Iterator[str]:
    for name, key in _KEYS.items():
        if (value := getattr(required, name)) is not None:
            yield f"{key}: {value}"
    for name, key in (("from_bytes", "from"), ("to_bytes", "to")):
        if (size := getattr(required, name)) is not None:
            yield f"{key}: {size:.0f} B"
    yield f'{required.quantity}: "{required.text}"'

"""A known good run as requirements: printed for a project file, or demanded of a run beside what the file demands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from pytest_clusterqual import units
from pytest_clusterqual.folder.lines import strictly
from pytest_clusterqual.folder.places import ENVIRONMENT
from pytest_clusterqual.folder.runs import RunFolder, Selected
from pytest_clusterqual.judge.baseline import baseline_of, baseline_requirements
from pytest_clusterqual.model.baseline import Baseline, short_name
from pytest_clusterqual.model.project import Project
from pytest_clusterqual.model.requirement import QUANTITIES, Requirement

# Selectors of `Requirement` by the keys of a project file.
_KEYS = {"layout": "layout", "nodes": "nodes", "collective": "collective", "group": "group"}
_CRITERIA = ("memory", "fabric", "scaling", "full_run")
_SHORT = 0.002  # of a size: less than what lies between its bound and the sizes of its label
_LISTED = 5  # tests that are named, before the others are counted


def requirements_of(path: Path, *, tolerance: float) -> list[Requirement]:
    """What the run in `path` demands of a later one.

    Raises:
        RunFolderError: there is no such run.
        MeasurementError: it did not pass.
    """
    folder = RunFolder.open(path)
    return baseline_requirements(folder.records(), tolerance=tolerance, run=folder.run)


def with_baseline(project: Project, path: Path, *, tolerance: float) -> Project:
    """The project with the demands of the known good run in `path` beside its own.

    Raises:
        RunFolderError: there is no such run.
        MeasurementError: it did not pass.
    """
    folder = RunFolder.open(path)
    return replace(project, baseline=baseline_of(folder.records(), tolerance=tolerance, run=folder.run))


def recorded_baseline(folder: RunFolder) -> Baseline | None:
    """What a recorded run was held against beside its project file; None: nothing.

    Raises:
        RunFolderError: ``environment.json`` says something else.
    """
    told = folder.environment.get("baseline")
    return None if told is None else strictly(Baseline, told, f"{folder.path / ENVIRONMENT}: baseline")


def baseline_lines(baseline: Baseline, tests: Mapping[str, Selected]) -> Iterator[str]:
    """Lines about which `tests` of a run the baseline is for, and which of either the other does not have."""
    run = dict.fromkeys(
        short_name(test)
        for test, selected in tests.items()
        if selected.criterion in QUANTITIES and not selected.inapplicable
    )
    known = dict.fromkeys(short_name(each.test) for each in baseline.tests)
    held = sum(test in known for test in run)
    yield f"baseline {baseline}: {held} of {len(run)} tests are held against it"
    if others := [test for test in run if test not in known]:
        yield f"not in the baseline, and held against the project file alone: {_names(others)}"
    if gone := [test for test in known if test not in run]:
        yield f"in the baseline, and not in this run: {_names(gone)}"


def _names(tests: Sequence[str]) -> str:
    return units.show_some([test.rpartition("::")[2] for test in tests], _LISTED)


def as_yaml(required: Sequence[Requirement], *, run: str, tolerance: float) -> str:
    """Entries for the `require` lists of a project file, with what each rests on."""
    share = units.show_share(tolerance)
    lines = [f"# No worse than run {run} by more than {share}; put the entries into your own sections."]
    for criterion, entries in groupby(sorted(required, key=_place), key=lambda each: each.criterion):
        lines += [f"{criterion}:", "  require:", *map(_entry, entries)]
    return "\n".join(lines) + "\n"


def _place(required: Requirement) -> int:
    return _CRITERIA.index(required.criterion)


def _entry(required: Requirement) -> str:
    return f"    - {{{', '.join(_pairs(required))}}}  # {required.source}"


def _readable(size: float) -> str:
    """With three digits where that selects the same: labels, by which sizes are told apart, have as many."""
    unit = units.show(size, units.BYTES).partition(" ")[2]
    number = size / units.parse(f"1 {unit}", units.BYTES)
    short = float(f"{number:.3g}")
    return f"{short if abs(short / number - 1) < _SHORT else number:.4g} {unit}"


def _pairs(required: Requirement) -> Iterator[str]:
    for name, key in _KEYS.items():
        if (value := getattr(required, name)) is not None:
            yield f"{key}: {value}"
    for name, key in (("from_bytes", "from"), ("to_bytes", "to")):
        if (size := getattr(required, name)) is not None:
            yield f"{key}: {_readable(size)}"
    yield f'{required.quantity}: "{required.text}"'

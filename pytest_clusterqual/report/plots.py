"""The plots of a run: SVG files made of its records and measurements, for the eyes only. No verdict depends on them."""

from __future__ import annotations

import itertools
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from pytest_clusterqual.errors import UNFORESEEN
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.fabric import FabricMeasurement, PairsMeasurement
from pytest_clusterqual.model.measurement import Measurement
from pytest_clusterqual.model.record import Record, Verdict, by_test
from pytest_clusterqual.report import text
from pytest_clusterqual.report.digest import severity
from pytest_clusterqual.report.plot_ledger import ledger
from pytest_clusterqual.report.plot_links import links
from pytest_clusterqual.report.plot_memory import memory
from pytest_clusterqual.report.plot_speedup import speedup
from pytest_clusterqual.report.plot_steps import steps
from pytest_clusterqual.report.plot_style import Picture, svg
from pytest_clusterqual.report.plot_sweep import sweep
from pytest_clusterqual.report.plot_timeline import timeline
from pytest_clusterqual.report.plot_waits import waits
from pytest_clusterqual.report.plot_waterfall import waterfall

BUDGET = 10.0  # seconds; nobody is kept waiting for the pictures of hundreds of tests, the worst of which come first
Measurements = Mapping[str, tuple[str, str, Measurement]]  # id -> test, criterion, samples


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
    """A picture that was drawn: `svg` is the text of ``<name>.svg``."""

    name: str
    criterion: str
    picture: Picture
    svg: str


def write_plots(
    records: Sequence[Record], measurements: Measurements, folder: Path, *, budget: float = math.inf
) -> tuple[list[Plot], str]:
    """Write what can be drawn into `folder`, in the place of the plots that are there; the worst tests first.

    `measurements` are as the run folder gives them; of each test its own is looked up once, and only where a plot needs
    it: it may be large. No plot is begun after `budget` seconds.

    Returns:
        What was written, and what is missing, empty if nothing is. Nothing is raised: a plot that fails
        must not take a record or the exit status with it.
    """
    written, problems, end = [], [], time.monotonic() + budget
    for name, criterion, make in _pictures(records, measurements):
        path = folder / f"{name}.svg"
        try:
            path.unlink(missing_ok=True)  # an old one would speak of other records
            if time.monotonic() >= end:
                raise TimeoutError(f"not drawn within {budget:g} s; `clusterqual report --all-plots` draws all")
            if picture := make():
                plot = Plot(name=name, criterion=criterion, picture=picture, svg=svg(picture))
                folder.mkdir(exist_ok=True)
                path.write_text(plot.svg, encoding="utf-8")
                written.append(plot)
        except UNFORESEEN as error:
            problems.append(f"{path.name}: {type(error).__name__}: {text.visible(str(error))}")
    more = f" (+{len(problems) - 1} more)" if len(problems) > 1 else ""
    return written, f"a plot is missing: {problems[0]}{more}" if problems else ""


def _pictures(
    records: Sequence[Record], measurements: Measurements
) -> Iterator[tuple[str, str, Callable[[], Picture | None]]]:
    """File name, criterion and what makes the picture, which may turn out to be none, of every test."""
    tests = by_test(record for record in records if record.criterion in _OF_CRITERION)
    # Criteria have plots of different kinds, so that their tests may have the same case.
    names: dict[str, str] = {}
    for criterion in _OF_CRITERION:
        names |= _file_names(test for test, group in tests.items() if group[0].criterion == criterion)
    for curve, group in _by_layout(records).items():
        yield curve, "scaling", partial(speedup, group)
    for test, group in sorted(tests.items(), key=lambda item: min(severity(r.judgement) for r in item[1])):
        for kind, make in _OF_CRITERION[group[0].criterion](group, cache(partial(_measured, group, measurements))):
            yield f"{names[test]}-{kind}", group[0].criterion, make


Samples = Callable[[], Measurement | None]
Makers = Iterator[tuple[str, Callable[[], Picture | None]]]


def _measured(group: Sequence[Record], measurements: Measurements) -> Measurement | None:
    *_, measured = measurements.get(group[0].measurement or "", (None,))
    return measured


def _of_memory(group: Sequence[Record], samples: Samples) -> Makers:
    yield "memory", lambda: memory(group, samples())


def _of_fabric(group: Sequence[Record], samples: Samples) -> Makers:
    yield "sizes", lambda: sweep(group, _members(group[0].conditions, samples))
    yield "waits", partial(waits, group)
    if _asks_pairs(group):
        yield "links", lambda: _links(group, samples())


def _of_scaling(group: Sequence[Record], samples: Samples) -> Makers:
    yield "lost-time", partial(waterfall, group)
    yield "steps", lambda: steps(group, samples())


def _of_full_run(group: Sequence[Record], samples: Samples) -> Makers:
    yield "timeline", lambda: timeline(group, samples())
    yield "ledger", partial(ledger, group)


_OF_CRITERION: dict[str, Callable[[Sequence[Record], Samples], Makers]] = {
    "memory": _of_memory,
    "fabric": _of_fabric,
    "scaling": _of_scaling,
    "full_run": _of_full_run,
}


def _by_layout(records: Sequence[Record]) -> dict[str, list[Record]]:
    """File name of a curve -> the records of all points of one layout on one rank map."""
    curves: dict[str, list[Record]] = {}
    for record in records:
        if record.criterion == "scaling" and record.conditions is not None:
            at = record.conditions
            curves.setdefault("-".join(filter(None, (at.layout, at.rank_map))), []).append(record)
    names = _file_names(f"[speedup-{curve}]" for curve in curves)
    return dict(zip(names.values(), curves.values(), strict=True))


def _members(at: Conditions | None, samples: Samples) -> int | None:
    """The number of ranks of a group; None where it is not known, or differs from group to group."""
    if at is None:
        return None
    kinds = {"world": at.ranks, "inter_node": at.nodes, "rails": at.nodes, "intra_node": at.nproc_per_node}
    if at.group in kinds:
        return kinds[at.group]
    measured = samples()
    sizes = {len(group) for group in measured.groups} if isinstance(measured, FabricMeasurement) else set()
    return sizes.pop() if len(sizes) == 1 else None


def _asks_pairs(group: Sequence[Record]) -> bool:
    """True of the test of all pairs, and of a sweep that has asked them because it missed a rate."""
    judged = [record.judgement for record in group]
    return any(j.quantity == "pair_busbw" or j.verdict in (Verdict.FAIL, Verdict.UNDECIDED) for j in judged)


def _links(group: Sequence[Record], measured: Measurement | None) -> Picture | None:
    return links(group[0].test, measured) if isinstance(measured, (FabricMeasurement, PairsMeasurement)) else None


def _file_names(tests: Iterable[str]) -> dict[str, str]:
    """The case of each test in letters that any file system takes, and that no other test has."""
    names: dict[str, str] = {}
    for test in tests:
        plain = re.sub(r"[^A-Za-z0-9._-]+", "_", text.case_of(test)).strip("._-")[:80] or "test"
        taken = {name.lower() for name in names.values()}
        numbered = (f"{plain}-{number}" for number in itertools.count(2))
        names[test] = next(name for name in itertools.chain([plain], numbered) if name.lower() not in taken)
    return names

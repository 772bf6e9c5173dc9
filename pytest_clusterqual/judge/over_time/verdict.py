"""A run over time: what changes in it, what comes again, and who holds up the others."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pytest_clusterqual.judge.full_run.frontier import Course
from pytest_clusterqual.judge.over_time.changes import LEAST, changes
from pytest_clusterqual.judge.over_time.drift import deviation, drift_interval, slope
from pytest_clusterqual.judge.over_time.levels import FEWEST, Levels, levels
from pytest_clusterqual.judge.over_time.per_work import logs_per_work
from pytest_clusterqual.judge.over_time.slow_ranks import slow_ranks
from pytest_clusterqual.judge.over_time.stalls import stalls
from pytest_clusterqual.judge.over_time.suspects import Suspects
from pytest_clusterqual.model.over_time import OverTime
from pytest_clusterqual.model.record import Finding, Interval
from pytest_clusterqual.model.telemetry import NodeTelemetry

if TYPE_CHECKING:
    from pytest_clusterqual.judge.full_run.columns import Floats

_DRIFTS = 4.0  # standard deviations of a straight line through noise


def over_time(course: Course, telemetry: Sequence[NodeTelemetry] = ()) -> OverTime:
    """Drift, changes, stalls and slow ranks; `telemetry` is what the nodes told of themselves meanwhile.

    Where the steps are too few or their work is not known it says so, and nothing else.
    """
    count = len(course.numbers)
    if count == 0:
        return OverTime(steps=0, untold=("anything over time: no step was kept by all ranks once warm",))
    suspects = Suspects(course, telemetry)
    increments = dict(zip(course.stages, course.increments.mean(axis=1).tolist(), strict=True))
    stages = increments if len(course.ranks) > 1 else {}
    late = tuple(suspects.slow(slow_ranks(course)))
    too_few = f"{count} steps are too few, want {FEWEST} or more"
    logs = too_few if count < FEWEST else logs_per_work(course.work, course.seconds)
    if isinstance(logs, str):
        return OverTime(
            steps=count, stages=stages, findings=late, untold=(f"{logs}: nothing is said of drift, changes and stalls",)
        )
    told = levels(logs)
    regular = tuple(_regular(course, logs, told, suspects))
    if told.wanders:
        why = "the step time wanders so slowly that this run is too short: nothing is said of drift and changes"
        return OverTime(steps=count, stages=stages, findings=(*regular, *late), untold=(why,))
    drift, interval = math.expm1(slope(told)), drift_interval(told)
    return OverTime(
        steps=count, drift=drift, interval=interval, stages=stages,
        findings=(*_changed(logs, told, drift, interval, suspects), *regular, *late),
    )  # fmt: skip


def _changed(logs: Floats, told: Levels, drift: float, interval: Interval, suspects: Suspects) -> Iterator[Finding]:
    found = changes(logs, told)
    yield from map(suspects.change, found)
    sure = abs(math.log1p(drift)) > _DRIFTS * told.doubt * deviation(told) and not interval.low <= 0 <= interval.high
    if not found and sure and abs(drift) >= LEAST:
        yield suspects.drift(drift, interval)


def _regular(course: Course, logs: Floats, told: Levels, suspects: Suspects) -> Iterator[Finding]:
    import numpy as np

    lengths = np.diff([*told.first, len(logs)])
    found = stalls(logs, np.repeat(told.level, lengths), course.numbers, course.at)
    if found is not None:
        yield suspects.stall(found)

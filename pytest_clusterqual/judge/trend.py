"""What has changed over several runs of the same tests, judged by how much runs differ without a change.

One launch is not like another, and samples of one run do not show that. Here a run is one sample: its value of a
figure. A figure has changed where one stretch of runs, or a straight line, explains more of the scatter between the
runs than chance would. Of independent normal noise the share that one fixed shape explains is distributed as
Beta(1/2, (n - 2) / 2) for n runs; it is counted for every shape that was tried and for every figure, which is on the
safe side.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.comparison import LEVEL, by_figure, differences, hosts_of, requirable
from pytest_clusterqual.model.comparison import ChangePoint, History, Refused, Trend, Trends
from pytest_clusterqual.model.record import Interval, Judgement, Record, Verdict, verdicts
from pytest_clusterqual.model.requirement import small_is_good

if TYPE_CHECKING:
    import numpy as np

    Floats = np.ndarray[Any, np.dtype[np.float64]]

FEWEST = 5  # runs: with fewer the scatter between them is hardly known
LEAST = 1e-3  # a smaller change is none, even of a figure that repeats to the byte
_ROUNDS = 3  # of looking for a stretch in what is left: six changes at most, more are unrest
_ORDER = {"worse": 0, "better": 1, "open": 2, "alike": 3}
_Tests = Mapping[str, Sequence[Record]]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shape:
    """The stretch of places from `begin` to before `end`, or a straight line where they are None."""

    share: float
    begin: int | None = None
    end: int | None = None


def trends(runs: Sequence[Sequence[Record]]) -> Trends:
    """`runs` are the records of each; every one is compared with the oldest.

    Raises:
        MeasurementError: they have no figure in common.
    """
    ordered = sorted(runs, key=_started)
    tests = [requirable(records) for records in ordered]
    refused = [each for later in tests[1:] for each in _refused(tests[0], later)]
    others = {each.test for each in refused}
    found = [trend for test in tests[0] if test not in others for trend in _of_test(test, tests)]
    if not found:
        raise MeasurementError("the runs have no figure in common: give runs of the same tests on the same machine")
    names = [records[0].run for records in ordered]
    told = [verdicts(records) for records in ordered]
    judged = [_judged(trend, names, len(found)) for trend in found]
    return Trends(
        runs=tuple(names),
        started=tuple(map(_started, ordered)),
        trends=tuple(sorted(judged, key=lambda each: (_ORDER[each.change], -bool(each.points or each.drift)))),
        histories=tuple(_histories(ordered, told, judged, others)),
        refused=tuple(refused),
        gone=tuple(test for test in told[0] if test not in told[-1]),
        come=tuple(dict.fromkeys(test for each in told[1:] for test in each if test not in told[0])),
    )


def _started(records: Sequence[Record]) -> float:
    return min(record.started for record in records)


def _refused(first: _Tests, later: _Tests) -> Iterator[Refused]:
    for test in first:
        if test in later:
            yield from differences(test, first[test], later[test])


def _of_test(test: str, tests: Sequence[_Tests]) -> Iterator[Trend]:
    per_run = [by_figure(run[test]) if test in run else {} for run in tests]
    for key, told in per_run[0].items():
        those = {at: run[key] for at, run in enumerate(per_run) if key in run and _usable(run[key], told.unit)}
        if len(those) < 2:
            continue
        intervals = [each.interval for each in those.values()]
        values = tuple(float(each.value or 0.0) for each in those.values())
        yield Trend(
            test=test, criterion=tests[0][test][0].criterion, quantity=told.quantity, label=told.label, unit=told.unit,
            at=tuple(those), values=values,
            lows=tuple(i.low if i else value for i, value in zip(intervals, values, strict=True)),
            highs=tuple(i.high if i else value for i, value in zip(intervals, values, strict=True)),
            chance=None, points=(), drift=None, change="open",
        )  # fmt: skip


def _usable(judgement: Judgement, unit: str) -> bool:
    return judgement.unit == unit and judgement.value is not None and math.isfinite(judgement.value)


def _judged(trend: Trend, names: Sequence[str], figures: int) -> Trend:
    """`figures` were looked at, this one among them."""
    import numpy as np

    if len(trend.values) < FEWEST or min(trend.values) <= 0:  # a ratio to zero is no ratio
        same = len(trend.values) >= FEWEST and len(set(trend.values)) == 1
        return replace(trend, chance=1.0, change="alike") if same else trend
    logs = np.log(trend.values)
    best = _best(logs, [0, len(logs)], line=True)
    chance = min(_chance(best.share, len(logs), used=1) * figures, 1.0)
    told = replace(trend, chance=chance, change="alike")
    if chance >= LEVEL:
        return told
    if best.begin is None:
        rise, reach = _rise(logs), 0.0
        told = replace(told, drift=math.exp(rise) if abs(rise) >= math.log1p(LEAST) else None)
    else:
        edges = _edges(logs, figures)
        points = tuple(_points(logs, edges, [names[at] for at in trend.at]))
        told = replace(told, points=points if any(_large(point.ratio) for point in points) else ())
        ends = ((edges[0], edges[1]), (edges[-2], edges[-1]))
        rise, reach = _apart(logs, edges, *ends)
    if abs(rise) <= max(reach, math.log1p(LEAST)):
        return told
    return replace(told, change="better" if (rise < 0) == small_is_good(trend.quantity, trend.unit) else "worse")


def _large(ratio: float) -> bool:
    return abs(math.log(ratio)) >= math.log1p(LEAST)


def _edges(logs: Floats, figures: int) -> list[int]:
    """The places where levels begin, 0 and the end among them."""
    edges = [0, len(logs)]
    for _ in range(_ROUNDS):
        best = _best(logs, edges, line=False)
        if best.begin is None or _chance(best.share, len(logs), used=len(edges) - 1) * figures >= LEVEL:
            break
        edges = sorted({*edges, best.begin, best.end or len(logs)})
    return edges


def _best(logs: Floats, edges: Sequence[int], *, line: bool) -> _Shape:
    """What explains most of what the levels between the `edges` leave."""
    import numpy as np

    rest = logs - np.repeat(_levels(logs, edges), np.diff(edges))
    whole = float(rest @ rest)
    if whole <= 1e-18 * max(float(logs @ logs), 1.0):  # rounding, nothing else
        return _Shape(share=0.0)
    count = len(rest)
    sums = np.concatenate([[0.0], np.cumsum(rest)])
    begin, end = np.triu_indices(count + 1, k=1)
    keep = begin > 0  # a stretch from the start on is the rest of one that lasts until the end
    begin, end = begin[keep], end[keep]
    width = end - begin
    shares = (sums[end] - sums[begin] - sums[-1] * width / count) ** 2 * count / (width * (count - width)) / whole
    at = int(np.argmax(shares))
    found = _Shape(share=min(float(shares[at]), 1.0), begin=int(begin[at]), end=int(end[at]))
    if not line:
        return found
    places = np.arange(count) - (count - 1) / 2
    straight = float(places @ rest) ** 2 / float(places @ places) / whole
    return _Shape(share=min(straight, 1.0)) if straight > found.share else found


def _chance(share: float, count: int, *, used: int) -> float:
    """How often the best of all shapes explains as much of noise, `used` levels having been fitted to it before."""
    from scipy.special import betaincc  # on first use: few commands compare

    shapes = count * (count - 1) // 2 + 1
    freedom = count - used - 1
    return min(float(betaincc(0.5, freedom / 2, share)) * shapes, 1.0) if freedom > 0 else 1.0


def _levels(logs: Floats, edges: Sequence[int]) -> list[float]:
    return [float(logs[a:b].mean()) for a, b in itertools.pairwise(edges)]


def _rise(logs: Floats) -> float:
    """Of the straight line through them, from the first to the last."""
    import numpy as np

    places = np.arange(len(logs)) - (len(logs) - 1) / 2
    return float(places @ logs / (places @ places)) * (len(logs) - 1)


def _points(logs: Floats, edges: Sequence[int], names: Sequence[str]) -> Iterator[ChangePoint]:
    for one, other in itertools.pairwise(itertools.pairwise(edges)):
        rise, reach = _apart(logs, edges, one, other)
        yield ChangePoint(
            run=names[other[0]], since=other[0], ratio=math.exp(rise),
            interval=Interval(
                low=math.exp(rise - reach), high=math.exp(rise + reach), kind="mean", level=1 - LEVEL,
                samples=len(logs),
            ),
        )  # fmt: skip


def _apart(logs: Floats, edges: Sequence[int], one: tuple[int, int], other: tuple[int, int]) -> tuple[float, float]:
    """From the level of the stretch `one` to that of `other`, and how far that may be off: Student's t on the scatter
    that all levels leave.
    """
    import numpy as np
    from scipy.special import stdtrit

    rest = logs - np.repeat(_levels(logs, edges), np.diff(edges))
    freedom = len(logs) - len(edges) + 1
    if freedom <= 0:
        return float(logs[other[0]] - logs[one[0]]), math.inf
    noise = math.sqrt(float(rest @ rest) / freedom * sum(1 / (end - begin) for begin, end in (one, other)))
    rise = float(logs[slice(*other)].mean() - logs[slice(*one)].mean())
    return rise, float(stdtrit(freedom, 1 - LEVEL / 2)) * noise


def _histories(
    runs: Sequence[Sequence[Record]], told: Sequence[Mapping[str, Verdict]], judged: Sequence[Trend], others: set[str]
) -> Iterator[History]:
    for test in dict.fromkeys(test for run in told for test in run):
        each = tuple(run.get(test) for run in told)
        if test in others or len({verdict for verdict in each if verdict}) < 2:
            continue
        figures = [trend for trend in judged if trend.test == test]
        explained: bool | None = any(trend.points or trend.drift for trend in figures)
        hosts = {frozenset(hosts_of(records, test)) for records, verdict in zip(runs, each, strict=True) if verdict}
        if not explained and (not figures or len(hosts) > 1 or any(trend.change == "open" for trend in figures)):
            explained = None
        yield History(test=test, verdicts=each, explained=explained)

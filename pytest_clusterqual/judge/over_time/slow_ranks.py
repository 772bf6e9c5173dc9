"""Ranks that reach a part of the step later than the others, again and again, and so hold them up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_clusterqual.judge.full_run.frontier import Course, RankParts
from pytest_clusterqual.judge.statistics import median_interval
from pytest_clusterqual.model.record import Interval

if TYPE_CHECKING:
    from pytest_clusterqual.judge.full_run.columns import Floats

CHANCE = 0.001  # that any rank of a run is named though all are alike
LEAST = 0.01  # of a step
_GROUPS = 32  # of the parts of a run: the samples
_FEWEST = 16
_LEVEL = 0.99
_REMEMBERS = 0.15
_ALL = 8  # ranks: from so many on the typical one may be that of all


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowRank:
    """At the end of `stage` it is `late` behind the typical rank, shares of a step, later in `count` of `groups` parts
    of the run. `carried` is the share of the steps in which it was the last.
    """

    rank: int
    node: str
    stage: str
    late: Interval
    count: int
    groups: int
    carried: float


def slow_ranks(course: Course) -> tuple[SlowRank, ...]:
    """Each at the first stage where it is late; those that are late by chance are left out.

    Of a rank that is like the others one would be later than the typical rank in half of the parts. Holm's correction
    is for all ranks and stages.
    """
    import numpy as np
    from scipy.special import bdtrc

    ranks = course.ranks
    share = _late(course) if len(ranks) > 1 else None
    if share is None:
        return ()
    groups = share.shape[2]
    behind = (share > 0).sum(axis=2)
    chance = bdtrc(behind.T - 1, groups, 0.5).T  # (rank, stage)
    order = np.argsort(chance, axis=None)
    holm = np.maximum.accumulate(chance.flat[order] * np.arange(chance.size, 0, -1))
    named = np.zeros(chance.shape, dtype=bool)
    named.flat[order] = holm < CHANCE
    found = []
    for place, rank in enumerate(ranks):
        for number, stage in enumerate(course.stages):
            within = median_interval(share[place, number].tolist(), _LEVEL)
            if named[place, number] and within is not None and within.low >= LEAST:
                found.append(_slow(course, rank, number, stage, within, int(behind[place, number]), groups))
                break
    return tuple(found)


def _slow(
    course: Course, rank: RankParts, number: int, stage: str, late: Interval, count: int, groups: int
) -> SlowRank:
    carries = course.carrier[number] == rank.rank
    return SlowRank(
        rank=rank.rank, node=rank.node, stage=stage, late=late, count=count, groups=groups,
        carried=float(carries.mean()),
    )  # fmt: skip


def _late(course: Course) -> Floats | None:
    """By what share of a step each rank is later than the typical one, as (rank, stage, group of parts of the run).

    None where there are too few parts. Groups are joined until a rank that is late in one is no more likely to be so
    in the next than in any other.
    """
    import numpy as np

    times = _parts(course)
    if times is None:
        return None
    groups = min(_GROUPS, times.shape[2])
    while True:
        bounds = [times.shape[2] * group // groups for group in range(groups)]
        sums = np.add.reduceat(times, bounds, axis=2)
        typical = np.median(sums, axis=0)
        late: Floats = (sums - (_others(sums) if len(sums) < _ALL else typical)) / typical[-1]
        if groups < 2 * _FEWEST or _memory(late) <= _REMEMBERS:
            return late
        groups //= 2


def _memory(late: Floats) -> float:
    """Correlation of what a rank is late by in one group and in the next, over all ranks, at the most correlated
    stage.
    """
    import numpy as np

    around = late - late.mean(axis=2, keepdims=True)
    square = (around**2).sum(axis=(0, 2))
    both = (around[:, :, 1:] * around[:, :, :-1]).sum(axis=(0, 2))
    return float(np.max(np.divide(both, square, out=np.zeros_like(both), where=square > 0)))


def _parts(course: Course) -> Floats | None:
    """Seconds as (rank, stage, part of the run), of the parts in which all ranks have all steps; None if too few."""
    import numpy as np

    common = None
    for rank in course.ranks:
        mine = dict(zip(rank.parts.tolist(), rank.counts.tolist(), strict=True))
        common = mine if common is None else {part: n for part, n in common.items() if mine.get(part) == n}
    if not common or len(common) < _FEWEST:
        return None
    wanted = np.array(sorted(common))
    return np.stack([_bounds(course, rank, wanted) for rank in course.ranks])


def _bounds(course: Course, rank: RankParts, wanted: Floats) -> Floats:
    """Of one rank, (stage, part); a stage that it does not mark is over when the one before it is."""
    import numpy as np

    here = np.searchsorted(rank.parts, wanted)
    rows: list[Floats] = []
    for stage in course.stages:
        rows.append(rank.times[stage][here] if stage in rank.times else rows[-1])
    return np.array(rows)


def _others(times: Floats) -> Floats:
    """The median of all ranks but the one itself."""
    import numpy as np

    return np.array([np.median(np.delete(times, rank, axis=0), axis=0) for rank in range(len(times))])

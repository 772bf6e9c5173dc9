"""Changes: steps that take longer or shorter than the others, from some step on or for a while."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_clusterqual.judge.full_run.drift import slope
from pytest_clusterqual.judge.full_run.levels import Levels
from pytest_clusterqual.judge.statistics import apart_ratio_interval
from pytest_clusterqual.model.record import Interval

if TYPE_CHECKING:
    from pytest_clusterqual.judge.full_run.columns import Floats

# Standard deviations that a stretch must differ from the rest by. There are thousands of stretches, and the noise is
# itself only estimated: benchmarks/over_time.py shows how seldom chance reaches this.
REACH = 6.0
LEAST = 0.02  # of the step time
_SHORTEST = 3  # blocks: fewer are a stall
_MOST = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Steps from index `begin` to before `end` take `ratio` times as long as the others, the logarithm of which is
    enclosed by `interval` as a ratio. `to_the_end` says that it lasts until the last step.
    """

    begin: int
    end: int
    ratio: float
    interval: Interval | None
    to_the_end: bool


def changes(logs: Floats, levels: Levels) -> Iterator[Change]:
    """The largest ones, one after the other; none where a straight line describes the levels as well."""
    import numpy as np

    level = levels.level.copy()
    for number in range(_MOST):
        begin, end, jump = _stretch(level)
        width = end - begin
        reach = REACH * levels.noise * math.sqrt(1 / width + 1 / (levels.count - width))
        if abs(jump) < max(reach, math.log1p(LEAST)):
            return
        without = level.copy()
        without[begin:end] -= jump
        if number == 0 and _unrest(without) > _unrest(level - slope(levels) * np.arange(len(level)) / len(level)):
            return
        yield _change(logs, levels, begin, end, jump)
        level = without


def _stretch(level: Floats) -> tuple[int, int, float]:
    """The stretch [begin, end) of levels that differs most from the rest in its standard deviations, and by how much.

    A change for good is a stretch that lasts until the end.
    """
    import numpy as np

    count = len(level)
    sums = np.concatenate([[0.0], np.cumsum(level - level.mean())])
    begin, end = np.triu_indices(count + 1, k=_SHORTEST)
    keep = ((end - begin) <= count - _SHORTEST) & (begin > 0)  # from the start on is the same as the rest
    begin, end = begin[keep], end[keep]
    width = end - begin
    jump = (sums[end] - sums[begin]) * (1 / width + 1 / (count - width))
    best = int(np.argmax(np.abs(jump) * np.sqrt(width * (count - width))))
    return int(begin[best]), int(end[best]), float(jump[best])


def _unrest(level: Floats) -> float:
    import numpy as np

    return float(np.abs(level - np.median(level)).sum())


def _change(logs: Floats, levels: Levels, begin: int, end: int, jump: float) -> Change:
    import numpy as np

    seconds = np.exp(levels.level)
    inside = np.zeros(levels.count, dtype=bool)
    inside[begin:end] = True
    last = end == levels.count
    return Change(
        begin=_refined(logs, levels, begin, jump),
        end=len(logs) if last else _refined(logs, levels, end, -jump),
        ratio=math.exp(jump),
        interval=apart_ratio_interval(seconds[inside].tolist(), seconds[~inside].tolist()),
        to_the_end=last,
    )


def _refined(logs: Floats, levels: Levels, block: int, jump: float) -> int:
    """The step at which the level changes by `jump`, near the first step of that block: where most steps before lie on
    the one side of the middle and most after on the other.
    """
    import numpy as np

    before, after = levels.level[max(block - 2, 0) : block], levels.level[block : block + 2]
    low = levels.first[max(block - 2, 0)]
    near = logs[low : levels.first[block + 2] if block + 2 < levels.count else None]
    middle = (float(np.median(before)) + float(np.median(after))) / 2
    beyond = np.sign(near - middle) * math.copysign(1.0, jump)
    return low + int(np.argmin(np.concatenate([[0.0], np.cumsum(beyond)])))

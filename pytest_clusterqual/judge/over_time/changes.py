"""Changes: steps that take longer or shorter than the others, from some step on or for a while."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_clusterqual.judge.over_time.drift import slope
from pytest_clusterqual.judge.over_time.levels import Levels
from pytest_clusterqual.judge.statistics import LEVEL
from pytest_clusterqual.model.record import Interval

if TYPE_CHECKING:
    from pytest_clusterqual.judge.full_run.columns import Floats

# Standard deviations that a stretch must differ from the rest by. There are thousands of stretches, and the noise is
# itself only estimated: benchmarks/over_time.py shows how seldom chance reaches this.
REACH = 6.0
LEAST = 0.02  # of the step time
_SHORTEST = 3  # blocks: fewer are a stall
_MOST = 3
_Z = 1.96


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Steps from index `begin` to before `end` take `ratio` times as long as those `before` them, which are the ones
    from that index on; `interval` encloses the ratio. `for_good` says that they do not go back to what was before.
    """

    before: int
    begin: int
    end: int
    ratio: float
    interval: Interval
    for_good: bool


def changes(logs: Floats, levels: Levels) -> list[Change]:
    """In the order of the steps; none where a straight line describes the levels as well."""
    import numpy as np

    edges = [0, levels.count]
    for _ in range(_MOST):
        more = _stretch(levels, edges)
        if not more:
            break
        edges = sorted({*edges, *more})
    heights = np.array([levels.level[a:b].mean() for a, b in itertools.pairwise(edges)])
    line = slope(levels) * np.arange(levels.count) / levels.count
    if _unrest(levels.level - np.repeat(heights, np.diff(edges))) > _unrest(levels.level - line):
        return []
    return list(_told(logs, levels, edges, heights))


def _told(logs: Floats, levels: Levels, edges: Sequence[int], heights: Floats) -> Iterator[Change]:
    """A change that is undone by the next one is one change for a while."""
    steps = [0, *(_refined(logs, levels, edge) for edge in edges[1:-1]), len(logs)]
    place = 1
    while place < len(heights):
        jump = heights[place] - heights[place - 1]
        undone = place + 1 < len(heights) and abs(heights[place + 1] - heights[place - 1]) < math.log1p(LEAST)
        if abs(jump) >= math.log1p(LEAST):
            (_, a, b) = widths = edges[place - 1 : place + 2]
            reach = _Z * levels.noise * math.sqrt(1 / (a - widths[0]) + 1 / (b - a))
            yield Change(
                before=steps[place - 1], begin=steps[place], end=steps[place + 1], ratio=math.exp(jump),
                interval=Interval(
                    low=math.exp(jump - reach), high=math.exp(jump + reach), kind="mean", level=LEVEL,
                    samples=levels.count,
                ),
                for_good=not undone,
            )  # fmt: skip
        place += 2 if undone else 1


def _stretch(levels: Levels, edges: Sequence[int]) -> list[int]:
    """Both ends of the stretch of levels that differs most from the rest, once what lies between the `edges` is taken
    for one height each; nothing if chance does as well. A change for good is a stretch that lasts until the end.
    """
    import numpy as np

    count = levels.count
    rest = levels.level.copy()
    for a, b in itertools.pairwise(edges):
        rest[a:b] -= rest[a:b].mean()
    rest = _calm(rest)
    sums = np.concatenate([[0.0], np.cumsum(rest - rest.mean())])
    begin, end = np.triu_indices(count + 1, k=_SHORTEST)
    keep = ((end - begin) <= count - _SHORTEST) & (begin > 0)  # from the start on is the same as the rest
    begin, end = begin[keep], end[keep]
    width = end - begin
    jump = (sums[end] - sums[begin]) * (1 / width + 1 / (count - width))
    deviations = np.abs(jump) * np.sqrt(width * (count - width) / count)
    best = int(np.argmax(deviations))
    if deviations[best] < REACH * levels.doubt * levels.noise or abs(jump[best]) < math.log1p(LEAST):
        return []
    return [int(edge) for edge in (begin[best], end[best]) if min(abs(edge - known) for known in edges) >= _SHORTEST]


def _calm(level: Floats) -> Floats:
    """Each the middle one of five neighbours: one or two blocks that spikes have filled are no change."""
    import numpy as np

    reach = _SHORTEST - 1
    around = np.concatenate([level[:1].repeat(reach), level, level[-1:].repeat(reach)])
    return np.asarray(np.median(np.lib.stride_tricks.sliding_window_view(around, 2 * reach + 1), axis=1))


def _unrest(level: Floats) -> float:
    import numpy as np

    return float(np.abs(level - np.median(level)).sum())


def _refined(logs: Floats, levels: Levels, block: int) -> int:
    """The step at which the level changes near the first step of that block: where most steps before lie on the one
    side of the middle and most after on the other.
    """
    import numpy as np

    before = float(np.median(levels.level[max(block - 3, 0) : block - 1]))
    after = float(np.median(levels.level[block + 1 : block + 3]))
    low = levels.first[max(block - 2, 0)]
    near = logs[low : levels.first[block + 2] if block + 2 < levels.count else None]
    beyond = np.sign(near - (before + after) / 2) * math.copysign(1.0, after - before)
    return low + int(np.argmin(np.concatenate([[0.0], np.cumsum(beyond)])))

"""A long series of step times as the levels of a few dozen consecutive blocks, and how much these vary by themselves.

Steps that follow each other are alike, have spikes, and are of no known distribution. The medians of blocks of many
steps are nearly normal and nearly independent, and what is left of their memory shows when blocks are joined.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_clusterqual.judge.statistics import spread_of_array

if TYPE_CHECKING:
    from pytest_clusterqual.judge.full_run.columns import Floats

FEWEST = 256  # steps
_FEW, _MANY, _BLOCK = 32, 128, 16  # blocks at least and at most; steps of a block where there are enough of them
_JOINED = (1, 2, 4)
_FEW_TELL = 64
# What blocks differ by when four are joined, over what they do by themselves, were they independent; and what steps
# differ by that are two blocks apart, over steps one block apart. A single change must not reach this, nor chance.
_BLOCKS_REMEMBER, _STEPS_REMEMBER = (3.0, 2.0), 1.15  # of few blocks, and of many


@dataclass(frozen=True, kw_only=True, slots=True)
class Levels:
    """`level` is the median of the logarithm of a step's time in each block, `first` the index of its first step.

    `noise` is the standard deviation that one level has without any change. `wanders` says that steps remember what was
    before for longer than a block lasts: then nothing can be told from chance.
    """

    level: Floats
    first: list[int]
    noise: float
    wanders: bool

    @property
    def count(self) -> int:
        return len(self.level)

    @property
    def doubt(self) -> float:
        """By how much more than with many blocks something must stand out: few say little of their own noise."""
        return max(1.0, math.sqrt(_FEW_TELL / self.count))


def levels(logs: Floats) -> Levels:
    """Of at least `FEWEST` logarithms of step times in their order; as many blocks as there can be without memory."""
    found = _cut(logs, min(max(len(logs) // _BLOCK, _FEW), _MANY))
    while found.wanders and found.count // 2 >= _FEW:
        found = _cut(logs, found.count // 2)
    return found


def _cut(logs: Floats, count: int) -> Levels:
    import numpy as np

    first = [len(logs) * block // count for block in range(count)]
    level = np.array([np.median(part) for part in np.split(logs, first[1:])])
    noise = [_noise(level, joined) for joined in _JOINED]
    near, far = (spread_of_array(logs[lag:] - logs[:-lag]) for lag in (len(logs) // count, 2 * len(logs) // count))
    most = _BLOCKS_REMEMBER[count >= _FEW_TELL]
    wanders = noise[-1] > most * max(noise[0], 1e-12) or far > _STEPS_REMEMBER * max(near, 1e-12)
    return Levels(level=level, first=first, noise=max(noise), wanders=wanders)


def _noise(level: Floats, joined: int) -> float:
    """Of one level, from the differences of neighbours, each the mean of so many: what drifts or jumps is not in it.

    This is Allan's deviation, robust: with blocks long enough it is the same whatever the number joined, and where
    steps remember longer than a block lasts, it grows with that number.
    """
    import numpy as np

    means = np.convolve(level, np.full(joined, 1 / joined), mode="valid")
    return spread_of_array(means[joined:] - means[:-joined]) * float(np.sqrt(joined / 2))

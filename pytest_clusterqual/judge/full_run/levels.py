"""A long series of step times as the levels of a few dozen consecutive blocks, and how much these vary by themselves.

Steps that follow each other are alike, have spikes, and are of no known distribution. The medians of blocks of many
steps are nearly normal and nearly independent, and what is left of their memory shows when blocks are joined.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_clusterqual.judge.full_run.columns import Floats

FEWEST = 256  # steps
_FEW, _MANY, _BLOCK = 32, 128, 32  # blocks at least and at most; steps of a block where there are enough of them
_JOINED = (1, 2, 4)
_MEMORY = 2.0
_MAD_TO_SIGMA = 1.4826


@dataclass(frozen=True, kw_only=True, slots=True)
class Levels:
    """`level` is the median of the logarithm of a step's time in each block, `first` the index of its first step.

    `noise` is the standard deviation that one level has without any change, `wanders` whether blocks are no more
    alike the farther they are joined: then nothing can be told from chance.
    """

    level: Floats
    first: list[int]
    noise: float
    wanders: bool

    @property
    def count(self) -> int:
        return len(self.level)


def levels(logs: Floats) -> Levels:
    """Of at least `FEWEST` logarithms of step times in their order."""
    import numpy as np

    count = min(max(len(logs) // _BLOCK, _FEW), _MANY)
    first = [len(logs) * block // count for block in range(count)]
    level = np.array([np.median(part) for part in np.split(logs, first[1:])])
    found = [_noise(level, joined) for joined in _JOINED]
    return Levels(level=level, first=first, noise=max(found), wanders=found[-1] > _MEMORY * max(found[0], 1e-12))


def _noise(level: Floats, joined: int) -> float:
    """Of one level, from the differences of neighbours, each the mean of so many: what drifts or jumps is not in it.

    This is Allan's deviation, robust: with blocks long enough it is the same whatever the number joined, and where
    steps remember longer than a block lasts, it grows with that number.
    """
    import numpy as np

    means = np.convolve(level, np.full(joined, 1 / joined), mode="valid")
    apart = means[joined:] - means[:-joined]
    spread = _MAD_TO_SIGMA * float(np.median(np.abs(apart - np.median(apart))))
    return spread * float(np.sqrt(joined / 2))

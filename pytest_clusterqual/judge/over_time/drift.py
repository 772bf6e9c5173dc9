"""Drift: by how much of itself the step time has changed from the first to the last step of a run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pytest_clusterqual.judge.over_time.levels import Levels
from pytest_clusterqual.judge.statistics import LEVEL
from pytest_clusterqual.model.record import Interval

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pytest_clusterqual.judge.full_run.columns import Floats

_RESAMPLES, _TOGETHER = 499, 8  # of residuals, and how many levels stay together in each
_Z = 1.96


def slope(levels: Levels) -> float:
    """Of the logarithm of the step time, over the whole run: the median of all pairs of levels (Theil and Sen)."""
    return float(_slopes(levels.level[None, :])[0])


def deviation(levels: Levels) -> float:
    """The standard deviation of a slope that is only noise: that of a straight line through independent levels."""
    return levels.noise * math.sqrt(12 / levels.count)


def drift_interval(levels: Levels) -> Interval:
    """Enclose the drift, by resampling blocks of residuals together, so that what they remember stays in it.

    Some dozen levels are few to resample, so the interval is the hull of the bootstrap's and that of the noise alone.
    """
    import numpy as np

    found = slope(levels)
    places = np.arange(levels.count)
    line = found * (places - places.mean()) / levels.count
    residuals = levels.level - line
    begins = np.random.default_rng(0).integers(
        0, levels.count - _TOGETHER + 1, size=(_RESAMPLES, -(-levels.count // _TOGETHER))
    )
    picked = (begins[:, :, None] + np.arange(_TOGETHER)).reshape(_RESAMPLES, -1)[:, : levels.count]
    drawn = found + _slopes(residuals[picked])
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    reach = _Z * deviation(levels)
    return Interval(
        low=math.expm1(min(float(low), found - reach)), high=math.expm1(max(float(high), found + reach)),
        kind="bootstrap", level=LEVEL, samples=levels.count,
    )  # fmt: skip


def _slopes(series: NDArray[np.float64]) -> Floats:
    """Of each row, over its whole length."""
    import numpy as np

    count = series.shape[1]
    one, other = np.triu_indices(count, k=1)
    return np.array([count * np.median((row[other] - row[one]) / (other - one)) for row in series])

"""Intervals and reductions that assume nothing about the shape of the noise.

Everything here takes plain numbers and gives plain numbers; units are the caller's.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_clusterqual.model.record import Interval

if TYPE_CHECKING:
    import numpy as np

LEVEL = 0.95
RESAMPLES = 2000
MAD_TO_SIGMA = 1.4826  # of a normal distribution
_MEDIAN_ERROR = math.sqrt(math.pi / 2)  # standard error of a median over that of a mean, normal noise
_Z95 = 1.96
_MANY = 1000  # samples from which on a depth is not counted out


def median(samples: Sequence[float]) -> float:
    """The middle value; nan if there is no sample or one of them is not finite."""
    if not samples or not all(map(math.isfinite, samples)):
        return math.nan
    ordered, half = sorted(samples), len(samples) // 2
    return ordered[half] if len(samples) % 2 else (ordered[half - 1] + ordered[half]) / 2


def minimum_samples(level: float = LEVEL) -> int:
    """The fewest independent samples whose extremes enclose the median at `level`: 6 at 95 %."""
    return math.ceil(1 - math.log2(1 - level))


def median_interval(samples: Sequence[float], level: float = LEVEL) -> Interval | None:
    """Enclose the median of independent samples by two of their order statistics.

    How many samples lie below the true median is binomial with one half, whatever the
    distribution, so the coverage is at least `level` for every n. None below `minimum_samples`;
    bounds are nan if a sample is not finite.
    """
    count = len(samples)
    if not all(map(math.isfinite, samples)):
        return Interval(low=math.nan, high=math.nan, kind="median", level=level, samples=count)
    depth = _depth(count, level)
    if depth == 0:
        return None
    ordered = sorted(samples)
    return Interval(low=ordered[depth - 1], high=ordered[-depth], kind="median", level=level, samples=count)


def mean_interval(samples: Sequence[float]) -> Interval | None:
    """Enclose the mean of independent samples by Student's t, for events too rare for a median to see.

    Of events that happen every other round it covers, at 95 %, the mean of 9 rounds in 90 % and
    that of 16 rounds in 94 % of all cases (a test simulates it). None below two samples; bounds
    are nan if a sample is not finite.
    """
    from scipy.special import stdtrit  # on first use: most judgements need no such library

    count = len(samples)
    if count < 2:
        return None
    mean = sum(samples) / count
    reach = float(stdtrit(count - 1, (1 + LEVEL) / 2)) * _deviation(samples) / math.sqrt(count)
    return Interval(low=mean - reach, high=mean + reach, kind="mean", level=LEVEL, samples=count)


def _depth(count: int, level: float) -> int:
    """The greatest d for which the d-th smallest and d-th greatest sample enclose the median."""
    allowed = (1 - level) / 2 + 1e-12
    if count > _MANY:
        from scipy.special import bdtr  # on first use; whole numbers of so many digits take long

        return bisect.bisect_right(range(count), allowed, key=lambda depth: float(bdtr(depth, count, 0.5)))
    tail, ways, depth = 0, 1, 0
    total = 2**count
    while depth < count and (tail + ways) / total <= allowed:
        tail += ways
        ways = ways * (count - depth) // (depth + 1)
        depth += 1
    return depth


def ratio_interval(baseline: Sequence[float], candidate: Sequence[float]) -> Interval | None:
    """Enclose median(baseline) / median(candidate) of interleaved runs, the k-th of each a pair.

    Pairs are resampled together, so that drift which slows both alike cancels. The bootstrap of
    a median of few values is coarse and its interval too short, hence the result is the hull of
    the bootstrap's percentiles, the order statistics of the paired ratios, and the ratio itself.
    For lognormal noise the hull covers at 95 % or more from 6 pairs on (a test simulates it).
    None below `minimum_samples` pairs; bounds are nan if a run is not finite and positive.

    Raises:
        ValueError: the runs are not pairs.
    """
    if len(baseline) != len(candidate):
        raise ValueError(f"got {len(baseline)} baseline and {len(candidate)} candidate runs, want pairs")
    count = len(baseline)
    if not all(math.isfinite(run) and run > 0 for run in (*baseline, *candidate)):
        return Interval(low=math.nan, high=math.nan, kind="bootstrap", level=LEVEL, samples=count)
    by_order = median_interval([b / c for b, c in zip(baseline, candidate, strict=True)])
    if by_order is None:
        return None
    low, high = _bootstrap(baseline, candidate)
    ratio = median(baseline) / median(candidate)
    return Interval(
        low=min(low, by_order.low, ratio),
        high=max(high, by_order.high, ratio),
        kind="bootstrap",
        level=LEVEL,
        samples=count,
    )


def apart_ratio_interval(above: Sequence[float], below: Sequence[float]) -> Interval | None:
    """Enclose median(above) / median(below) of runs that are no pairs, made perhaps on other days.

    The extremes that the intervals of the two medians allow; at 95 % or more for noise of any two sizes
    from 6 runs of each on (a test simulates it). None below `minimum_samples` runs of either; bounds are nan
    if a run is not finite and positive.
    """
    count = min(len(above), len(below))
    if not all(math.isfinite(run) and run > 0 for run in (*above, *below)):
        return Interval(low=math.nan, high=math.nan, kind="median", level=LEVEL, samples=count)
    one, other = median_interval(above), median_interval(below)
    if one is None or other is None:
        return None
    return Interval(low=one.low / other.high, high=one.high / other.low, kind="median", level=LEVEL, samples=count)


def _bootstrap(baseline: Sequence[float], candidate: Sequence[float]) -> tuple[float, float]:
    import numpy as np  # on first use: most judgements need no array

    picks = np.random.default_rng(0).integers(0, len(baseline), size=(RESAMPLES, len(baseline)))
    ratios = np.median(np.asarray(baseline)[picks], axis=1) / np.median(np.asarray(candidate)[picks], axis=1)
    low, high = np.quantile(ratios, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def steady_start(samples: Sequence[float]) -> int:
    """The index of the first sample of the steady state; 0 for a flat series, at most half.

    The second half of the series says what steady means: its median, and four times its robust
    spread (at least 5 %) to either side. The steady state begins where a sample lies in that
    band and so do two of the three that start with it, so that one lucky sample amid the warm-up
    does not end it.

    Raises:
        ValueError: a sample is not finite.
    """
    if not all(map(math.isfinite, samples)):
        raise ValueError("a sample is not finite")
    half = len(samples) // 2
    if len(samples) < 4:
        return 0
    tail = samples[half:]
    level = median(tail)
    width = max(4 * spread(tail), 0.05 * abs(level))
    steady = [abs(sample - level) <= width for sample in samples]
    return next((i for i in range(half) if steady[i] and sum(steady[i : i + 3]) >= 2), half)


def spread(samples: Sequence[float]) -> float:
    """A robust standard deviation: the scaled median absolute deviation, 0 for no samples."""
    if not samples:
        return 0.0
    middle = median(samples)
    return MAD_TO_SIGMA * median([abs(sample - middle) for sample in samples])


def spread_of_array(values: np.ndarray[Any, Any]) -> float:
    """The `spread` of an array, of many more values; nan for none."""
    import numpy as np

    return MAD_TO_SIGMA * float(np.median(np.abs(values - np.median(values))))


def slowest(ranks_samples: Sequence[Sequence[float]]) -> list[float]:
    """Per sample the maximum over ranks; nan where any rank's is nan.

    Raises:
        ValueError: no ranks, or ranks with different numbers of samples.
    """
    lengths = {len(samples) for samples in ranks_samples}
    if len(lengths) != 1:
        raise ValueError(f"got ranks with {sorted(lengths)} samples, want the same number on every rank")
    return [math.nan if any(map(math.isnan, row)) else max(row) for row in zip(*ranks_samples, strict=True)]


def samples_needed(samples: Sequence[float], bound: float) -> int | None:
    """About how many samples would separate the median from `bound` at the measured variation.

    A normal approximation, good for planning only. None if that cannot be said: fewer than two
    samples, something not finite, or a median that lies on the bound.
    """
    distance = abs(median(samples) - bound)
    if len(samples) < 2 or not math.isfinite(distance) or distance == 0:
        return None
    sigma = spread(samples) or _deviation(samples)
    return max(minimum_samples(), math.ceil((_Z95 * _MEDIAN_ERROR * sigma / distance) ** 2))


def _deviation(samples: Sequence[float]) -> float:
    mean = sum(samples) / len(samples)
    return math.sqrt(sum((sample - mean) ** 2 for sample in samples) / (len(samples) - 1))


def chance(observed: float, drawn: Sequence[float] | np.ndarray[Any, Any]) -> float:
    """How often chance alone reaches `observed`: the share of what was `drawn` that does, itself counted in."""
    import numpy as np

    return (1 + int(np.count_nonzero(np.asarray(drawn) >= observed - 1e-12))) / (1 + len(drawn))


def mapped(interval: Interval | None, monotone: Callable[[float], float]) -> Interval | None:
    """The interval of a figure that rises, or falls, with another one: both ends go through the function."""
    if interval is None:
        return None
    low, high = sorted((monotone(interval.low), monotone(interval.high)))
    return replace(interval, low=low, high=high)


def enclosing(interval: Interval | None, value: float) -> Interval | None:
    """Wide enough for a value that was made otherwise than its interval, such as a difference of two medians."""
    if interval is None:
        return None
    return replace(interval, low=min(interval.low, value), high=max(interval.high, value))

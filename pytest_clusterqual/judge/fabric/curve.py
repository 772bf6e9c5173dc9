"""The two ends of a sweep: what an empty message takes, and the bus bandwidth that large ones level off at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from pytest_clusterqual.judge.fabric.sweeps import size_label
from pytest_clusterqual.judge.statistics import median

SMALL = 8 * 1024  # bytes; up to here the time of a message is nearly that of an empty one
LEVEL = 0.9  # of the best: what belongs to the plateau


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """One end of the curve, round by round, from the sizes (bytes) `at`. Without rounds, `why` there is none."""

    rounds: tuple[float, ...] = ()
    at: tuple[int, ...] = ()
    why: str = ""


def alpha(sizes: Sequence[int], seconds: Sequence[Sequence[float]]) -> End:
    """Seconds of an empty message: where the line through the small sizes begins.

    `seconds[i][r]` is the time of `sizes[i]` in round r. The slope is the median of those between
    any two sizes (Theil and Sen), never below zero; one size alone stands for itself.
    """
    small = [(size, times) for size, times in zip(sizes, seconds, strict=True) if size <= SMALL]
    if not small:
        return End(why="the sweep has no size of 8 KiB or less")
    at = tuple(size for size, _ in small)
    by_round = zip(*(times for _, times in small), strict=True)
    return End(rounds=tuple(_start(at, times) for times in by_round), at=at)


def plateau(sizes: Sequence[int], rates: Sequence[Sequence[float]]) -> End:
    """B/s that the largest sizes reach alike: all from the top down that are within 10 % of the best.

    `rates[i][r]` is the bus bandwidth of `sizes[i]` in round r. A level is seen if at least two
    sizes hold it; the value of a round is their median.
    """
    curve = sorted(zip(sizes, rates, strict=True), reverse=True)
    best = max(median(of) for of in rates)
    level = next((i for i, (_, of) in enumerate(curve) if median(of) < LEVEL * best), len(curve))
    if level < 2:
        largest = size_label(curve[0][0])
        fallen = f"busbw at the largest size, {largest}, is more than 10 % below the best"
        rising = f"busbw has not levelled off at the largest size, {largest}: measure larger ones"
        return End(why=rising if level else fallen)
    at = tuple(size for size, _ in curve[:level])[::-1]
    return End(rounds=tuple(map(median, zip(*(of for _, of in curve[:level]), strict=True))), at=at)


def _start(sizes: Sequence[int], times: Sequence[float]) -> float:
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(zip(sizes, times, strict=True), 2)]
    slope = max(median(slopes), 0.0) if slopes else 0.0
    return max(median([t - slope * size for size, t in zip(sizes, times, strict=True)]), 0.0)

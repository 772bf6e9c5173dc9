"""Stalls that come again: single steps that take much longer, every so many steps or seconds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pytest_clusterqual.judge.statistics import MAD_TO_SIGMA

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pytest_clusterqual.judge.full_run.columns import Counts, Floats

# How far a step must be beyond the typical one to be a stall, in standard deviations: where single steps scatter
# widely by themselves, only the greater ones are no chance.
_BEYOND = (4.0, 8.0, 16.0, 32.0)
_LEAST = 0.05  # of a typical step
_FEWEST = 5
_MOST = 0.2  # of all steps: more are no stalls
_SHARE = 0.6  # of the times that a stall is due, it must come
_APART = 4  # steps: nearer stalls are one
_CHANCE = 1e-4  # for each of the ways to look for a period
_CANDIDATES = 8
_WIDTH = 0.1  # of a period in seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Stalls:
    """Steps by their index, which come every `period` steps or seconds, and each take `excess` seconds too long."""

    steps: Counts
    period: float
    unit: Literal["steps", "seconds"]
    excess: float


def stalls(logs: Floats, typical: Floats, numbers: Counts, at: Floats) -> Stalls | None:
    """The most regular ones; None where single long steps come by chance, or there are none.

    `typical` is the logarithm of the step time around each step, `at` when each began, in seconds of one clock.
    """
    import numpy as np

    beyond = logs - typical
    spread = MAD_TO_SIGMA * float(np.median(np.abs(beyond)))
    best: tuple[float, Stalls] | None = None
    for times in _BEYOND:
        long = np.flatnonzero(beyond > max(times * spread, np.log1p(_LEAST)))
        long = long[np.diff(long, prepend=-_APART) >= _APART]
        if not _FEWEST <= len(long) <= _MOST * len(logs):
            continue
        for found in (_by_steps(long, numbers), _by_seconds(long, at)):
            if found is not None and (best is None or found[0] < best[0]):
                chance, steps, period, unit = found
                excess = float(np.median(np.exp(logs[steps]) - np.exp(typical[steps])))
                best = chance, Stalls(steps=steps, period=period, unit=unit, excess=excess)
    return best[1] if best else None


_Found = tuple[float, "Counts", float, Literal["steps", "seconds"]]  # how likely by chance, which, how often


def _by_steps(long: NDArray[np.intp], numbers: Counts) -> _Found | None:
    """Stalls whose numbers leave the same remainder."""
    from scipy.special import bdtrc

    mine = numbers[long]
    nearby = [int(gap) for away in (1, 2, 3) for gap in mine[away:] - mine[:-away] if gap > _APART]
    best: _Found | None = None
    for period, _ in Counter(nearby).most_common(_CANDIDATES):
        remainders = mine % period
        common, count = Counter(remainders.tolist()).most_common(1)[0]
        due = int((numbers % period == common).sum())
        if count < max(_FEWEST, _SHARE * due):
            continue
        chance = _CANDIDATES * period * float(bdtrc(count - 1, len(long), 1 / period))
        if chance < _CHANCE and (best is None or chance < best[0]):
            best = chance, long[remainders == common], float(period), "steps"
    return best


def _by_seconds(long: NDArray[np.intp], at: Floats) -> _Found | None:
    """Stalls that come a multiple of the same time after the one before."""
    import numpy as np
    from scipy.special import bdtrc

    gaps = np.diff(at[long])
    usual = float(np.median(np.diff(at)))
    best: _Found | None = None
    for period in np.quantile(gaps, np.linspace(0.1, 0.9, _CANDIDATES)):
        width = max(_WIDTH * float(period), 2 * usual)
        turns = np.maximum(np.round(gaps / period), 1)
        near = np.abs(gaps - turns * period) <= width / 2
        count = int(near.sum())
        if period < 4 * width or count < max(_FEWEST, _SHARE * turns.sum()):
            continue
        # Times between chance events are more often short: half as much again is on the safe side.
        chance = _CANDIDATES * float(bdtrc(count - 2, len(gaps) - 1, 1.5 * width / float(period)))
        if chance < _CHANCE and (best is None or chance < best[0]):
            both = np.append(near, False) | np.append(False, near)
            best = chance, long[both], float(np.median(gaps[near] / turns[near])), "seconds"
    return best

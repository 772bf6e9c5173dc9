"""The steady state of a run: how long a step takes while nothing disturbs it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_clusterqual.judge.over_time.per_work import ALONG_TIME, logs_per_work
from pytest_clusterqual.judge.statistics import median, median_interval, minimum_samples
from pytest_clusterqual.model.record import Interval

if TYPE_CHECKING:
    from pytest_clusterqual.judge.full_run.columns import Counts

_BLOCKS = 32  # steps follow each other, so they are no independent samples; blocks of them come closer
_PARTS = 8  # of a run, each of which may be its best


def steady_share(seconds: Sequence[float], work: Counts | None) -> float | None:
    """The share of the time of these steps, at least one, that they would have taken in the steady state.

    Where their `work` is known and varies, their times per work are compared; None if it grows or shrinks along with
    the run, so that nobody can tell which of them were undisturbed.
    """
    import numpy as np

    logs = logs_per_work(work, np.asarray(seconds))
    if isinstance(logs, str) and logs == ALONG_TIME:
        return None
    comparable = seconds if isinstance(logs, str) else np.exp(logs).tolist()
    mean = sum(comparable) / len(comparable)
    return steady_step(comparable) / mean if mean else 0.0


def steady_step(seconds: Sequence[float]) -> float:
    """Seconds of a step in the steady state of a run whose steps took that long, in their order; nan without a step.

    That is their median, or that of the run's fastest eighth where this is faster beyond chance: a run that slows down
    does not set its own standard. It is never above the mean: no run takes less than as many steady steps.
    """
    usual = median(seconds)
    parts = min(_PARTS, len(seconds) // minimum_samples())
    edges = [len(seconds) * part // parts for part in range(parts + 1)] if parts else []
    reached = [enclosed(seconds[a:b]) for a, b in itertools.pairwise(edges)]
    mean = sum(seconds) / len(seconds) if seconds else usual
    return min([usual, mean, *(interval.high for interval in reached if interval is not None)])


def enclosed(seconds: Sequence[float]) -> Interval | None:
    """Enclose the median of the medians of consecutive blocks, which drift and bursts widen as they should."""
    size = -(-len(seconds) // _BLOCKS)
    return median_interval([median(seconds[at : at + size]) for at in range(0, len(seconds), size)]) if size else None

"""Beyond the measured numbers of nodes: an envelope over models of how the time of fixed work falls."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pytest_clusterqual.model.projection import Envelope, SizeTime

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]
    Fit = Callable[[Array, Array, int], tuple[float, Array]]

LEAST_SIZES = 4
FURTHEST = 2  # times the largest size
_DRAWS = 200
_Z95 = 1.96


def why_not_projected(times: Sequence[SizeTime], nodes: int) -> str:
    """Why nothing is said of `nodes` nodes; empty where an envelope can be given."""
    sizes = sorted({time.nodes for time in times})
    if len(sizes) < LEAST_SIZES:
        return (
            f"{len(sizes)} size{'s were' if len(sizes) != 1 else ' was'} measured, and nothing is predicted "
            f"from fewer than {LEAST_SIZES}: too many models go through them"
        )
    if len(sizes) < len(times):
        return "a number of nodes is there twice"
    if not all(math.isfinite(time.seconds) and time.seconds > 0 for time in times):
        return "a time is not above 0"
    if not sizes[-1] < nodes <= FURTHEST * sizes[-1]:
        return f"{nodes} nodes are not more than the {sizes[-1]} measured and at most {FURTHEST} times as many"
    return ""


def project(times: Sequence[SizeTime], nodes: int) -> Envelope:
    """The envelope on `nodes` nodes, at most twice the largest measured number.

    Each model is fitted to all sizes, to all but one in turn, so that no single size decides, and to times
    drawn anew by their noise: that of their intervals, or where one is missing what the models themselves
    leave unexplained. The least and the greatest of all count.

    Raises:
        ValueError: it cannot be given; the message is that of `why_not_projected`.
    """
    if why := why_not_projected(times, nodes):
        raise ValueError(why)
    import numpy as np  # on first use: most judgements need no array

    ordered = sorted(times, key=lambda time: time.nodes)
    sizes = np.array([float(time.nodes) for time in ordered])
    seconds = np.array([time.seconds for time in ordered])
    noise = _noise(ordered, sizes, seconds, nodes)
    draws = seconds * np.exp(np.random.default_rng(0).normal(size=(_DRAWS, len(seconds))) * noise)
    models = {name: _range(fit, sizes, seconds, draws, nodes) for name, (fit, _free) in _models().items()}
    return Envelope(
        nodes=nodes, low=min(low for low, _ in models.values()), high=max(high for _, high in models.values()),
        models=dict(models), sizes=tuple(time.nodes for time in ordered),
    )  # fmt: skip


def _noise(times: Sequence[SizeTime], sizes: Array, seconds: Array, nodes: int) -> Array:
    """The relative standard deviation of each time."""
    import numpy as np

    unexplained = min(_unexplained(fit(sizes, seconds, nodes)[1], free) for fit, free in _models().values())
    return np.array([
        unexplained if time.interval is None else (time.interval.high - time.interval.low) / (2 * _Z95 * time.seconds)
        for time in times
    ])  # fmt: skip


def _unexplained(residuals: Array, free: int) -> float:
    return math.sqrt(float(residuals @ residuals) / (len(residuals) - free))


def _range(fit: Fit, sizes: Array, seconds: Array, draws: Array, nodes: int) -> tuple[float, float]:
    import numpy as np

    found = [fit(sizes, each, nodes)[0] for each in (seconds, *draws)]
    for left_out in range(len(sizes)):
        kept = np.arange(len(sizes)) != left_out
        found.append(fit(sizes[kept], seconds[kept], nodes)[0])
    return min(found), max(found)


def _models() -> dict[str, tuple[Fit, int]]:
    """Name -> what fits it and gives (seconds on so many nodes, relative residuals), and its free parameters."""
    import numpy as np

    return {
        "Amdahl": (_sum_of(lambda n: [np.ones_like(n), 1 / n]), 2),
        "Amdahl + logarithmic communication": (_sum_of(lambda n: [np.ones_like(n), 1 / n, np.log2(n)]), 3),
        "Amdahl + linear communication": (_sum_of(lambda n: [np.ones_like(n), 1 / n, n]), 3),
        "power law": (_power_law, 2),
    }


def _sum_of(terms: Callable[[Array], list[Array]]) -> Fit:
    """Time as a sum of terms, none of them negative."""
    import numpy as np
    from scipy.optimize import nnls

    def fit(sizes: Array, seconds: Array, nodes: int) -> tuple[float, Array]:
        shares = np.column_stack(terms(sizes)) / seconds[:, None]  # a share of the time counts the same at each size
        weights, _norm = nnls(shares, np.ones_like(seconds))
        return float(np.column_stack(terms(np.array([float(nodes)])))[0] @ weights), shares @ weights - 1

    return fit


def _power_law(sizes: Array, seconds: Array, nodes: int) -> tuple[float, Array]:
    import numpy as np

    slope, height = np.polyfit(np.log(sizes), np.log(seconds), 1)
    return float(np.exp(height + slope * np.log(nodes))), height + slope * np.log(sizes) - np.log(seconds)

"""What may be said of more nodes than were measured: an envelope over models, never a verdict."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_clusterqual.model.record import Interval


@dataclass(frozen=True, kw_only=True, slots=True)
class SizeTime:
    """The same fixed work on `nodes` nodes took `seconds`, somewhere in `interval`; None: its noise is not known."""

    nodes: int
    seconds: float
    interval: Interval | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Envelope:
    """Seconds of the fixed work on `nodes` nodes: between `low` and `high` by all models together.

    `models` holds the (low, high) of each by its name. All depends on them: a real job can do something
    that none of them does. `sizes` are the numbers of nodes that were measured.
    """

    nodes: int
    low: float
    high: float
    models: dict[str, tuple[float, ...]]
    sizes: tuple[int, ...]

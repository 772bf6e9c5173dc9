"""Runs as arrays: seconds of each rank by part of the step, and the course that all of them make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_clusterqual.judge.full_run.columns import UNKNOWN, Columns
from pytest_clusterqual.judge.full_run.frontier import Course, Frontier

Floats = NDArray[np.float64]


def noise(steps: int, seed: int = 0, *, sigma: float = 0.02, memory: float = 0.0) -> Floats:
    """Factors of a second, each `memory` of the one before."""
    white = np.random.default_rng(seed).standard_normal(steps) * np.sqrt(1 - memory**2)
    found = np.empty(steps)
    last = 0.0
    for place, value in enumerate(white):
        found[place] = last = memory * last + value
    return np.exp(sigma * found)


def columns(
    parts: Mapping[str, Any],
    *,
    work: Any = 65_536,
    at: Any = None,
    beside: Mapping[str, Any] | None = None,
    numbers: Any = None,
    warming: Any = False,
) -> Columns:
    """A rank with the seconds of each of its `parts`, in their order; "step" is the last one."""
    steps = len(parts["step"])
    bounds = dict(zip(parts, np.cumsum([np.broadcast_to(part, steps) for part in parts.values()], axis=0), strict=True))
    bounds = {"between": np.zeros(steps), "data": bounds.get("between", np.zeros(steps)), **bounds}
    over = bounds["step"]
    return Columns(
        numbers=np.arange(1, steps + 1) if numbers is None else np.asarray(numbers),
        world=np.zeros(steps, dtype=np.int64), seconds=over - bounds["data"],
        tokens=np.broadcast_to(UNKNOWN if work is None else work, steps).astype(np.int64),
        sequences=np.full(steps, UNKNOWN),
        at=np.cumsum(over) - over if at is None else np.asarray(at),
        warming=np.broadcast_to(warming, steps),
        bounds=bounds, beside={name: np.asarray(met) for name, met in (beside or {}).items()},
    )  # fmt: skip


def course(*ranks: Columns, nodes: Sequence[str] = ()) -> Course:
    frontier = Frontier()
    for rank, mine in enumerate(ranks):
        frontier.add(rank, nodes[rank] if nodes else f"node{rank}", mine)
    return frontier.course()


def alone(seconds: Floats, **more: Any) -> Course:
    """One rank whose steps take that long."""
    return course(columns({"step": seconds}, **more))


def together(own: Floats, *, part: str = "data", step: float = 1.0, nodes: Sequence[str] = ()) -> Course:
    """Ranks that take `own` seconds, (rank, step), for one part, and then wait for each other."""
    over = own.max(axis=0) + step
    return course(*(columns({part: mine, "step": over - mine}) for mine in own), nodes=nodes)

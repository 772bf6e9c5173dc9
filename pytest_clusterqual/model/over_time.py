"""What the steps of a run show in their order: drift, changes, stalls that come again, ranks that are late."""

from __future__ import annotations

from dataclasses import dataclass, field

from pytest_clusterqual.model.record import Finding, Interval


@dataclass(frozen=True, kw_only=True, slots=True)
class OverTime:
    """Of the `steps` that every rank has kept, without warm-up.

    `drift` is by how much of itself the step time has changed from the first to the last of them, by a straight line;
    None where that cannot be said. `stages` are the parts of a step as all ranks together reach them, seconds of an
    average one, where there are several; what lies before its data is `between`. `untold` says what cannot be said, and
    why.
    """

    steps: int
    drift: float | None = None
    interval: Interval | None = None
    stages: dict[str, float] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    untold: tuple[str, ...] = ()

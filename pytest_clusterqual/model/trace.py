"""What profiler traces tell: when each rank computed, communicated and copied, and what that adds up to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Activity:
    """Device work of one class; the four sequences have one entry an event and may be long.

    `start` and `end` are whole nanoseconds of the rank's own clock. `step` is the place in
    `Trace.steps` of the step that launched it, -1 before the first. `kind` is a place in
    `Trace.kernels` for compute, in `Trace.collectives` for communication, and means nothing else.
    """

    start: Sequence[int]
    end: Sequence[int]
    step: Sequence[int]
    kind: Sequence[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Collective:
    """A collective of one process group; `group` is empty where the trace does not name it."""

    name: str
    group: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One ``ProfilerStep#number`` of the host, nanoseconds of the rank's own clock."""

    number: int
    start: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """One rank's trace. No `steps` means that the profiler was told of none: then it is one whole.

    `cpu` says that operators of the host stand for the work of a device; they are no `kernels`.
    Those are distinct by name, grid and block, so a name may be there twice. `sequence` has one entry a communication
    event: its number in its process group, -1 where it is not told. `problems` are sentences about
    what the file does not tell.
    """

    file: str
    rank: int | None
    world: int | None
    cpu: bool
    steps: tuple[Step, ...]
    compute: Activity
    communication: Activity
    memory: Activity
    kernels: tuple[str, ...]
    collectives: tuple[Collective, ...]
    sequence: Sequence[int]
    problems: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.file if self.rank is None else f"rank {self.rank}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """Where the time of one rank went, seconds; the five close to the whole.

    `compute` is computing alone, `overlapped` computing and communicating at once, `exposed`
    communicating without computing, `memory` nothing but copies and sets, `idle` nothing at all.
    """

    compute: float
    overlapped: float
    exposed: float
    memory: float
    idle: float

    @property
    def total(self) -> float:
        return self.compute + self.overlapped + self.exposed + self.memory + self.idle

    @property
    def overlap(self) -> float | None:
        """The share of communication that computing hides; None where nothing was communicated."""
        communication = self.overlapped + self.exposed
        return self.overlapped / communication if communication else None


@dataclass(frozen=True, kw_only=True, slots=True)
class StepParts:
    """One step of one rank; `number` is None for a trace without steps."""

    number: int | None
    parts: Parts


@dataclass(frozen=True, kw_only=True, slots=True)
class Inflation:
    """How many times longer the same kernels take while communication runs, over `kernels` of them."""

    ratio: float
    kernels: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrivals:
    """What a rank spent in `collectives` that were found on all traces of their group, seconds.

    `transfer` is the least any rank needed, `wait` the rest: waiting for ranks that came later.
    It was `last` to arrive so many times.
    """

    collectives: int
    transfer: float
    wait: float
    last: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RankTimes:
    """`parts` are the sum over `steps`; `arrivals` is None where no collective could be compared."""

    rank: int | None
    file: str
    steps: tuple[StepParts, ...]
    parts: Parts
    inflation: Inflation | None
    arrivals: Arrivals | None

    @property
    def name(self) -> str:
        return self.file if self.rank is None else f"rank {self.rank}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Together:
    """What steps cost all ranks together, seconds: each part is what it adds to the rank furthest behind."""

    compute: float
    exposed: float
    memory: float
    idle: float

    @property
    def total(self) -> float:
        return self.compute + self.exposed + self.memory + self.idle


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceTimes:
    """All traces that were given; `steps` are those that all of them have, and what `together` is of."""

    world: int | None
    steps: tuple[int | None, ...]
    ranks: tuple[RankTimes, ...]
    together: Together
    warnings: tuple[str, ...]

"""What a training script wrote through `pytest_clusterqual.probe`, and what it tells: the ledger of its time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from pytest_clusterqual.model.over_time import OverTime
from pytest_clusterqual.model.record import Interval


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeStart:
    """The first line of a file: one process of a run, the `attempt`-th of its rank, from 0.

    `began` (of the process) and `at` (of this line) are seconds of the monotonic clock that `clock` names, `wall`
    is `at` in seconds since the epoch. `world` is 0 where the process was not told.
    """

    probe: int
    rank: int
    world: int
    attempt: int
    restart: int
    host: str
    clock: str
    pid: int
    began: float
    at: float
    wall: float


ProbeWhat = Literal[
    "step", "data", "save", "load", "compile", "hook",  # spans
    "resumed", "stage", "loss", "saved", "extra", "fault", "done", "end",  # marks
]  # fmt: skip


class ProbeLine(Protocol):
    """A span, written when it ended, or a mark, which takes no time. What reads them says how they are held.

    `at` is when it began, seconds of the file's clock; `own` are the `seconds` less those of the spans inside, None
    where there are none. `step` is the number of a step, and of all else that of the last step before it. `error` is
    the type of the exception that ended it. Spans of other threads are `background`.

    A stage says that the part of a step with that `name` is over. Marks with a `value`: loss of a step; saved, this
    rank's part of the checkpoint of `step` is complete, bytes, 0 where they are not known; extra, host memory that a
    save took meanwhile, bytes. A fault is done to this process on purpose and has a `name`. The end tells the most
    memory the process ever had in bytes, of the host and of its device (`host_peak`, `device_peak`), None where that
    is not known.
    """

    what: ProbeWhat
    at: float
    seconds: float
    own: float | None
    step: int
    tokens: int | None
    sequences: int | None
    name: str
    error: str
    nested: bool
    background: bool
    value: float | None
    host_peak: int | None
    device_peak: int | None


@dataclass(kw_only=True, slots=True)
class Line:
    """A `ProbeLine` in a measurement, which has hundreds of thousands of them."""

    JSON_SPARSE: ClassVar[bool] = True

    what: ProbeWhat
    at: float
    seconds: float = 0.0
    own: float | None = None
    step: int = 0
    tokens: int | None = None
    sequences: int | None = None
    name: str = ""
    error: str = ""
    nested: bool = False
    background: bool = False
    value: float | None = None
    host_peak: int | None = None
    device_peak: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbedProcess:
    """One process of a rank: its first line, and all after it."""

    start: ProbeStart
    lines: tuple[Line, ...]


# States of a rank, in the order of a life; declared hooks stand between the last two by their names. The parts of kept
# steps are in states of their own where the step was taken apart beside the run; a failure is detection and restart
# where it is known when it struck and when it was noticed, else failed steps and an outage.
STATES = (
    "init", "load", "warm-up", "kept", "exposed transfer", "wait", "bubble", "data", "checkpoint", "lost",
    "failed", "outage", "detection", "restart", "rendezvous", "reload", "re-warm-up", "teardown", "residual",
)  # fmt: skip
HOOK = "hook "


@dataclass(frozen=True, kw_only=True, slots=True)
class RankLedger:
    """Every second of one rank in one state; they add up to `wall`, and the residual may be negative.

    `kept` and `lost` count steps. `background` are the seconds that other threads spent, by what they did: they ran
    beside the states and are in none of them. `ends` says how each attempt ended: done, ended, or a type of
    exception; empty where it was killed, or is still running.
    """

    rank: int
    hosts: tuple[str, ...]
    wall: float
    seconds: dict[str, float]
    kept: int
    lost: int
    data_stall: float | None
    background: dict[str, float]
    ends: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeSaves:
    """Checkpoints as the slowest rank saw each: how long they kept it from training, seconds."""

    count: int
    total: float
    median: float
    worst: float
    worst_step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeLedger:
    """A run as its probes saw it. `wall` is that of the rank that was there longest.

    `kept` are steps that every rank has kept, `lost` those that some rank did again. `work` in `unit` (tokens or
    sequences) is what the kept steps did; None where that cannot be known. `step` is the median of the kept steps,
    each as long as on its slowest rank and without warm-up, seconds; `step_interval` encloses the medians of
    consecutive blocks of them. `steady` is the share of the wall clock that as many steps take in the steady state:
    goodput against it. `interval` is a sentence on how often it was saved, empty where that is not known.
    """

    world: int
    wall: float
    ranks: tuple[RankLedger, ...]
    restarts: int
    kept: int
    lost: int
    unit: str
    work: int | None
    step: float | None
    step_interval: Interval | None
    steady: float | None
    saves: ProbeSaves | None
    interval: str
    over_time: OverTime
    unknown: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def goodput(self) -> float | None:
        """`unit` a second of wall clock."""
        return None if self.work is None or not self.wall else self.work / self.wall

"""What the log of a training job tells: steps with what each line says of them, and what follows from all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_clusterqual.model.record import Finding, Interval

EventKind = Literal["checkpoint", "evaluation"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where in the files something stands; lines count from 1."""

    file: str
    line: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """When a line was printed: seconds of `clock`, which ticks every `tick` seconds.

    Moments of different clocks cannot be compared: a progress bar has its own, which begins with the bar.
    """

    clock: str
    at: float
    tick: float


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedStep:
    """What one line tells of step `step`; None for what it does not tell.

    `seconds` is the time of one step, a mean over the last `over` of them. `over` 0 is no step but the moment at
    which the steps after it began. `tokens` and `samples` are of one step on all devices, `device_rate` is
    tokens/s of one device, `memory` bytes. `skipped` steps of those changed no weight. `printer` is the rank or
    task that the line names, `copies` how many more lines tell of the same step.
    """

    place: Place
    step: int
    over: int
    seconds: float | None = None
    tokens: float | None = None
    samples: float | None = None
    device_rate: float | None = None
    loss: float | None = None
    memory: float | None = None
    skipped: int = 0
    moment: Moment | None = None
    printer: str = ""
    copies: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class LogEvent:
    """A line that speaks of something else than a step."""

    kind: EventKind
    place: Place


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """What a log tells of the whole job; None for what it does not tell.

    `global_batch` is sequences of a step, `steps` how many were planned; `took` and `done` are the seconds that
    the log itself counts for so many steps, everything included.
    """

    global_batch: int | None = None
    sequence_length: int | None = None
    tokens_per_step: int | None = None
    devices: int | None = None
    steps: int | None = None
    took: float | None = None
    done: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Unread:
    """Lines of one shape that nothing was read from; `example` is the first of them."""

    place: Place
    example: str
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingLog:
    """The files of one run, in the order given. An attempt ends where the steps go back to an earlier one.

    `lines` counts all that are not empty, `unread` those of them that nothing was read from, the commonest
    shapes first. `memory` is the most that any line tells, in bytes.
    """

    family: str
    files: tuple[str, ...]
    attempts: tuple[tuple[LoggedStep, ...], ...]
    events: tuple[LogEvent, ...]
    told: Told
    memory: float | None
    lines: int
    unread: tuple[Unread, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Middle:
    """A median over `lines` lines that stand for `steps` steps; no interval below six lines."""

    value: float
    interval: Interval | None
    lines: int
    steps: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Pause:
    """`seconds` between two lines in which no step can have run; `told` is what the log says of that time."""

    after: int
    before: int
    seconds: float
    told: tuple[EventKind, ...]
    place: Place


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedAttempt:
    """First and last step of an attempt, steps of its warm-up, and what of it was done again later.

    `lost_seconds` is the time of the lost steps where their lines tell it, `away` the seconds between the last line
    before and the first step of this attempt; None where they are not told.
    """

    first: int
    last: int
    lines: int
    warm_up: int
    seconds: Middle | None
    lost: int
    lost_seconds: float | None
    away: float | None
    place: Place


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedRun:
    """What may be said of a run from its log alone. All rates are of all devices but `device_rate`.

    `timed_by` says where the times of steps come from, empty where they are not known. Of `rates` there are those
    whose work per step is known, by what is counted. `drift` encloses how many times longer the second half of the
    steady steps takes, and `findings` tell when or how often they are unlike each other. `missing` are sentences about
    what this log cannot tell and what would.
    """

    log: TrainingLog
    timed_by: str
    attempts: tuple[LoggedAttempt, ...]
    seconds: Middle | None
    tokens_per_step: float | None
    tokens_from: str
    rates: dict[str, Middle]
    device_rate: Middle | None
    drift: Interval | None
    findings: tuple[Finding, ...]
    pauses: tuple[Pause, ...]
    skipped: int
    not_finite: tuple[int, ...]
    warnings: tuple[str, ...]
    missing: tuple[str, ...]

"""The checkpoints of a run: what each of its ranks saw of them, and what they did to the steps beside them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.statistics import apart_ratio_interval, median, steady_start
from pytest_clusterqual.model.full_run import FullRun
from pytest_clusterqual.model.probe import Line, ProbedProcess
from pytest_clusterqual.model.record import Interval

_REMEDY = (
    ", and has marked others: call probe.saved(step) where that save ends, and let the script wait for its last one "
    "before it ends"
)
_MOSTLY = 0.5  # of a step's time that a save was under way, so that the step counts as one beside it


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One rank's part in a checkpoint.

    It kept the rank from training for `blocking` seconds and was complete `completion` seconds after it began; None
    where a failure came before. `size` of the part and `extra` host memory that it took are in bytes, None where the
    rank has not told.
    """

    rank: int
    blocking: float
    completion: float | None
    size: int | None = None
    extra: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Save:
    """One checkpoint, of step `step` in attempt `attempt` of the run."""

    attempt: int
    step: int
    parts: tuple[Part, ...]

    @property
    def blocking(self) -> float:
        """How long it kept the worst rank from training, seconds."""
        return max(part.blocking for part in self.parts)

    @property
    def completion(self) -> float | None:
        """How long until all ranks had completed it, seconds; None for one that a failure interrupted."""
        each = [part.completion for part in self.parts]
        return None if None in each else max(seconds for seconds in each if seconds is not None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Inflation:
    """How much longer a step takes beside a save, as a share: 0.2 is a fifth longer.

    The medians of `beside` steps during most of which a save was under way, and of `free` steps during which none was,
    warm-up left out. `interval` is None where there are too few of either.
    """

    value: float
    interval: Interval | None
    beside: int
    free: int


def saves(run: FullRun) -> tuple[Save, ...]:
    """All checkpoints of the run, in their order.

    In a command the part of a rank that never marks one is complete when it ends: often only one rank writes and knows.

    Raises:
        MeasurementError: one of the last attempt never became complete; names the rank.
    """
    parts: defaultdict[tuple[int, int], list[Part]] = defaultdict(list)
    for rank in run.ranks:
        lines = (line for process in rank.processes for line in process.lines)
        marked = run.checkpoints is not None or any(line.what == "saved" for line in lines)
        for attempt, process in enumerate(rank.processes):
            for step, part in _parts(rank.rank, process, marked=marked):
                parts[attempt, step].append(part)
    last = max(len(rank.processes) for rank in run.ranks) - 1
    for (attempt, step), each in sorted(parts.items()):
        torn = [part.rank for part in each if part.completion is None]
        if torn and attempt == last:
            raise MeasurementError(
                f"full run: the checkpoint of step {step} never became complete: rank {torn[0]} has no saved mark"
                + (_REMEDY if run.checkpoints is None else "")
            )
    return tuple(Save(attempt=attempt, step=step, parts=tuple(each)) for (attempt, step), each in sorted(parts.items()))


def inflation(run: FullRun) -> Inflation | None:
    """How the steps of the whole run, each as long as on its slowest rank, are with and without a save beside them.

    None where there are no steps of one of the two kinds.
    """
    beside: list[float] = []
    free: list[float] = []
    for attempt in range(max(len(rank.processes) for rank in run.ranks)):
        seconds: defaultdict[int, float] = defaultdict(float)
        share: defaultdict[int, float] = defaultdict(float)
        for process in (rank.processes[attempt] for rank in run.ranks if attempt < len(rank.processes)):
            flights = list(_flights(process))
            for line in process.lines:
                if _is_step(line):
                    seconds[line.step] = max(seconds[line.step], _own(line))
                    share[line.step] = max(share[line.step], sum(_overlap(line, *flight) for flight in flights))
        calm = [step for step in sorted(seconds) if not share[step]]
        first = calm[steady_start([seconds[step] for step in calm])] if calm else 0
        free += [seconds[step] for step in calm if step >= first]
        beside += [seconds[step] for step in seconds if step >= first and share[step] >= _MOSTLY]
    if not free or not beside or median(free) <= 0:
        return None
    found = apart_ratio_interval(beside, free)
    return Inflation(
        value=median(beside) / median(free) - 1,
        interval=found and _less_one(found),
        beside=len(beside),
        free=len(free),
    )


def _parts(rank: int, process: ProbedProcess, *, marked: bool) -> Iterator[tuple[int, Part]]:
    done = {line.step: line for line in process.lines if line.what == "saved"}
    extra = {line.step: int(line.value) for line in process.lines if line.what == "extra" and line.value is not None}
    for line in process.lines:
        if not _is_save(line):
            continue
        mark = done.get(line.step)
        completion = None if mark is None else mark.at - line.at
        yield line.step, Part(
            rank=rank, blocking=line.seconds, completion=completion if marked else line.seconds,
            size=int(mark.value) if mark and mark.value else None, extra=extra.get(line.step),
        )  # fmt: skip


def _flights(process: ProbedProcess) -> Iterator[tuple[float, float]]:
    """From when to when a save went on beside training; one that never ended went on as long as the process."""
    done = {line.step: line.at for line in process.lines if line.what == "saved"}
    if not done:
        return
    last = max(line.at + line.seconds for line in process.lines)
    for line in process.lines:
        if _is_save(line):
            yield line.at + line.seconds, done.get(line.step, last)


def _overlap(line: Line, since: float, until: float) -> float:
    """The share of a span between two times."""
    return max(min(until, line.at + line.seconds) - max(since, line.at), 0.0) / line.seconds if line.seconds else 0.0


def _is_save(line: Line) -> bool:
    return line.what == "save" and not line.error and not line.background


def _is_step(line: Line) -> bool:
    return line.what == "step" and not line.error and not line.background


def _own(line: Line) -> float:
    return line.seconds if line.own is None else line.own


def _less_one(ratio: Interval) -> Interval:
    return replace(ratio, low=ratio.low - 1, high=ratio.high - 1)

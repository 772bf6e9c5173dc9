"""What happens once in a full run and takes time: saves, a failure, what comes back after it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.full_run.outages import last_whole, outages, same_clock, struck
from pytest_clusterqual.model.full_run import FullRun, RankRun
from pytest_clusterqual.model.probe import Line, ProbedProcess


@dataclass(frozen=True, kw_only=True, slots=True)
class Save:
    """One checkpoint: how long it kept the worst rank from training, and how long until all had completed it, seconds.

    `completion` is None for a save that a failure interrupted; `size` in bytes is that of all ranks, `extra` the most
    host memory that one rank needed for it.
    """

    attempt: int
    step: int
    blocking: float
    completion: float | None
    size: int
    extra: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Events:
    """Seconds of what happens once in a run; None where it did not happen.

    `detection` ends with the first survivor's error (without one: the first new process), `restart` runs from there to
    the last new process, `rendezvous` until the slowest of these has its job again, `load` is reading the checkpoint,
    `recovery` runs from the failure until the slowest rank has ended a step that was not done before.
    """

    detection: float | None = None
    restart: float | None = None
    rendezvous: float | None = None
    load: float | None = None
    recovery: float | None = None
    saves: tuple[Save, ...] = ()


def events(run: FullRun) -> Events:
    """Time the events.

    Clocks of different hosts are never subtracted: there, what one rank saw by itself counts.

    Raises:
        MeasurementError: names what is missing or contradicts itself, by rank.
    """
    saves = _saves(run)
    victims = struck(run)
    if not victims:
        return Events(saves=saves)
    number = max(process for process, _ in victims.values())
    again = [rank for rank in run.ranks if len(rank.processes) > number + 1]
    if not again:
        raise MeasurementError("full run: no rank began again after the failure")
    ended = {rank: outage for rank, (_, outage) in outages(run).items()}
    at_once = same_clock(run)
    others = [rank for rank in again if rank.rank in ended and (at_once or rank.rank not in victims)] or [
        rank for rank in again if rank.rank in ended
    ]
    noticed = []
    restarted = []
    for rank in others:
        begun = rank.processes[number + 1].start.began
        outage = ended[rank.rank]
        since = outage.struck if at_once or rank.rank in victims else last_whole(rank.processes[number])
        known = min(outage.known, begun)
        noticed.append(max(known - since, 0.0))
        restarted.append(max(begun - known, 0.0))
    return Events(
        detection=(max if at_once else min)(noticed, default=None),
        restart=max(restarted, default=None),
        rendezvous=max(_ready(rank.processes[number + 1]) for rank in again),
        load=max((seconds for rank in again if (seconds := _load(rank, number + 1)) is not None), default=None),
        recovery=_recovery(run, again, victims, number),
        saves=saves,
    )


def _ready(process: ProbedProcess) -> float:
    """From the start of a process to its first span: the process group is there and the job is built."""
    return max(min((line.at for line in process.lines), default=process.start.at) - process.start.began, 0.0)


def _load(rank: RankRun, number: int) -> float | None:
    """Reading the checkpoint; an attempt that found none to go on from does not count."""
    lines = rank.processes[number].lines
    if not any(line.what == "resumed" and line.step > 0 for line in lines):
        return None
    return sum(line.seconds for line in lines if line.what == "load")


def _recovery(run: FullRun, again: list[RankRun], victims: dict[int, tuple[int, float]], number: int) -> float | None:
    """From the failure until work is done that was not done before it."""
    before = max(
        (line.step for rank in run.ranks for line in rank.processes[number].lines if _done(line)), default=0
    )  # fmt: skip
    if same_clock(run):
        since = dict.fromkeys((rank.rank for rank in again), min(at for _, at in victims.values()))
    else:  # a victim that came back where it was can tell by itself
        since = {
            rank.rank: victims[rank.rank][1]
            for rank in again
            if rank.rank in victims and rank.processes[number].start.clock == rank.processes[number + 1].start.clock
        }
    taken = []
    for rank in again:
        if rank.rank not in since:
            continue
        past = [line.at + line.seconds for line in _lines(rank, number + 1) if _done(line) and line.step > before]
        if not past:
            raise MeasurementError(f"full run: rank {rank.rank} did no step past {before} after the failure")
        taken.append(min(past) - since[rank.rank])
    return max(taken, default=None)


def _lines(rank: RankRun, first: int) -> Iterator[Line]:
    return (line for process in rank.processes[first:] for line in process.lines)


def _done(line: Line) -> bool:
    return line.what == "step" and not line.error


def _saves(run: FullRun) -> tuple[Save, ...]:
    blocking: defaultdict[tuple[int, int], dict[int, float]] = defaultdict(dict)
    completed: defaultdict[tuple[int, int], dict[int, float]] = defaultdict(dict)
    size: defaultdict[tuple[int, int], int] = defaultdict(int)
    extra: defaultdict[tuple[int, int], int] = defaultdict(int)
    for rank in run.ranks:
        for attempt, process in enumerate(rank.processes):
            began: dict[int, float] = {}
            for line in process.lines:
                key = (attempt, line.step)
                if line.what == "save" and not line.error and not line.background:
                    began[line.step] = line.at
                    blocking[key][rank.rank] = line.seconds
            for line in process.lines:
                key = (attempt, line.step)
                if line.what == "saved" and line.step in began:
                    completed[key][rank.rank] = line.at - began[line.step]
                    size[key] += int(line.value or 0)
                elif line.what == "extra":
                    extra[key] = max(extra[key], int(line.value or 0))
    last = max(len(rank.processes) for rank in run.ranks) - 1
    saves = []
    for (attempt, step), ranks in sorted(blocking.items()):
        missing = sorted(set(ranks) - set(completed[attempt, step]))
        if missing and attempt == last:
            raise MeasurementError(
                f"full run: the checkpoint of step {step} never became complete: rank {missing[0]} has no saved mark"
            )
        saves.append(
            Save(
                attempt=attempt, step=step, blocking=max(ranks.values()),
                completion=None if missing else max(completed[attempt, step].values()),
                size=size[attempt, step], extra=extra[attempt, step],
            )
        )  # fmt: skip
    return tuple(saves)

"""What happens once in a full run and takes time: saves, a failure, what comes back after it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.full_run.outages import Moment, attempt_of, moments, struck
from pytest_clusterqual.judge.full_run.saves import Save, saves
from pytest_clusterqual.model.full_run import FullRun, RankRun
from pytest_clusterqual.model.probe import Line, ProbedProcess


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
    saved = saves(run)
    victims = struck(run)
    if not victims:
        return Events(saves=saved)
    number = attempt_of(victims)
    if unborn := [rank.rank for rank in run.ranks if len(rank.processes) <= number]:
        raise MeasurementError(f"full run: rank {unborn[0]} wrote nothing in the attempt that failed")
    again = [rank for rank in run.ranks if len(rank.processes) > number + 1]
    if not again:
        raise MeasurementError("full run: no rank began again after the failure")
    seen = moments(run)
    return Events(
        detection=_detection(seen),
        restart=_restart(seen, [rank.processes[number + 1] for rank in again]),
        rendezvous=max(_ready(rank.processes[number + 1]) for rank in again),
        load=max((seconds for rank in again if (seconds := _load(rank, number + 1)) is not None), default=None),
        recovery=_recovery(run, again, seen, number),
        saves=saved,
    )


def _detection(seen: dict[str, Moment]) -> float | None:
    """By a clock that saw it strike and noticed; else the closest that one without a victim can say."""
    whole = [moment.known - moment.struck for moment in seen.values() if moment.exact and moment.noticed]
    bounds = [moment.known - moment.struck for moment in seen.values() if moment.noticed]
    untold = [moment.known - moment.struck for moment in seen.values() if math.isfinite(moment.known)]
    return max(whole) if whole else min(bounds or untold, default=None)


def _restart(seen: dict[str, Moment], begun: list[ProbedProcess]) -> float | None:
    """Until the last new process; of a host that was not there before nothing is known."""
    noticed = {clock: moment.known for clock, moment in seen.items() if moment.noticed}
    known = noticed or {clock: moment.known for clock, moment in seen.items()}
    taken = [max(p.start.began - known[p.start.clock], 0.0) for p in begun if p.start.clock in known]
    return max(taken, default=None)


def _ready(process: ProbedProcess) -> float:
    """From the start of a process to its first span: the process group is there and the job is built."""
    return max(min((line.at for line in process.lines), default=process.start.at) - process.start.began, 0.0)


def _load(rank: RankRun, number: int) -> float | None:
    """Reading the checkpoint; an attempt that found none to go on from does not count."""
    lines = rank.processes[number].lines
    if not any(line.what == "resumed" and line.step > 0 for line in lines):
        return None
    return sum(line.seconds for line in lines if line.what == "load")


def _recovery(run: FullRun, again: list[RankRun], seen: dict[str, Moment], number: int) -> float | None:
    """From the failure until work is done that was not done before it.

    Where no clock that saw it strike was there again, it is counted from the last whole span before: a step more at
    most.
    """
    before = max(
        (line.step for rank in run.ranks for line in rank.processes[number].lines if _done(line)), default=0
    )  # fmt: skip
    exact = {clock: moment.struck for clock, moment in seen.items() if moment.exact}
    there = {rank.processes[number + 1].start.clock for rank in again}
    since = exact if there & exact.keys() else {clock: moment.struck for clock, moment in seen.items()}
    taken = []
    for rank in again:
        past = [line.at + line.seconds for line in _lines(rank, number + 1) if _done(line) and line.step > before]
        if not past:
            raise MeasurementError(f"full run: rank {rank.rank} did no step past {before} after the failure")
        if (clock := rank.processes[number + 1].start.clock) in since:
            taken.append(min(past) - since[clock])
    return max(taken, default=None)


def _lines(rank: RankRun, first: int) -> Iterator[Line]:
    return (line for process in rank.processes[first:] for line in process.lines)


def _done(line: Line) -> bool:
    return line.what == "step" and not line.error

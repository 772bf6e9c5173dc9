"""When a failure struck and when it was noticed, as each rank's own clock saw it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.full_run.life import Outage
from pytest_clusterqual.model.full_run import FullRun, RankRun
from pytest_clusterqual.model.probe import Line, ProbedProcess

_BESIDE = ("stage", "loss", "saved", "extra", "end")  # marks that say nothing of what the process was doing


def same_clock(run: FullRun) -> bool:
    """True if times of all processes can be subtracted."""
    return len({process.start.clock for rank in run.ranks for process in rank.processes}) == 1


def struck(run: FullRun) -> dict[int, tuple[int, float]]:
    """Rank -> which of its processes was hurt on purpose, and when; empty where nothing was to fail.

    Raises:
        MeasurementError: what was to fail did not, or more often than once.
    """
    if run.failure is None:
        return {}
    found = {
        rank.rank: [(number, at) for number, process in enumerate(rank.processes) for at in _faults(process.lines)]
        for rank in run.ranks
    }
    found = {rank: faults for rank, faults in found.items() if faults}
    if not found:
        raise MeasurementError(f"full run: {run.failure.told}: it was planned and did not happen")
    if again := [rank for rank, faults in found.items() if len(faults) > 1]:
        raise MeasurementError(f"full run: {run.failure.told}: it happened {len(found[again[0]])} times, planned once")
    return {rank: faults[0] for rank, faults in found.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """When a failure struck and when it was noticed, in seconds of one host's clock.

    `exact`: this clock saw it strike; else that was after the last whole span here. `noticed`: by a process here; else
    it was somewhere else, or by nobody before the next process began.
    """

    struck: float
    known: float
    exact: bool
    noticed: bool


def moments(run: FullRun) -> dict[str, Moment]:
    """Clock -> what it says of the failure; clocks that saw nothing of it are left out.

    Clocks of different hosts are never subtracted.
    """
    victims = struck(run)
    if not victims or run.failure is None:
        return {}
    number = attempt_of(victims)
    here: defaultdict[str, list[RankRun]] = defaultdict(list)
    for rank in run.ranks:
        if len(rank.processes) > number:
            here[rank.processes[number].start.clock].append(rank)
    hit = {clock: [victims[r.rank][1] for r in ranks if r.rank in victims] for clock, ranks in here.items()}
    seen = {clock: _noticed(ranks, victims, number) for clock, ranks in here.items()}
    anybody = any(at is not None for at in seen.values())
    found = {}
    for clock, ranks in here.items():
        moment = min(hit[clock], default=max(last_whole(rank.processes[number]) for rank in ranks))
        at = seen[clock]
        if at is not None:
            found[clock] = Moment(struck=moment, known=max(at, moment), exact=bool(hit[clock]), noticed=True)
        elif hit[clock]:
            # Whoever launched sees its agents end. Else, without anybody's error, it is the next process that shows it.
            known = moment if anybody or run.failure.ends_launch else _next_process(run, number, clock)
            found[clock] = Moment(struck=moment, known=known, exact=True, noticed=False)
    return found


def outages(run: FullRun) -> dict[int, tuple[int, Outage]]:
    """Rank -> which of its processes the failure ended, and when; a rank whose clock cannot tell is left out."""
    seen = moments(run)
    if not seen:
        return {}
    number = attempt_of(struck(run))
    ended = [(rank.rank, rank.processes[number].start.clock) for rank in run.ranks if len(rank.processes) > number]
    return {
        rank: (number, Outage(struck=seen[clock].struck if seen[clock].exact else -math.inf, known=seen[clock].known))
        for rank, clock in ended
        if clock in seen
    }


def attempt_of(victims: dict[int, tuple[int, float]]) -> int:
    """The number of the processes that the failure ended."""
    return max(process for process, _ in victims.values())


def _noticed(ranks: Sequence[RankRun], victims: dict[int, tuple[int, float]], number: int) -> float | None:
    """When the first survivor knew; without survivors, when a victim did that could still tell."""
    errors = {rank.rank: noticed_at(rank.processes[number]) for rank in ranks}
    since = min((victims[rank][1] for rank in errors if rank in victims), default=-math.inf)
    survivors = [at for rank, at in errors.items() if at is not None and rank not in victims and at >= since]
    if survivors:
        return min(survivors)
    own = [at for rank in ranks if rank.rank in victims and (at := _own_end(rank, victims, number, errors)) is not None]
    return min(own, default=None)


def _own_end(
    rank: RankRun, victims: dict[int, tuple[int, float]], number: int, errors: dict[int, float | None]
) -> float | None:
    """When a victim itself knew: by its error, or at once if it was told to end and ended in order."""
    in_order = any(line.what == "end" and not line.error for line in rank.processes[number].lines)
    return victims[rank.rank][1] if in_order else errors[rank.rank]


def _next_process(run: FullRun, number: int, clock: str) -> float:
    later = [rank.processes[number + 1].start for rank in run.ranks if len(rank.processes) > number + 1]
    return min((start.began for start in later if start.clock == clock), default=math.inf)


def noticed_at(process: ProbedProcess) -> float | None:
    """When the first of its last spans failed, or it ended by an error; None if it knew nothing of a failure."""
    noticed = None
    for line in reversed(process.lines):
        if line.error and not line.background:
            noticed = line.at + line.seconds
        elif not line.background and line.what not in _BESIDE:
            break
    return noticed


def last_whole(process: ProbedProcess) -> float:
    """When the last span ended that did not fail."""
    whole = (line for line in process.lines if not (line.error or line.background or line.what in _BESIDE))
    return max((line.at + line.seconds for line in whole), default=process.start.at)


def _faults(lines: Sequence[Line]) -> Iterator[float]:
    return (line.at for line in lines if line.what == "fault")

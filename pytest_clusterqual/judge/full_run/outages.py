"""When a failure struck and when it was noticed, as each rank's own clock saw it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.full_run.life import Outage
from pytest_clusterqual.model.full_run import FullRun, RankRun
from pytest_clusterqual.model.probe import Line, ProbedProcess


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


def outages(run: FullRun) -> dict[int, tuple[int, Outage]]:
    """Rank -> which of its processes the failure ended, and when; a rank whose clock cannot tell is left out."""
    victims = struck(run)
    if not victims:
        return {}
    number = max(process for process, _ in victims.values())
    noticed = {
        rank.rank: at
        for rank in run.ranks
        if rank.rank not in victims and len(rank.processes) > number
        if (at := noticed_at(rank.processes[number])) is not None
    }
    ended = [rank for rank in run.ranks if len(rank.processes) > number]
    if same_clock(run):
        moment = min(at for _, at in victims.values())
        # Without anybody's error it is the next process that shows that it was noticed.
        begun = [rank.processes[number + 1].start.began for rank in ended if len(rank.processes) > number + 1]
        known = min((at for at in noticed.values() if at >= moment), default=min(begun, default=moment))
        return {rank.rank: (number, Outage(struck=moment, known=known)) for rank in ended}
    return dict(_seen_alone(ended, victims, noticed, number))


def _seen_alone(
    ranks: Sequence[RankRun], victims: dict[int, tuple[int, float]], noticed: dict[int, float], number: int
) -> Iterator[tuple[int, tuple[int, Outage]]]:
    """A survivor knows when it noticed, and that it struck after its last whole span; a victim knows when it struck."""
    for rank in ranks:
        if rank.rank in victims:
            at = victims[rank.rank][1]
            yield rank.rank, (number, Outage(struck=at, known=at if noticed else math.inf))
        elif rank.rank in noticed:
            yield rank.rank, (number, Outage(struck=-math.inf, known=noticed[rank.rank]))


def noticed_at(process: ProbedProcess) -> float | None:
    """When its last span failed, or it ended by an error; None if it knew nothing of a failure."""
    for line in reversed(process.lines):
        if line.error:
            return line.at + line.seconds
        if line.what not in ("end", "loss", "saved", "extra"):
            return None
    return None


def last_whole(process: ProbedProcess) -> float:
    """When the last span ended that did not fail."""
    ends = (line.at + line.seconds for line in process.lines if not line.error and not line.background)
    return max(ends, default=process.start.at)


def _faults(lines: Sequence[Line]) -> Iterator[float]:
    return (line.at for line in lines if line.what == "fault")

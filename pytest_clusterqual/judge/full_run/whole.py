"""Whether what was written down is a whole run: every rank, every step, times that do not contradict each other."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.full_run.rank_account import START_RESOLUTION
from pytest_clusterqual.judge.judgement import check_ranks
from pytest_clusterqual.model.full_run import FullRun, RankRun
from pytest_clusterqual.model.probe import Line


def check_whole(run: FullRun) -> None:
    """Raises MeasurementError, which names the rank and what is missing or cannot be."""
    check_ranks(run.conditions, [rank.rank for rank in run.ranks], "full run")
    command = run.checkpoints is None
    if run.steps < 1 or not (run.tokens_per_step > 0 or run.sequences_per_step > 0 or command):
        raise MeasurementError(
            f"full run: got {run.steps} steps of {run.tokens_per_step} tokens, want at least one each"
        )
    last = max(len(rank.processes) for rank in run.ranks)
    for rank in run.ranks:
        where = f"full run: rank {rank.rank}"
        _check_times(rank, where)
        if len(rank.processes) == last or run.failure is None or run.failure.go_on != "fewer":
            _check_work(rank, run.steps, where, command=command)


def _check_times(rank: RankRun, where: str) -> None:
    if not rank.processes:
        raise MeasurementError(f"{where} wrote nothing")
    lines = _lines(rank)
    times = [rank.began, rank.ended, *(time for line in lines for time in (line.at, line.seconds))]
    if not all(map(math.isfinite, times)):
        raise MeasurementError(f"{where} has a time that is not finite")
    for line in lines:
        own = line.seconds if line.own is None else line.own
        if not 0 <= own <= line.seconds:
            raise MeasurementError(
                f"{where}: {line.what} of step {line.step} took {line.seconds:g} s, {own:g} s of them outside of the "
                "spans in it"
            )
    first, final = rank.processes[0].start, rank.processes[-1]
    last = max((line.at + line.seconds for line in final.lines), default=final.start.at)
    if rank.began > first.at or rank.ended < last - START_RESOLUTION:
        raise MeasurementError(
            f"{where} wrote lines from {first.at:.6f} s to {last:.6f} s, its launch ran from {rank.began:.6f} s to "
            f"{rank.ended:.6f} s"
        )


def _check_work(rank: RankRun, steps: int, where: str, *, command: bool) -> None:
    """A `command` ends well where it says so, and need not tell its losses."""
    lines = _lines(rank)
    if not any(line.what == "done" or (command and line.what == "end" and not line.error) for line in lines):
        raise MeasurementError(f"{where} has no done mark: it did not finish its work")
    done = {line.step for line in lines if line.what == "step" and not line.error} | _in_flight(rank)
    if undone := sorted(set(range(1, steps + 1)) - done):
        raise MeasurementError(f"{where} did not do step {undone[0]} ({len(undone)} of {steps} steps are missing)")
    if not any(line.seconds > 0 for line in lines if line.what == "step"):
        raise MeasurementError(f"{where} did its steps in no time")
    losses = {line.step: line.value for line in lines if line.what == "loss"}
    for step in losses if command else range(1, steps + 1):
        loss = losses.get(step)
        if loss is None or not math.isfinite(loss):
            raise MeasurementError(f"{where}: the loss of step {step} is missing or no number")


def _in_flight(rank: RankRun) -> set[int]:
    """A step that a killed process had no time to write down, and that was not done again: others had saved it."""
    found = set()
    for before, after in itertools.pairwise(rank.processes):
        last = max((line.step for line in before.lines if line.what == "step" and not line.error), default=0)
        killed = not any(line.what in ("end", "done") for line in before.lines)
        if killed and any(line.what == "resumed" and line.step == last + 1 for line in after.lines):
            found.add(last + 1)
    return found


def _lines(rank: RankRun) -> Sequence[Line]:
    return [line for process in rank.processes for line in process.lines]

"""The ledger of a full run: every second of every rank in one state, and the events in between."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.full_run.events import Events, events
from pytest_clusterqual.judge.full_run.life import DoneStep, Outage
from pytest_clusterqual.judge.full_run.outages import outages, same_clock
from pytest_clusterqual.judge.full_run.rank_account import RESIDUAL_SECONDS, RESIDUAL_SHARE, RankAccount
from pytest_clusterqual.judge.judgement import check_ranks
from pytest_clusterqual.judge.statistics import median
from pytest_clusterqual.judge.step.apart import Apart
from pytest_clusterqual.model.full_run import FullRun, RankRun
from pytest_clusterqual.model.probe import RankLedger

COMPUTING = ("kept", "exposed transfer", "wait", "bubble")  # the parts of steps that count


@dataclass(frozen=True, kw_only=True, slots=True)
class Ledger:
    """`wall` is from the first agent's start to the last one's end, in seconds; `steps` are those that count, in order,
    each as long as on its slowest rank, without what warming up added.
    """

    wall: float
    ranks: tuple[RankLedger, ...]
    steps: tuple[float, ...]
    events: Events

    @property
    def lost(self) -> int:
        """Steps that were done again."""
        return max(rank.lost for rank in self.ranks)


def account(run: FullRun, apart: Apart | None = None) -> Ledger:
    """Sort every second of every rank into one state, and time the events; `apart` divides the steps that count.

    Raises:
        MeasurementError: names what is missing or contradicts itself, by rank; or a rank of whose time too much is in
            no state, which says that the measurement is wrong.
    """
    _check(run)
    ended = outages(run)
    ranks = []
    longest: dict[int, float] = {}
    for rank in run.ranks:
        ledger, kept = _account(rank, ended)
        for step in kept:
            longest[step.number] = max(longest.get(step.number, 0.0), step.seconds)
        ranks.append(_divided(ledger, rank, apart))
    for ledger in ranks:
        _check_residual(ledger)
    return Ledger(
        wall=_wall(run, ranks),
        ranks=tuple(ranks),
        steps=tuple(longest[step] for step in sorted(longest)),
        events=events(run),
    )


def _account(rank: RankRun, ended: dict[int, tuple[int, Outage]]) -> tuple[RankLedger, list[DoneStep]]:
    account = RankAccount(rank.rank)
    by_failure = ended.get(rank.rank)
    for number, process in enumerate(rank.processes):
        # The first process was waited for since the first agent's start, the last one's launch goes on after it.
        start = replace(process.start, began=rank.began) if number == 0 else process.start
        account.add(
            start,
            process.lines,
            outage=by_failure[1] if by_failure and by_failure[0] == number else None,
            until=rank.ended if number == len(rank.processes) - 1 else None,
        )
    return account.close(), account.kept


def _divided(ledger: RankLedger, rank: RankRun, apart: Apart | None) -> RankLedger:
    """With the parts of the steps that count, as the step has them that was taken apart on the same ranks."""
    kept = ledger.seconds["kept"]
    bubble = min(max(rank.bubble, 0.0), 1.0) * kept
    transfer = wait = 0.0
    if apart is not None and rank.rank in apart.own:
        step, held = median(apart.step), median(apart.held)
        wait = min(max(held - apart.own[rank.rank], 0.0) / step * kept, kept - bubble)
        transfer = min(max((step - held) / step * kept - bubble, 0.0), kept - bubble - wait)
    parts = {"exposed transfer": transfer, "wait": wait, "bubble": bubble}
    return replace(ledger, seconds={**ledger.seconds, **parts, "kept": kept - sum(parts.values())})


def _check_residual(ledger: RankLedger) -> None:
    residual = ledger.seconds["residual"]
    if abs(residual) > max(RESIDUAL_SHARE * ledger.wall, RESIDUAL_SECONDS):
        raise MeasurementError(
            f"full run: {residual:.3g} s of the {ledger.wall:.4g} s of rank {ledger.rank} are in no state, more than "
            f"{RESIDUAL_SHARE:.1%} and {RESIDUAL_SECONDS:g} s: what was measured is not the whole run"
        )


def _wall(run: FullRun, ranks: Sequence[RankLedger]) -> float:
    if same_clock(run):
        return max(rank.ended for rank in run.ranks) - min(rank.began for rank in run.ranks)
    return max(rank.wall for rank in ranks)


def _check(run: FullRun) -> None:
    check_ranks(run.conditions, [rank.rank for rank in run.ranks], "full run")
    if run.steps < 1 or run.tokens_per_step < 1:
        raise MeasurementError(
            f"full run: got {run.steps} steps of {run.tokens_per_step} tokens, want at least one each"
        )
    last = max(len(rank.processes) for rank in run.ranks)
    for rank in run.ranks:
        _check_rank(rank, run, gone=len(rank.processes) < last)


def _check_rank(rank: RankRun, run: FullRun, *, gone: bool) -> None:
    """`gone`: it did not come back after the failure."""
    where = f"full run: rank {rank.rank}"
    if not rank.processes:
        raise MeasurementError(f"{where} wrote nothing")
    times = [rank.began, rank.ended]
    times += [time for process in rank.processes for line in process.lines for time in (line.at, line.seconds)]
    if not all(map(math.isfinite, times)):
        raise MeasurementError(f"{where} has a time that is not finite")
    if gone and run.failure is not None and run.failure.go_on == "fewer":
        return
    lines = [line for process in rank.processes for line in process.lines]
    if not any(line.what == "done" for line in lines):
        raise MeasurementError(f"{where} has no done mark: it did not finish its work")
    done = {line.step for line in lines if line.what == "step" and not line.error}
    if undone := sorted(set(range(1, run.steps + 1)) - done):
        raise MeasurementError(f"{where} did not do step {undone[0]} ({len(undone)} of {run.steps} steps are missing)")
    if not any(line.seconds > 0 for line in lines if line.what == "step"):
        raise MeasurementError(f"{where} did its steps in no time")
    losses = {line.step: line.value for line in lines if line.what == "loss"}
    for step in range(1, run.steps + 1):
        loss = losses.get(step)
        if loss is None or not math.isfinite(loss):
            raise MeasurementError(f"{where}: the loss of step {step} is missing or no number")

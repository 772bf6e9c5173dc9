"""The ledger of a full run: every second of every rank in one state, and the events in between."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.full_run.columns import columns
from pytest_clusterqual.judge.full_run.events import Events, events
from pytest_clusterqual.judge.full_run.frontier import Course, Frontier
from pytest_clusterqual.judge.full_run.life import Outage
from pytest_clusterqual.judge.full_run.outages import outages, same_clock
from pytest_clusterqual.judge.full_run.rank_account import (
    ANEW,
    FAILED_SAVES,
    NO_END,
    RESIDUAL_SECONDS,
    RESIDUAL_SHARE,
    RankAccount,
)
from pytest_clusterqual.judge.full_run.whole import check_whole
from pytest_clusterqual.judge.statistics import median
from pytest_clusterqual.judge.step.apart import Apart
from pytest_clusterqual.model.full_run import FullRun, RankRun
from pytest_clusterqual.model.probe import ProbedProcess, RankLedger

if TYPE_CHECKING:
    from pytest_clusterqual.judge.full_run.columns import Counts

NAME_IT = (
    'give what the script does there a name, such as `with probe.hook("evaluation"):` or "logging" around it, see '
    "docs/own-job.md"
)
COMPUTING = ("kept", "exposed transfer", "wait", "bubble")  # the parts of steps that count


@dataclass(frozen=True, kw_only=True, slots=True)
class Ledger:
    """`wall` is from the first agent's start to the last one's end, in seconds; `steps` are those that count, in order,
    each as long as on its slowest rank, without what warming up added, and `work` what each of them did, None where
    that is not known. `course` has the same ones but for those that were warming up, as they were. `gone` are ranks
    that did not come back after the failure. `warnings` are what is to be told of how ranks were accounted, with those
    ranks.
    """

    wall: float
    ranks: tuple[RankLedger, ...]
    steps: tuple[float, ...]
    work: Counts | None
    events: Events
    course: Course
    gone: tuple[int, ...] = ()
    warnings: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def there(self) -> tuple[RankLedger, ...]:
        """The ranks that were there to the end."""
        return tuple(rank for rank in self.ranks if rank.rank not in self.gone)

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
    check_whole(run)
    ended = outages(run)
    gone = _gone(run)
    ranks = []
    warnings: defaultdict[str, tuple[int, ...]] = defaultdict(tuple)
    longest: dict[int, float] = {}
    frontier = Frontier()
    nodes = run.conditions.rank_nodes
    for rank in run.ranks:
        mine = _account(rank, ended, gone.get(rank.rank))
        ledger = mine.close()
        if ANEW in mine.warnings:
            raise MeasurementError(f"full run: rank {rank.rank}: {ANEW}")
        _check_residual(ledger, mine, command=run.checkpoints is None)
        for step in mine.kept:
            longest[step.number] = max(longest.get(step.number, 0.0), step.seconds)
        frontier.add(rank.rank, nodes[rank.rank] if rank.rank < len(nodes) else "", columns(mine.kept))
        ranks.append(_divided(ledger, rank, apart))
        for warning in mine.warnings:
            # A rank that did not come back is told as such, and what a failure on purpose broke is no news.
            if warning != NO_END and not (warning == FAILED_SAVES and run.failure):
                warnings[warning] += (rank.rank,)
    kept = frontier.steps()
    return Ledger(
        wall=_wall(run, ranks),
        ranks=tuple(ranks),
        steps=tuple(longest[step] for step in sorted(longest)),
        work=kept.known_work if len(kept.seconds) == len(longest) else None,
        events=events(run),
        course=frontier.course(),
        gone=tuple(gone),
        warnings=dict(warnings),
    )


def _gone(run: FullRun) -> dict[int, int]:
    """Ranks that did not come back -> the last step before the one that the others went on with."""
    longest = max(run.ranks, key=lambda rank: len(rank.processes))
    gone = [rank for rank in run.ranks if len(rank.processes) < len(longest.processes)]
    return {rank.rank: _first_step(longest.processes[len(rank.processes)]) - 1 for rank in gone}


def _first_step(process: ProbedProcess) -> int:
    return min((line.step for line in process.lines if line.what == "step"), default=1)


def _account(rank: RankRun, ended: dict[int, tuple[int, Outage]], gone_after: int | None) -> RankAccount:
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
    if gone_after is not None:
        account.roll_back(gone_after)
    return account


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


def _check_residual(ledger: RankLedger, account: RankAccount, *, command: bool) -> None:
    residual = ledger.seconds["residual"]
    if abs(residual) > max(RESIDUAL_SHARE * ledger.wall, RESIDUAL_SECONDS):
        raise MeasurementError(
            f"full run: {residual:.3g} s of the {ledger.wall:.4g} s of rank {ledger.rank} are in no state, more than "
            f"{RESIDUAL_SHARE * 100:g} % and {RESIDUAL_SECONDS:g} s{account.mostly(residual)}: "
            + (NAME_IT if command and residual > 0 else "what was measured is not the whole run")
        )


def _wall(run: FullRun, ranks: Sequence[RankLedger]) -> float:
    if same_clock(run):
        return max(rank.ended for rank in run.ranks) - min(rank.began for rank in run.ranks)
    return max(rank.wall for rank in ranks)

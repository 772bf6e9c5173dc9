"""The ledger of a run that probes wrote down: rank after rank, so that memory grows with steps only, not with ranks."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.full_run.columns import UNKNOWN, Columns, columns
from pytest_clusterqual.judge.full_run.frontier import Frontier, KeptSteps
from pytest_clusterqual.judge.full_run.interval import Cost, measured
from pytest_clusterqual.judge.full_run.interval_advice import interval_told
from pytest_clusterqual.judge.full_run.rank_account import RankAccount
from pytest_clusterqual.judge.full_run.steady import enclosed, steady_share
from pytest_clusterqual.judge.over_time.per_work import ALONG_TIME
from pytest_clusterqual.judge.over_time.verdict import over_time
from pytest_clusterqual.judge.statistics import median
from pytest_clusterqual.model.probe import ProbeLedger, ProbeLine, ProbeSaves, ProbeStart, RankLedger

_RECOVERY = ("outage", "rendezvous", "reload", "re-warm-up")


@dataclass(frozen=True, kw_only=True, slots=True)
class RankShare:
    """What one rank brings to the ledger of all: see `RankAccount`."""

    ledger: RankLedger
    kept: Columns
    saves: dict[tuple[int, int], float]
    completions: dict[tuple[int, int], float]
    worlds: frozenset[int]
    warnings: tuple[str, ...]


def account_rank(rank: int, processes: Iterable[tuple[ProbeStart, Iterable[ProbeLine]]]) -> RankShare:
    """Account one rank: its processes from first to last, at least one, each with all its lines.

    Raises:
        MeasurementError: two processes were this rank at once.
    """
    account = RankAccount(rank)
    for start, lines in processes:
        account.add(start, lines)
    ledger = account.close()
    return RankShare(
        ledger=ledger, kept=columns(account.kept), saves=account.saves, completions=account.completions,
        worlds=frozenset(account.worlds),
        warnings=tuple(account.warnings),
    )  # fmt: skip


class Accounts:
    """Add every rank, one after the other, then ask for the ledger."""

    def __init__(self) -> None:
        self._ranks: list[RankLedger] = []
        self._frontier = Frontier()
        self._saves: defaultdict[tuple[int, int], float] = defaultdict(float)
        self._completions: defaultdict[tuple[int, int], float] = defaultdict(float)
        self._worlds: set[int] = set()
        self._done_after: list[tuple[int, int]] = []  # last kept step, rank
        self._warnings: defaultdict[str, list[int]] = defaultdict(list)

    def add(self, rank: int, processes: Iterable[tuple[ProbeStart, Iterable[ProbeLine]]]) -> None:
        """One more rank, see `account_rank`."""
        self.take(account_rank(rank, processes))

    def take(self, share: RankShare) -> None:
        """One more rank, which was accounted elsewhere."""
        rank = share.ledger
        self._ranks.append(rank)
        self._frontier.add(rank.rank, rank.hosts[-1], share.kept)
        self._worlds |= share.worlds
        if rank.ends[-1] == "done" and len(share.kept.numbers):
            self._done_after.append((int(share.kept.numbers[-1]), rank.rank))
        for save, seconds in share.saves.items():
            self._saves[save] = max(self._saves[save], seconds)
        for save, seconds in share.completions.items():
            self._completions[save] = max(self._completions[save], seconds)
        for warning in share.warnings:
            self._warnings[warning].append(rank.rank)

    def ledger(self) -> ProbeLedger:
        """What all ranks tell together.

        Raises:
            MeasurementError: no rank was added.
        """
        if not self._ranks:
            raise MeasurementError("no rank wrote anything")
        wall = max(rank.wall for rank in self._ranks)
        steps = self._frontier.steps()
        unit, work, why_not = _work(steps)
        seconds = steps.seconds.tolist()
        step = median(seconds) if seconds else None
        share = steady_share(seconds, steps.known_work) if seconds else None
        return ProbeLedger(
            world=max(self._worlds, default=len(self._ranks)),
            wall=wall,
            ranks=tuple(self._ranks),
            restarts=max(len(rank.ends) for rank in self._ranks) - 1,
            kept=len(seconds),
            lost=max(rank.lost for rank in self._ranks),
            unit=unit,
            work=work,
            step=step,
            step_interval=enclosed(seconds),
            steady=min(share * sum(seconds) / wall, 1.0) if share is not None and wall else None,
            saves=self._saved(),
            interval=self._interval(step, wall),
            over_time=over_time(self._frontier.course()),
            unknown=tuple(self._unknown(why_not, ALONG_TIME if seconds and share is None else "")),
            warnings=tuple(self._told()),
        )

    def _saved(self) -> ProbeSaves | None:
        if not self._saves:
            return None
        (_, step), worst = max(self._saves.items(), key=lambda item: item[1])
        seconds = list(self._saves.values())
        return ProbeSaves(count=len(seconds), total=sum(seconds), median=median(seconds), worst=worst, worst_step=step)

    def _interval(self, step: float | None, wall: float) -> str:
        """What the interval between saves costs, where restarts are taken for failures."""
        each = sorted(self._saves)
        between = [later - save for (attempt, save), (again, later) in itertools.pairwise(each) if attempt == again]
        if not step or not between:
            return ""
        restarts = max(len(rank.ends) for rank in self._ranks) - 1
        lost = max(sum(rank.seconds[state] for state in _RECOVERY) for rank in self._ranks)
        blocking = median(list(self._saves.values()))
        cost = Cost(
            blocking=blocking,
            completion=max(blocking, median(list(self._completions.values())) if self._completions else 0.0),
            recovery=lost / restarts if restarts else 0.0,
        )
        return interval_told(round(median(between)), cost, step, measured(restarts, wall))

    def _unknown(self, why_no_work: str, why_no_share: str) -> Iterator[str]:
        if why_no_share:
            yield f"the share of the steady state: {why_no_share}"
        if why_no_work:
            yield f"goodput: {why_no_work}"
        yield (
            "how much of the kept steps is transfer, waiting for slower ranks or a pipeline's bubble: a probe sees a "
            "step from outside; `clusterqual import trace` sees into it"
        )
        if any(rank.seconds["outage"] for rank in self._ranks):
            yield "how much of an outage is work in flight, noticing the failure, or waiting for the new process"
        if any(rank.seconds["failed"] for rank in self._ranks):
            yield "how much of a failed step is work, and how much waiting for the failure to be noticed"

    def _told(self) -> Iterator[str]:
        world = max(self._worlds, default=0)
        there = {rank.rank for rank in self._ranks if rank.rank < world}
        if missing := world - len(there):
            first = next(rank for rank in itertools.count() if rank not in there)
            yield f"of {missing} of {world} ranks nothing is written, first rank {first}"
        if len(self._worlds) > 1:
            yield f"the world had {' and '.join(map(str, sorted(self._worlds)))} ranks: another size, another step"
        yield from self._unevenly_done()
        for text, ranks in self._warnings.items():
            whose = f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks, first rank {min(ranks)}"
            yield f"{whose}: {text}"

    def _unevenly_done(self) -> Iterator[str]:
        few, many = min(self._done_after, default=(0, 0)), max(self._done_after, default=(0, 0))
        if few[0] < many[0]:
            yield (
                f"rank {few[1]} was done after step {few[0]}, rank {many[1]} after step {many[0]}: only steps that "
                "every rank has kept count; does the folder lack a file?"
            )


def _work(steps: KeptSteps) -> tuple[str, int | None, str]:
    """The unit, how much of it the steps did, and why that cannot be known."""
    if not len(steps.seconds):
        return "", None, "there is no step that every rank has kept"
    for unit, counts in steps.work.items():
        known = counts[counts != UNKNOWN]
        if not len(known):
            continue
        if unit in steps.disputed:
            return unit, None, f"ranks name different {unit} for the same step; each must name those of the whole job"
        if len(known) < len(counts):
            return unit, None, f"{len(counts) - len(known)} of {len(counts)} kept steps name no {unit}"
        return unit, int(known.sum()), ""
    return "", None, "no step names its tokens or sequences, and without work per step nothing is said about speed"

"""The ledger of a run that probes wrote down: rank after rank, so that memory grows with steps only, not with ranks."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.full_run.life import DoneStep
from pytest_clusterqual.judge.full_run.rank_account import RankAccount
from pytest_clusterqual.judge.statistics import median, median_interval
from pytest_clusterqual.model.probe import ProbeLedger, ProbeLine, ProbeSaves, ProbeStart, RankLedger
from pytest_clusterqual.model.record import Interval

_BLOCKS = 32  # steps follow each other, so they are no independent samples; blocks of them come closer


@dataclass(slots=True)
class _Shared:
    """One step over the ranks that kept it."""

    ranks: int = 0
    world: int = sys.maxsize  # the fewest ranks that did it: a job may go on with fewer than it began with
    seconds: float = 0.0
    tokens: int | None = None
    sequences: int | None = None
    disputed: str = ""  # the unit that ranks name differently

    def same(self, unit: str, mine: int | None, theirs: int | None) -> int | None:
        if mine is None or theirs is None:
            return theirs if mine is None else mine
        if mine != theirs:
            self.disputed = unit
        return mine


class Accounts:
    """Add every rank, one after the other, then ask for the ledger."""

    def __init__(self) -> None:
        self._ranks: list[RankLedger] = []
        self._steps: defaultdict[int, _Shared] = defaultdict(_Shared)
        self._saves: defaultdict[tuple[int, int], float] = defaultdict(float)
        self._worlds: set[int] = set()
        self._warnings: defaultdict[str, list[int]] = defaultdict(list)

    def add(self, rank: int, processes: Iterable[tuple[ProbeStart, Iterable[ProbeLine]]]) -> None:
        """Account one rank: its processes from first to last, at least one, each with all its lines.

        Raises:
            MeasurementError: two processes were this rank at once.
        """
        account = RankAccount(rank)
        for start, lines in processes:
            account.add(start, lines)
        self._ranks.append(account.close())
        self._worlds |= account.worlds
        for save, seconds in account.saves.items():
            self._saves[save] = max(self._saves[save], seconds)
        for warning in account.warnings:
            self._warnings[warning].append(rank)
        for step in account.kept:
            self._share(step)

    def ledger(self) -> ProbeLedger:
        """What all ranks tell together.

        Raises:
            MeasurementError: no rank was added.
        """
        if not self._ranks:
            raise MeasurementError("no rank wrote anything")
        wall = max(rank.wall for rank in self._ranks)
        steps = [step for _, step in sorted(self._steps.items()) if step.ranks >= min(step.world, len(self._ranks))]
        unit, work, why_not = _work(steps)
        seconds = [step.seconds for step in steps]
        step = median(seconds) if steps else None
        return ProbeLedger(
            world=max(self._worlds, default=len(self._ranks)),
            wall=wall,
            ranks=tuple(self._ranks),
            restarts=max(len(rank.ends) for rank in self._ranks) - 1,
            kept=len(steps),
            lost=max(rank.lost for rank in self._ranks),
            unit=unit,
            work=work,
            step=step,
            step_interval=_blocks(seconds),
            steady=len(steps) * step / wall if step is not None and wall else None,
            saves=self._saved(),
            unknown=tuple(self._unknown(why_not)),
            warnings=tuple(self._told()),
        )

    def _share(self, step: DoneStep) -> None:
        shared = self._steps[step.number]
        shared.ranks += 1
        shared.world = min(shared.world, step.world or sys.maxsize)
        shared.seconds = max(shared.seconds, step.seconds)
        shared.tokens = shared.same("tokens", step.tokens, shared.tokens)
        shared.sequences = shared.same("sequences", step.sequences, shared.sequences)

    def _saved(self) -> ProbeSaves | None:
        if not self._saves:
            return None
        (_, step), worst = max(self._saves.items(), key=lambda item: item[1])
        seconds = list(self._saves.values())
        return ProbeSaves(count=len(seconds), total=sum(seconds), median=median(seconds), worst=worst, worst_step=step)

    def _unknown(self, why_no_work: str) -> Iterator[str]:
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
        there = {rank.rank for rank in self._ranks}
        if missing := sorted(set(range(max(self._worlds, default=0))) - there):
            yield f"of {len(missing)} of {max(self._worlds)} ranks nothing is written, first rank {missing[0]}"
        if len(self._worlds) > 1:
            yield f"the world had {' and '.join(map(str, sorted(self._worlds)))} ranks: another size, another step"
        for text, ranks in self._warnings.items():
            whose = f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks, first rank {min(ranks)}"
            yield f"{whose}: {text}"


def _work(steps: Sequence[_Shared]) -> tuple[str, int | None, str]:
    """The unit, how much of it the steps did, and why that cannot be known."""
    if not steps:
        return "", None, "there is no step that every rank has kept"
    named = {"tokens": [step.tokens for step in steps], "sequences": [step.sequences for step in steps]}
    for unit, counts in named.items():
        known = [count for count in counts if count is not None]
        if not known:
            continue
        if any(step.disputed == unit for step in steps):
            return unit, None, f"ranks name different {unit} for the same step; each must name those of the whole job"
        if len(known) < len(counts):
            return unit, None, f"{len(counts) - len(known)} of {len(counts)} kept steps name no {unit}"
        return unit, sum(known), ""
    return "", None, "no step names its tokens or sequences, and without work per step nothing is said about speed"


def _blocks(seconds: Sequence[float]) -> Interval | None:
    """Enclose the median of the medians of consecutive blocks, which drift and bursts widen as they should."""
    size = -(-len(seconds) // _BLOCKS)
    return median_interval([median(seconds[at : at + size]) for at in range(0, len(seconds), size)]) if size else None

"""The figures of a full run: what each is, and to what it is known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from pytest_clusterqual.judge.full_run.ledger import COMPUTING, Ledger
from pytest_clusterqual.judge.full_run.steady import steady_share
from pytest_clusterqual.judge.judgement import rank_name
from pytest_clusterqual.judge.statistics import median
from pytest_clusterqual.model.full_run import FullRun
from pytest_clusterqual.model.probe import RankLedger

CLOCK = 1e-3  # seconds: what one reading of a clock is trusted to
_TELLING = 0.02  # by which the median step is longer than the steady one, and that is told


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A value between `low` and `high`, in the quantity's canonical unit.

    These are bounds of medians of so many `steps`, or by a bootstrap of them; where that is 0, of one run, to the
    resolution of the clocks.
    """

    value: float
    low: float
    high: float
    steps: int = 0
    kind: Literal["median", "bootstrap"] = "median"
    note: str = ""
    per_rank: dict[str, float] = field(default_factory=dict)


def figures(run: FullRun, ledger: Ledger) -> dict[str, Figure]:
    """Quantity -> its figure, for all that happened in this run, saves aside."""
    goodput = _goodput(run, ledger)
    return {
        **({"goodput": goodput} if goodput else {}),
        **({"throughput": _over(run.steps * run.tokens_per_step, ledger.wall)} if run.tokens_per_step else {}),
        "ettr": _ettr(ledger),
        "data_stall": _data_stall(run, ledger),
        **dict(_of_failure(run, ledger)),
    }


def gain(run: Ledger, alone: Ledger) -> Figure:
    """How many times sooner the run was done than alone on one node."""
    note = f"{alone.wall:.4g} s on one node, {run.wall:.4g} s here, one run each"
    return Figure(
        value=alone.wall / run.wall,
        low=(alone.wall - CLOCK) / (run.wall + CLOCK),
        high=(alone.wall + CLOCK) / max(run.wall - CLOCK, CLOCK),
        note=note,
    )


def _goodput(run: FullRun, ledger: Ledger) -> Figure | None:
    """None where the work of the steps changes along with the run."""
    share = steady_share(ledger.steps, ledger.work)
    if share is None:
        return None
    steady, usual, wall = share * sum(ledger.steps) / len(ledger.steps), median(ledger.steps), ledger.wall
    slowed = f"; its median step takes {usual:.4g} s, for a part of it less" if usual > steady * (1 + _TELLING) else ""
    return Figure(
        # Ranks that do not wait for each other may have steps that, each as long as on its slowest rank, sum to more.
        value=min(run.steps * steady / wall, 1.0),
        low=min(run.steps * (steady - CLOCK) / (wall + CLOCK), 1.0),
        high=min(run.steps * (steady + CLOCK) / max(wall - CLOCK, CLOCK), 1.0),
        note=f"{run.steps} x {steady:.4g} s of {wall:.4g} s{slowed}",
        per_rank={str(rank.rank): min(rank.kept * steady / rank.wall, 1.0) for rank in ledger.there},
    )


def _over(work: float, wall: float) -> Figure:
    return Figure(value=work / wall, low=work / (wall + CLOCK), high=work / max(wall - CLOCK, CLOCK))


def _ettr(ledger: Ledger) -> Figure:
    """The share of the wall clock that went into steps that count, on the rank with the least."""
    shares = {rank.rank: _computing(rank) / rank.wall for rank in ledger.there}
    worst = min(ledger.there, key=lambda rank: shares[rank.rank])
    share, error = shares[worst.rank], CLOCK / worst.wall
    per_rank = {str(rank): value for rank, value in shares.items()}
    return Figure(value=share, low=max(share - error, 0.0), high=share + error, per_rank=per_rank)


def _computing(rank: RankLedger) -> float:
    return sum(rank.seconds[state] for state in COMPUTING)


def _data_stall(run: FullRun, ledger: Ledger) -> Figure:
    """The share of data and step time that the worst rank waited for data."""
    busy = {r.rank: r.seconds["data"] + _computing(r) + r.seconds["lost"] for r in ledger.there}
    shares = {r.rank: r.seconds["data"] / busy[r.rank] for r in ledger.there}
    worst = max(shares, key=shares.__getitem__)
    share, error = shares[worst], CLOCK / busy[worst]
    return Figure(
        value=share,
        low=max(share - error, 0.0),
        high=share + error,
        note=rank_name(run.conditions, worst),
        per_rank={str(rank): value for rank, value in shares.items()},
    )


def _of_failure(run: FullRun, ledger: Ledger) -> Iterator[tuple[str, Figure]]:
    events = ledger.events
    seconds = {
        "detection": events.detection, "restart": events.restart, "rendezvous": events.rendezvous,
        "checkpoint_load": events.load, "recovery": events.recovery,
    }  # fmt: skip
    yield from ((quantity, _seconds(value)) for quantity, value in seconds.items() if value is not None)
    if run.failure is not None:
        yield "steps_lost", Figure(value=ledger.lost, low=ledger.lost, high=ledger.lost)


def _seconds(value: float) -> Figure:
    return Figure(value=value, low=max(value - CLOCK, 0.0), high=value + CLOCK)

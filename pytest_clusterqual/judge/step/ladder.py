"""The rungs of a training step, checked and reduced to what is judged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.judgement import check_ranks
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.fabric import RankLadder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Samples = NDArray[np.float64]

RUNGS = ("compute", "barrier", "payload", "step")


@dataclass(frozen=True, kw_only=True, slots=True)
class Ladder:
    """`compute` are seconds as (round, step, rank). `rounds` are those of the typical step of each round, by rung.

    A typical step without communication is that of the middle rank; where ranks wait for each
    other it is that of the slowest.
    """

    conditions: Conditions
    compute: Samples
    rounds: dict[str, tuple[float, ...]]

    @property
    def count(self) -> int:
        return len(self.compute)


def reduced(
    conditions: Conditions, rounds: Sequence[Sequence[RankLadder]], what: str, *, rungs: Sequence[str] = RUNGS
) -> Ladder:
    """The ladders of all ranks in each of `rounds`, which must have these `rungs`; `what` begins an error's message.

    Raises:
        MeasurementError: names rank, round and rung, if a step or a positive time is missing.
    """
    import numpy as np

    _check(conditions, rounds, what, rungs)
    ordered = [sorted(ranks, key=lambda each: each.rank) for ranks in rounds]
    seconds = {rung: [np.array([getattr(each, rung) for each in ranks]).T for ranks in ordered] for rung in rungs}
    fewest = min(len(steps) for steps in seconds["compute"])  # a continued measurement may have steps of other lengths
    typical = {rung: tuple(float(np.median(np.max(steps, axis=1))) for steps in seconds[rung]) for rung in rungs}
    alone = tuple(float(np.median(np.median(steps, axis=0))) for steps in seconds["compute"])
    return Ladder(
        conditions=conditions,
        compute=np.stack([steps[:fewest] for steps in seconds["compute"]]),
        rounds={**typical, "compute": alone},
    )


def expected_slowest(samples: Samples) -> float:
    """The median step of the slowest rank, if each rank drew its steps from its own `samples` alone.

    `samples` are (round, step, rank). By time t all ranks are done with the product of their own
    chances to be done. What slows the same step of every round on all ranks is none of their jitter.
    """
    import numpy as np

    even = samples * (np.median(samples) / np.median(samples, axis=(0, 2), keepdims=True))
    own = np.sort(even.reshape(-1, even.shape[-1]), axis=0)
    chances = (np.arange(len(own)) + 0.5) / len(own)
    times = np.unique(own)
    low, high = 0, len(times) - 1
    while low < high:
        middle = (low + high) // 2
        done = math.prod(float(np.interp(times[middle], rank, chances, left=0.0, right=1.0)) for rank in own.T)
        low, high = (low, middle) if done >= 0.5 else (middle + 1, high)
    return float(times[low])


def _check(conditions: Conditions, rounds: Sequence[Sequence[RankLadder]], what: str, rungs: Sequence[str]) -> None:
    if not rounds:
        raise MeasurementError(f"{what}: no round was measured")
    if conditions.ranks < 2:
        raise MeasurementError(f"{what}: in a world of {conditions.ranks} nobody waits for anybody")
    for number, ranks in enumerate(rounds, 1):
        check_ranks(conditions, [each.rank for each in ranks], f"{what}: round {number}")
        steps = len(ranks[0].compute)
        for each in ranks:
            for rung in rungs:
                where, seconds = f"{what}: round {number}, rank {each.rank}, {rung}", getattr(each, rung)
                if len(seconds) != steps or not steps:
                    raise MeasurementError(f"{where}: got {len(seconds)} steps, want {steps or 'some'}")
                if wrong := [taken for taken in seconds if not math.isfinite(taken) or taken <= 0]:
                    raise MeasurementError(f"{where}: got a time of {wrong[0]} s, want one above 0")

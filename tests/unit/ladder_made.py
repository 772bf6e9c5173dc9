"""Training steps taken apart, with jitter, slow ranks and common causes of choice."""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random

from made import conditions

from pytest_clusterqual.model.fabric import RankLadder, SynchronizationMeasurement

STEP = 0.1
OPTIMIZER = 0.1  # the part of a step after the ranks have waited for each other
BYTES = 0.02
PAUSE = 0.05


def climbed(
    *,
    ranks: int = 4,
    rounds: int = 16,
    steps: int = 6,
    step: float = STEP,
    noise: float = 0.1,
    wander: float = 0.0,
    slow: Mapping[int, float] | None = None,
    held: Mapping[tuple[int, int], float] | None = None,
    common: float = 0.0,
    first: float = 1.0,
    stopped: Mapping[int, float] | None = None,
    pauses: float = 0.0,
    barrier: float = 0.0,
    hindered: float = 1.0,
    seed: int = 0,
    simulated: bool = False,
) -> SynchronizationMeasurement:
    """A ladder of lognormal steps.

    `noise` is the jitter of single steps, `wander` that of a rank's whole rounds, `common` that of
    all ranks in the same step (standard deviations of the logarithm). `slow` are factors by rank,
    `held` by (round, rank), `first` that of the first step of every rung. `stopped` are
    pauses by rank for each second that it computes, `pauses` those that every rank has besides,
    of PAUSE seconds each and at random. `barrier` is the cost of an empty one in seconds,
    `hindered` how much longer the real step takes than its parts.
    """
    random = Random(seed)
    made = []
    for number in range(rounds):
        level = [
            step * (slow or {}).get(rank, 1.0) * (held or {}).get((number, rank), 1.0) * _lognormal(random, wander)
            for rank in range(ranks)
        ]

        def computed(level: list[float] = level) -> list[list[float]]:
            """Seconds as [step][rank]."""
            return [
                [
                    alone * shared * _lognormal(random, noise) * (first if nth == 0 else 1.0)
                    + PAUSE * _count(random, alone * (pauses + (stopped or {}).get(rank, 0.0)))
                    for rank, alone in enumerate(level)
                ]
                for nth, shared in enumerate(_lognormal(random, common) for _ in range(steps))
            ]

        compute, held_up, real = computed(), _together(computed(), barrier), _together(computed(), barrier + BYTES)
        made.append(tuple(
            RankLadder(
                rank=rank, compute=tuple(step[rank] for step in compute), barrier=tuple(step[rank] for step in held_up),
                payload=tuple(BYTES * _lognormal(random, noise) for _ in range(steps)),
                step=tuple(hindered * step[rank] for step in real),
            )
            for rank in range(ranks)
        ))  # fmt: skip
    at = conditions(nodes=ranks, ranks=ranks, layout="ddp", simulated=simulated)
    return SynchronizationMeasurement(conditions=at, rounds=tuple(made), started=0.0, seconds=1.0)


def _together(steps: list[list[float]], cost: float) -> list[list[float]]:
    """The same steps where all ranks wait for the last one before the optimizer."""
    done = [0.0] * len(steps[0])
    taken = []
    for step in steps:
        met = max(at + (1 - OPTIMIZER) * own for at, own in zip(done, step, strict=True)) + cost
        before, done = done, [met + OPTIMIZER * own for own in step]
        taken.append([after - at for after, at in zip(done, before, strict=True)])
    return taken


def _count(random: Random, expected: float) -> int:
    """How many of the events that come at random there are, where so many are to be expected."""
    count, left = 0, expected
    while expected and (left := left - random.expovariate(1.0)) > 0:
        count += 1
    return count


def _lognormal(random: Random, sigma: float) -> float:
    return math.exp(random.gauss(0.0, sigma)) if sigma else 1.0

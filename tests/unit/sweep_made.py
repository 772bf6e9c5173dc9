"""Sweeps as ranks that wait for each other make them: who comes when, and how long a transfer takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from made import conditions

from pytest_clusterqual.judge.fabric.sweeps import GroupTimes
from pytest_clusterqual.model.fabric import CollectiveTiming, FabricMeasurement, RankFabric
from pytest_clusterqual.model.groups import Groups

MIB = 1024 * 1024
ROUNDS, CALLS, SAMPLES = 6, 16, 3
# Seconds that one rank comes late to a call of a size, in any group.
Late = Callable[[int, int], float]


def together(rank: int, size: int) -> float:
    return 0.0


def calls(
    random: Random,
    members: Sequence[int],
    transfer: float,
    *,
    size: int = MIB,
    late: Late = together,
    longer: Callable[[int], float] = lambda rank: 0.0,
    noise: float = 0.02,
    drift: float = 0.0,
    count: int = CALLS,
) -> list[tuple[float, ...]]:
    """Durations of the calls of one round on each rank.

    `longer` is the share of the transfer that a rank is busy after the others are done, `noise` the
    spread of arrivals and transfers as a share of it, `drift` that of each rank's bias in the round.
    """
    bias = {rank: random.gauss(0, drift * transfer) for rank in members}
    made = []
    for _ in range(count):
        came = {r: late(r, size) + bias[r] + abs(random.gauss(0, noise * transfer)) for r in members}
        done = max(came.values()) + transfer * (1 + abs(random.gauss(0, noise)))
        made.append(tuple(done + longer(r) * transfer - came[r] for r in members))
    return made


def group_of(members: Sequence[int], rounds: Sequence[Sequence[tuple[float, ...]]]) -> GroupTimes:
    return GroupTimes(members=tuple(members), bytes=MIB, rounds=(), ranks={}, calls=tuple(map(tuple, rounds)))


def swept(
    *,
    groups: Groups,
    sizes: Sequence[int] = (MIB,),
    pace: Callable[[int], float] = lambda size: 1e-3 * size / MIB,
    late: Late = together,
    longer: Callable[[int], float] = lambda rank: 0.0,
    of_group: Callable[[tuple[int, ...]], float] = lambda group: 1.0,
    noise: float = 0.01,
    alone: Callable[[tuple[int, ...]], float] | None = None,
    instances: bool = True,
    seed: int = 1,
    rounds: int = ROUNDS,
    **under: Any,
) -> FabricMeasurement:
    """Six rounds of `sizes` in explicit `groups`; `pace` is the transfer in seconds, `of_group` a factor on it.

    A sample is what ranks need who wait for each other in every call. With `alone`, groups also took
    turns at the largest size, each so many times faster.
    """
    random = Random(seed)
    under = {"collective": "all_reduce", "group": "world", "simulated": False, **under}
    under.setdefault("ranks", max(max(group) for group in groups) + 1)
    under.setdefault("nodes", under["ranks"] // under.get("nproc_per_node", 1))

    def one_round(at: Sequence[int], faster: Callable[[tuple[int, ...]], float]) -> tuple[RankFabric, ...]:
        timings: dict[int, list[CollectiveTiming]] = {rank: [] for group in groups for rank in group}
        for size in at:
            for group in groups:
                transfer = pace(size) * of_group(group) / faster(group)
                made = calls(random, group, transfer, size=size, late=late, longer=longer, noise=noise)
                for k, rank in enumerate(group):
                    # What keeps a rank away from a call is part of its loop over many.
                    seconds = tuple(call[k] + late(rank, size) for call in made[:SAMPLES])
                    timings[rank].append(CollectiveTiming(
                        bytes=size, iterations=5, seconds=seconds, wrong=0,
                        instances=tuple(call[k] for call in made) if instances else (),
                    ))  # fmt: skip
        sizes_of = {rank: len(group) for group in groups for rank in group}
        return tuple(
            RankFabric(rank=rank, group_size=sizes_of.get(rank, 0), timings=tuple(timings.get(rank, ())))
            for rank in range(under["ranks"])
        )

    passes = [
        (one_round(sizes, lambda group: 1.0), one_round(sizes[-1:], alone) if alone else ()) for _ in range(rounds)
    ]
    return FabricMeasurement(
        conditions=conditions(hosts=tuple(f"node{n}" for n in range(under["nodes"])), **under),
        rounds=tuple(both for both, _ in passes),
        alone=tuple(turn for _, turn in passes) if alone else (),
        started=0.0,
        seconds=1.0,
        groups=groups,
    )

"""One collective under several rank maps, with effects and noise of choice."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random

from made import conditions

from pytest_clusterqual.model.fabric import CollectiveTiming, Placement, PlacementMeasurement, RankFabric

KIB, MIB = 1 << 10, 1 << 20
NODES = {"block": "aabb", "cyclic": "abab", "nic-near": "aabb"}


def placed(
    effects: Mapping[str, float],
    *,
    repeats: int = 6,
    noise: float = 0.05,
    drift: float = 0.0,
    paths: Mapping[str, Sequence[str | None]] | None = None,
    sizes: Sequence[int] = (64 * KIB, MIB),
    group: str = "world",
    wrong: int = 0,
    seed: int = 0,
) -> PlacementMeasurement:
    """Four ranks on two nodes. `effects` are factors of the time by rank map.

    `noise` is the standard deviation of the logarithm of a pass, `drift` by how much the last pass is slower than
    the first, as a logarithm. `paths` are the path classes of the ranks by map.
    """
    random = Random(seed)
    order = list(effects) * repeats
    random.shuffle(order)
    at = conditions(
        nodes=2, nproc_per_node=2, ranks=4, collective="all_reduce", group=group, simulated=False,
        rank_map=", ".join(effects),
    )  # fmt: skip
    made = []
    for number, name in enumerate(order):
        slow = effects[name] * math.exp(random.gauss(0.0, noise) + drift * number / len(order))
        ranks = tuple(
            RankFabric(
                rank=rank, group_size=4,
                timings=tuple(
                    CollectiveTiming(bytes=size, iterations=4, seconds=(size * 1e-9 * slow * (0.8 + 0.05 * rank),) * 3,
                                     wrong=wrong)
                    for size in sizes
                ),
            )
            for rank in range(4)
        )  # fmt: skip
        made.append(
            Placement(
                rank_map=name, groups=((0, 1, 2, 3),), ranks=ranks, paths=tuple((paths or {}).get(name, [None] * 4))
            )
        )
    return PlacementMeasurement(conditions=at, placements=tuple(made), started=0.0, seconds=1.0)

"""What pairs of nodes exchange, with slow links and noise of choice."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import permutations
from random import Random

from pytest_clusterqual.model.measurement import PairTiming

MIB = 1 << 20
RATE = 25e6
Ends = tuple[str, str]


def names(count: int) -> list[str]:
    return [f"node{number}" for number in range(1, count + 1)]


def of_node(node: str, count: int, way: str = "both") -> set[Ends]:
    """All that the node sends, receives, or both."""
    sent = {(node, other) for other in names(count) if other != node} if way != "receives" else set()
    received = {(other, node) for other in names(count) if other != node} if way != "sends" else set()
    return sent | received


def exchanged(
    count: int, slow: Iterable[Ends] = (), *, factor: float = 0.1, noise: float = 0.02, seed: int = 1
) -> tuple[PairTiming, ...]:
    """1 MiB between all nodes at 25 MB/s, five times; lognormal `noise` (coefficient of variation) on each time."""
    random, sigma, slow = Random(seed), math.sqrt(math.log1p(noise**2)), set(slow)
    return tuple(
        PairTiming(
            sender=ends[0], receiver=ends[1], bytes=MIB,
            seconds=tuple(
                MIB / (RATE * (factor if ends in slow else 1.0)) * random.lognormvariate(0.0, sigma) for _ in range(5)
            ),
        )
        for ends in ((sender, receiver) for receiver, sender in permutations(names(count), 2))
    )  # fmt: skip

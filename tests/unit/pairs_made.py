"""What pairs of nodes exchange, with slow links and noise of choice."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import permutations
from random import Random

from pytest_clusterqual.judge.fabric.confirming import to_confirm
from pytest_clusterqual.model.fabric import PairTiming
from pytest_clusterqual.model.tournament import opponent, turns_of

MIB = 1 << 20
RATE = 25e6
REPEATS, REPEATS_ALONE = 6, 10
Ends = tuple[str, str]


def names(count: int) -> list[str]:
    return [f"node{number}" for number in range(1, count + 1)]


def of_node(node: str, count: int, way: str = "both") -> set[Ends]:
    """All that the node sends, receives, or both."""
    sent = {(node, other) for other in names(count) if other != node} if way != "receives" else set()
    received = {(other, node) for other in names(count) if other != node} if way != "sends" else set()
    return sent | received


def exchanged(
    count: int,
    slow: Iterable[Ends] = (),
    *,
    factor: float = 0.1,
    noise: float = 0.02,
    seed: int = 1,
    rails: int = 1,
    slow_rails: Iterable[int] | None = None,
) -> tuple[PairTiming, ...]:
    """1 MiB between all nodes at 25 MB/s, six times; lognormal `noise` (coefficient of variation) on each time.

    `slow` are slow on `slow_rails`, on all of them if that is left out.
    """
    random, slow = Random(seed), set(slow)
    where = set(range(rails) if slow_rails is None else slow_rails)
    return tuple(
        PairTiming(
            sender=ends[0], receiver=ends[1], bytes=MIB, rail=rail, turn=rail * turns_of(count) + turn_of(ends, count),
            seconds=_times(random, RATE * (factor if ends in slow and rail in where else 1.0), noise),
        )
        for rail in range(rails)
        for ends in ((sender, receiver) for receiver, sender in permutations(names(count), 2))
    )  # fmt: skip


def with_second_round(
    pairs: Sequence[PairTiming],
    slow: Iterable[Ends] = (),
    *,
    factor: float = 0.1,
    noise: float = 0.02,
    seed: int = 2,
    least: float = 0.25,
    slow_rails: Iterable[int] = range(64),
) -> tuple[PairTiming, ...]:
    """The same, and what is to be tried alone: there `slow` are slow."""
    random, slow, where = Random(seed), set(slow), set(slow_rails)
    return (*pairs, *(
        PairTiming(
            sender=ends[0], receiver=ends[1], bytes=MIB, rail=rail, alone=True,
            seconds=_times(random, RATE * (factor if ends in slow and rail in where else 1.0), noise, REPEATS_ALONE),
        )
        for one, other, rail in to_confirm(pairs, least=least)
        for ends in ((one, other), (other, one))
    ))  # fmt: skip


def turn_of(ends: Ends, count: int) -> int:
    one, other = (names(count).index(end) for end in ends)
    return next(turn for turn in range(turns_of(count)) if opponent(one, turn, count) == other)


def _times(random: Random, rate: float, noise: float, repeats: int = REPEATS) -> tuple[float, ...]:
    sigma = math.sqrt(math.log1p(noise**2))
    return tuple(MIB / rate * random.lognormvariate(0.0, sigma) for _ in range(repeats))

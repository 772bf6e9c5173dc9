"""A cluster with one planted cause: what its pairs of nodes take to exchange a message, its ranks for a collective."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pytest_clusterqual.judge.fabric.sweeps import Call
from pytest_clusterqual.model.fabric import PairTiming
from pytest_clusterqual.model.tournament import meetings, turns_for

Kind = Literal["nothing", "node", "NIC", "rail", "link", "colliding paths", "contention"]
SIZE = 16 << 20
SECONDS = SIZE / 40e9
OUTLIERS, OUTLIER = 0.02, 2.0  # repeats that something else held up, and how many times they then take
OWN = 0.25  # what healthy nodes and links differ by, as a share of the noise of repeats


@dataclass(frozen=True, kw_only=True)
class Cause:
    """`slower`: times what is planted takes. `nodes`: a node, the ends of a link, or of every link that collides."""

    kind: Kind
    slower: float = 1.0
    nodes: tuple[int, ...] = ()
    rail: int = 0
    way: Literal["both", "forth", "back"] = "both"


@dataclass(kw_only=True)
class Cluster:
    """`noise` is the standard deviation of the logarithm of a repeat. Each node meets `partners` on every rail."""

    nodes: int
    rails: int
    noise: float
    partners: int
    cause: Cause
    random: np.random.Generator
    _own: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        self._own = self.random.normal(0, OWN * self.noise, (2, self.rails, self.nodes))

    def tournament(self, alone: list[tuple[int, int, int]], *, repeats: int = 6) -> tuple[PairTiming, ...]:
        """All pairs of the schedule, and some that are tried alone after each pass."""
        met = [
            (rail, turn, one, other)
            for rail in range(self.rails)
            for turn in turns_for(self.partners, self.nodes)
            for one, other in meetings(turn, self.nodes)
        ]
        return self._timed(met, alone=False, repeats=repeats) + self.tried_alone(alone, repeats=repeats)

    def tried_alone(self, pairs: list[tuple[int, int, int]], *, repeats: int = 10) -> tuple[PairTiming, ...]:
        return self._timed([(rail, 0, one, other) for one, other, rail in pairs], alone=True, repeats=repeats)

    def _timed(self, met: list[tuple[int, int, int, int]], *, alone: bool, repeats: int) -> tuple[PairTiming, ...]:
        if not met:
            return ()
        there = np.array(met)
        back = there[:, [0, 1, 3, 2]]
        every = np.concatenate([there, back])
        rail, _, sender, receiver = every.T
        logs = np.log(SECONDS) + self._own[0, rail, sender] + self._own[1, rail, receiver]
        logs = logs + self._pairs_own(rail, sender, receiver) + np.log(self._slower(rail, sender, receiver, alone))
        noise = self.random.normal(0, self.noise, (len(logs), repeats))
        held_up = np.where(self.random.random(noise.shape) < OUTLIERS, np.log(OUTLIER), 0.0)
        seconds = np.exp(logs[:, None] + noise + held_up).tolist()
        return tuple(
            PairTiming(
                sender=f"node{s}", receiver=f"node{r}", bytes=SIZE, seconds=tuple(row), rail=k, turn=t, alone=alone
            )
            for (k, t, s, r), row in zip(every.tolist(), seconds, strict=True)
        )

    def _pairs_own(self, *ends: NDArray[np.int64]) -> NDArray[np.float64]:
        """The same for a pair whenever it is asked: drawn from its numbers."""
        mixed = sum(end.astype(float) * factor for end, factor in zip(ends, (0.61, 12.9898, 78.233), strict=True))
        uniform = np.modf(np.abs(np.sin(mixed) * 43758.5453))[0]
        return (uniform - 0.5) * np.sqrt(12) * OWN * self.noise

    def _slower(
        self, rail: NDArray[np.int64], sender: NDArray[np.int64], receiver: NDArray[np.int64], alone: bool
    ) -> NDArray[np.float64]:
        cause = self.cause
        forth = np.zeros(len(rail), bool)
        if cause.kind in ("node", "NIC"):
            sends, receives = sender == cause.nodes[0], receiver == cause.nodes[0]
            forth = (sends & (cause.way != "back")) | (receives & (cause.way != "forth"))
            forth &= (rail == cause.rail) | (cause.kind == "node")
        elif cause.kind == "rail":
            forth = rail == cause.rail
        elif cause.kind == "contention":
            forth = np.full(len(rail), not alone)
        elif cause.kind == "link" or (cause.kind == "colliding paths" and not alone):
            for one, other in zip(cause.nodes[::2], cause.nodes[1::2], strict=True):
                forth |= (sender == one) & (receiver == other) & (rail == cause.rail)
                forth |= (sender == other) & (receiver == one) & (rail == cause.rail) & (cause.way == "both")
        return np.where(forth, cause.slower, 1.0)


def calls_with_a_late_rank(
    random: np.random.Generator, *, ranks: int, late: int, delay: float, transfer: float, noise: float
) -> tuple[tuple[Call, ...], ...]:
    """Six rounds of 20 calls of a collective in which everybody waits for everybody: seconds on each rank."""
    arrived = np.abs(random.normal(0, noise * transfer, (6, 20, ranks)))
    arrived[:, :, late] += delay * np.exp(random.normal(0, noise, (6, 20)))
    ended = arrived.max(axis=2) + transfer * np.exp(random.normal(0, noise, (6, 20)))
    durations = ended[:, :, None] - arrived + np.abs(random.normal(0, 1e-6, arrived.shape))
    return tuple(tuple(tuple(call) for call in calls) for calls in durations.tolist())

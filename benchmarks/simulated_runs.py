"""Runs of many ranks, step by step: noise of several kinds, and what may be planted in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pytest_clusterqual.judge.full_run.columns import UNKNOWN, Columns
from pytest_clusterqual.judge.full_run.frontier import Course, Frontier

Floats = NDArray[np.float64]
Noise = Literal["quiet", "lognormal", "rough", "remembers", "remembers long", "heavy tails", "spikes"]
NOISES: tuple[Noise, ...] = ("quiet", "lognormal", "rough", "remembers", "remembers long", "heavy tails", "spikes")
_FORWARD = 0.4  # of a step: what a rank does before the ranks meet


@dataclass(frozen=True, kw_only=True)
class Planted:
    """What is wrong with a run, if anything; shares are of a step's time.

    `drift` over the whole run; `change` from `where` (share of the run) on, until `until`; `stall` every `every` steps;
    rank `slow` computes `slower`, or waits so much longer for `data`.
    """

    drift: float = 0.0
    change: float = 0.0
    where: float = 0.5
    until: float = 1.0
    stall: float = 0.0
    every: int = 0
    slow: int | None = None
    slower: float = 0.0
    data: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """`steps` of one second on `ranks`, 8 a node. Work is the same in all steps, or scattered by `shapes`, or grows."""

    steps: int
    ranks: int
    noise: Noise
    random: np.random.Generator
    planted: Planted = field(default_factory=Planted)
    shapes: float = 0.0
    grows: bool = False

    def course(self) -> Course:
        """As the product sees it."""
        work = self._work()
        shared = np.exp(0.7 * self._scatter()) * (0.2 + 0.8 * work / work.mean()) * self._planted()
        frontier = Frontier()
        for rank, columns in enumerate(self._ranks(shared, work)):
            frontier.add(rank, f"node{rank // 8}", columns)
        return frontier.course()

    def _ranks(self, shared: Floats, work: NDArray[np.int64]) -> list[Columns]:
        """Each computes by itself, then all wait for the last one, so that steps end together."""
        planted = self.planted
        data = np.abs(self.random.normal(1e-3, 3e-4, (self.ranks, self.steps)))
        own = np.exp(0.7 * np.stack([self._scatter() for _ in range(self.ranks)]))
        if planted.slow is not None:
            data[planted.slow] += planted.data
            own[planted.slow] *= 1 + planted.slower
        computed = data + own * shared
        over = computed.max(axis=0)
        at = np.concatenate([[0.0], np.cumsum(over)[:-1]])
        nothing = np.zeros(self.steps)
        return [
            Columns(
                numbers=np.arange(1, self.steps + 1), world=np.full(self.steps, self.ranks), seconds=over - data[rank],
                tokens=work, sequences=np.full(self.steps, UNKNOWN), at=at,
                warming=np.zeros(self.steps, dtype=np.bool_),
                bounds={
                    "between": nothing, "data": data[rank],
                    "forward": data[rank] + _FORWARD * (computed[rank] - data[rank]), "step": over,
                },
                beside={},
            )
            for rank in range(self.ranks)
        ]  # fmt: skip

    def _work(self) -> NDArray[np.int64]:
        scattered = np.exp(self.random.normal(0, self.shapes, self.steps)) if self.shapes else np.ones(self.steps)
        grown = np.linspace(0.5, 1.5, self.steps) if self.grows else 1.0
        return np.maximum(1, 65_536 * scattered * grown).astype(np.int64)

    def _planted(self) -> Floats:
        planted, place = self.planted, np.arange(self.steps)
        factor = 1 + planted.drift * place / self.steps
        factor[int(planted.where * self.steps) : int(planted.until * self.steps)] *= 1 + planted.change
        if planted.every:
            factor[place % planted.every == planted.every // 3] *= 1 + planted.stall
        return factor

    def _scatter(self) -> Floats:
        """The logarithm of what a second becomes, step by step."""
        draw: Any = self.random
        white = draw.standard_normal(self.steps)
        match self.noise:
            case "quiet":
                return 0.003 * white
            case "lognormal":
                return 0.03 * white
            case "rough":
                return 0.1 * white
            case "remembers":
                return 0.03 * _autoregressive(white, 0.8)
            case "remembers long":
                return 0.03 * _autoregressive(white, 0.97)
            case "heavy tails":
                return 0.03 * np.clip(draw.standard_t(2.5, self.steps), -20, 20)
            case "spikes":
                return 0.03 * white + np.where(draw.random(self.steps) < 0.01, draw.uniform(0.3, 1.2, self.steps), 0.0)


def _autoregressive(white: Floats, memory: float) -> Floats:
    """Of unit variance, each value `memory` of the one before and the rest new."""
    from scipy.signal import lfilter

    return np.asarray(lfilter([np.sqrt(1 - memory**2)], [1, -memory], white))

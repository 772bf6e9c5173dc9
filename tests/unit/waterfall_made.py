"""Points of scaling whose larger step was taken apart, with parts of choice in seconds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from made import conditions

from pytest_clusterqual.model.fabric import RankLadder
from pytest_clusterqual.model.training import PipelineTimes, RankTraining, ScalingMeasurement, ScalingRun

RUNS, STEPS = 8, 10


@dataclass(frozen=True, kw_only=True)
class Made:
    """A step of 200 ms on 1 node, and one on `nodes` with the parts that are named; `noise` is that of single steps.

    `slow` are factors of a rank's computing, `stalls` seconds that a rank waits for data beside all others'
    `data`. `payload` are the bytes alone.
    """

    nodes: int = 2
    base: float = 0.2
    loss: float = 0.0
    transfer: float = 0.0
    payload: float = 0.01
    barrier: float = 0.0
    data: float = 0.0
    base_data: float = 0.0
    rest: float = 0.0
    bubble: float = 0.0
    slow: Mapping[int, float] = field(default_factory=dict)
    stalls: Mapping[int, float] = field(default_factory=dict)
    pipeline: PipelineTimes | None = None
    noise: float = 0.0
    barriers: bool = True
    rounds: int = 12
    runs: int = RUNS
    seed: int = 0

    @property
    def alone(self) -> float:
        return (self.base - self.base_data) / self.nodes + self.loss

    @property
    def slowest(self) -> float:
        return self.alone * max([1.0, *self.slow.values()])

    @property
    def real(self) -> float:
        return self.slowest + self.barrier + self.transfer + self.bubble

    def measurement(self, **more: Any) -> ScalingMeasurement:
        random = Random(self.seed)
        runs = []
        for _ in range(self.runs):
            runs.append(self._run(1, self.base, self.base_data, random))
            data = self.data + max(self.stalls.values(), default=0.0)
            runs.append(self._run(self.nodes, self.real + data + self.rest, self.data, random))
        apart = tuple(self._round(random) for _ in range(self.rounds))
        at = conditions(nodes=self.nodes, ranks=self.nodes, layout="ddp", simulated=False)
        return ScalingMeasurement(conditions=at, runs=tuple(runs), started=0.0, seconds=1.0, apart=apart, **more)

    def _run(self, nodes: int, step: float, data: float, random: Random) -> ScalingRun:
        here = conditions(nodes=nodes, ranks=nodes, layout="ddp", workload="9f2c", simulated=False)
        turns = [self._jitter(random) for _ in range(STEPS)]
        ranks = tuple(
            RankTraining(
                rank=rank, warmup_seconds=(step,), step_seconds=tuple(step * turn for turn in turns),
                data_seconds=(data + (self.stalls.get(rank, 0.0) if nodes > 1 else 0.0),) * STEPS,
                work_seconds=step * sum(turns), tokens_per_step=8192, losses=(5.0,) * (STEPS + 1), data_digest="3fb1",
                pipeline=self.pipeline if nodes > 1 else None,
            )
            for rank in range(nodes)
        )  # fmt: skip
        return ScalingRun(conditions=here, ranks=ranks)

    def _round(self, random: Random) -> tuple[RankLadder, ...]:
        def several(seconds: float) -> tuple[float, ...]:
            return tuple(seconds * self._jitter(random) for _ in range(4))

        together, real = several(self.slowest + self.barrier), several(self.real)
        return tuple(
            RankLadder(
                rank=rank, compute=several(self.alone * self.slow.get(rank, 1.0)),
                barrier=together if self.barriers else (), payload=several(self.payload) if self.barriers else (),
                step=real,
            )
            for rank in range(self.nodes)
        )  # fmt: skip

    def _jitter(self, random: Random) -> float:
        return math.exp(random.gauss(0.0, self.noise)) if self.noise else 1.0

"""Memory ladders as a small real run measures them, with peaks and step times of choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from made import MIB, conditions

from pytest_clusterqual.model.memory import MemoryLadderMeasurement, RankMemory, Rung, RungResult
from pytest_clusterqual.model.training import RankTraining, ScalingRun
from pytest_clusterqual.model.workload import Layout

NOISE = (1.0, 1.01, 0.99, 1.02, 0.98, 1.0)
LIMIT = 100  # MiB that each device has
DEVICE = Rung(name="one device", kind="device", nodes=1, per_node=1, microbatch=8, layout=Layout(name="one-device"))
MICRO = replace(DEVICE, name="microbatch 1", kind="microbatch", microbatch=1)
RECOMPUTE = replace(MICRO, name="recompute full", kind="recompute")
SHARD = replace(MICRO, name="shard", kind="shard", per_node=2)
TENSOR = replace(MICRO, name="tensor 2", kind="split", per_node=2)
NODES = replace(MICRO, name="2 nodes", kind="nodes", nodes=2, per_node=2)
REFUSED = "rank 0 on node0 could not allocate 4 MiB"


def fits(
    rung: Rung, used: int, step: float, *, noise: Sequence[float] = NOISE, loss: float = 5.0, **of_rank: Any
) -> RungResult:
    """A rung whose ranks hold up to `used` MiB, and take `step` seconds a step."""
    nodes = tuple(f"node{rank // rung.per_node}" for rank in range(rung.ranks))
    peak = used * MIB
    parts = {"parameters": 8 * MIB, "gradients": 8 * MIB, "optimizer": 16 * MIB, "activations": peak - 40 * MIB}
    memory = RankMemory(
        rank=0, step_peaks=(peak - 16 * MIB, peak, peak), reserved_peaks=(), device_used=peak, limit=LIMIT * MIB,
        limit_from="memory.device_memory of the project file", counted="tensors", parts={**parts, "other": 8 * MIB},
        losses=(5.5, 5.4, 5.3), data_digest="3fb1",
    )  # fmt: skip
    ranks = tuple(replace(memory, rank=rank, **of_rank) for rank in range(rung.ranks))
    turned = len(rung.name) % len(noise)  # so that rungs do not vary together
    runs = tuple(_run(rung, nodes, step * factor, loss) for factor in (*noise[turned:], *noise[:turned]))
    return RungResult(rung=rung, rank_nodes=nodes, ranks=ranks, runs=runs)


def starved(rung: Rung, who: str = REFUSED) -> RungResult:
    return RungResult(rung=rung, out_of_memory=who)


def impossible(rung: Rung) -> RungResult:
    return RungResult(rung=replace(rung, impossible="tensor: got 2, want a divisor of workload.model.heads 1"))


def ladder(*results: RungResult, **under: Any) -> MemoryLadderMeasurement:
    at = conditions(nproc_per_node=2, ranks=4, workload="9f2c", **under)
    return MemoryLadderMeasurement(
        conditions=at, rungs=results, device_memory=LIMIT * MIB, started=0.0, seconds=1.0
    )  # fmt: skip


def _run(rung: Rung, nodes: tuple[str, ...], step: float, loss: float) -> ScalingRun:
    training = RankTraining(
        rank=0, warmup_seconds=(), step_seconds=(step,) * 10, data_seconds=(0.0,) * 10, work_seconds=10 * step,
        tokens_per_step=8192, losses=(loss,) * 10, data_digest="3fb1",
    )  # fmt: skip
    under = conditions(
        nodes=rung.nodes, nproc_per_node=rung.per_node, ranks=rung.ranks, rank_nodes=nodes, layout=rung.layout.name,
        workload="9f2c",
    )  # fmt: skip
    return ScalingRun(conditions=under, ranks=tuple(replace(training, rank=rank) for rank in range(rung.ranks)))

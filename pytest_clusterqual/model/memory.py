"""Memory: what each rank of the exact job held, and the ladder of ways to make it fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.training import ScalingRun
from pytest_clusterqual.model.workload import Layout


@dataclass(frozen=True, kw_only=True, slots=True)
class RankMemory:
    """Memory of one rank over forward, backward and optimizer steps of the exact job, in bytes.

    `step_peaks[i]` is the peak of step i, in the terms that `counted` names. `reserved_peaks` is
    what the allocator held from the device (empty on CPU). `device_used` is the highest use seen
    at device level: the process' peak resident set on CPU, total minus free on CUDA. `limit` is
    the device memory, on CPU the rank's share; `limit_from` says where the limit comes from.
    `parts` is what the highest of the peaks is made of, and adds up to it: parameters, gradients and
    optimizer as far as they were there at that moment, activations (what forward passes made and still
    held, repeated ones too), and other: communication buffers, temporary tensors, the batch, whatever
    could not be told apart. A command is seen from outside: it has one peak, that of the whole process, nothing
    of which is told apart; its losses may not be known, and on CUDA not `device_used`, which is then 0.
    """

    rank: int
    step_peaks: tuple[int, ...]
    reserved_peaks: tuple[int, ...]
    device_used: int
    limit: int
    limit_from: str
    counted: str
    parts: dict[str, int]
    losses: tuple[float, ...]
    data_digest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryMeasurement:
    """Of a job whose ranks ran out of memory `out_of_memory` says who, and `ranks` may be empty.

    `unknown` are words for what could not be had of the job.
    """

    conditions: Conditions
    ranks: tuple[RankMemory, ...]
    started: float
    seconds: float
    out_of_memory: str = ""
    unknown: tuple[str, ...] = ()


# What a rung does to make the job fit, in the order in which a careful engineer tries.
RungKind = Literal["device", "microbatch", "recompute", "shard", "split", "nodes"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rung:
    """One way to do the exact job: so many nodes with `per_node` ranks each, its microbatch and its layout.

    `impossible` says why the job cannot be cut that way; such a rung is shown and not tried.
    """

    name: str
    kind: RungKind
    nodes: int
    per_node: int
    microbatch: int
    layout: Layout
    impossible: str = ""

    @property
    def ranks(self) -> int:
        return self.nodes * self.per_node


@dataclass(frozen=True, kw_only=True, slots=True)
class RungResult:
    """What came of a rung: the memory of its ranks and `runs` of the fixed work, or who ran `out_of_memory`.

    `ranks` are those that told, each on its one of `rank_nodes`; none of a rung that was not tried, and
    `untried` says why.
    """

    rung: Rung
    rank_nodes: tuple[str, ...] = ()
    ranks: tuple[RankMemory, ...] = ()
    runs: tuple[ScalingRun, ...] = ()
    out_of_memory: str = ""
    untried: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryLadderMeasurement:
    """All rungs in order. `device_memory` is what the file lets each device have, in bytes; None: all it has."""

    conditions: Conditions
    rungs: tuple[RungResult, ...]
    device_memory: int | None
    started: float
    seconds: float

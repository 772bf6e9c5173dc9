"""The memory ladder before there is hardware: what each rung should hold. An estimate is never a PASS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_clusterqual.model.memory import Rung
from pytest_clusterqual.model.workload import Workload

Device = Literal["cpu", "cuda"]
Fits = Literal["fits", "tight", "no"]

_UNSEEN: dict[Device, tuple[str, ...]] = {
    "cuda": (
        "the CUDA context of each process, and the kernels loaded into it",
        "buffers of NCCL, for each group of ranks and each of its channels",
        "fragmentation: what torch's allocator has reserved and cannot use",
        "workspaces of cuBLAS, and of kernels that keep more than the tensors they are given",
        "whatever else uses the device",
    ),
    "cpu": (
        "the interpreter and its libraries",
        "freed memory that the C library keeps",
        "buffers that gloo and matrix kernels keep for themselves",
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """Bytes of tensors at the peak of a step on the fullest rank; `parts` add up to it.

    fake tensors: the job's own step, done on `rank` with tensors that have sizes and lives but no values.
    arithmetic: from the shapes in the project file alone; `reason` says why.
    """

    peak: int
    parts: dict[str, int]
    method: Literal["fake tensors", "arithmetic"]
    rank: int | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class EstimateRequest:
    """`device` is the kind of memory that the job's tensors would be in."""

    workload: Workload
    device: Device
    rungs: tuple[Rung, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class EstimatedRung:
    """`estimate` is None where the job cannot be cut that way, and the rung says why; `fits` also where no
    device memory is known."""

    rung: Rung
    estimate: Estimate | None
    fits: Fits | None


@dataclass(frozen=True, kw_only=True, slots=True)
class EstimatedLadder:
    """All rungs in order. `device_memory` is the bytes that the file gives each device, `memory_from` the key.

    `headroom` is the share of it that the file requires to stay free, 0 where it requires none. `unseen`
    says what there is besides the tensors.
    """

    nodes: int
    nproc_per_node: int
    device: Device
    rungs: tuple[EstimatedRung, ...]
    device_memory: float | None
    memory_from: str
    headroom: float
    unseen: tuple[str, ...]


def unseen(device: Device, workload: Workload) -> tuple[str, ...]:
    """What a device holds besides the tensors that are estimated, in words."""
    routing = ("how unevenly the router spreads tokens: all experts are taken to get as many",)
    return _UNSEEN[device] + (routing if workload.experts else ())

"""How much memory one rank may use: its device's, its share of the machine or control group, or less on purpose."""

from __future__ import annotations

import ctypes
import hashlib
import re
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from pytest_clusterqual import units
from pytest_clusterqual.rank.control_groups import cgroup_limit, identity, proc_bytes

if TYPE_CHECKING:
    from pytest_clusterqual.rank.jobs import Context

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_GIVEN_BACK = 64 * 1024  # bytes; else freed tensors stay in the heap, in pieces that no other tensor fits
# What torch's allocators say, and the C library's errors behind them.
_REFUSED = re.compile("out of memory|not enough memory|can't allocate memory|Cannot allocate memory|bad_alloc", re.I)
_ASKED = re.compile(r"(?:tried to|trying to) allocate ([\d.]+) ([KMGT]i?B|bytes)", re.I)


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """Memory that one rank may use, in bytes, and in words where that number is from."""

    bytes: int
    origin: str


def cuda_limit(device: torch.device) -> Limit:
    """All memory of the device."""
    properties = torch.cuda.get_device_properties(device)
    return Limit(bytes=properties.total_memory, origin=f"total memory of {properties.name}")


def cpu_limit(ctx: Context, *, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> Limit:
    """This rank's share of the machine or of its control group, whichever is less.

    A collective call: ranks under the same control group share its limit, it is no pool for each.
    """
    machine = Limit(
        bytes=proc_bytes(proc / "meminfo", "MemTotal", "the memory of this machine is unknown") // ctx.ranks_on_host,
        origin=f"MemTotal / {ctx.ranks_on_host} ranks on this machine",
    )
    found = cgroup_limit(proc / "self" / "cgroup", cgroups)
    sharing = _count_same(ctx, identity(found[1], proc) if found is not None else "")
    if found is None or found[0] // sharing >= machine.bytes:
        return machine
    return Limit(bytes=found[0] // sharing, origin=f"control group limit / {sharing} ranks under it")


@contextmanager
def device_confined(device: torch.device, most: int | None) -> Iterator[None]:
    """Inside, torch's allocator has what all else on the device leaves of `most` bytes; None: all there is."""
    if most is None:
        yield
        return
    memory: Any = torch.get_device_module(device)
    free, total = memory.mem_get_info(device)
    others = total - free - memory.memory_reserved(device)
    memory.set_per_process_memory_fraction(min(max(most - others, 0) / total, 1.0), device)
    try:
        yield
    finally:
        memory.set_per_process_memory_fraction(1.0, device)


@contextmanager
def process_confined(most: int) -> Iterator[Callable[[int], None]]:
    """Inside, the kernel refuses this process whatever it asks for beyond `most` bytes.

    Call the yielded function with the bytes that tensors hold at that moment: what else the process has
    taken until then, such as stacks of threads, no longer counts. The C library is told to give back at
    once what is freed, and keeps to that afterwards.
    """
    library = ctypes.CDLL(None)
    for option in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
        library.mallopt(option, _GIVEN_BACK)
    before = resource.getrlimit(resource.RLIMIT_DATA)

    def only_tensors_count(held: int) -> None:
        taken = proc_bytes(Path("/proc/self/status"), "VmData", "what this process holds is unknown")
        resource.setrlimit(resource.RLIMIT_DATA, (taken - held + most, before[1]))

    only_tensors_count(0)
    try:
        yield only_tensors_count
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def not_allocated(error: BaseException | None) -> str:
    """What could not be allocated, such as ``4 MiB``, if that is the error or what led to it; else empty."""
    while error is not None:
        text = str(error)
        if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
            isinstance(error, RuntimeError) and _REFUSED.search(text)
        ):
            asked = _ASKED.search(text)
            if asked is None:
                return "memory"
            return f"{asked[1]} {asked[2]}" if asked[2] != "bytes" else units.show(float(asked[1]), units.BYTES)
        error = error.__cause__ or error.__context__
    return ""


def _count_same(ctx: Context, text: str) -> int:
    """Number of the job's ranks that call this with the same text."""
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], sys.byteorder, signed=True)
    mine = torch.tensor([number], dtype=torch.int64, device=ctx.device)
    everyone = [torch.empty_like(mine) for _ in range(ctx.world_size)]
    dist.all_gather(everyone, mine, group=ctx.group)
    return sum(int(other.item()) == number for other in everyone)

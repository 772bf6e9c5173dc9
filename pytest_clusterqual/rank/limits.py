"""How much memory one rank may use: its device's, or its share of the machine or control group."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from pytest_clusterqual.errors import MeasurementError

if TYPE_CHECKING:
    from pytest_clusterqual.rank.jobs import Context

NO_LIMIT = 2**62  # cgroup v1 writes "no limit" as a number near 2**63


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
        bytes=_memory_total(proc / "meminfo") // ctx.ranks_on_host,
        origin=f"MemTotal / {ctx.ranks_on_host} ranks on this machine",
    )
    found = cgroup_limit(proc / "self" / "cgroup", cgroups)
    sharing = _count_same(ctx, _identity(found[1], proc) if found is not None else "")
    if found is None or found[0] // sharing >= machine.bytes:
        return machine
    return Limit(bytes=found[0] // sharing, origin=f"control group limit / {sharing} ranks under it")


def cgroup_limit(membership: Path, cgroups: Path) -> tuple[int, Path] | None:
    """The tightest readable memory limit (v1 or v2) over this process' control groups, and its folder."""
    found: list[tuple[int, Path]] = []
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _number, controllers, path = line.split(":", 2)
        if controllers == "":
            root, name = cgroups, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = cgroups / "memory", "memory.limit_in_bytes"
        else:
            continue
        folder = root / path.lstrip("/")
        # The group's own folder may be hidden from a container; what is visible above it still binds.
        for place in (folder, *folder.parents):
            if place.is_relative_to(root) and (limit := _read_limit(place / name)) is not None:
                found.append((limit, place))
    return min(found, key=lambda item: item[0], default=None)


def _read_limit(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() and int(text) < NO_LIMIT else None


def _memory_total(meminfo: Path) -> int:
    for line in meminfo.read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    raise MeasurementError(f"{meminfo}: no MemTotal line: the memory of this machine is unknown")


def _identity(folder: Path, proc: Path) -> str:
    """Names a control group across ranks: paths inside a container look alike, inodes do not."""
    boot = (proc / "sys" / "kernel" / "random" / "boot_id").read_text().strip()
    place = folder.stat()
    return f"{boot} {place.st_dev} {place.st_ino}"


def _count_same(ctx: Context, text: str) -> int:
    """Number of the job's ranks that call this with the same text."""
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], sys.byteorder, signed=True)
    mine = torch.tensor([number], dtype=torch.int64, device=ctx.device)
    everyone = [torch.empty_like(mine) for _ in range(ctx.world_size)]
    dist.all_gather(everyone, mine, group=ctx.group)
    return sum(int(other.item()) == number for other in everyone)

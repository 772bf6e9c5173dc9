"""Limits that the kernel sets to the memory of this process; standard library only."""

from __future__ import annotations

from pathlib import Path

from pytest_clusterqual.errors import MeasurementError

NO_LIMIT = 2**62  # cgroup v1 writes "no limit" as a number near 2**63


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


def proc_bytes(file: Path, name: str, otherwise: str) -> int:
    """A line such as ``MemTotal: 12 kB`` of one of the kernel's files, in bytes.

    Raises:
        MeasurementError: there is no such line; `otherwise` says what that means.
    """
    for line in file.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise MeasurementError(f"{file}: no {name} line: {otherwise}")


def identity(folder: Path, proc: Path) -> str:
    """Names a control group across ranks: paths inside a container look alike, inodes do not."""
    boot = (proc / "sys" / "kernel" / "random" / "boot_id").read_text().strip()
    place = folder.stat()
    return f"{boot} {place.st_dev} {place.st_ino}"


def out_of_memory_kills() -> int:
    """How many processes this machine's kernel has killed for want of memory so far."""
    try:
        with open("/proc/vmstat") as vmstat:
            return next(int(line.split()[1]) for line in vmstat if line.startswith("oom_kill "))
    except (OSError, StopIteration):
        return 0

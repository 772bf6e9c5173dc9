"""cgroups of a lab: one directory a controller for the lab, one below it for each host.

Version 1 only: its controllers can be used below this process's own cgroup without moving
anything else. Where a controller is missing, the faults that need it are impossible.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

CONTROLLERS = ("cpu", "memory", "blkio", "cpuset")


def own_cgroups() -> dict[str, Path]:
    """controller -> the directory of this process's cgroup, for the controllers that are mounted."""
    mounted = {}
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        _device, point, kind, options = line.split()[:4]
        if kind == "cgroup":
            mounted.update(dict.fromkeys(set(options.split(",")) & set(CONTROLLERS), Path(point)))
    own = {}
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _number, controllers, path = line.split(":", 2)
        for name in set(controllers.split(",")) & set(mounted):
            own[name] = mounted[name] / path.lstrip("/")
    return {name: path for name, path in own.items() if path.is_dir()}


def make_cgroup(path: Path, controller: str, cores: Sequence[int] = ()) -> Path:
    """Make one directory; a cpuset gets its cores and memory nodes, by default those of its parent."""
    path.mkdir()
    if controller == "cpuset":
        given = ",".join(str(core) for core in cores)
        (path / "cpuset.cpus").write_text(given or (path.parent / "cpuset.cpus").read_text())
        (path / "cpuset.mems").write_text((path.parent / "cpuset.mems").read_text())
    return path


def cores_of_this_machine(cpuset: Path) -> list[int]:
    """The cores a cpuset may use: ``0-1,4`` as numbers."""
    text = (cpuset / "cpuset.effective_cpus").read_text(encoding="utf-8")
    ranges = re.findall(r"(\d+)(?:-(\d+))?", text)
    return [core for first, last in ranges for core in range(int(first), int(last or first) + 1)]

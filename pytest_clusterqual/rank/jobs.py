"""What a job sees of its world, and how one is found and run."""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from pytest_clusterqual.errors import ClusterQualError
from pytest_clusterqual.model.groups import groups_of

Subgroups = dict[tuple[str, tuple[int, ...]], ProcessGroup]  # backend, where it is not the usual one, and members


@dataclass(kw_only=True)
class Context:
    """Handed to every job function as its first argument.

    `rank` and `world_size` count within this job's group, which may be a part of the launch:
    `members` are the global ranks of the group in order, `nodes` the node of each of them.
    `ranks_on_host` is how many ranks of the launch share this machine's memory. Groups of a `silent` one
    exchange nothing.
    """

    rank: int
    global_rank: int
    local_rank: int
    node: str
    nproc_per_node: int
    device: torch.device
    backend: str
    group: ProcessGroup
    members: tuple[int, ...]
    nodes: tuple[str, ...]
    ranks_on_host: int
    scratch: Path
    tell: Callable[[float, float, str], None] = lambda done, total, what: None
    subgroups: Subgroups = field(default_factory=dict)
    silent: bool = False

    @property
    def world_size(self) -> int:
        return len(self.members)

    def subgroup(self, ranks: Sequence[int]) -> ProcessGroup | None:
        """A process group of some of this job's ranks; every rank of the job must call it, alike.

        Returns None on ranks outside of it.
        """
        return self.own_group([ranks])

    def own_group(self, groups: Sequence[Sequence[int]], *, kept: bool = False) -> ProcessGroup | None:
        """A process group of those ranks among which this rank is; None if it is in none of `groups`.

        No rank may be in two of them. Every rank of the job must call it, alike. One with all ranks is
        the job's own, which ends with it, unless it is to be `kept` as the others are.
        """
        mine = next((ranks for ranks in groups if self.rank in ranks), ())
        if not mine or (len(mine) == self.world_size and not kept):
            return self.group if mine else None
        return self._kept(tuple(self.members[rank] for rank in mine), "fake" if self.silent else "")

    def silenced(self) -> Context:
        """The same ranks, whose groups from here on exchange nothing: each rank gets its own data back, at once.

        Every rank of the job must call it, alike.
        """
        importlib.import_module("torch.testing._internal.distributed.fake_pg")  # makes the backend known
        return replace(self, group=self._kept(self.members, "fake"), silent=True)

    def _kept(self, members: tuple[int, ...], backend: str) -> ProcessGroup:
        # Kept for the life of the worker: a name that is used again after its group was destroyed
        # finds the old keys in the store and hangs.
        if (backend, members) not in self.subgroups:
            self.subgroups[backend, members] = _group_by_members(members, backend)
        return self.subgroups[backend, members]

    def groups(self, kind: str) -> tuple[tuple[int, ...], ...]:
        """All groups of one kind (intra_node, inter_node, rails, world), as ranks of this job.

        Raises:
            ValueError: there is no such kind.
        """
        return groups_of(kind, self.nodes)

    def report(self, done: float, total: float, what: str) -> None:
        """Tell the session how far this job is; call it outside timed windows only."""
        self.tell(done, total, what)

    def synchronize(self) -> None:
        """Wait for the device; on CPU there is nothing to wait for."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _group_by_members(members: tuple[int, ...], backend: str) -> ProcessGroup:
    """A process group that its members make on their own, for ranks outside a job take no part.

    torch would put into its name how many groups a process has, and members that differ in that
    would wait for each other forever. This name holds members and backend only.
    """
    c10d = dist.distributed_c10d
    name = hashlib.sha256(repr((members, backend)).encode()).hexdigest()
    genuine, c10d._process_group_name = c10d._process_group_name, lambda *_, **__: name
    try:
        return dist.new_group(members, backend=backend or None, use_local_synchronization=True)
    finally:
        c10d._process_group_name = genuine


def import_from(path: Sequence[str]) -> None:
    """Find modules in these folders before all others, the first one first."""
    for folder in reversed(path):
        if folder not in sys.path:
            sys.path.insert(0, folder)


def resolve(name: str) -> Callable[..., Any]:
    """Find ``package.module:function``.

    Raises:
        ClusterQualError: there is no such module or function on this node.
    """
    module_name, _, function = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ClusterQualError(
            f"{name}: cannot import {module_name!r} on this node: {error}; install it there, or put it beside the tests"
        ) from error
    found = getattr(module, function, None)
    if not callable(found):
        raise ClusterQualError(f"{name}: the module {module_name!r} has no function {function!r}")
    return found  # type: ignore[no-any-return]  # callable() does not narrow Any


def place(device: torch.device, backend: str, *, rank: int, local_rank: int, node: str) -> dict[str, Any]:
    """Where this rank really sits, as JSON of `model.topology.RankPlace`."""
    import platform
    import socket

    from pytest_clusterqual import __version__

    versions = {"python": platform.python_version(), "torch": torch.__version__, "pytest_clusterqual": __version__}
    if device.type == "cuda":
        versions["cuda"] = str(torch.version.cuda)
        versions["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
        name = torch.cuda.get_device_name(device)
    else:
        name = _cpu_name()
    return {
        "rank": rank,
        "local_rank": local_rank,
        "node": node,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "device": str(device),
        "device_name": name,
        "backend": backend,
        "cores": sorted(os.sched_getaffinity(0)),
        "versions": versions,
    }


def _cpu_name() -> str:
    with open("/proc/cpuinfo") as info:
        for line in info:
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    import platform

    return platform.machine() or "cpu"


def empty(ctx: Context) -> None:
    """Do nothing: the cost of a job itself."""

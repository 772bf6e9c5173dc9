"""What launcher and torchrun tell a process of a rank, in its environment; standard library only."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pytest_clusterqual.errors import LaunchError


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What the launcher and torchrun put into this process' environment.

    `address` and `port` are the store's, `node_address` is where other nodes meet this one. `rank` is
    torchrun's; a worker gets its own from the session, as it gets `device_index`.
    """

    address: str
    port: int
    secret: bytes
    launch: str
    node: str
    node_address: str
    cores: tuple[int, ...]
    device: str
    scratch: Path
    rank: int
    local_rank: int
    world_size: int
    nproc_per_node: int
    device_index: int

    @classmethod
    def from_environment(cls) -> Settings:
        """Read it.

        Raises:
            LaunchError: what started this process has not told it which rank it is.
        """
        env = os.environ
        address, _, port = env["CLUSTERQUAL_STORE"].rpartition(":")
        # Without a share of its own a node's ranks divide all cores that this process may use.
        cores = [int(core) for core in env["CLUSTERQUAL_CORES"].split(",") if core] or sorted(os.sched_getaffinity(0))
        # DeepSpeed's launcher has another name for it.
        local_rank, local_size = _told("LOCAL_RANK"), _told("LOCAL_WORLD_SIZE", "LOCAL_SIZE")
        return cls(
            address=address,
            port=int(port),
            secret=bytes.fromhex(env["CLUSTERQUAL_SECRET"]),
            launch=env["CLUSTERQUAL_LAUNCH"],
            node=env["CLUSTERQUAL_NODE"],
            node_address=env["CLUSTERQUAL_ADDRESS"],
            cores=share_of(cores, local_rank, local_size),
            device=env["CLUSTERQUAL_DEVICE"],
            scratch=Path(env["CLUSTERQUAL_SCRATCH"]),
            rank=_told("RANK"),
            local_rank=local_rank,
            world_size=_told("WORLD_SIZE"),
            nproc_per_node=local_size,
            device_index=local_rank,
        )


def _told(*names: str) -> int:
    """A number that whatever starts the ranks has set, under one of these names."""
    text = next((os.environ[name] for name in names if os.environ.get(name)), "")
    if not text.isdecimal():
        raise LaunchError(
            f"{os.environ['CLUSTERQUAL_NODE']}: this rank has {f'{names[0]}={text!r}' if text else f'no {names[0]}'} "
            "in its environment: what starts the ranks, here workload.launcher_line, must set RANK, LOCAL_RANK, "
            "WORLD_SIZE and LOCAL_WORLD_SIZE on each of them, as torchrun does"
        )
    return int(text)


def share_of(cores: list[int], local_rank: int, local_size: int) -> tuple[int, ...]:
    """The cores of one of `local_size` ranks; with fewer cores than ranks they are dealt out in turn."""
    if len(cores) < local_size:
        return (cores[local_rank % len(cores)],) if cores else ()
    each = len(cores) // local_size
    return tuple(cores[local_rank * each : (local_rank + 1) * each])

"""The local launcher: this machine, split into simulated nodes.

It shows that the suite works and how verdicts look. It says nothing about a network, and every
report says so.
"""

from __future__ import annotations

import glob
import os
import socket
import sys
from collections.abc import Sequence
from typing import Literal

from pytest_clusterqual.errors import LaunchError
from pytest_clusterqual.launch.plan import NO_MPI, NodePlan, split

_MOST_NODES = 150  # addresses 127.0.0.101 to 127.0.0.250


class LocalLauncher:
    """Each simulated node gets its own share of cores (or GPUs) and one torchrun agent."""

    simulated = True
    interface: str | None = "lo"
    address = "127.0.0.1"
    heartbeat = 0.0
    python = sys.executable

    def __init__(self, *, device: Literal["auto", "cpu", "cuda"] = "auto", oversubscribe: bool = False) -> None:
        self._cores = sorted(os.sched_getaffinity(0))
        self._gpus = visible_gpus()
        self.device: Literal["auto", "cpu", "cuda"] = ("cuda" if self._gpus else "cpu") if device == "auto" else device
        self._oversubscribe = oversubscribe
        self.oversubscribed = False

    def nodes(self, count: int, nproc_per_node: int) -> tuple[NodePlan, ...]:
        """Split the machine, or say how many cores or GPUs there are."""
        ranks = count * nproc_per_node
        asked = f"{count} nodes x {nproc_per_node} ranks = {ranks} ranks"
        if count > _MOST_NODES:
            raise LaunchError(f"{count} simulated nodes asked for, at most {_MOST_NODES} are possible")
        if self.device == "cuda":
            if ranks > len(self._gpus):
                raise LaunchError(
                    f"{asked} need {ranks} GPUs, this machine has {len(self._gpus)}; ask for fewer with --nodes and "
                    "--nproc-per-node, or set launcher.device: cpu"
                )
            gpus = split(self._gpus[:ranks], count)
            cores = split(self._cores, count) if len(self._cores) >= count else ((),) * count
            return tuple(self._node(i, cores[i], gpus[i]) for i in range(count))
        if ranks > len(self._cores):
            if not self._oversubscribe:
                raise LaunchError(
                    f"{asked} need {ranks} cores, this machine has {len(self._cores)}; ask for fewer with --nodes and "
                    "--nproc-per-node, or set launcher.oversubscribe: true (every record then says that ranks share "
                    "cores)"
                )
            self.oversubscribed = True
            if len(self._cores) < count:
                return tuple(self._node(i, (self._cores[i % len(self._cores)],), ()) for i in range(count))
        return tuple(self._node(i, share, ()) for i, share in enumerate(split(self._cores, count)))

    def command(self, node: NodePlan, program: Sequence[str], *, store: tuple[str, int] | None = None) -> list[str]:
        """The program itself: it is on its node already."""
        return list(program)

    def together(self, nodes: Sequence[NodePlan], each: int, program: Sequence[str]) -> list[str]:
        """There is no MPI here."""
        raise LaunchError(NO_MPI)

    def explain(self, said: str) -> str:
        """Nothing lies between the session and this machine."""
        return ""

    def close(self) -> None:
        """Nothing was taken."""

    @staticmethod
    def _node(index: int, cores: tuple[int, ...], gpus: tuple[int, ...]) -> NodePlan:
        # Loopback addresses of their own: torchrun orders nodes by address, so node0 holds rank 0.
        return NodePlan(
            name=f"node{index}", host=socket.gethostname(), address=f"127.0.0.{101 + index}", cores=cores, gpus=gpus
        )


def visible_gpus() -> list[int]:
    """Indices of this machine's GPUs, without importing torch or initializing a driver."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = [path for path in glob.glob("/dev/nvidia[0-9]*") if path[len("/dev/nvidia") :].isdigit()]
    if chosen is not None:
        return [int(part) for part in chosen.split(",") if part.strip().isdigit()][: len(devices)]
    return list(range(len(devices)))

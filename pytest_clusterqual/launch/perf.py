"""The programs of nccl-tests on the nodes: which can be started there, with which command lines, and their output."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from pytest_clusterqual.errors import LaunchError
from pytest_clusterqual.launch.plan import Launcher, NodePlan
from pytest_clusterqual.launch.process import Held, Output
from pytest_clusterqual.model.project import LauncherKind

PROGRAMS = {
    "all_reduce": "all_reduce_perf", "all_gather": "all_gather_perf", "reduce_scatter": "reduce_scatter_perf",
    "all_to_all": "alltoall_perf", "send_recv": "sendrecv_perf", "broadcast": "broadcast_perf",
}  # fmt: skip
TETHER = ("-m", "pytest_clusterqual.launch.tether")
_WITH_MPI = ("mpi", "slurm")
_PAUSE = 0.05


def unable(kind: LauncherKind, collective: str, group: str, *, nodes: int) -> str:
    """Why nccl-tests cannot measure a collective in a group on so many nodes; empty if it can."""
    if collective not in PROGRAMS:
        return f"nccl-tests has no program for {collective}"
    if group not in ("world", "intra_node", "inter_node"):
        return f"nccl-tests takes the first devices of every node, so it cannot be run in {group}"
    if group != "intra_node" and nodes > 1 and kind not in _WITH_MPI:
        return (
            f"{group} spans nodes, where nccl-tests needs MPI: launcher.kind mpi or slurm; {kind} starts it inside a "
            "node only"
        )
    return ""


def program(collective: str, sizes: Sequence[int], *, devices: int) -> list[str]:
    """The program over `sizes` (bytes) on so many devices of its own process; every result is checked.

    Raises:
        LaunchError: there is no such program, or it cannot step through these sizes.
    """
    if collective not in PROGRAMS:
        raise LaunchError(f"nccl-tests has no program for {collective}")
    factor = sizes[1] // sizes[0] if len(sizes) > 1 else 2
    if list(sizes) != [sizes[0] * factor**i for i in range(len(sizes))]:
        raise LaunchError(f"nccl-tests goes from size to size by one factor, which gives no {list(sizes)}")
    return [
        PROGRAMS[collective], "-b", str(sizes[0]), "-e", str(sizes[-1]), "-f", str(factor), "-g", str(devices),
        "-w", "5", "-n", "20", "-c", "1",
    ]  # fmt: skip


def commands(
    launcher: Launcher,
    nodes: Sequence[NodePlan],
    nproc_per_node: int,
    *,
    collective: str,
    group: str,
    sizes: Sequence[int],
    limit: float,
) -> list[list[str]]:
    """One argv for each group that is to be at work at the same time; whatever happens it ends after `limit` seconds.

    Inside a node one process drives all devices; over several nodes MPI starts a process for each.

    Raises:
        LaunchError: nccl-tests cannot be run so.
    """
    tether = [*TETHER, f"{limit:g}"]
    if group == "intra_node" or len(nodes) == 1:
        inside = [launcher.python, *tether]
        alone = program(collective, sizes, devices=nproc_per_node)
        return [launcher.command(node, [*inside, *_seeing(node.gpus), *alone]) for node in nodes]
    each = 1 if group == "inter_node" else nproc_per_node
    over = ["env", f"NCCL_SOCKET_IFNAME={launcher.interface}"] if launcher.interface else []
    of_all = [*over, *program(collective, sizes, devices=1)]
    return [[sys.executable, *tether, *launcher.together(nodes, each, of_all)]]


def run(argvs: Sequence[Sequence[str]], *, timeout: float) -> list[Output]:
    """Run all commands side by side to their ends; `code` is None of one that did not end in `timeout` seconds.

    Each ends with everything below it, also when this one is ended.
    """
    held: list[Held] = []
    try:
        for argv in argvs:
            held.append(Held(argv))
        deadline = time.monotonic() + timeout
        while [each for each in held if each.poll() is None] and time.monotonic() < deadline:
            time.sleep(_PAUSE)
        return [Output(each.poll(), each.said, each.complained) for each in held]
    finally:
        for each in held:
            each.release()


def _seeing(gpus: Sequence[int]) -> list[str]:
    return ["env", f"CUDA_VISIBLE_DEVICES={','.join(map(str, gpus))}"] if gpus else []

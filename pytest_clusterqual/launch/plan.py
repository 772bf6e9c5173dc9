"""What is to be launched, and the pure functions that turn it into command lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from pytest_clusterqual.errors import LaunchError


@dataclass(frozen=True, kw_only=True, slots=True)
class NodePlan:
    """One node of a launch: its name in reports, the host it is on, its share of that host.

    `address` is what other nodes reach it by; `cores` and `gpus` are the indices it may use,
    empty for all.
    """

    name: str
    host: str
    address: str
    cores: tuple[int, ...] = ()
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchPlan:
    """One torchrun agent a node. `mode` is what the ranks do; `max_restarts` is torchrun's own."""

    nodes: tuple[NodePlan, ...]
    nproc_per_node: int
    device: Literal["cpu", "cuda"]
    mode: Literal["serve", "train"]
    launch: str
    store: tuple[str, int]
    interface: str | None = None
    max_restarts: int = 0
    timeout: float = 120.0


class Launcher(Protocol):
    """How a command is started on a node. One small file a launcher."""

    simulated: bool
    device: Literal["cpu", "cuda"]
    oversubscribed: bool
    interface: str | None
    address: str  # where the session's store listens

    def nodes(self, count: int, nproc_per_node: int) -> tuple[NodePlan, ...]:
        """Choose `count` nodes for `nproc_per_node` ranks each, or raise LaunchError with what there is."""
        ...

    def command(self, node: NodePlan) -> list[str]:
        """The argv that starts the guard on `node`, with its standard streams connected to ours."""
        ...


def torchrun(plan: LaunchPlan, node: NodePlan, python: str) -> list[str]:
    """The agent's command line on one node.

    The session hosts the rendezvous store (``is_host=0``), so it outlives every agent. A node
    whose clock is behind would otherwise be taken for dead by the others and leave a world of
    one, hence many keep-alive attempts.
    """
    address, port = plan.store
    seconds = math.ceil(plan.timeout)
    return [
        python, "-m", "torch.distributed.run",
        f"--nnodes={len(plan.nodes)}", f"--nproc-per-node={plan.nproc_per_node}",
        "--rdzv-backend=c10d", f"--rdzv-endpoint={address}:{port}", f"--rdzv-id={plan.launch}",
        f"--rdzv-conf=is_host=0,join_timeout={seconds},timeout={seconds},keep_alive_max_attempt=100",
        f"--local-addr={node.address}", f"--max-restarts={plan.max_restarts}", "--monitor-interval=0.1",
        "-m", "pytest_clusterqual.rank", plan.mode,
    ]  # fmt: skip


def environment(plan: LaunchPlan, node: NodePlan, *, secret: str) -> dict[str, str]:
    """What the ranks of one node get beside the environment they are started in."""
    address, port = plan.store
    threads = max(1, len(node.cores) // plan.nproc_per_node) if node.cores else None
    values = {
        "CLUSTERQUAL_STORE": f"{address}:{port}",
        "CLUSTERQUAL_SECRET": secret,
        "CLUSTERQUAL_LAUNCH": plan.launch,
        "CLUSTERQUAL_NODE": node.name,
        "CLUSTERQUAL_CORES": ",".join(map(str, node.cores)),
        "CLUSTERQUAL_DEVICE": plan.device,
        "PYTHONUNBUFFERED": "1",
        # torchrun's own restart reuses the store of its first rendezvous and fails or hangs on gloo.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        # A host without a working resolver spends 10 s on reverse DNS for each connection.
        "RES_OPTIONS": "timeout:1 attempts:1",
    }
    if threads:
        values["OMP_NUM_THREADS"] = str(threads)
    if plan.interface:
        values["GLOO_SOCKET_IFNAME"] = values["NCCL_SOCKET_IFNAME"] = plan.interface
    if node.gpus:
        values["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, node.gpus))
    return values


def split(items: Sequence[int], parts: int) -> tuple[tuple[int, ...], ...]:
    """Cut `items` into `parts` runs of equal length; what is left over goes to nobody.

    Raises:
        LaunchError: there are fewer items than parts.
    """
    each = len(items) // parts
    if not each:
        raise LaunchError(f"{parts} parts asked of {len(items)}")
    return tuple(tuple(items[i * each : (i + 1) * each]) for i in range(parts))

"""What is to be launched, and the pure functions that turn it into command lines."""

from __future__ import annotations

import math
import re
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pytest_clusterqual.errors import LaunchError
from pytest_clusterqual.launch.network import NoRoute, own_place, route_to
from pytest_clusterqual.model.command import LINE

# What launchers advise when a program they started is not there.
NO_PYTHON = "name a Python that every node has with launcher.python"
NO_PACKAGE = f"install the package there, or {NO_PYTHON}; `clusterqual doctor` shows every host"
NO_MPI = "a program over several nodes needs MPI: launcher.kind mpi or slurm"

# Stands in the agent's command line until the guard knows its host's address on the route to the others.
OWN_ADDRESS = "@OWN_ADDRESS@"


@dataclass(frozen=True, kw_only=True, slots=True)
class NodePlan:
    """One node of a launch: its name in reports, the host it is reached by, its share of that host.

    `address` is what other nodes reach it by; None where only the host itself can tell. `cores`
    and `gpus` are the indices it may use, empty for all.
    """

    name: str
    host: str
    address: str | None = None
    cores: tuple[int, ...] = ()
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchPlan:
    """One torchrun agent a node. `mode` is what the ranks do; `max_restarts` is torchrun's own.

    A command has `words` of its own, and `variables` for the process beside it. With an own `line` that is started on
    every node instead of torchrun; it runs `script` on each rank. `port` is one that its ranks may meet at on the first
    node. `store` is the address and port at which every node reaches the session's store.
    """

    nodes: tuple[NodePlan, ...]
    nproc_per_node: int
    device: Literal["cpu", "cuda"]
    mode: Literal["serve", "train", "command"]
    launch: str
    store: tuple[str, int]
    interface: str | None = None
    max_restarts: int = 0
    timeout: float = 120.0
    words: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    line: tuple[str, ...] = ()
    script: str = ""
    port: int = 0


class Launcher(Protocol):
    """How a program is started on a node. One small file a launcher.

    `device` stays ``auto`` until the nodes were asked what they have. `address` is where the
    session's store listens and the nodes reach it. `heartbeat` is the number of seconds after
    which a guard without a sign of life from the session ends its ranks; 0 where a broken pipe
    is certain to tell.
    """

    simulated: bool
    device: Literal["auto", "cpu", "cuda"]
    oversubscribed: bool
    interface: str | None
    address: str
    heartbeat: float
    python: str

    def nodes(self, count: int, nproc_per_node: int) -> tuple[NodePlan, ...]:
        """Choose `count` nodes for `nproc_per_node` ranks each, or raise LaunchError with what there is."""
        ...

    def command(self, node: NodePlan, program: Sequence[str], *, store: tuple[str, int] | None = None) -> list[str]:
        """The argv that runs `program` on `node`, with its standard streams connected to ours.

        With `store` the program must be able to reach the session's store at that address and port.
        """
        ...

    def together(self, nodes: Sequence[NodePlan], each: int, program: Sequence[str]) -> list[str]:
        """The argv, for this machine, of one MPI job with `each` processes of `program` on every node.

        Raises:
            LaunchError: this way to the nodes starts no MPI job.
        """
        ...

    def explain(self, said: str) -> str:
        """What went wrong on the way to the node, with the remedy, from what was printed; empty if it is not known."""
        ...

    def close(self) -> None:
        """Give back what `nodes` took."""
        ...


class Remote:
    """What the launchers that reach other machines have in common; they know `sayings` (pattern, remedy)."""

    simulated = False
    oversubscribed = False
    heartbeat = 30.0
    sayings: Sequence[tuple[str, str]] = ()

    def __init__(
        self,
        *,
        device: Literal["auto", "cpu", "cuda"] = "auto",
        interface: str | None = None,
        address: str | None = None,
        python: str | None = None,
    ) -> None:
        self.device = device
        self.interface = interface
        self.address = address or ""
        self.python = python or sys.executable

    def together(self, nodes: Sequence[NodePlan], each: int, program: Sequence[str]) -> list[str]:
        raise LaunchError(NO_MPI)

    def explain(self, said: str) -> str:
        """The complaint of what lies between the session and the node, and what to do about it."""
        found = ((re.search(pattern, said), remedy) for pattern, remedy in self.sayings)
        return next((f"{match[0].strip()}: {remedy}" for match, remedy in found if match), "")

    def close(self) -> None:
        """Nothing was taken."""


GUARD = ("-m", "pytest_clusterqual.launch.guard")


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
        f"--local-addr={node.address or OWN_ADDRESS}", f"--max-restarts={plan.max_restarts}", "--monitor-interval=0.1",
        "-m", "pytest_clusterqual.rank", plan.mode, *plan.words,
    ]  # fmt: skip


def own_line(plan: LaunchPlan, node: NodePlan) -> list[str]:
    """The line of the file in the place of torchrun's, with what its placeholders stand for on this node."""
    first, place = plan.nodes[0], plan.nodes.index(node)
    values = (
        len(plan.nodes), place, plan.nproc_per_node, len(plan.nodes) * plan.nproc_per_node,
        first.address or (OWN_ADDRESS if place == 0 else first.host), plan.port, plan.max_restarts,
    )  # fmt: skip
    line = list(plan.line)
    for name, value in zip(LINE, values, strict=True):
        line = [word.replace(name, str(value)) for word in line]
    return [*line, plan.script, plan.mode, *plan.words]


def environment(plan: LaunchPlan, node: NodePlan, *, secret: str) -> dict[str, str]:
    """What the ranks of one node get beside the environment they are started in.

    The guard adds the node's address and the interface for GLOO and NCCL, which only the node itself knows.
    """
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
        **plan.variables,
    }
    if threads:
        values["OMP_NUM_THREADS"] = str(threads)
    if node.gpus:
        values["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, node.gpus))
    return values


def guard_order(
    plan: LaunchPlan, node: NodePlan, *, secret: str, python: str, version: str, heartbeat: float
) -> dict[str, Any]:
    """What the guard on `node` is told, in one line of JSON on its standard input."""
    return {
        "argv": own_line(plan, node) if plan.line else torchrun(plan, node, python),
        "environment": environment(plan, node, secret=secret),
        "cores": node.cores,
        "store": plan.store,
        "address": node.address,
        "interface": plan.interface,
        "peers": [other.host for other in plan.nodes if other != node],
        "version": version,
        "heartbeat": heartbeat,
    }


def choose(hosts: Sequence[str], count: int, where: str) -> tuple[NodePlan, ...]:
    """The first `count` of `hosts`, each a whole node named as it is reached.

    Raises:
        LaunchError: there are fewer; the message names `where` they come from.
    """
    if len(hosts) < count:
        raise LaunchError(f"{count} nodes asked for, {where} has {len(hosts)}: {', '.join(hosts) or 'none'}")
    return tuple(NodePlan(name=host, host=host) for host in hosts[:count])


def first_address(nodes: Sequence[NodePlan]) -> str:
    """The address of this machine on the way to the nodes, for the session's store.

    Raises:
        LaunchError: the first node cannot be found from here.
    """
    try:
        return route_to(nodes[0].host)
    except NoRoute as error:
        if nodes[0].host.partition(".")[0] == socket.gethostname().partition(".")[0]:
            return own_place(None, [node.host for node in nodes[1:]])[0]  # the session runs on the first node itself
        raise LaunchError(f"{error}; set launcher.address to an address of this machine that they can reach") from None


def split(items: Sequence[int], parts: int) -> tuple[tuple[int, ...], ...]:
    """Cut `items` into `parts` runs of equal length; what is left over goes to nobody.

    Raises:
        LaunchError: there are fewer items than parts.
    """
    each = len(items) // parts
    if not each:
        raise LaunchError(f"{parts} parts asked of {len(items)}")
    return tuple(tuple(items[i * each : (i + 1) * each]) for i in range(parts))

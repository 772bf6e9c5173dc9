"""Which rank sits where: strategies that place ranks, and what is near to each place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pytest_clusterqual.errors import LaunchError
from pytest_clusterqual.model.hardware import PATH_CLASSES, NodeHardware
from pytest_clusterqual.model.topology import RankPlace

Strategy = Literal["block", "cyclic", "nic-near"]
STRATEGIES: tuple[Strategy, ...] = ("block", "cyclic", "nic-near")
# Either a strategy, or (node, device) of every rank in order, both counted from 0.
Arrangement = Strategy | tuple[tuple[int, int], ...]
_UNKNOWN = len(PATH_CLASSES)


@dataclass(frozen=True, kw_only=True, slots=True)
class Seat:
    """Where one rank is to sit: the `local_rank`-th process of `node`, with that node's `device`."""

    node: str
    local_rank: int
    device: int


def arrange(
    arrangement: Arrangement, nodes: Sequence[str], nproc_per_node: int, hardware: Mapping[str, NodeHardware]
) -> tuple[Seat, ...]:
    """The seat of every rank, in rank order.

    block: a node after the other. cyclic: one rank of each node in turn. nic-near: as block, but
    each node's ranks take its devices in the order of their distance to a NIC of their own.

    Raises:
        LaunchError: an explicit list that does not seat `nproc_per_node` ranks on each node.
    """
    if arrangement == "cyclic":
        return tuple(Seat(node=node, local_rank=i, device=i) for i in range(nproc_per_node) for node in nodes)
    if arrangement == "nic-near":
        return tuple(
            Seat(node=node, local_rank=i, device=device)
            for node in nodes
            for i, device in enumerate(_near_first(hardware[node], nproc_per_node))
        )
    if arrangement == "block":
        return tuple(Seat(node=node, local_rank=i, device=i) for node in nodes for i in range(nproc_per_node))
    return _explicit(arrangement, nodes, nproc_per_node)


def _explicit(pairs: Sequence[tuple[int, int]], nodes: Sequence[str], nproc_per_node: int) -> tuple[Seat, ...]:
    taken: dict[int, int] = dict.fromkeys(range(len(nodes)), 0)
    seats = []
    for rank, (node, device) in enumerate(pairs):
        if node not in taken:
            raise LaunchError(f"rank_map: rank {rank} sits on node {node}, this run has nodes 0 to {len(nodes) - 1}")
        seats.append(Seat(node=nodes[node], local_rank=taken[node], device=device))
        taken[node] += 1
    wrong = [f"{nodes[node]} {count}" for node, count in taken.items() if count != nproc_per_node]
    if wrong:
        raise LaunchError(f"rank_map: want {nproc_per_node} ranks on each node, got {', '.join(wrong)}")
    if len({(seat.node, seat.device) for seat in seats}) != len(seats):
        raise LaunchError("rank_map: two ranks share a device")
    return tuple(seats)


def _near_first(node: NodeHardware, count: int) -> list[int]:
    """`count` devices of a node: those nearest to a NIC that no earlier one has taken come first."""
    left = [gpu.index for gpu in node.gpus] or list(range(count))
    used: dict[str, int] = {}
    chosen: list[int] = []
    while left and len(chosen) < count:
        best = min(left, key=lambda gpu: (_distance(node, gpu), _crowd(node, gpu, used), gpu))
        left.remove(best)
        chosen.append(best)
        for nic in node.nearest_nics(best)[0]:
            used[nic] = used.get(nic, 0) + 1
    return chosen


def _distance(node: NodeHardware, gpu: int) -> int:
    kind = node.nearest_nics(gpu)[1]
    return _UNKNOWN if kind is None else PATH_CLASSES.index(kind)


def _crowd(node: NodeHardware, gpu: int, used: Mapping[str, int]) -> int:
    return min((used.get(nic, 0) for nic in node.nearest_nics(gpu)[0]), default=0)


def surrounded(place: RankPlace, node: NodeHardware) -> RankPlace:
    """The place with its NUMA node, its nearest NICs and the class of the path to them, where they are known."""
    kind, _, index = place.device.partition(":")
    if kind == "cuda":
        gpu = next((gpu for gpu in node.gpus if gpu.index == int(index or 0)), None)
        nics, path = node.nearest_nics(int(index or 0))
        return replace(place, numa=gpu.numa if gpu else None, nics=nics, nic_path=path)
    numa = next((int(name) for name, cores in node.cpu.numa.items() if set(place.cores) <= set(cores)), None)
    real = [nic for nic in node.nics if nic.numa is not None and not nic.virtual]
    near = tuple(nic.name for nic in real if nic.numa == numa)
    return replace(
        place,
        numa=numa,
        nics=near or tuple(nic.name for nic in real),
        nic_path=("NODE" if near else "SYS") if real else None,
    )

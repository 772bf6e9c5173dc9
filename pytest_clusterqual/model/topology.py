"""Nodes, the devices in them, what joins them, and which rank sits where."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pytest_clusterqual.errors import LaunchError
from pytest_clusterqual.model.hardware import Gpu, NodeHardware, PathClass

# GPU -> its NVLinks, and what each carries in one direction (bytes per second): half of the total in NVIDIA's
# data sheets over the number of links. Those for export have fewer links.
_NVLINKS: dict[str, tuple[int, float]] = {
    "P100": (4, 20e9), "V100": (6, 25e9), "A100": (12, 25e9), "A800": (8, 25e9), "H20": (18, 25e9), "H100": (18, 25e9),
    "H200": (18, 25e9), "H800": (8, 25e9), "B200": (18, 50e9), "B300": (18, 50e9),
}  # fmt: skip
_GPU_MODEL = re.compile(rf"\bG?({'|'.join(_NVLINKS)})\b")


@dataclass(frozen=True, kw_only=True, slots=True)
class Links:
    """What was promised or found, each in bytes per second and direction; None where that is not known.

    `intra_node` is what one rank can send inside its node.
    """

    intra_node: float | None = None
    nic: float | None = None
    nics_per_node: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Topology:
    """`nodes` names in order, each with `nproc_per_node` ranks.

    `simulated` is true when all nodes are shares of one machine: nothing measured there says
    anything about a network. `oversubscribed` is true when ranks share cores. `hardware` is what
    was found on each node.
    """

    nodes: tuple[str, ...]
    nproc_per_node: int
    device: Literal["cpu", "cuda"]
    simulated: bool
    oversubscribed: bool = False
    links: Links = field(default_factory=Links)
    hardware: tuple[NodeHardware, ...] = ()

    @property
    def world_size(self) -> int:
        return len(self.nodes) * self.nproc_per_node


@dataclass(frozen=True, kw_only=True, slots=True)
class RankPlace:
    """Where one rank really sits, as it answered itself.

    `numa`, `nics` (the nearest, all of a tie) and `nic_path` (PIX, PXB, PHB, NODE, SYS) come from
    the node's hardware; None or empty where it is not known.
    """

    rank: int
    local_rank: int
    node: str
    host: str
    pid: int
    device: str
    device_name: str
    backend: str
    cores: tuple[int, ...]
    versions: dict[str, str]
    numa: int | None = None
    nics: tuple[str, ...] = ()
    nic_path: PathClass | None = None

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.node}"


@dataclass(frozen=True, kw_only=True, slots=True)
class RankMap:
    """rank -> place, in rank order."""

    places: tuple[RankPlace, ...]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, rank: int) -> RankPlace:
        return self.places[rank]


def found_links(hardware: Collection[NodeHardware]) -> Links:
    """What the nodes themselves say: the least that one of them has.

    NICs count that are up and no bridge, tunnel or the like, and of these the fastest of each node.
    Inside a node NVLink counts where it joins every GPU with every other; whatever else joins them
    has no known rate.
    """
    nics = [[nic.rate for nic in node.nics if nic.up and nic.rate and not nic.virtual] for node in hardware]
    inside = [_nvlink_rate(node) for node in hardware]
    known = [rate for rate in inside if rate is not None]
    intra_node = min(known) if known and len(known) == len(inside) else None
    if not nics or not all(nics):
        return Links(intra_node=intra_node)
    return Links(
        intra_node=intra_node,
        nic=min(max(rates) for rates in nics),
        nics_per_node=min(rates.count(max(rates)) for rates in nics),
    )


def _nvlink_rate(node: NodeHardware) -> float | None:
    names = {gpu.name for gpu in node.gpus}
    lanes: dict[str, dict[str, int]] = {name: {} for name in names}
    for path in node.paths:
        if path.kind == "NV" and {path.one, path.other} <= names:
            lanes[path.one][path.other] = lanes[path.other][path.one] = path.lanes
    if len(names) < 2 or any(len(peers) < len(names) - 1 for peers in lanes.values()):
        return None
    rates = [_egress(gpu, lanes[gpu.name].values()) for gpu in node.gpus]
    known = [rate for rate in rates if rate is not None]
    return min(known) if len(known) == len(rates) else None


def _egress(gpu: Gpu, lanes: Collection[int]) -> float | None:
    model = _GPU_MODEL.search(gpu.model or "")
    if model is None:
        return None
    most, rate = _NVLINKS[model[1]]
    # Through a switch the same lanes lead to all peers, and each path counts all of them.
    return min(sum(lanes), most) * rate


def check_world(
    places: Sequence[RankPlace],
    *,
    nodes: Sequence[str],
    hosts: Sequence[str],
    nproc_per_node: int,
    device: str,
    backend: str,
) -> None:
    """World check, second half: what answered is what was asked for, rank by rank.

    `hosts` holds the host that each of `nodes` is reached by.

    Raises:
        LaunchError: names the rank, its node, what it is and what was asked for.
    """
    size = len(nodes) * nproc_per_node
    if [place.rank for place in places] != list(range(size)):
        raise LaunchError(f"asked for ranks 0 to {size - 1}, got {[place.rank for place in places]}")
    for node in nodes:
        count = sum(place.node == node for place in places)
        if count != nproc_per_node:
            raise LaunchError(f"{node} has {count} ranks, asked were {nproc_per_node}", culprits=[node])
    host_of = dict(zip(nodes, hosts, strict=True))
    first = places[0]
    for place in places:
        _check_host(place, host_of)
        if place.device.partition(":")[0] != device or place.backend != backend:
            raise LaunchError(f"{place} uses {place.device} over {place.backend}, asked were {device} over {backend}")
        odd = sorted(
            f"{name} {place.versions.get(name, 'missing')} (rank 0 has {first.versions.get(name, 'none')})"
            for name in first.versions.keys() | place.versions.keys()
            if place.versions.get(name) != first.versions.get(name)
        )
        if odd:
            raise LaunchError(f"{place}: {', '.join(odd)}; all ranks must run the same versions", culprits=[str(place)])
    if device == "cuda" and len({(place.host, place.node, place.device) for place in places}) != size:
        raise LaunchError("two ranks use the same GPU: " + ", ".join(f"{p}: {p.host} {p.device}" for p in places))


def _check_host(place: RankPlace, host_of: Mapping[str, str]) -> None:
    """A host may be reached by an address or an alias, but never by the name of another one."""
    names = {node: _short(host) for node, host in host_of.items()}
    answered = _short(place.host)
    if answered == names[place.node]:
        return
    if answered in names.values():
        raise LaunchError(
            f"{place} answered from {place.host}, asked was {host_of[place.node]}: the names of these hosts are "
            "exchanged; compare /etc/hosts, DNS and ssh's config with what the hosts call themselves",
            culprits=[place.node],
        )


def _short(host: str) -> str:
    return host if host.replace(".", "").isdigit() else host.partition(".")[0]

"""Nodes, the devices in them, what joins them, and which rank sits where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from pytest_clusterqual.errors import LaunchError


@dataclass(frozen=True, kw_only=True, slots=True)
class Links:
    """What was promised, each in bytes per second and direction; None where the file is silent."""

    intra_node: float | None = None
    nic: float | None = None
    nics_per_node: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Topology:
    """`nodes` names in order, each with `nproc_per_node` ranks.

    `simulated` is true when all nodes are shares of one machine: nothing measured there says
    anything about a network. `oversubscribed` is true when ranks share cores.
    """

    nodes: tuple[str, ...]
    nproc_per_node: int
    device: Literal["cpu", "cuda"]
    simulated: bool
    oversubscribed: bool = False
    links: Links = field(default_factory=Links)

    @property
    def world_size(self) -> int:
        return len(self.nodes) * self.nproc_per_node


@dataclass(frozen=True, kw_only=True, slots=True)
class RankPlace:
    """Where one rank really sits, as it answered itself."""

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

    `hosts` holds the host of each of `nodes`.

    Raises:
        LaunchError: names the rank, its node, what it is and what was asked for.
    """
    size = len(nodes) * nproc_per_node
    if [place.rank for place in places] != list(range(size)):
        raise LaunchError(f"asked for ranks 0 to {size - 1}, got {[place.rank for place in places]}")
    for node in nodes:
        count = sum(place.node == node for place in places)
        if count != nproc_per_node:
            raise LaunchError(f"{node} has {count} ranks, asked were {nproc_per_node}")
    host_of = dict(zip(nodes, hosts, strict=True))
    first = places[0]
    for place in places:
        if place.host != host_of[place.node]:
            raise LaunchError(f"{place} answered from {place.host}, asked was {host_of[place.node]}")
        if place.device.partition(":")[0] != device or place.backend != backend:
            raise LaunchError(f"{place} uses {place.device} over {place.backend}, asked were {device} over {backend}")
        odd = sorted(
            f"{name} {place.versions.get(name, 'missing')} (rank 0 has {first.versions.get(name, 'none')})"
            for name in first.versions.keys() | place.versions.keys()
            if place.versions.get(name) != first.versions.get(name)
        )
        if odd:
            raise LaunchError(f"{place}: {', '.join(odd)}; all ranks must run the same versions")
    if device == "cuda" and len({(place.host, place.node, place.device) for place in places}) != size:
        raise LaunchError("two ranks use the same GPU: " + ", ".join(f"{p}: {p.host} {p.device}" for p in places))

"""What a topology should give at most: the arithmetic from promised links to busbw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_clusterqual import units
from pytest_clusterqual.model.topology import Links

Algorithm = Literal["ring", "tree", "nvls", "sharp"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """`value` in bytes per second, None where it cannot be said; `why` is the arithmetic in words."""

    value: float | None
    why: str


def expected_busbw(collective: str, group: str, *, nodes: int, nproc_per_node: int, links: Links) -> Expected:
    """The most busbw that a ring algorithm can reach over the promised links.

    `links.intra_node` is what one rank can send inside its node, `links.nic` what one NIC can
    send, each in one direction while it receives as much. In-network reduction and hierarchical
    algorithms move less than a ring and may exceed the result.

    Inside a node every collective is bound by the rank's own link, because busbw is by
    definition the rate at which one rank of a ring sends. Across nodes a ring leaves each node
    once, so its whole rate shares all NICs of the node; a send/recv to the next rank does as
    well. In an all-to-all a rank sends 1/n of its array to each peer and busbw counts all n-1 of
    them. The G ranks of a node share its NICs for their n-G peers elsewhere, hence
    busbw <= NICs / G x (n-1)/(n-G); its own link serves the G-1 peers inside, hence
    busbw <= intra_node x (n-1)/(G-1).

    Raises:
        ValueError: there is no such kind of group.
    """
    if group not in ("intra_node", "inter_node", "world"):
        raise ValueError(f"got group {group!r}, want intra_node, inter_node or world")
    ranks = {"intra_node": nproc_per_node, "inter_node": nodes, "world": nodes * nproc_per_node}[group]
    if ranks < 2:
        return Expected(value=None, why=f"a group {group} of {ranks} rank has nobody to talk to")
    if group == "intra_node" or nodes == 1:
        return _inside(links)
    local = 1 if group == "inter_node" else nproc_per_node
    if links.nic is None:
        return Expected(value=None, why="fabric.links.nic is not given, so nothing is promised between nodes")
    if collective == "all_to_all" and local > 1:
        return _all_to_all(ranks, local, links.nic, links)
    return _ring(local, nproc_per_node, links.nic, links)


def _inside(links: Links) -> Expected:
    if links.intra_node is None:
        return Expected(value=None, why="fabric.links.intra_node is not given, so nothing is promised inside a node")
    why = f"links.intra_node {_rate(links.intra_node)} of one rank inside its node"
    return Expected(value=links.intra_node, why=why)


def _ring(local: int, nproc_per_node: int, nic: float, links: Links) -> Expected:
    node, arithmetic = links.nics_per_node * nic, _nics(nic, links)
    if local == 1:
        shared = (
            ""
            if nproc_per_node == 1 or links.nics_per_node == 1
            else ("; one rank a node, which reaches this only if it can use all NICs of the node")
        )
        return Expected(value=node, why=f"{arithmetic} out of a node{shared}")
    if links.intra_node is None or links.intra_node >= node:
        return Expected(value=node, why=f"{arithmetic}: a ring leaves each node once and shares all its NICs")
    return Expected(
        value=links.intra_node,
        why=f"links.intra_node {_rate(links.intra_node)}, which is less than {arithmetic} out of a node",
    )


def _all_to_all(ranks: int, local: int, nic: float, links: Links) -> Expected:
    outside = ranks - local
    value = links.nics_per_node * nic / local * (ranks - 1) / outside
    why = (
        f"{_nics(nic, links)} shared by {local} ranks of a node, of whose {ranks - 1} peers {outside} are on other "
        f"nodes: / {local} x {ranks - 1} / {outside} = {_rate(value)}"
    )
    if links.intra_node is not None:
        inside = links.intra_node * (ranks - 1) / (local - 1)
        if inside < value:
            return Expected(
                value=inside,
                why=(
                    f"links.intra_node {_rate(links.intra_node)} carries what goes to {local - 1} of {ranks - 1} "
                    "peers: "
                    f"x {ranks - 1} / {local - 1} = {_rate(inside)}, which is less than {why}"
                ),
            )
    return Expected(value=value, why=why)


def _nics(nic: float, links: Links) -> str:
    return f"{links.nics_per_node} x links.nic {_rate(nic)} = {_rate(links.nics_per_node * nic)}"


def _rate(value: float) -> str:
    return units.show(value, units.RATE)

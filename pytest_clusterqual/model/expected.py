"""What a topology gives at most: the arithmetic from links to bus bandwidth, in words."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_clusterqual import units
from pytest_clusterqual.model.busbw import busbw_factor
from pytest_clusterqual.model.groups import Groups
from pytest_clusterqual.model.topology import Links

Algorithm = Literal["ring", "tree", "nvls", "sharp"]
# NCCL_ALGO as a run records it. NVLSTree reduces in the switch of a node, hence it counts as NVLS.
_RECORDED: dict[str, Algorithm] = {
    "ring": "ring", "tree": "tree", "nvls": "nvls", "nvlstree": "nvls", "collnetdirect": "sharp",
    "collnetchain": "sharp",
}  # fmt: skip
_WITHOUT_ALGORITHM = ("send_recv", "all_to_all", "all_to_all_v")
_UNKNOWN = Links()
_Placed = Sequence[Sequence[str]]  # the nodes of the ranks of each group, in the group's order


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """`value` in bytes per second, None where it cannot be said; `why` is the arithmetic in words."""

    value: float | None
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _Bound:
    """`value` in bytes per second of bus bandwidth."""

    value: float
    words: str


def expected_busbw(
    collective: str,
    groups: Groups,
    rank_nodes: Sequence[str],
    *,
    promised: Links,
    found: Links = _UNKNOWN,
    algorithm: Algorithm = "ring",
) -> Expected:
    """The most busbw that the slowest of `groups` can reach while all of them are at work.

    `rank_nodes[r]` is the node of rank r. `promised` is what the file says of links, `found` fills
    what it leaves open. `links.intra_node` is what one rank can send inside its node, `links.nic`
    what one NIC can send, each in one direction while it receives as much.

    With `load` as what a link must carry for each byte that busbw counts, busbw <= rate / load; a
    node's NICs carry the sum over the groups that reach beyond it:

    - ring: a node's NICs and each link inside are crossed once, load 1, whatever the collective;
    - send/recv to the next rank: 1 for each message that leaves the node;
    - all-to-all: of n-1 parts, n-l of each of the node's l ranks leave it, l-1 go inside;
    - tree (all-reduce): up and down; the busiest node of a double binary tree sends 1 array of 2
      nodes, 1.5 of 3, 2 of 4 or more, and l ranks inside send 2(l-1);
    - in-network reduction (all-reduce): the array once up and once down; NVLS does that inside.

    The last two are what shows more than the NICs' rate as busbw, up to 2(n-1)/n times of it.
    """
    if any(len(group) < 2 for group in groups) or not groups:
        return Expected(value=None, why="a group of one rank has nobody to talk to")
    used: Algorithm = algorithm if collective == "all_reduce" else "ring"
    placed = [tuple(rank_nodes[rank] for rank in group) for group in groups]
    nics = promised if promised.nic is not None else found
    inside = promised if promised.intra_node is not None else found
    if nics.nic is None and any(len(set(nodes)) > 1 for nodes in placed):
        return Expected(value=None, why="fabric.links.nic is not given, so nothing is promised between nodes")
    said = {True: "promised", False: "found"}
    bounds = (
        _between(collective, used, placed, nics, said[nics is promised]),
        _inside(collective, used, placed, inside, said[inside is promised]),
    )
    known = [bound for bound in bounds if bound is not None]
    if not known:
        return Expected(value=None, why="fabric.links.intra_node is not given, so nothing is promised inside a node")
    least = min(known, key=lambda bound: bound.value)
    why = f"{_head(collective, used, placed)}: bound by {least.words}; busbw <= {_rate(least.value)}"
    return Expected(value=least.value, why=why)


def as_algbw(busbw: Expected, collective: str, groups: Groups) -> Expected:
    """The same level of algbw, which counts the array itself."""
    if busbw.value is None:
        return busbw
    factor = min(busbw_factor(collective, len(group)) for group in groups)
    return Expected(value=busbw.value / factor, why=f"{busbw.why}; algbw is busbw / {factor:.4g}")


def recorded_algorithm(recorded: str | None, otherwise: Algorithm) -> Algorithm:
    """The algorithm that a run was held to (`Conditions.algorithm`), `otherwise` where it names none or several."""
    return _RECORDED.get((recorded or "").strip().lower(), otherwise)


def _between(collective: str, algorithm: Algorithm, placed: _Placed, links: Links, said: str) -> _Bound | None:
    """What the NICs of the busiest node allow."""
    spanning = [nodes for nodes in placed if len(set(nodes)) > 1]
    if links.nic is None or not spanning:
        return None
    loads: defaultdict[str, float] = defaultdict(float)
    for nodes in spanning:
        for node in set(nodes):
            loads[node] += _leaving(collective, algorithm, nodes, node)
    busiest, load = max(loads.items(), key=lambda item: item[1])
    rate, here = links.nics_per_node * links.nic, [nodes for nodes in spanning if busiest in nodes]
    count = units.show_count(links.nics_per_node, "NIC")
    words = f"{count} x {links.nic * 8 / 1e9:.4g} Gbit/s = {_rate(rate)} each way ({said})"
    return _Bound(value=rate / load, words=words + _sharing(collective, algorithm, here, busiest, load))


def _leaving(collective: str, algorithm: Algorithm, nodes: Sequence[str], node: str) -> float:
    """Bytes that leave `node` in one group, for each byte that busbw counts."""
    n, local = len(nodes), nodes.count(node)
    if collective == "send_recv":
        return sum(a == node != b for a, b in zip(nodes, (*nodes[1:], nodes[0]), strict=True))
    if collective.startswith("all_to_all"):
        return local * (n - local) / (n - 1)
    return 1.0 if algorithm == "ring" else _arrays(algorithm, nodes) / busbw_factor(collective, n)


def _arrays(algorithm: Algorithm, nodes: Sequence[str]) -> float:
    """Whole arrays that the busiest node of an all-reduce sends by a tree, or into a network that reduces."""
    return min(len(set(nodes)), 4) / 2 if algorithm == "tree" else 1.0


def _sharing(collective: str, algorithm: Algorithm, here: _Placed, busiest: str, load: float) -> str:
    """How the busiest node's groups share its NICs, in words; nothing for a single ring."""
    groups = f", shared by {len(here)} groups" if len(here) > 1 else ""
    nodes = here[0]
    n, local = len(nodes), nodes.count(busiest)
    if collective == "send_recv":
        return f", shared by {load:.0f} messages" if load > 1 else ""
    if collective.startswith("all_to_all"):
        ranks = sum(nodes.count(busiest) for nodes in here)
        several = f" shared by {ranks} ranks," if ranks > 1 else ""
        return f",{several} each with {n - local} of its {n - 1} peers on other nodes" if ranks > 1 or groups else ""
    if algorithm == "ring":
        return groups
    arrays = _arrays(algorithm, nodes)
    return (
        f"{groups}; the busiest node sends {arrays:g} array{'' if arrays == 1 else 's'}, "
        f"of which busbw counts {busbw_factor(collective, n):.4g}"
    )


def _inside(collective: str, algorithm: Algorithm, placed: _Placed, links: Links, said: str) -> _Bound | None:
    """What the link of a rank inside its node allows."""
    if links.intra_node is None:
        return None
    loads = [_staying(collective, algorithm, nodes, local) for nodes in placed for local in Counter(nodes).values()]
    load = max(loads)
    if load == 0:
        return None
    part = "" if load == 1 else f", which carries {load:.3g} of each byte that busbw counts"
    return _Bound(
        value=links.intra_node / load, words=f"{_rate(links.intra_node)} of a rank inside its node ({said}){part}"
    )


def _staying(collective: str, algorithm: Algorithm, nodes: Sequence[str], local: int) -> float:
    """Bytes that one of `local` ranks of a group sends inside their node, for each byte that busbw counts."""
    n = len(nodes)
    if local == 1:
        return 0.0
    if collective.startswith("all_to_all"):
        return (local - 1) / (n - 1)
    if algorithm == "ring":
        return 1.0
    sent = 1.0 if algorithm == "nvls" else 2 * (local - 1) / local
    return sent / busbw_factor(collective, n)


def _head(collective: str, algorithm: Algorithm, placed: _Placed) -> str:
    """``ring all-reduce over 2 nodes x 8 ranks``."""
    name = collective.replace("_", "-")
    kind = name if collective in _WITHOUT_ALGORITHM else f"{algorithm} {name}"
    shapes = dict.fromkeys(_shape(nodes) for nodes in placed)
    if len(placed) == 1:
        return f"{kind} over {next(iter(shapes))}"
    return f"{kind} in {len(placed)} groups at once, over {' or '.join(shapes)} each"


def _shape(nodes: Sequence[str]) -> str:
    counts = Counter(nodes)
    spanned = units.show_count(len(counts), "node")
    locals_ = set(counts.values())
    if len(locals_) > 1:
        return f"{len(nodes)} ranks of {spanned}"
    local = locals_.pop()
    return f"{spanned} x {units.show_count(local, 'rank')}"


def _rate(value: float) -> str:
    return units.show(value, units.RATE)

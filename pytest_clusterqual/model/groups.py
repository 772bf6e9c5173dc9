"""Which ranks talk to each other: groups of a topology, and those that a layout makes.

A layout's ranks form a mesh with the dimensions pipeline, replicate, shard, context, tensor, the last
one nearest: ranks that follow each other differ in `tensor` first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_clusterqual import units
from pytest_clusterqual.model.workload import Layout

Groups = tuple[tuple[int, ...], ...]
# Who exchanges what: `shard` gathers and scatters what FSDP spreads, `replicate` sums gradients of copies.
DIMENSIONS = ("tensor", "context", "pipeline", "shard", "replicate", "expert")


@dataclass(frozen=True, kw_only=True, slots=True)
class Mesh:
    """How many ranks each dimension of a layout has; `expert` lies across `replicate` and `shard`."""

    pipeline: int
    replicate: int
    shard: int
    context: int
    tensor: int
    expert: int

    @property
    def data(self) -> int:
        """Ranks that each read sequences of their own."""
        return self.replicate * self.shard


def mesh(layout: Layout, world: int, nproc_per_node: int) -> Mesh:
    """The mesh of a layout on `world` ranks.

    Raises:
        ValueError: the degrees do not fit that many ranks.
    """
    model = layout.pipeline * layout.context * layout.tensor
    if world % model:
        degrees = f"pipeline {layout.pipeline} x context {layout.context} x tensor {layout.tensor}"
        raise ValueError(f"layout {layout.name}: {world} ranks are no multiple of {degrees} = {model}")
    data = world // model
    inside = layout.context * layout.tensor
    shard = {"full": data, "grad-op": data, "hybrid": max(nproc_per_node // inside, 1)}.get(layout.fsdp or "", 1)
    if data % shard:
        raise ValueError(f"layout {layout.name}: {data} data ranks are no multiple of the {shard} that share a node")
    if data % layout.expert:
        raise ValueError(f"layout {layout.name}: {data} data ranks are no multiple of expert {layout.expert}")
    return Mesh(
        pipeline=layout.pipeline, replicate=data // shard, shard=shard, context=layout.context, tensor=layout.tensor,
        expert=layout.expert,
    )  # fmt: skip


def layout_groups(layout: Layout, world: int, nproc_per_node: int) -> dict[str, Groups]:
    """Dimension -> its groups, of those that have two ranks or more.

    Ranks of a context group hold the same parameters, so they belong to the group that shards
    them, or to the one that sums their gradients.

    Raises:
        ValueError: as `mesh`.
    """
    m = mesh(layout, world, nproc_per_node)
    shape = (m.pipeline, m.replicate, m.shard, m.context, m.tensor)
    spot = {rank: _spot(rank, shape) for rank in range(world)}
    held = {  # what is the same for all ranks of a group
        "tensor": lambda p, r, s, c, t: (p, r, s, c),
        "context": lambda p, r, s, c, t: (p, r, s, t),
        "pipeline": lambda p, r, s, c, t: (r, s, c, t),
        "shard": lambda p, r, s, c, t: (p, r, t) if layout.fsdp else (p, r, s, c, t),
        "replicate": lambda p, r, s, c, t: (p, s, c, t) if layout.fsdp else (p, t),
        "expert": lambda p, r, s, c, t: (p, (r * m.shard + s) // m.expert, c, t),
    }
    found = {name: _gathered(spot, held[name]) for name in DIMENSIONS}
    return {name: groups for name, groups in found.items() if len(groups[0]) > 1}


def groups_of(
    kind: str, rank_nodes: Sequence[str], *, layouts: Sequence[Layout] = (), nproc_per_node: int = 1
) -> Groups:
    """All groups of one kind, as ranks: intra_node, inter_node, rails, world, or ``<layout>.<dimension>``.

    inter_node has the first rank of every node, rails a group for each local rank.

    Raises:
        ValueError: there is no such kind, or the layout does not fit.
    """
    local: dict[str, list[int]] = {}
    for rank, node in enumerate(rank_nodes):
        local.setdefault(node, []).append(rank)
    if kind == "world":
        return (tuple(range(len(rank_nodes))),)
    if kind == "intra_node":
        return tuple(map(tuple, local.values()))
    if kind == "inter_node":
        return (tuple(ranks[0] for ranks in local.values()),)
    if kind == "rails":
        return tuple(zip(*local.values(), strict=True))
    name, _, dimension = kind.rpartition(".")
    layout = next((layout for layout in layouts if layout.name == name), None)
    if layout is None or dimension not in DIMENSIONS:
        known = ", ".join(("intra_node", "inter_node", "rails", "world", *(f"{each.name}.tensor" for each in layouts)))
        raise ValueError(f"got group {kind!r}, want one such as {known}")
    return layout_groups(layout, len(rank_nodes), nproc_per_node).get(dimension, ())


def spread(groups: Groups, rank_nodes: Sequence[str]) -> str:
    """Groups of one size in words, such as ``8 groups of 2 ranks inside a node``."""
    nodes = max(len({rank_nodes[rank] for rank in group}) for group in groups)
    where = "inside a node" if nodes == 1 else f"over {nodes} nodes"
    return f"{units.show_count(len(groups), 'group')} of {len(groups[0])} ranks {where}"


def _spot(rank: int, shape: Sequence[int]) -> tuple[int, ...]:
    spot = []
    for size in reversed(shape):
        rank, at = divmod(rank, size)
        spot.append(at)
    return tuple(reversed(spot))


def _gathered(spot: dict[int, tuple[int, ...]], held: Callable[..., tuple[int, ...]]) -> Groups:
    found: dict[tuple[int, ...], list[int]] = {}
    for rank, at in spot.items():
        found.setdefault(held(*at), []).append(rank)
    return tuple(map(tuple, found.values()))

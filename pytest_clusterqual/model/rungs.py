"""The memory ladder: ways to make the exact job fit, in the order in which a careful engineer tries them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pytest_clusterqual.model.groups import mesh
from pytest_clusterqual.model.memory import Rung, RungKind
from pytest_clusterqual.model.workload import Layout, Workload

# What is cut inside a node once shards are not enough, in this order.
SPLITS = ("tensor", "pipeline", "context")


def rungs(workload: Workload, *, nodes: int, nproc_per_node: int) -> tuple[Rung, ...]:
    """One device, a smaller microbatch, recomputation, shards, splits inside the node, only then nodes.

    A rung keeps the means of those before it that cost no device: from the smallest microbatch on, all
    have it. Means that change nothing here (a microbatch of 1 already, a node of one rank) are left out.
    """
    return tuple(_all(workload, nodes, nproc_per_node))


def _all(workload: Workload, nodes: int, per_node: int) -> Iterator[Rung]:
    def rung(name: str, kind: RungKind, on: int, ranks: int, microbatch: int = 1, **layout: Any) -> Rung:
        spread = Layout(name=name.replace(", ", "-").replace(" ", "-"), **layout)
        made = Rung(name=name, kind=kind, nodes=on, per_node=ranks, microbatch=microbatch, layout=spread)
        return replace(made, impossible=_impossible(workload, made))

    def split(by: str) -> Rung:
        """Over as many ranks of the node as the job can be cut for; what they leave shares the copies' shards."""
        tried = []
        for degree in (degree for degree in range(per_node, 1, -1) if per_node % degree == 0):
            sharded: dict[str, Any] = {"fsdp": "full"} if degree < per_node or by == "context" else {}
            tried.append(
                rung(f"{by} {degree}", "split", 1, per_node, activation_checkpointing="full", **{by: degree}, **sharded)
            )
        return next((each for each in tried if not each.impossible), tried[0])

    yield rung("one device", "device", 1, 1, workload.microbatch)
    for smaller in dict.fromkeys((workload.microbatch // 2, 1)):
        if 0 < smaller < workload.microbatch:
            yield rung(f"microbatch {smaller}", "microbatch", 1, 1, smaller)
    for kind in ("selective", "full"):
        yield rung(f"recompute {kind}", "recompute", 1, 1, activation_checkpointing=kind)
    if per_node > 1:
        yield rung("shard", "shard", 1, per_node, fsdp="full")
        yield rung("shard, recompute", "shard", 1, per_node, fsdp="full", activation_checkpointing="full")
        yield from map(split, SPLITS)
    for count in _doubled(nodes):
        yield rung(f"{count} nodes", "nodes", count, per_node, fsdp="full", activation_checkpointing="full")


def _doubled(nodes: int) -> Iterator[int]:
    """2, 4, 8 ... and all of them."""
    count = 2
    while count < nodes:
        yield count
        count *= 2
    if nodes > 1:
        yield nodes


def _impossible(workload: Workload, rung: Rung) -> str:
    """The reason why the job cannot be cut that way; empty if it can."""
    try:
        shape = mesh(rung.layout, rung.ranks, rung.per_node)
        replace(workload, microbatch=rung.microbatch).accumulation(shape.data)
    except ValueError as error:
        return str(error)
    return "; ".join(f"{key}: {text}" for key, text in workload.misfits(rung.layout))

"""Inference before there is hardware: on how many devices a model fits, by arithmetic. Estimates, no verdicts.

The order is that of a careful buyer: one device, one node by tensor parallelism inside it, copies for
throughput, and only what exceeds a node goes over several.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pytest_clusterqual import units
from pytest_clusterqual.judge.purchase.crossing import pipeline_across, tensor_across
from pytest_clusterqual.judge.purchase.served_copy import Copy
from pytest_clusterqual.model.purchase import (
    Fit,
    Means,
    NodeType,
    PurchasePlan,
    ServedModel,
    ServingRow,
    Weights,
)
from pytest_clusterqual.model.requirement import Requirement

_ORDER: dict[Fit, int] = {"fits": 0, "tight": 1, "no": 2}


def serving_rows(plan: PurchasePlan) -> Iterator[ServingRow]:
    for model in plan.models:
        for weights in plan.weights:
            for node in plan.nodes:
                yield _row(model, weights, node, plan.weights_share)


def _row(model: ServedModel, weights: Weights, node: NodeType, allowed: Requirement) -> ServingRow:
    one = Copy(model=model, weights=weights, node=node, allowed=allowed)
    cuts = [replace(one, tensor=tensor) for tensor in _degrees(model, node)]
    # The fewest nodes that do all that is wanted, and of these the least cut.
    best = min(cuts, key=lambda cut: (_ORDER[cut.fit], cut.nodes(_copies(cut)[0]) if cut.held else 0, cut.tensor))
    walk = [f"one device: {one.fit}: {one.sizes()}"]
    if best.tensor > 1 and best.fit != "no":
        why = ", for fewer nodes in all" if one.fit == best.fit else ""
        walk.append(f"one node: {best.fit}, tensor parallel {best.tensor} inside it{why}: {best.sizes()}")
    if best.fit == "no":
        return _over_nodes(cuts[-1], [*walk, *_exceeds(cuts)])
    copies, said = _copies(best)
    if said:
        walk.append(said)
    means: Means = "replicas" if copies > 1 else "one device" if best.tensor == 1 else "one node"
    return _made(best, copies, means, walk)


def _degrees(model: ServedModel, node: NodeType) -> list[int]:
    """Devices of a node that can share a copy evenly."""
    return [
        tensor
        for tensor in range(1, node.devices + 1)
        if node.devices % tensor == 0
        and model.heads % tensor == 0
        and (model.latent or model.kv_heads % tensor == 0 or tensor % model.kv_heads == 0)
    ]


def _exceeds(cuts: Sequence[Copy]) -> Iterator[str]:
    """Why no cut inside a node of several devices will do; what these have together is no pool."""
    last, size = cuts[-1], units.show_decimal
    model, node = last.model, last.node
    if node.devices == 1:
        return
    text = f"one node: no: tensor parallel {last.tensor} inside it: {last.sizes()}"
    if last.tensor < node.devices:
        heads = f"{model.heads} heads" if model.latent else f"{model.heads} heads and {model.kv_heads} KV heads"
        text += f"; {heads} cannot be cut for {node.devices} devices"
        if last.whole_bytes < node.devices * node.device_memory:
            text += f", so that their {size(node.devices * node.device_memory)} together do not help"
    yield text


def _copies(cut: Copy) -> tuple[int, str]:
    """How many copies hold all sequences and give the rate that is wanted, with a sentence where it matters."""
    model, copies = cut.model, cut.copies
    parts = [] if copies == 1 else [f"{model.sequences} sequences at a time / {cut.held} a copy"]
    if model.rate is not None:
        copies, said = _for_rate(cut, copies, model.rate)
        parts += [f"{units.show(model.rate, units.TOKEN_RATE)} wanted{said}"] if said else []
    if not parts:
        return copies, ""
    head = "throughput" if copies == 1 else f"throughput: {copies} copies{', not a cluster' * (cut.stages == 1)}"
    return copies, f"{head}: {'; '.join(parts)}"


def _for_rate(cut: Copy, copies: int, wanted: float) -> tuple[int, str]:
    """The fewest copies, of `copies` at least, that can give the rate; as many as before where none can."""
    if cut.rate(copies) is None:
        return copies, f", which is not told without memory_rate of node {cut.node.name}"
    most = cut.model.sequences  # a copy each
    enough = bisect_left(range(copies, most), True, key=lambda count: (cut.rate(count) or 0.0) >= wanted) + copies
    limit = cut.rate(enough) or 0.0
    if limit < wanted:
        return copies, f", but {most} sequences at a time give at most {units.show(limit, units.TOKEN_RATE)}: want more"
    return enough, "" if enough == copies else ", which fewer copies cannot give"


def _over_nodes(most: Copy, walk: list[str]) -> ServingRow:
    """A pipeline over the fewest nodes that hold a copy, `most.tensor` devices in each."""
    cuts = (replace(most, stages=stages) for stages in range(2, most.model.layers + 1))
    cut = next((cut for cut in cuts if cut.fit == "fits"), None)
    if cut is None:
        return _made(most, 0, "no", [*walk, "cluster: no: not even with a layer a node"])
    count = cut.stages
    walk.append(f"cluster: {count} nodes a copy, a pipeline over them: {cut.sizes()}")
    for tokens, what in ((cut.model.sequences, "a token of each sequence"), (cut.model.context, "a full context")):
        tensor, pipeline = (
            across(cut.model, cut.node, nodes=count, tokens=tokens).why for across in (tensor_across, pipeline_across)
        )
        walk.append(f"between nodes, for {what}: {pipeline}; tensor parallel over nodes instead: {tensor}")
    copies, said = _copies(cut)
    return _made(cut, copies, "cluster", [*walk, said] if said else walk)


def _made(cut: Copy, copies: int, means: Means, walk: Sequence[str]) -> ServingRow:
    nodes = cut.nodes(copies) if copies else 0
    rate = cut.rate(copies) if copies else None
    price = cut.node.price * nodes if cut.node.price and nodes else None
    return ServingRow(
        model=cut.model.name, weights=cut.weights, node=cut.node.name, fit="no" if cut.stages > 1 else cut.fit,
        means=means, tensor=cut.tensor, stages=cut.stages, weight_bytes=cut.weight_bytes, weight_share=cut.share,
        cache_bytes=cut.sequence_bytes * cut.held, held=cut.held, copies=copies, nodes=nodes, rate=rate, price=price,
        arithmetic=(*walk, *_closing(cut, copies, nodes, rate, price)),
    )  # fmt: skip


def _closing(cut: Copy, copies: int, nodes: int, rate: float | None, price: float | None) -> Iterator[str]:
    """What so many copies give and cost."""
    if rate is not None:
        most = units.show(rate, units.TOKEN_RATE)
        yield f"rate: at most {most} with full contexts, from what a device reads and computes alone"
    if (room := nodes // cut.stages * (cut.node.devices // cut.tensor)) > copies:
        yield f"room: for {room} copies on {units.show_count(nodes, 'node')}, where {copies} will do"
    if nodes > (considered := max(cut.node.counts)):
        yield f"count: {nodes} nodes, more than the {considered} considered"
    if price is not None:
        each = f", {units.show_number(float(f'{price / rate:.3g}'))} for each token/s at most" if rate else ""
        yield f"price: {nodes} x {units.show_number(price / nodes)} = {units.show_number(price)}{each}"

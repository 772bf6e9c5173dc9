"""What the exact training job keeps on its fullest rank, by arithmetic: an estimate, before anything has run.

Parameters, gradients and AdamW's two moments are counted exactly as the layouts cut them, in fp32: 16 bytes a
parameter, as many as half-precision copies beside fp32 masters take. FSDP keeps gradients whole while microbatches
add up, for they are scattered with the last one. Activations are counted as Korthikanti et al.
do (Reducing Activation Recomputation in Large Transformer Models, 2022, arXiv:2205.05198): the numbers that
each operation keeps for its gradient, here of this model's operations and of attention that keeps no scores.
Not counted are what one operation needs for itself, fragmentation, and whatever lies outside of tensors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pytest_clusterqual.model.groups import Mesh, mesh
from pytest_clusterqual.model.workload import Layout, ModelShape, Workload

FULL = 4  # bytes of a parameter, a gradient, and each of AdamW's two moments


@dataclass(frozen=True, kw_only=True, slots=True)
class Footprint:
    """Bytes on the fullest rank: parameters, gradients, optimizer, activations, other.

    `words` is the arithmetic: of states (the first three), activations and other.
    """

    parts: dict[str, float]
    words: dict[str, str]

    @property
    def total(self) -> float:
        return sum(self.parts.values())


def footprint(workload: Workload, layout: Layout, *, world: int, nproc_per_node: int) -> Footprint:
    """That of the fullest rank: the first one of a pipeline has most microbatches in flight, the last one logits.

    Raises:
        ValueError: the layout or the global batch does not fit that many ranks, or a factory makes the model.
    """
    shape = mesh(layout, world, nproc_per_node)
    turns = workload.accumulation(shape.data)
    ranks = {0, layout.pipeline - 1}
    return max((_on(workload, layout, shape, turns, rank) for rank in ranks), key=lambda found: found.total)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Held:
    """Numbers of parameters on a rank once tensor and pipeline have cut: of a layer, of tables and norm, sharded."""

    layers: int
    layer: float
    ends: float
    sharded: float

    @property
    def whole(self) -> float:
        return self.layers * self.layer + self.ends


def _on(workload: Workload, layout: Layout, shape: Mesh, turns: int, rank: int) -> Footprint:
    element = 4 if workload.precision == "fp32" else 2
    held = _held(workload.shape, layout, shape, rank)
    # What travels after the last microbatch only is whole till then.
    accumulated = layout.fsdp is not None and turns > 1
    gradients = held.whole if accumulated else held.sharded
    activations, words = _activations(workload, layout, shape, turns, rank, element)
    other, why = _other(workload, layout, held, turns, element)
    kept = f"{held.sharded / 1e9:.4g}e9 parameters x 12 B, gradients of {gradients / 1e9:.4g}e9 x 4 B"
    return Footprint(
        parts={
            "parameters": FULL * held.sharded,
            "gradients": FULL * gradients,
            "optimizer": 2 * FULL * held.sharded,
            "activations": activations,
            "other": other,
        },
        words={
            "states": kept + ", whole while microbatches add up" * accumulated,
            "activations": words,
            "other": why,
        },
    )


def _other(workload: Workload, layout: Layout, held: _Held, turns: int, element: int) -> tuple[float, str]:
    """What FSDP gathers, or copies and buckets of plain data parallel; bytes, and what it is."""
    if layout.fsdp is None:
        copies = 0.0 if element == FULL else element * held.whole  # autocast keeps them through a step
        # Gradients that are not summed yet lie outside of their buckets.
        buckets = FULL * held.whole if layout.bucketed and turns > 1 else 0.0
        words = [f"parameters in {workload.precision}"] * bool(copies) + ["buckets of gradients"] * bool(buckets)
        return copies + buckets, " and ".join(words)
    gathered = held.layers if layout.fsdp == "grad-op" else min(held.layers, 2)  # one in use, one ahead
    size, words = (
        element * (gathered * held.layer + held.ends),
        [f"{gathered} layer{'s' * (gathered > 1)} and tables gathered"],
    )
    if turns == 1:
        size += FULL * (held.layer + held.ends)
        words.append("gradients of one and of tables before they are scattered")
    return size, ", ".join(words)


def _held(model: ModelShape, layout: Layout, shape: Mesh, rank: int) -> _Held:
    layers = sum(len(layout.layers_of(stage, model.layers)) for stage in layout.stages_of(rank))
    block = {name: math.prod(dims) for name, dims in model.block().items()}
    experts = sum(size for name, size in block.items() if ".experts." in name) / layout.expert
    dense = sum(
        size / (1 if "norm" in name or "router" in name else layout.tensor)
        for name, size in block.items()
        if ".experts." not in name
    )
    table = model.vocab * model.hidden / layout.tensor
    ends = (table if rank == 0 else 0) + (table + model.hidden if rank == layout.pipeline - 1 else 0)
    return _Held(
        layers=layers, layer=dense + experts, ends=ends,
        sharded=(layers * dense + ends) / _shards(layout, shape) + layers * experts / _expert_shards(layout, shape),
    )  # fmt: skip


def _shards(layout: Layout, shape: Mesh) -> int:
    """Ranks over which FSDP spreads; those of a context group hold the same parameters, so they are among them."""
    return shape.shard * shape.context if layout.fsdp else 1


def _expert_shards(layout: Layout, shape: Mesh) -> int:
    """As `_shards`, of ranks that hold the same experts: tensor ranks, too, for experts are whole on each."""
    if not layout.fsdp:
        return 1
    inside = shape.data if shape.replicate == 1 else shape.shard
    return max(inside // layout.expert, 1) * shape.context * shape.tensor


def _activations(
    workload: Workload, layout: Layout, shape: Mesh, turns: int, rank: int, element: int
) -> tuple[float, str]:
    """Bytes, and the arithmetic in words."""
    model, tokens = workload.shape, workload.microbatch * workload.sequence_length // shape.context
    layers = sum(len(layout.layers_of(stage, model.layers)) for stage in layout.stages_of(rank))
    kept = _kept(model, layout, shape, layout.activation_checkpointing)
    flying = _in_flight(layout, turns, rank)
    size = tokens * layers * flying * kept * element
    words = f"{layers} layers x {tokens} tokens x {kept:g} numbers x {element} B"
    if flying > 1:
        words += f" x {flying:.3g} microbatches in flight"
    logits = 0.0
    if rank == layout.pipeline - 1:  # and their logarithms in fp32; then the gradients of these and of what they are of
        logits = tokens * model.vocab / shape.tensor * (flying * (element + FULL) + 2 * FULL)
    # Gradients inside a feed-forward, when logits are gone: of gate, of up, and of their product.
    working, what = 3 * _wide(model) * tokens / shape.tensor * element, "gradients in a feed-forward"
    if layout.activation_checkpointing == "full":
        working += tokens * _kept(model, layout, shape, "none") * element
        what = "a layer that is repeated"
    return size + max(logits, working), f"{words} + {'logits' if logits > working else what}"


def _in_flight(layout: Layout, turns: int, rank: int) -> float:
    """Microbatches whose activations a rank of the pipeline holds at a time."""
    if layout.pipeline == 1:
        return 1
    behind, each = layout.pipeline - rank - 1, layout.stages_per_rank
    flying = {
        "gpipe": turns,
        "1f1b": behind + 1,
        "interleaved": (2 * behind + (each - 1) * layout.pipeline + 1) / each,
    }[layout.schedule]
    return min(flying, turns)


def _kept(model: ModelShape, layout: Layout, shape: Mesh, kind: str) -> float:
    """Numbers that a layer keeps for each token.

    Tensor ranks split the sequence between matrices, but what enters a matrix is gathered; context ranks
    keep keys and values of all tokens.
    """
    hidden, tensor = model.hidden, shape.tensor
    if kind == "full":
        return hidden / tensor
    narrow = 2 * model.kv_heads * (hidden // model.heads) * shape.context / tensor
    entering = hidden + (hidden / tensor if model.experts else hidden)
    routed = 3 * model.top_k * hidden / tensor if model.experts else 0.0
    # Inputs of both halves; queries and the result of attention; then its copy for the next matrix, or both sums.
    stream = (2 + 2 + (2 if kind == "selective" else 1)) * hidden / tensor
    return stream + entering + narrow + routed + (2 if kind == "selective" else 4) * _wide(model) / tensor


def _wide(model: ModelShape) -> int:
    """Numbers between the matrices of the feed-forwards that a token goes through."""
    return model.ffn * (model.top_k if model.experts else 1)

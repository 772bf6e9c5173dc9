"""What a layout asks of the network: collectives, message sizes and calls of one optimizer step.

All of it is derived from workload and layout; nothing is measured. Message sizes are those of
nccl-tests: the gathered array of an all_gather, the whole input of a reduce_scatter, the buffer
of one rank otherwise. It is what torch really calls, but for scalars, for sums over gradients of norms
and routers, and for the gradients of experts among ranks that hold the same ones.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pytest_clusterqual import units
from pytest_clusterqual.model.groups import DIMENSIONS, Mesh, layout_groups, mesh
from pytest_clusterqual.model.project import Collective
from pytest_clusterqual.model.workload import Layout, ModelShape, Workload

FULL = 4  # bytes of a gradient, whatever the precision
# DistributedDataParallel sums gradients in buckets, each closed by the gradient that fills it.
FIRST_BUCKET, BUCKET = 1 << 20, 25 << 20
COUNT = 8  # bytes of the number of tokens that one expert gets

Shapes = Iterable[tuple[int, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """`calls` of one collective with messages of `bytes` in each optimizer step, on the busiest rank.

    `dimension` is one of `model.groups.DIMENSIONS`, `why` says in a few words what is exchanged.
    """

    dimension: str
    collective: Collective
    bytes: int
    calls: int
    why: str

    @property
    def per_step(self) -> int:
        """Bytes of all calls of a step."""
        return self.calls * self.bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Flow:
    """An exchange of a layout on its place in the network.

    `group` is the name of the rank groups that exchange, `shape` describes them; `covered` if a
    Fabric test measures this collective among them.
    """

    layout: str
    exchange: Exchange
    group: str
    shape: str
    covered: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkMap:
    """All flows of the layouts on one world; `untold` holds the layouts without any, each with the reason."""

    nodes: int
    nproc_per_node: int
    flows: tuple[Flow, ...]
    untold: dict[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Stage:
    """What the rank with most parameters holds, split by tensor ranks: so many blocks, and the rest in `ends`."""

    layers: int
    block: dict[str, tuple[int, ...]]
    ends: dict[str, tuple[int, ...]]

    @property
    def tables(self) -> list[str]:
        """Which of embedding and head are here."""
        return [name.partition(".")[0] for name, shape in self.ends.items() if len(shape) > 1]

    @property
    def backward(self) -> Iterator[tuple[int, ...]]:
        """Shapes in the order in which gradients become ready."""
        ends = dict(self.ends)
        first = [ends.pop(name) for name in self.ends if name.startswith("embedding")]
        yield from reversed(ends.values())
        for _ in range(self.layers):
            yield from reversed(self.block.values())
        yield from first


def traffic(workload: Workload, layout: Layout, *, world: int, nproc_per_node: int) -> tuple[Exchange, ...]:
    """All exchanges of a layout in one optimizer step on `world` ranks, those of one dimension together.

    Raises:
        ValueError: the layout or the global batch does not fit that many ranks, or a factory makes the model.
    """
    m = mesh(layout, world, nproc_per_node)
    ranks = {name: len(groups[0]) for name, groups in layout_groups(layout, world, nproc_per_node).items()}
    microbatches = workload.accumulation(m.data)
    stage = _fullest_stage(workload.shape, layout)
    found = [
        *(_replicated(stage) if layout.bucketed else _sharded(workload, layout, stage, ranks, microbatches)),
        *_activations(workload, layout, stage, m, microbatches),
    ]
    order = sorted(found, key=lambda exchange: DIMENSIONS.index(exchange.dimension))
    return tuple(exchange for exchange in order if exchange.dimension in ranks and exchange.calls)


def _fullest_stage(model: ModelShape, layout: Layout) -> _Stage:
    """That of the first rank where layers do not divide, for it has one more; else of the last, with head and norm."""
    first, last = (_layers(model, layout, rank) for rank in (0, layout.pipeline - 1))
    whole = model.shapes()
    here = [name for name in whole if not name.startswith("blocks.")]
    if layout.pipeline > 1:
        here = [name for name in here if name.startswith("embedding") is (first > last)]
    apart = layout.tensor > 1 or layout.expert > 1
    block = {name: shape for name, shape in model.block().items() if not (apart and ".experts." in name)}
    return _Stage(
        layers=max(first, last),
        block={name: _split(name, shape, layout.tensor) for name, shape in block.items()},
        ends={name: _split(name, whole[name], layout.tensor) for name in here},
    )


def _layers(model: ModelShape, layout: Layout, rank: int) -> int:
    return sum(len(layout.layers_of(stage, model.layers)) for stage in layout.stages_of(rank))


def _split(name: str, shape: tuple[int, ...], tensor: int) -> tuple[int, ...]:
    """One tensor rank's part: what writes to the residual stream is split by columns, norms and routers are whole."""
    if len(shape) == 1 or "router" in name:
        return shape
    out, into = shape
    return (out, into // tensor) if name.endswith(("output.weight", "down.weight")) else (-(-out // tensor), into)


def _replicated(stage: _Stage) -> Iterator[Exchange]:
    for size, calls in Counter(_buckets(stage.backward)).items():
        yield Exchange(
            dimension="replicate", collective="all_reduce", bytes=size, calls=calls, why="gradients, in buckets"
        )


def _buckets(shapes: Shapes) -> Iterator[int]:
    """Bytes of each bucket, in the order of their calls."""
    size, limit = 0, FIRST_BUCKET
    for shape in shapes:
        size += math.prod(shape) * FULL
        if size >= limit:
            yield size
            size, limit = 0, BUCKET
    if size:
        yield size


def _sharded(
    workload: Workload, layout: Layout, stage: _Stage, ranks: dict[str, int], microbatches: int
) -> Iterator[Exchange]:
    """As `fully_shard` does it: every block by itself, what is left with the root, which stays gathered till backward.

    Parameters are gathered anew for every microbatch; gradients travel in the last one only. In a pipeline
    they stay gathered after a backward, until a forward frees them again.
    """
    shard = ranks.get("shard", 1)
    twice = layout.fsdp != "grad-op"
    turns = 1 if layout.pipeline > 1 else microbatches
    of_blocks = (microbatches + 1 if layout.pipeline > 1 else 2 * microbatches) if twice else turns
    blocks = ("each of " if stage.layers > 1 else "") + units.show_count(stage.layers, "block")
    for shapes, modules, gathers, what in (
        (stage.block.values(), stage.layers, of_blocks, blocks),
        (stage.ends.values(), 1, turns, " and ".join(stage.tables)),
    ):
        # Every parameter is cut by rows; the last ranks' parts are filled up.
        part = sum(-(-shape[0] // shard) * math.prod(shape[1:]) for shape in shapes)
        when = (
            "forward and backward" if gathers > turns else "forward"
        ) + f" of {units.show_count(microbatches, 'microbatch', 'microbatches')}"
        yield Exchange(
            dimension="shard", collective="all_gather", bytes=part * shard * _element(workload),
            calls=modules * gathers, why=f"parameters of {what}, {when}",
        )  # fmt: skip
        yield Exchange(
            dimension="shard", collective="reduce_scatter", bytes=part * shard * FULL, calls=modules,
            why=f"gradients of {what}",
        )  # fmt: skip
        yield Exchange(
            dimension="replicate", collective="all_reduce", bytes=part * FULL, calls=modules,
            why=f"gradients of {what}, the part of one rank" if shard > 1 else f"gradients of {what}",
        )  # fmt: skip


def _activations(workload: Workload, layout: Layout, stage: _Stage, m: Mesh, microbatches: int) -> Iterator[Exchange]:
    """Tensor ranks split the sequence between their matrices; context ranks gather keys and values of all of it."""
    model, element = workload.shape, _element(workload)
    tokens = workload.microbatch * workload.sequence_length // m.context
    forwards = 2 if layout.activation_checkpointing == "full" else 1  # the blocks', repeated in backward
    blocks = units.show_count(stage.layers, "layer")
    split = stage.layers * (1 if model.experts else 2) * (forwards + 1)  # attention, and a feed-forward of one expert
    parts = "attention" if model.experts else "attention and feed-forward"
    experts = stage.layers if model.experts else 0
    both: tuple[Collective, ...] = ("all_gather", "reduce_scatter")
    for collective in both:
        # A repeated forward ends before its last sum, which nobody needs.
        spared = stage.layers * (forwards - 1) * (collective == "reduce_scatter" and not model.experts)
        yield Exchange(
            dimension="tensor", collective=collective, bytes=tokens * model.hidden * element,
            calls=microbatches * (split - spared + len(stage.tables)),
            why=f"activations around {parts} of {', '.join([blocks, *stage.tables])}",
        )  # fmt: skip
        heads = 2 * model.kv_heads * (model.hidden // model.heads) // m.tensor
        yield Exchange(
            dimension="context", collective=collective, bytes=tokens * m.context * heads * element,
            calls=microbatches * stage.layers * (forwards if collective == "all_gather" else 1),
            why=("" if collective == "all_gather" else "gradients of ") + f"keys and values of {blocks}, all tokens",
        )  # fmt: skip
    yield Exchange(
        dimension="pipeline", collective="send_recv", bytes=tokens * model.hidden // m.tensor * element,
        calls=microbatches * (2 * layout.stages_per_rank - (m.pipeline == 2)),
        why="activations to the next stage and gradients back, "
        f"{units.show_count(microbatches, 'microbatch', 'microbatches')}",
    )  # fmt: skip
    yield Exchange(
        dimension="expert", collective="all_to_all", bytes=model.experts * COUNT,
        calls=microbatches * experts * forwards, why=f"numbers of tokens that experts of {blocks} get",
    )  # fmt: skip
    yield Exchange(
        dimension="expert", collective="all_to_all_v", bytes=tokens * model.top_k * model.hidden // m.tensor * element,
        calls=microbatches * experts * 2 * (forwards + 1),
        why=f"tokens to experts of {blocks} and back, {units.show_count(model.top_k, 'expert')} a token",
    )  # fmt: skip


def _element(workload: Workload) -> int:
    """Bytes of an activation, and of a parameter that is gathered."""
    return 4 if workload.precision == "fp32" else 2

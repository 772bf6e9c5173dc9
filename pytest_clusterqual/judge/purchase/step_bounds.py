"""A training step before there is hardware: computing by its operations, communication by promised links.

Both are what the data sheets allow at most, so efficiency is given between two bounds: nothing of the
communication hides behind computing, or all that can. An estimate, never a verdict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pytest_clusterqual import units
from pytest_clusterqual.model.expected import Algorithm, as_algbw, expected_busbw
from pytest_clusterqual.model.groups import layout_groups, mesh
from pytest_clusterqual.model.purchase import NodeType, StepBounds
from pytest_clusterqual.model.requirement import Requirement
from pytest_clusterqual.model.traffic import traffic
from pytest_clusterqual.model.workload import Layout, ModelShape, Workload


def step_bounds(
    workload: Workload,
    layout: Layout,
    node: NodeType,
    counts: Sequence[int],
    floors: Sequence[Requirement],
    *,
    against: int = 1,
    algorithm: Algorithm = "ring",
) -> Iterator[StepBounds]:
    """One for each of `counts` nodes, on which the layout fits; the first one is the baseline of the others.

    `floors` are the file's requirements on efficiency, which are against `against` nodes.

    Raises:
        ValueError: the layout or the global batch does not fit one of them.
    """
    steps = [_step(workload, layout, node, count, algorithm) for count in counts]
    for step in steps:
        bounds = _bounds(workload, layout, node, steps[0], step)
        yield replace(bounds, said=_said(bounds, floors, against))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sent:
    """All calls of one collective in one dimension: bytes a step, and the expected level in B/s of algbw.

    `level` is None where a link is not given; `because` is its arithmetic, or says which link. `spans` is true
    where groups span nodes.
    """

    dimension: str
    collective: str
    bytes: int
    spans: bool
    level: float | None
    because: str

    @property
    def seconds(self) -> float | None:
        return None if self.level is None else self.bytes / self.level

    @property
    def why(self) -> str:
        where = "over NICs" if self.spans else "inside a node"
        head = f"{self.dimension}: {self.collective} of {units.show_decimal(self.bytes)} a step {where}"
        if self.level is None or self.seconds is None:
            return f"{head}; no time: {self.because}"
        rate, seconds = units.show(self.level, units.RATE), units.show(self.seconds, units.SECONDS)
        return f"{head} / {rate} = {seconds} ({self.because})"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Step:
    nodes: int
    compute: float | None
    sent: tuple[_Sent, ...]
    arithmetic: str

    def seconds(self, *, spans: bool) -> float | None:
        """Of all that spans nodes, or of all that does not; None where a link is not known."""
        found = [each.seconds for each in self.sent if each.spans is spans]
        known = [seconds for seconds in found if seconds is not None]
        return sum(known) if len(known) == len(found) else None

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Without any overlap, and with all."""
        inside, between = self.seconds(spans=False), self.seconds(spans=True)
        if self.compute is None or inside is None or between is None:
            return None
        return self.compute + inside + between, max(self.compute, inside + between)


def _step(workload: Workload, layout: Layout, node: NodeType, nodes: int, algorithm: Algorithm) -> _Step:
    world = nodes * node.devices
    groups = layout_groups(layout, world, node.devices)
    places = [f"node{rank // node.devices}" for rank in range(world)]
    sizes: Counter[tuple[str, str]] = Counter()
    for exchange in traffic(workload, layout, world=world, nproc_per_node=node.devices):
        sizes[exchange.dimension, exchange.collective] += exchange.per_step
    sent: list[_Sent] = []
    for (dimension, collective), size in sizes.items():
        among = groups[dimension]
        spans = any(len({places[rank] for rank in group}) > 1 for group in among)
        busbw = expected_busbw(collective, among, places, promised=node.links, algorithm=algorithm)
        level = as_algbw(busbw, collective, among)
        sent.append(_Sent(
            dimension=dimension, collective=collective, bytes=size, spans=spans, level=level.value,
            because=level.why.replace("fabric.links", "links"),
        ))  # fmt: skip
    compute, why = _compute(workload, layout, node, world)
    return _Step(nodes=nodes, compute=compute, sent=tuple(sent), arithmetic=why)


def operations(workload: Workload, layout: Layout) -> float:
    """Floating-point operations of one optimizer step of the whole job.

    Six for each parameter of a matrix and token, twelve x hidden x sequence a layer for attention, as in
    Chowdhery et al., PaLM, 2022, arXiv:2204.02311, appendix B; a repeated forward is two sixths more of the layers.
    """
    model = workload.shape
    layers = 6.0 * _matrices(model) + 12 * model.layers * model.hidden * workload.sequence_length
    again = 8 / 6 if layout.activation_checkpointing == "full" else 1.0
    return workload.tokens_per_step * (again * layers + 6 * model.vocab * model.hidden)


def _matrices(model: ModelShape) -> int:
    """Parameters of the layers' matrices that a token goes through."""
    used = model.top_k / model.experts if model.experts else 1.0
    return model.layers * sum(
        int(shape[0] * shape[1] * (used if ".experts." in name else 1))
        for name, shape in model.block().items()
        if len(shape) > 1
    )


def _compute(workload: Workload, layout: Layout, node: NodeType, world: int) -> tuple[float | None, str]:
    if node.flops is None or node.compute_share is None:
        missing = "flops" if node.flops is None else "compute_share"
        return None, f"no time of computing: node {node.name} has no {missing}, and no share of a peak is universal"
    work, rate = operations(workload, layout), world * node.flops * node.compute_share
    turns = workload.accumulation(mesh(layout, world, node.devices).data)
    fill = layout.pipeline - 1
    idle = fill / (layout.stages_per_rank * turns + fill)
    seconds = work / rate / (1 - idle)
    text = f"computing: {work:.3g} FLOP / ({world} devices x {units.show(node.flops, units.FLOP_RATE)} x "
    text += units.show_share(node.compute_share) + ")"
    if idle:
        text += f" / (1 - bubble of {units.show_share(idle)})"
    return seconds, f"{text} = {units.show(seconds, units.SECONDS)}"


def _bounds(workload: Workload, layout: Layout, node: NodeType, first: _Step, step: _Step) -> StepBounds:
    bounds, efficiency = step.bounds, None
    if step is not first and bounds and first.bounds:
        ratios = [a * first.nodes / (b * step.nodes) for a, b in zip(first.bounds, bounds, strict=True)]
        efficiency = min(ratios), max(ratios)
    tokens = workload.tokens_per_step
    return StepBounds(
        node=node.name, layout=layout.name, nodes=step.nodes, devices=step.nodes * node.devices, compute=step.compute,
        inside=step.seconds(spans=False), between=step.seconds(spans=True),
        crossing=float(sum(each.bytes for each in step.sent if each.spans)),
        step=bounds, rate=(tokens / bounds[0], tokens / bounds[1]) if bounds else None, baseline=first.nodes,
        efficiency=efficiency, price=None if node.price is None else node.price * step.nodes,
        arithmetic=(step.arithmetic, *(each.why for each in step.sent), *_warnings(layout, step)),
    )  # fmt: skip


def _said(step: StepBounds, floors: Sequence[Requirement], against: int) -> str:
    """What the bounds say of the file's own floor."""
    if step.nodes == step.baseline:
        return "baseline"
    if step.efficiency is None:
        return "not projected, see the arithmetic"
    held = [floor for floor in floors if floor.applies(nodes=step.nodes, layout=step.layout)]
    if not held:
        return "none in scaling.require"
    if step.baseline != against:
        return f"none, that of scaling.require is against {units.show_count(against, 'node')}"
    low, high = step.efficiency
    words = []
    for floor in held:
        met = (floor.met_by(low), floor.met_by(high))
        if all(met):
            words.append(f"{floor.text} even without overlap")
        elif any(met):
            words.append(f"{floor.text} cannot be told")
        else:
            words.append(f"not {floor.text}, even with full overlap")
    return "; ".join(words)


def _warnings(layout: Layout, step: _Step) -> Iterator[str]:
    spanning = {each.dimension for each in step.sent if each.spans}
    if "tensor" in spanning:
        yield f"tensor {layout.tensor} spans nodes: activations of every layer cross NICs, and wait for them"

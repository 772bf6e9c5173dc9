"""What a buyer can know before there is hardware, of serving and of the exact training job: estimates, no verdicts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pytest_clusterqual import units
from pytest_clusterqual.judge.purchase.node_sizes import comparisons
from pytest_clusterqual.judge.purchase.serving import serving_rows
from pytest_clusterqual.judge.purchase.step_bounds import step_bounds
from pytest_clusterqual.model.footprint import Footprint, footprint
from pytest_clusterqual.model.project import Project
from pytest_clusterqual.model.purchase import Fit, NodeType, Purchase, PurchasePlan, StepBounds, TrainingRow
from pytest_clusterqual.model.requirement import Requirement
from pytest_clusterqual.model.rungs import rungs
from pytest_clusterqual.model.workload import Layout, Workload

_UNSEEN = (
    "what one operation needs for itself, fragmentation, the CUDA context, buffers of NCCL",
    "latency: every message takes at least some microseconds, whatever its size",
)
_UNSEEN_SERVING = (
    "scales of quantized weights, and layers that are kept in higher precision",
    "activations of a prefill, prompts, sequences that are shorter than the context",
    "the quality that a precision costs",
)


def judge_purchase(project: Project, plan: PurchasePlan) -> Purchase:
    """All estimates for `plan`; the training job and its floors are those of `project`."""
    serving = tuple(serving_rows(plan))
    rows: list[TrainingRow] = []
    walks: list[str] = []
    found: list[StepBounds] = []
    required = [*project.requirements("memory"), *project.requirements("scaling")]
    for node in plan.nodes if plan.training else ():
        ladder = list(_ladder(project.workload, node, required))
        own = list(_layouts(project, node, required))
        rows += [*ladder, *own]
        walks.append(_walk(node, ladder))
        found += _step_bounds(project, node, own)
    return Purchase(
        serving=serving, training=tuple(rows), walks=tuple(walks), steps=tuple(found),
        comparisons=tuple(comparisons(plan.nodes, serving, rows, found)), limits=tuple(_limits(plan, required)),
        unseen=(*_UNSEEN, *(_UNSEEN_SERVING if serving else ())),
    )  # fmt: skip


def _ladder(workload: Workload, node: NodeType, required: Sequence[Requirement]) -> Iterator[TrainingRow]:
    """The rungs in order up to the first one that fits."""
    for rung in rungs(workload, nodes=max(node.counts), nproc_per_node=node.devices):
        job = replace(workload, microbatch=rung.microbatch)
        row = _row(job, rung.layout, node, rung.nodes, rung.per_node, required, impossible=rung.impossible)
        yield replace(row, name=rung.name, ladder=True)
        if row.fit == "fits":
            return


def _layouts(project: Project, node: NodeType, required: Sequence[Requirement]) -> Iterator[TrainingRow]:
    for layout in project.layouts:
        for count in node.counts:
            yield _row(project.workload, layout, node, count, node.devices, required)


def _row(
    workload: Workload,
    layout: Layout,
    node: NodeType,
    nodes: int,
    per_node: int,
    required: Sequence[Requirement],
    *,
    impossible: str = "",
) -> TrainingRow:
    ranks, found = nodes * per_node, None
    try:
        found = None if impossible else footprint(workload, layout, world=ranks, nproc_per_node=per_node)
    except ValueError as error:
        impossible = str(error)
    wanted = [each for each in required if each.applies(nodes=nodes, layout=layout.name)]
    return TrainingRow(
        node=node.name, name=layout.name, ladder=False, nodes=nodes, ranks=ranks, footprint=found,
        fit=_fit(found, node, wanted) if found else "no", impossible=impossible,
    )  # fmt: skip


def _fit(found: Footprint, node: NodeType, required: Sequence[Requirement]) -> Fit:
    """Tight is what has room on the device, but not the room that the file requires."""
    if found.total > node.device_memory:
        return "no"
    quantities = {"peak": found.total, "headroom": 1 - found.total / node.device_memory}
    wanted = [each for each in required if each.quantity in quantities]
    return "fits" if all(each.met_by(quantities[each.quantity]) for each in wanted) else "tight"


def _walk(node: NodeType, ladder: Sequence[TrainingRow]) -> str:
    """The decision for training, as far as memory makes it: one rank without room is no need for more nodes."""
    last = ladder[-1]
    if last.fit != "fits":
        most = max(node.counts)
        return f"{node.name}: no rung fits, up to {units.show_count(most, 'node')} with FSDP and full recomputation"
    before = [row.name for row in ladder[:-1] if not row.impossible]
    tried = f" (not by {'; '.join(before)})" if before else ""
    if last.nodes == 1:
        ranks = units.show_count(last.ranks, "device")
        return f"{node.name}: one node has room for the job, by {last.name} on {ranks}{tried}; memory needs no cluster"
    return f"{node.name}: the job exceeds a node, and fits by {last.name}{tried}: a cluster"


def _step_bounds(project: Project, node: NodeType, rows: Sequence[TrainingRow]) -> Iterator[StepBounds]:
    """Of each layout on the counts of nodes that have room for it."""
    floors = [each for each in project.requirements("scaling") if each.quantity == "efficiency"]
    algorithm = project.fabric.algorithm if project.fabric else "ring"
    against = project.scaling.points[0] if project.scaling else 1
    for layout in project.layouts:
        counts = [row.nodes for row in rows if row.name == layout.name and row.fit != "no"]
        if counts:
            yield from step_bounds(project.workload, layout, node, counts, floors, against=against, algorithm=algorithm)


def _limits(plan: PurchasePlan, required: Sequence[Requirement]) -> Iterator[str]:
    """What fits was held against, and whose limit that is."""
    share = plan.weights_share
    if plan.models:
        whose = share.source or "default; purchase.weights_share decides"
        yield f"serving: weights {share.text} of a device's memory ({whose})"
    if plan.training:
        memory = [each for each in required if each.quantity in ("peak", "headroom")]
        words = "; ".join(f"{each} ({each.source})" for each in memory)
        yield f"training: {words or 'all of the device, for memory.require has no peak and no headroom'}"
        floors = [each for each in required if each.quantity == "efficiency"]
        yield f"efficiency: {'; '.join(f'{each} ({each.source})' for each in floors) or 'no floor in scaling.require'}"
        for node in plan.nodes:
            if node.compute_share is not None:
                share_of = units.show_share(node.compute_share)
                yield f"computing: {share_of} of the dense peak on {node.name}, as assumed in the file"

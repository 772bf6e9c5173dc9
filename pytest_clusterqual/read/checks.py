"""What can be judged only when two sections of the project file, or the file and the options, are known."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_clusterqual import units
from pytest_clusterqual.model.workload import Layout
from pytest_clusterqual.read.demands import Demand, FabricDemand, FullRunDemand, MemoryDemand, ScalingDemand
from pytest_clusterqual.read.fields import Fault
from pytest_clusterqual.read.messages import did_you_mean, shown
from pytest_clusterqual.read.schema import (
    FabricSection,
    FullRunSection,
    JobSection,
    LayoutSection,
    ScalingSection,
    TrainingSection,
    WorkloadSection,
)

Layouts = Sequence[tuple[int, LayoutSection]]  # those that are right in themselves, by position
Numbered = Sequence[tuple[int, Demand]]  # the entries of a `require` list that are right in themselves, by position
# SIGTERM at the last step: the ranks end it, and with it the run.
NOTHING_LEFT = "after the last step there is nothing to go on with"
_NEEDS_FAILURE = ("checkpoint_load", "detection", "restart", "rendezvous", "recovery", "steps_lost")


def layout_names(layouts: Layouts) -> Iterator[Fault]:
    seen: set[str] = set()
    for index, layout in layouts:
        if layout.name in seen:
            yield ("layouts", index, "name"), f"got {shown(layout.name)} again, want a different name for each layout"
        seen.add(layout.name)


def layouts_exist(
    criterion: str, section: TrainingSection | None, demands: Numbered, layouts: Sequence[str]
) -> Iterator[Fault]:
    chosen = (section.layouts if section else None) or layouts
    for index, name in enumerate(chosen):
        if name not in layouts:
            yield (criterion, "layouts", index), f"got {shown(name)}, {did_you_mean(name, layouts)}"
    for index, demand in demands:
        if isinstance(demand, (MemoryDemand, ScalingDemand, FullRunDemand)) and demand.layout not in (None, *chosen):
            text = f"got {shown(demand.layout)}, {did_you_mean(str(demand.layout), chosen)}"
            yield (criterion, "require", index, "layout"), text


def fabric_demands(fabric: FabricSection, demands: Numbered) -> Iterator[Fault]:
    for index, demand in demands:
        assert isinstance(demand, FabricDemand)
        for key, text in _fabric_demand(fabric, demand):
            yield ("fabric", "require", index, key), text


def _fabric_demand(fabric: FabricSection, demand: FabricDemand) -> Iterator[tuple[str, str]]:
    if demand.collective and fabric.collectives and demand.collective not in fabric.collectives:
        yield "collective", f"got {shown(demand.collective)}, want one of {', '.join(fabric.collectives)}"
    if demand.group and demand.group not in fabric.groups and not ("layouts" in fabric.groups and "." in demand.group):
        yield "group", f"got {shown(demand.group)}, want one of {', '.join(fabric.groups)}"
    sizes = fabric.sizes.expand()
    least, most = demand.from_ or 0, demand.to or max(sizes)
    if not any(least <= size <= most for size in sizes):
        key = "to" if demand.from_ is None else "from"
        written = ", ".join(units.show(size, units.BYTES) for size in sizes)
        yield key, f"no size is left, want at least one of {written}"
    if demand.bound.of_expected:
        groups = [demand.group] if demand.group else fabric.groups
        needed = dict.fromkeys("intra_node" if group == "intra_node" else "nic" for group in groups)
        for link in needed:
            if getattr(fabric.links, link) is None:
                got = f"got {shown(demand.bound.text)} but no fabric.links.{link}"
                yield demand.quantity, f"{got}, want what was promised there, such as {link}: 400 Gbit/s"


def fabric_parts(fabric: FabricSection, demands: Numbered) -> Iterator[Fault]:
    """What is measured only where another key asks for it."""
    for index, demand in demands:
        where = ("fabric", "require", index)
        if demand.quantity == "placement" and len(fabric.rank_maps) < 2:
            text = "there is no other placement to compare with, want two fabric.rank_maps or more: [block, cyclic]"
            yield (*where, "placement"), text
        if demand.quantity == "amplification" and not fabric.synchronization:
            text = "no step is taken apart to measure it, want the names of layouts in fabric.synchronization"
            yield (*where, "amplification"), text
        selectors = [key for key, value in demand.selectors().items() if value is not None]
        if demand.quantity == "amplification" and selectors:
            text = "amplification is that of a whole training step, which has no collective, group, from or to"
            yield (*where, selectors[0].removesuffix("_bytes")), text


def fabric_synchronization(fabric: FabricSection, layouts: Layouts, workload: JobSection | None) -> Iterator[Fault]:
    """Every layout named exists, can be trained, and can do a step without communication."""
    known = {layout.name: layout for _index, layout in layouts}
    for index, name in enumerate(fabric.synchronization):
        where = ("fabric", "synchronization", index)
        if name not in known:
            yield where, f"got {shown(name)}, {did_you_mean(name, known)}"
        elif odd := Layout(**known[name].model_dump()).unreplaceable:
            text = f"the communication of {odd} cannot be left out of a step, want another layout"
            yield where, f"got {shown(name)}: {text}"
        elif workload and workload.precision == "fp16" and known[name].fsdp:
            text = "with precision fp16 its ranks also exchange whether gradients overflow, want bf16 or fp32"
            yield where, f"got {shown(name)}: {text}"


def fabric_layout_groups(demands: Numbered, layouts: Layouts) -> Iterator[Fault]:
    """A group of a layout, such as ``tp2.tensor``, is one that the layout makes."""
    known = [f"{layout.name}.{name}" for _index, layout in layouts for name in _dimensions(layout)]
    for index, demand in demands:
        assert isinstance(demand, FabricDemand)
        if demand.group and "." in demand.group and demand.group not in known:
            yield (
                ("fabric", "require", index, "group"),
                f"got {shown(demand.group)}, {did_you_mean(demand.group, known)}",
            )


def _dimensions(layout: LayoutSection) -> list[str]:
    degrees = [name for name in ("tensor", "context", "pipeline", "expert") if getattr(layout, name) > 1]
    return [*degrees, *(["shard"] if layout.fsdp else []), "replicate"]


def scaling_demands(scaling: ScalingSection, demands: Numbered) -> Iterator[Fault]:
    points, baseline = scaling.points, scaling.points[0]
    for index, demand in demands:
        assert isinstance(demand, ScalingDemand)
        where, ratio = ("scaling", "require", index), demand.quantity in ("speedup", "efficiency")
        if demand.nodes is not None and demand.nodes not in points:
            text = f"got {demand.nodes}, want one of scaling.points {', '.join(map(str, points))}"
            yield (*where, "nodes"), text
        elif ratio and demand.nodes == baseline:
            text = f"got {baseline}, the baseline that {demand.quantity} compares with; want more nodes"
            yield (*where, "nodes"), text
        elif ratio and len(points) == 1:
            text = f"there is nothing to compare with the baseline of {baseline} node(s), want a second scaling.points"
            yield (*where, demand.quantity), text


def scaling_parts(scaling: ScalingSection, demands: Numbered, *, target: bool) -> Iterator[Fault]:
    """What is measured only where another key asks for it; `target`: the file has one."""
    if scaling.launches > scaling.repeats:
        yield ("scaling", "launches"), f"got {scaling.launches}, want at most the {scaling.repeats} repeats"
    for index, demand in demands:
        where, quantity = ("scaling", "require", index), demand.quantity
        if quantity == "time_to_train" and not target:
            text = "it is not known how much there is to train, want a target: {tokens: 2.0e+9, time: 40 h}"
            yield (*where, quantity), text
        if quantity in ("exposed_communication", "waiting"):
            assert isinstance(demand, ScalingDemand)
            if not scaling.waterfall:
                yield (*where, quantity), "no step is taken apart to measure it, want scaling.waterfall: true"
            elif demand.nodes == scaling.points[0]:
                text = f"got {demand.nodes}, the baseline, whose step is not taken apart; want more nodes"
                yield (*where, "nodes"), text


def full_run(section: FullRunSection, workload: JobSection | None) -> Iterator[Fault]:
    """Something is saved, and what fails has something to resume."""
    steps = None if section.minutes else section.steps or (workload.steps if workload else None)
    for index, checkpoint in enumerate(section.checkpoint):
        if steps and checkpoint.every > steps:
            text = f"got {checkpoint.every}, want at most the {steps} steps of the run, else nothing is ever saved"
            yield ("full_run", "checkpoint", index, "every"), text
    first = section.checkpoint[0].every
    for index, failure in enumerate(section.failure or []):
        where = ("full_run", "failure", index, "at_step")
        if failure.at_step <= first:
            text = f"want a step after the first checkpoint at {first}, so that there is one to resume"
            yield where, f"got {failure.at_step}, {text}"
        elif steps and failure.at_step > steps:
            yield where, f"got {failure.at_step}, want at most the {steps} steps of the run, else nothing ever fails"
        elif steps and failure.kind == "sigterm" and failure.at_step == steps:
            yield where, f"got {failure.at_step}, want at most {steps - 1}, or more steps: {NOTHING_LEFT}"
        elif steps and failure.kind == "fail_save" and failure.at_step > (last := (steps - 1) // first * first):
            text = f"want at most {last}, or more steps: no checkpoint is saved between that and the end"
            yield where, f"got {failure.at_step}, {text}"


def full_run_demands(section: FullRunSection, demands: Numbered) -> Iterator[Fault]:
    """What is required can happen in this run."""
    for index, demand in demands:
        if demand.quantity in _NEEDS_FAILURE and not section.failure:
            text = "nothing fails in this run, want full_run.failure: {kill_rank: ..., at_step: ...}"
            yield ("full_run", "require", index, demand.quantity), text
        if demand.quantity == "gain" and not section.alone:
            text = "there is no run on one node to compare with, want full_run.alone: true"
            yield ("full_run", "require", index, "gain"), text


def failures_hit(section: FullRunSection, nodes: int, ranks_per_node: int) -> Iterator[Fault]:
    """What is to fail must be there."""
    world = nodes * ranks_per_node
    for index, failure in enumerate(section.failure or []):
        where = ("full_run", "failure", index)
        if failure.kind == "kill_node":
            used = max(nodes - 1, 1) if failure.go_on == "spare" else nodes
            if failure.target >= used:
                spare = f": the last of {nodes} is the spare" if used < nodes else ""
                yield (*where, "kill_node"), f"got {failure.target}, want a node below {used}{spare}"
            if failure.go_on == "fewer" and nodes == 1:
                yield (*where, "go_on"), "got fewer, want same or spare: there is one node only"
        elif failure.target >= world:
            product = f"{nodes} node(s) x {ranks_per_node} rank(s)"
            yield (*where, failure.kind), f"got {failure.target}, want a rank below {world} = {product}"


def layout_degrees(layouts: Layouts, workload: JobSection) -> Iterator[Fault]:
    """What a layout cuts must be there in that many equal parts."""
    job = workload.job(Path())
    for index, section in layouts:
        for key, text in job.misfits(Layout(**section.model_dump())):
            yield ("layouts", index, key), text


def layouts_fit(layouts: Layouts, nodes: int, ranks_per_node: int) -> Iterator[Fault]:
    """No copy of the model may need more ranks than there are."""
    for index, layout in layouts:
        degrees = {key: getattr(layout, key) for key in ("pipeline", "context", "tensor")}
        if (ranks := math.prod(degrees.values())) > nodes * ranks_per_node:
            key = max(degrees, key=lambda key: degrees[key])
            text = f"want pipeline x context x tensor = {ranks} to be at most"
            product = f"{nodes * ranks_per_node} = {nodes} node(s) x {ranks_per_node} rank(s)"
            yield ("layouts", index, key), f"got {degrees[key]}, {text} {product}"


def global_batch(
    workload: JobSection, layouts: Layouts, node_counts: Sequence[int], ranks_per_node: int
) -> Iterator[Fault]:
    """The exact job must run on every one of the node counts: same sequences per optimizer step."""
    copies = {layout.pipeline * layout.context * layout.tensor for _index, layout in layouts} or {1}
    for nodes in node_counts:
        ranks = f"{nodes} node(s) x {ranks_per_node} rank(s)"
        for model in sorted(copies):
            data, more = divmod(nodes * ranks_per_node, model)
            per_forward = workload.microbatch * data
            if not more and workload.global_batch % per_forward:
                product = f"microbatch {workload.microbatch} x {ranks}" + (f" / {model} a copy" if model > 1 else "")
                text = f"got {workload.global_batch}, want a multiple of {per_forward} = {product}"
                yield ("workload", "global_batch"), text


def data_file(workload: WorkloadSection, folder: Path) -> Iterator[Fault]:
    if workload.data.path is None:
        return
    where, got = ("workload", "data", "path"), f"got {shown(workload.data.path)}"
    path = folder / workload.data.path
    try:
        if not path.is_file():
            yield where, f"{got}, want a file that exists (relative to the project file's folder)"
            return
        with path.open("rb") as file:
            size = file.seek(0, 2)
    except (OSError, ValueError) as error:  # ValueError: no file system can spell such a name
        yield where, f"{got}, which cannot be read: {getattr(error, 'strerror', None) or error}"
        return
    if size <= workload.sequence_length + 1:
        least = workload.sequence_length + 2
        yield where, f"{got} of {size} bytes, want at least {least}, more than one sequence and its next token"

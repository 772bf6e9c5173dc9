"""What can be judged only when two sections of the project file, or the file and the options, are known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_clusterqual import units
from pytest_clusterqual.read.demands import Demand, FabricDemand, MemoryDemand, ScalingDemand
from pytest_clusterqual.read.fields import Fault
from pytest_clusterqual.read.messages import did_you_mean, shown
from pytest_clusterqual.read.schema import (
    FabricSection,
    FullRunSection,
    LayoutSection,
    ScalingSection,
    TrainingSection,
    WorkloadSection,
)

Numbered = Sequence[tuple[int, Demand]]  # the entries of a `require` list that are right in themselves, by position
_NEEDS_FAILURE = ("checkpoint_load", "detection", "restart", "recovery")


def layout_names(layouts: Sequence[tuple[int, LayoutSection]]) -> Iterator[Fault]:
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
        if isinstance(demand, (MemoryDemand, ScalingDemand)) and demand.layout not in (None, *chosen):
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


def full_run(section: FullRunSection, demands: Numbered, workload: WorkloadSection | None) -> Iterator[Fault]:
    steps = section.steps or (workload.steps if workload else None)
    failure = section.failure
    if steps and section.checkpoint.every > steps:
        text = f"got {section.checkpoint.every}, want at most the {steps} steps of the run, else nothing is ever saved"
        yield ("full_run", "checkpoint", "every"), text
    if steps and failure and failure.at_step > steps:
        text = f"got {failure.at_step}, want at most the {steps} steps of the run, else nothing ever fails"
        yield ("full_run", "failure", "at_step"), text
    for index, demand in demands:
        if demand.quantity in _NEEDS_FAILURE and not failure:
            text = "nothing fails in this run, want full_run.failure: {kill_rank: ..., at_step: ...}"
            yield ("full_run", "require", index, demand.quantity), text


def kill_rank(section: FullRunSection, nodes: int, ranks_per_node: int) -> Iterator[Fault]:
    world = nodes * ranks_per_node
    if section.failure and section.failure.kill_rank >= world:
        product = f"{nodes} node(s) x {ranks_per_node} rank(s)"
        text = f"got {section.failure.kill_rank}, want a rank below {world} = {product}"
        yield ("full_run", "failure", "kill_rank"), text


def global_batch(workload: WorkloadSection, node_counts: Sequence[int], ranks_per_node: int) -> Iterator[Fault]:
    """The exact job must run on every one of the node counts: same sequences per optimizer step."""
    for nodes in node_counts:
        per_forward = workload.microbatch * nodes * ranks_per_node
        if workload.global_batch % per_forward:
            product = f"microbatch {workload.microbatch} x {nodes} node(s) x {ranks_per_node} rank(s)"
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

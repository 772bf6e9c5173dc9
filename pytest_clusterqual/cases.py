"""The cases of each criterion: one parametrized test each, from the project file and the size of the world alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from pytest_clusterqual.launch.perf import unable
from pytest_clusterqual.model.project import FabricPlan, Project
from pytest_clusterqual.model.rank_map import Strategy
from pytest_clusterqual.needs import Needs, Sweep


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One parametrized test: a criterion on a layout, or a collective in a group.

    `sizes` are the messages of a collective, in bytes. `part` is what else there is to Fabric: all
    pairs of nodes, one collective under several rank maps, the step of a layout taken apart.
    `inapplicable` says why it cannot be asked on this many ranks; such a test is skipped in sight.
    """

    criterion: str
    nodes: int
    layout: str | None = None
    collective: str | None = None
    group: str | None = None
    sizes: tuple[int, ...] = ()
    rank_map: Strategy | None = None
    part: Literal["", "pairs", "placement", "synchronization"] = ""
    inapplicable: str = ""

    def __str__(self) -> str:
        if self.criterion == "nodes":
            return f"{self.nodes}nodes"
        mapped = f"-{self.rank_map}" if self.rank_map else ""
        if self.criterion == "fabric":
            what = f"{self.collective}-{self.group}{mapped}" if self.collective else self.layout
            return "-".join(filter(None, (what, self.part)))
        return f"{self.layout}-{self.nodes}node{'s' if self.nodes > 1 else ''}{mapped}"

    @property
    def params(self) -> dict[str, str]:
        """What a gate compares: the layout, where there is one."""
        return {"layout": self.layout} if self.layout else {}


def cases(project: Project, criterion: str, *, nodes: int, nproc_per_node: int) -> list[Case]:
    """All cases of one criterion, from the file and the size of the world alone; none without its section."""
    if criterion == "nodes":
        return [Case(criterion=criterion, nodes=nodes)] if project.topology else []
    if criterion == "fabric":
        return _fabric_cases(project, nodes, nproc_per_node)
    plan = {"memory": project.memory, "scaling": project.scaling, "full_run": project.full_run}[criterion]
    if plan is None:
        return []
    layouts = [layout.name for layout in project.layouts if plan.layouts is None or layout.name in plan.layouts]
    if criterion != "scaling":
        return [Case(criterion=criterion, nodes=nodes, layout=layout) for layout in layouts]
    assert project.scaling is not None
    return [
        Case(
            criterion=criterion, nodes=point, layout=layout, rank_map=rank_map,
            inapplicable=f"the point of {point} nodes needs --nodes {point}" if point > nodes else "",
        )
        for rank_map in project.scaling.rank_maps or (None,)
        for layout in layouts
        for point in project.scaling.points[1:]
    ]  # fmt: skip


def _fabric_cases(project: Project, nodes: int, nproc_per_node: int) -> list[Case]:
    plan = project.fabric
    if plan is None:
        return []
    needs = Needs(project, nodes=nodes, nproc_per_node=nproc_per_node)
    sweeps = needs.sweeps()
    swept = [
        Case(
            criterion="fabric", nodes=nodes, collective=collective, group=sweep.group, rank_map=rank_map, sizes=sizes,
            inapplicable=sweep.inapplicable or _by_engine(project, collective, sweep.group, rank_map, nodes),
        )
        for rank_map in plan.rank_maps or (None,)
        for sweep in sweeps
        for collective, sizes in sweep.sizes.items()
    ]  # fmt: skip
    swept += _placements(plan, sweeps, nodes, nproc_per_node)
    alone = "" if nodes * nproc_per_node > 1 else "one rank waits for nobody"
    swept += [
        Case(criterion="fabric", nodes=nodes, layout=layout, part="synchronization", inapplicable=alone)
        for layout in plan.synchronization
    ]
    unfit = needs.untold if "layouts" in plan.groups else {}
    swept += [Case(criterion="fabric", nodes=nodes, layout=name, inapplicable=why) for name, why in unfit.items()]
    if plan.pairs:
        alone = "" if nodes > 1 else "one node has no other to exchange messages with"
        swept.append(Case(criterion="fabric", nodes=nodes, part="pairs", inapplicable=alone))
    return swept


def _by_engine(project: Project, collective: str, group: str, rank_map: Strategy | None, nodes: int) -> str:
    """Why the engine of the file cannot measure a sweep."""
    if project.fabric is None or project.fabric.engine == "torch":
        return ""
    if rank_map:
        return f"nccl-tests seats its ranks itself, so there is no rank map {rank_map}"
    return unable(project.launcher.kind, collective, group, nodes=nodes)


def _placements(plan: FabricPlan, sweeps: Iterable[Sweep], nodes: int, nproc_per_node: int) -> list[Case]:
    """Each sweep once more under all rank maps, at its largest size and one in the middle."""
    if len(plan.rank_maps) < 2:
        return []
    alike = (
        f"block and cyclic are one and the same map of {nodes} x {nproc_per_node} ranks"
        if 1 in (nodes, nproc_per_node) and "nic-near" not in plan.rank_maps else ""
    )  # fmt: skip
    return [
        Case(
            criterion="fabric", nodes=nodes, collective=collective, group=sweep.group, part="placement",
            sizes=tuple(dict.fromkeys((sorted(sizes)[(len(sizes) - 1) // 2], max(sizes)))),
            inapplicable=sweep.inapplicable or alike,
        )
        for sweep in sweeps
        for collective, sizes in sweep.sizes.items()
    ]  # fmt: skip

"""The cases of each criterion: one parametrized test each, from the project file and the size of the world alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_clusterqual.model.groups import Groups, groups_of, layout_groups
from pytest_clusterqual.model.project import COLLECTIVES, FabricPlan, Project
from pytest_clusterqual.model.rank_map import Strategy


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One parametrized test: a criterion on a layout, or a collective in a group.

    `part` is what else there is to Fabric: all pairs of nodes, one collective under several rank
    maps, the step of a layout taken apart. `inapplicable` says why it cannot be asked on this many
    ranks; such a test is skipped in sight.
    """

    criterion: str
    nodes: int
    layout: str | None = None
    collective: str | None = None
    group: str | None = None
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
    untrained = {
        layout.name: f"{layout.untrained} cannot be trained in this version; Fabric measures what it communicates"
        for layout in project.layouts if layout.untrained
    }  # fmt: skip
    if criterion != "scaling":
        return [
            Case(criterion=criterion, nodes=nodes, layout=layout, inapplicable=untrained.get(layout, ""))
            for layout in layouts
        ]
    assert project.scaling is not None
    return [
        Case(
            criterion=criterion, nodes=point, layout=layout, rank_map=rank_map,
            inapplicable=f"the point of {point} nodes needs --nodes {point}" if point > nodes
            else untrained.get(layout, ""),
        )
        for rank_map in project.scaling.rank_maps or (None,)
        for layout in layouts
        for point in project.scaling.points[1:]
    ]  # fmt: skip


def _fabric_cases(project: Project, nodes: int, nproc_per_node: int) -> list[Case]:
    plan = project.fabric
    if plan is None:
        return []
    places = [f"node{node}" for node in range(nodes) for _ in range(nproc_per_node)]
    return [
        Case(
            criterion="fabric", nodes=nodes, collective=collective, group=group, rank_map=rank_map,
            inapplicable="" if groups and len(groups[0]) > 1 else
            f"{group} is a group of 1 rank with {nodes} x {nproc_per_node} ranks: there is no fabric in it",
        )
        for rank_map in plan.rank_maps or (None,)
        for group, groups in _groups(project, plan, places, nproc_per_node).items()
        for collective in plan.collectives or COLLECTIVES
    ]  # fmt: skip


def _groups(project: Project, plan: FabricPlan, places: list[str], nproc_per_node: int) -> dict[str, Groups]:
    """Name -> groups; of the layouts' only those that no other name stands for already."""
    found: dict[str, Groups] = {kind: groups_of(kind, places) for kind in plan.groups if kind != "layouts"}
    for layout in project.layouts if "layouts" in plan.groups else ():
        for dimension, groups in layout_groups(layout, len(places), nproc_per_node).items():
            if set(map(frozenset, groups)) not in [set(map(frozenset, known)) for known in found.values()]:
                found[f"{layout.name}.{dimension}"] = groups
    return found

"""The cases of each criterion: one parametrized test each, from the project file and the size of the world alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from pytest_clusterqual.launch.perf import unable
from pytest_clusterqual.measure.needs import Needs, Sweep
from pytest_clusterqual.model.full_run import Checkpoints, Failure
from pytest_clusterqual.model.project import FabricPlan, FullRunPlan, MemoryPlan, Project, ScalingPlan
from pytest_clusterqual.model.rank_map import Strategy


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One parametrized test: a criterion on a layout, or a collective in a group.

    `sizes` are the messages of a collective, in bytes. `part` is what else there is to Fabric: all
    pairs of nodes, one collective under several rank maps, the step of a layout taken apart; and to
    Memory: the ladder of all ways to make the job fit. `checkpoints` and `failure` are those of a full
    run, `variant` names them where there are several.
    `baseline` is the number of nodes that a point of scaling is compared with. `inapplicable` says
    why it cannot be asked on this many ranks; such a test is skipped in sight.
    """

    criterion: str
    nodes: int
    layout: str | None = None
    collective: str | None = None
    group: str | None = None
    sizes: tuple[int, ...] = ()
    rank_map: Strategy | None = None
    part: Literal["", "pairs", "placement", "synchronization", "ladder"] = ""
    baseline: int = 0
    checkpoints: Checkpoints | None = None
    failure: Failure | None = None
    variant: str = ""
    inapplicable: str = ""

    def __str__(self) -> str:
        if self.criterion in ("nodes", "decision"):
            return f"{self.nodes}nodes"
        if self.part == "ladder":
            return self.part
        mapped = f"-{self.rank_map}" if self.rank_map else ""
        if self.criterion == "fabric":
            what = f"{self.collective}-{self.group}{mapped}" if self.collective else self.layout
            return "-".join(filter(None, (what, self.part)))
        variant = f"-{self.variant}" if self.variant else ""
        return f"{self.layout}-{self.nodes}node{'s' if self.nodes > 1 else ''}{mapped}{variant}"

    @property
    def subject(self) -> str:
        """The layout that a gate compares; empty without one. That of the ladder is no layout of the file."""
        return "(ladder)" if self.part == "ladder" else self.layout or ""

    @property
    def params(self) -> dict[str, str]:
        """What a gate compares: the layout, where there is one."""
        return {"layout": self.subject} if self.subject else {}


def cases(project: Project, criterion: str, *, nodes: int, nproc_per_node: int) -> list[Case]:
    """All cases of one criterion, from the file and the size of the world alone; none without its section."""
    if criterion == "nodes":
        return [Case(criterion=criterion, nodes=nodes)] if project.topology else []
    if criterion == "decision":
        return [Case(criterion=criterion, nodes=nodes)] if project.decision else []
    if criterion == "fabric":
        return _fabric_cases(project, nodes, nproc_per_node)
    plans: dict[str, MemoryPlan | ScalingPlan | FullRunPlan | None] = {
        "memory": project.memory, "scaling": project.scaling, "full_run": project.full_run,
    }  # fmt: skip
    plan = plans[criterion]
    if plan is None:
        return []
    layouts = [layout.name for layout in project.layouts if plan.layouts is None or layout.name in plan.layouts]
    if isinstance(plan, FullRunPlan):
        return [case for layout in layouts for case in _full_runs(project, plan, layout, nodes, nproc_per_node)]
    if isinstance(plan, ScalingPlan):
        return [
            case
            for rank_map in plan.rank_maps or (None,)
            for layout in layouts
            for case in _scaling_cases(project, plan, layout, rank_map, nodes, nproc_per_node)
        ]
    climb = [Case(criterion=criterion, nodes=nodes, part="ladder")] if plan.ladder else []
    return [Case(criterion=criterion, nodes=nodes, layout=layout) for layout in layouts] + climb


def _full_runs(project: Project, plan: FullRunPlan, layout: str, nodes: int, nproc_per_node: int) -> Iterator[Case]:
    """Each failure with the first way to save, and each other way without a failure; see `FullRunPlan`.

    A run that goes on with a spare node has one node less than there are.
    """
    first, *others = plan.checkpoints
    ways: list[tuple[Checkpoints, Failure | None]] = [(first, failure) for failure in plan.failures] or [(first, None)]
    ways += [(other, None) for other in others]
    names = _distinct([str(failure or saving) for saving, failure in ways]) if len(ways) > 1 else [""]
    for (saving, failure), name in zip(ways, names, strict=True):
        used = max(nodes - 1, 1) if failure and failure.go_on == "spare" else nodes
        yield Case(
            criterion="full_run", nodes=used, layout=layout, checkpoints=saving, failure=failure, variant=name,
            inapplicable=_from_log(project) or _unable(project, layout, failure, nodes, nproc_per_node),
        )  # fmt: skip


def _from_log(project: Project) -> str:
    if project.command is None or not project.command.log:
        return ""
    return "a log does not tell where all the time of a run goes: have the command make a Probe, without workload.log"


def _unable(project: Project, layout: str, failure: Failure | None, nodes: int, nproc_per_node: int) -> str:
    """Why a run cannot go on after this failure as the file wants it."""
    if failure is not None and failure.unnoticed(nodes * nproc_per_node):
        return failure.unnoticed(nodes * nproc_per_node)
    if failure is None or failure.go_on == "same":
        return ""
    if nodes == 1:
        return "there is no spare node: it needs --nodes 2 or more"
    why = project.unfit(layout, nodes=nodes - 1, nproc_per_node=nproc_per_node)
    return f"with one node less: {why}" if why else ""


def _distinct(names: list[str]) -> list[str]:
    """With a number behind those that stand there more than once."""
    return [f"{name}-{names[: at + 1].count(name)}" if names.count(name) > 1 else name for at, name in enumerate(names)]


def _scaling_cases(
    project: Project, plan: ScalingPlan, layout: str, rank_map: Strategy | None, nodes: int, nproc_per_node: int
) -> Iterator[Case]:
    """The larger points of one layout; its baseline is the smallest one that it fits."""
    refused = {point: project.unfit(layout, nodes=point, nproc_per_node=nproc_per_node) for point in plan.points}
    baseline = next((point for point in plan.points if not refused[point]), 0)
    for point in plan.points[1:]:
        why = f"the point of {point} nodes needs --nodes {point}" if point > nodes else refused[point]
        if not why and point == baseline:
            why = f"no smaller point to compare with: {refused[plan.points[0]]}"
        yield Case(
            criterion="scaling", nodes=point, layout=layout, rank_map=rank_map, baseline=baseline, inapplicable=why
        )


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

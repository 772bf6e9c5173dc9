"""The criteria: their cases, and the path from a case to a measurement that can be judged.

A measurement is continued while its verdict is open and its budget lasts. No pytest here.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from pytest_clusterqual import measuring
from pytest_clusterqual.errors import ClusterQualError, MeasurementError
from pytest_clusterqual.judge.fabric import judge_fabric
from pytest_clusterqual.judge.full_run import judge_full_run
from pytest_clusterqual.judge.memory import judge_memory
from pytest_clusterqual.judge.nodes import judge_nodes
from pytest_clusterqual.judge.pairs import worth_asking
from pytest_clusterqual.judge.scaling import judge_scaling
from pytest_clusterqual.model.measurement import (
    FabricMeasurement,
    Measurement,
    MemoryMeasurement,
    NodesMeasurement,
    ScalingMeasurement,
)
from pytest_clusterqual.model.project import Project
from pytest_clusterqual.model.rank_map import Strategy
from pytest_clusterqual.model.record import Judgement, Verdict
from pytest_clusterqual.session import Session

M = TypeVar("M", FabricMeasurement, ScalingMeasurement)
# The smallest number of independent samples that gives a 95 % interval of a median.
_FIRST_ROUNDS = 6
_MORE_ROUNDS = 4
_MORE_REPEATS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One parametrized test: a criterion on a layout, or a collective in a group.

    `inapplicable` says why it cannot be asked on this many ranks; such a test is skipped in sight.
    """

    criterion: str
    nodes: int
    layout: str | None = None
    collective: str | None = None
    group: str | None = None
    rank_map: Strategy | None = None
    inapplicable: str = ""

    def __str__(self) -> str:
        if self.criterion == "nodes":
            return f"{self.nodes}nodes"
        mapped = f"-{self.rank_map}" if self.rank_map else ""
        if self.criterion == "fabric":
            return f"{self.collective}-{self.group}{mapped}"
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
    if project.fabric is None:
        return []
    sizes = {"intra_node": nproc_per_node, "inter_node": nodes, "world": nodes * nproc_per_node}
    return [
        Case(
            criterion="fabric", nodes=nodes, collective=collective, group=group, rank_map=rank_map,
            inapplicable=f"{group} is a group of 1 rank with {nodes} x {nproc_per_node} ranks: there is no fabric in it"
            if sizes[group] < 2 else "",
        )
        for rank_map in project.fabric.rank_maps or (None,)
        for group in project.fabric.groups
        for collective in project.fabric.collectives
    ]  # fmt: skip


def judge(project: Project, measurement: Measurement) -> tuple[Judgement, ...]:
    """Judge any measurement against the project's requirements; pure."""
    if isinstance(measurement, NodesMeasurement):
        assert project.topology is not None
        return judge_nodes(measurement, project.topology)
    if isinstance(measurement, MemoryMeasurement):
        return judge_memory(measurement, project.requirements("memory"))
    if isinstance(measurement, FabricMeasurement):
        assert project.fabric is not None
        return judge_fabric(measurement, project.requirements("fabric"), project.fabric.links)
    if isinstance(measurement, ScalingMeasurement):
        return judge_scaling(measurement, project.requirements("scaling"))
    return judge_full_run(measurement, project.requirements("full_run"))


def measure(session: Session, case: Case) -> Measurement:
    """Measure one case, on and on while its verdict is open and the budget lasts."""
    project = session.project
    if case.criterion == "nodes":
        return measuring.nodes(session)
    if case.criterion == "memory":
        return measuring.memory(session, project.layout(case.layout or ""))
    if case.criterion == "full_run":
        return measuring.full_run(session, project.layout(case.layout or ""))
    if case.criterion == "fabric":
        assert project.fabric is not None and case.collective is not None and case.group is not None
        sweep = partial(measuring.fabric, session, case.collective, case.group, arrangement=case.rank_map)
        measurement = _continued(
            sweep(rounds=_FIRST_ROUNDS), partial(sweep, rounds=_MORE_ROUNDS), project, project.fabric.budget
        )
        if worth_asking(measurement, _judged(project, measurement)):
            with suppress(ClusterQualError):  # a pair that hangs takes nothing away from what was measured
                return measuring.pairs(session, measurement, arrangement=case.rank_map)
        return measurement
    assert project.scaling is not None
    layout, points = project.layout(case.layout or ""), (project.scaling.points[0], case.nodes)
    work = partial(measuring.scaling, session, layout, points, arrangement=case.rank_map)
    return _continued(
        work(repeats=project.scaling.repeats), partial(work, repeats=_MORE_REPEATS), project, project.scaling.budget
    )


def _continued(first: M, more: Callable[..., M], project: Project, budget: float) -> M:
    """Add samples until the verdict is closed, or the next addition would exceed the `budget` in seconds."""
    measurement = first
    step = 0.0
    while _open(_judged(project, measurement)) and measurement.seconds + step <= budget:
        before = measurement.seconds
        measurement = more(before=measurement)
        step = measurement.seconds - before
    return measurement


def _judged(project: Project, measurement: Measurement) -> tuple[Judgement, ...]:
    """The judgements so far; none of a measurement that is none: it is kept, and whoever judges it meets the error."""
    try:
        return judge(project, measurement)
    except MeasurementError:
        return ()


def _open(judgements: tuple[Judgement, ...]) -> bool:
    """True if more samples could close a verdict: no number of them makes up for a loaded machine."""
    return any(
        judgement.verdict is Verdict.UNDECIDED
        and judgement.requirement is not None
        and (
            judgement.interval is None
            or judgement.interval.low <= judgement.requirement.value <= judgement.interval.high
        )
        for judgement in judgements
    )

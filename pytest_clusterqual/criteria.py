"""The criteria: the path from a case to a measurement that can be judged.

A measurement is continued while its verdict is open and its budget lasts. No pytest here.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from pytest_clusterqual import fabric_measuring, measuring
from pytest_clusterqual.cases import Case
from pytest_clusterqual.errors import ClusterQualError, MeasurementError
from pytest_clusterqual.judge.fabric import judge_fabric
from pytest_clusterqual.judge.full_run import judge_full_run
from pytest_clusterqual.judge.memory import judge_memory
from pytest_clusterqual.judge.nodes import judge_nodes
from pytest_clusterqual.judge.pairs import worth_asking
from pytest_clusterqual.judge.scaling import judge_scaling
from pytest_clusterqual.model.measurement import (
    FabricMeasurement,
    FullRunMeasurement,
    Measurement,
    MemoryMeasurement,
    NodesMeasurement,
    ScalingMeasurement,
)
from pytest_clusterqual.model.project import Project
from pytest_clusterqual.model.record import Judgement, Verdict
from pytest_clusterqual.session import Session

M = TypeVar("M", FabricMeasurement, ScalingMeasurement)
# The smallest number of independent samples that gives a 95 % interval of a median.
_FIRST_ROUNDS = 6
_MORE_ROUNDS = 4
_MORE_REPEATS = 3


def judge(project: Project, measurement: Measurement) -> tuple[Judgement, ...]:
    """Judge any measurement against the project's requirements; pure."""
    if isinstance(measurement, NodesMeasurement):
        assert project.topology is not None
        return judge_nodes(measurement, project.topology)
    if isinstance(measurement, MemoryMeasurement):
        return judge_memory(measurement, project.requirements("memory"))
    if isinstance(measurement, FabricMeasurement):
        assert project.fabric is not None
        return judge_fabric(measurement, project.fabric)
    if isinstance(measurement, ScalingMeasurement):
        return judge_scaling(measurement, project.requirements("scaling"))
    if isinstance(measurement, FullRunMeasurement):
        return judge_full_run(measurement, project.requirements("full_run"))
    raise MeasurementError(f"{type(measurement).__name__} cannot be judged")


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
        sweep = partial(fabric_measuring.fabric, session, case.collective, case.group, arrangement=case.rank_map)
        measurement = _continued(
            sweep(rounds=_FIRST_ROUNDS), partial(sweep, rounds=_MORE_ROUNDS), project, project.fabric.budget
        )
        if worth_asking(measurement, _judged(project, measurement)):
            with suppress(ClusterQualError):  # a pair that hangs takes nothing away from what was measured
                return fabric_measuring.pairs(session, measurement, arrangement=case.rank_map)
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

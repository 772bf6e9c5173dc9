"""The criteria: the path from a case to a measurement that can be judged.

A measurement is continued while its verdict is open and its budget lasts. No pytest here.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from pytest_clusterqual import fabric_measuring, measuring, pair_measuring, perf_measuring
from pytest_clusterqual.cases import Case
from pytest_clusterqual.errors import ClusterQualError, JobError, MeasurementError
from pytest_clusterqual.judge.confirming import to_confirm
from pytest_clusterqual.judge.fabric import judge_fabric
from pytest_clusterqual.judge.full_run import judge_full_run
from pytest_clusterqual.judge.memory import judge_memory
from pytest_clusterqual.judge.nodes import judge_nodes
from pytest_clusterqual.judge.pair_causes import least_of
from pytest_clusterqual.judge.pairs import judge_pairs, worth_asking
from pytest_clusterqual.judge.placement import judge_placement
from pytest_clusterqual.judge.reported import judge_reported
from pytest_clusterqual.judge.scaling import judge_scaling
from pytest_clusterqual.judge.synchronization import judge_synchronization
from pytest_clusterqual.judge.waiting_causes import LEAST_ROUNDS
from pytest_clusterqual.model.measurement import (
    FabricMeasurement,
    FullRunMeasurement,
    Measurement,
    MemoryMeasurement,
    NodesMeasurement,
    PairsMeasurement,
    PlacementMeasurement,
    ReportedMeasurement,
    ScalingMeasurement,
    SynchronizationMeasurement,
)
from pytest_clusterqual.model.project import Project
from pytest_clusterqual.model.rank_map import Arrangement
from pytest_clusterqual.model.record import Judgement, Verdict
from pytest_clusterqual.narrowing import narrowed
from pytest_clusterqual.session import Session

M = TypeVar(
    "M", FabricMeasurement, PairsMeasurement, PlacementMeasurement, ReportedMeasurement, ScalingMeasurement,
    SynchronizationMeasurement,
)  # fmt: skip
P = TypeVar("P", FabricMeasurement, PairsMeasurement)
# The smallest number of independent samples that gives a 95 % interval of a median.
_FIRST_ROUNDS = 6
_MORE_ROUNDS = 4
_MORE_REPEATS = 3
# Enough to tell one slow rank of two from chance where single steps differ by half.
_LADDER_ROUNDS = 16


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
    if isinstance(measurement, PairsMeasurement):
        assert project.fabric is not None
        return judge_pairs(measurement, project.fabric)
    if isinstance(measurement, PlacementMeasurement):
        assert project.fabric is not None
        return judge_placement(measurement, project.fabric)
    if isinstance(measurement, SynchronizationMeasurement):
        assert project.fabric is not None
        return judge_synchronization(measurement, project.fabric)
    if isinstance(measurement, ReportedMeasurement):
        assert project.fabric is not None
        return judge_reported(measurement, project.fabric)
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
    if case.part == "pairs":
        assert project.fabric is not None
        of_nodes = partial(pair_measuring.pairs, session, arrangement=case.rank_map)
        return _confirmed(session, _continued(of_nodes(), of_nodes, project, project.fabric.budget), case.rank_map)
    if case.part == "synchronization":
        assert project.fabric is not None
        taken_apart = partial(
            fabric_measuring.synchronization, session, project.layout(case.layout or ""), rounds=_LADDER_ROUNDS,
            least=LEAST_ROUNDS,
        )  # fmt: skip
        return _continued(taken_apart(), taken_apart, project, project.fabric.budget)
    if case.part == "placement":
        assert project.fabric is not None and case.collective is not None and case.group is not None
        compared = partial(
            fabric_measuring.placement, session, case.collective, case.group, sizes=case.sizes,
            rank_maps=project.fabric.rank_maps,
        )  # fmt: skip
        return _continued(
            compared(repeats=_FIRST_ROUNDS), partial(compared, repeats=_MORE_REPEATS), project, project.fabric.budget
        )
    if case.criterion == "fabric":
        assert project.fabric is not None and case.collective is not None and case.group is not None
        if project.fabric.engine == "nccl-tests":
            runs = partial(perf_measuring.perf, session, case.collective, case.group)
            return _continued(
                runs(rounds=_FIRST_ROUNDS), partial(runs, rounds=_MORE_ROUNDS), project, project.fabric.budget
            )
        sweep = partial(
            fabric_measuring.fabric, session, case.collective, case.group, sizes=case.sizes or project.fabric.sizes,
            arrangement=case.rank_map,
        )  # fmt: skip
        try:
            measurement = _continued(
                sweep(rounds=_FIRST_ROUNDS), partial(sweep, rounds=_MORE_ROUNDS), project, project.fabric.budget
            )
        except JobError as error:
            raise narrowed(session, error, case.collective, case.sizes or project.fabric.sizes) from error
        if worth_asking(measurement, _judged(project, measurement)):
            with suppress(ClusterQualError):  # a pair that hangs takes nothing away from what was measured
                measurement = pair_measuring.after_sweep(session, measurement, arrangement=case.rank_map)
                measurement = _confirmed(session, measurement, case.rank_map)
        return measurement
    assert project.scaling is not None
    layout, points = project.layout(case.layout or ""), (project.scaling.points[0], case.nodes)
    work = partial(measuring.scaling, session, layout, points, arrangement=case.rank_map)
    return _continued(
        work(repeats=project.scaling.repeats), partial(work, repeats=_MORE_REPEATS), project, project.scaling.budget
    )


def _confirmed(session: Session, measurement: P, arrangement: Arrangement | None) -> P:
    """With a second round of what was slow among many, alone; if that fails, what was seen is not confirmed."""
    with suppress(ClusterQualError):
        alone = to_confirm(measurement.pairs, least=least_of(measurement.conditions))
        return pair_measuring.tried_alone(session, measurement, alone, arrangement=arrangement)
    return measurement


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

"""From any measurement to its judgements; each criterion has its own way, in its `verdict.py`."""

from __future__ import annotations

from pytest_clusterqual.judge.against_baseline import demanding, not_held
from pytest_clusterqual.judge.fabric.pairs import judge_pairs
from pytest_clusterqual.judge.fabric.placement import judge_placement
from pytest_clusterqual.judge.fabric.reported import judge_reported
from pytest_clusterqual.judge.fabric.verdict import judge_fabric
from pytest_clusterqual.judge.full_run.verdict import judge_full_run
from pytest_clusterqual.judge.memory.ladder import judge_memory_ladder
from pytest_clusterqual.judge.memory.verdict import judge_memory
from pytest_clusterqual.judge.nodes.verdict import judge_nodes
from pytest_clusterqual.judge.scaling.verdict import judge_scaling
from pytest_clusterqual.judge.step.synchronization import judge_synchronization
from pytest_clusterqual.model.fabric import (
    FabricMeasurement,
    PairsMeasurement,
    PlacementMeasurement,
    ReportedMeasurement,
    SynchronizationMeasurement,
)
from pytest_clusterqual.model.full_run import FullRunMeasurement
from pytest_clusterqual.model.measurement import Measurement, NodesMeasurement
from pytest_clusterqual.model.memory import MemoryLadderMeasurement, MemoryMeasurement
from pytest_clusterqual.model.project import FabricPlan, Project
from pytest_clusterqual.model.record import Judgement
from pytest_clusterqual.model.training import ScalingMeasurement

FabricKind = (
    FabricMeasurement | PairsMeasurement | PlacementMeasurement | SynchronizationMeasurement | ReportedMeasurement
)


def judge(project: Project, measurement: Measurement) -> tuple[Judgement, ...]:
    """Judge any measurement against the project's requirements and its baseline, that of this test alone; pure."""
    judged = _judge_kind(demanding(project, measurement.conditions), measurement)
    return (*judged, *not_held(project.baseline, measurement.conditions, judged))


def _judge_kind(project: Project, measurement: Measurement) -> tuple[Judgement, ...]:
    if isinstance(measurement, NodesMeasurement):
        assert project.topology is not None
        return judge_nodes(measurement, project.topology)
    if isinstance(measurement, MemoryMeasurement):
        return judge_memory(measurement, project.requirements("memory"))
    if isinstance(measurement, MemoryLadderMeasurement):
        return judge_memory_ladder(measurement, project.requirements("memory"))
    if isinstance(measurement, ScalingMeasurement):
        return judge_scaling(measurement, project.requirements("scaling"), project.target)
    if isinstance(measurement, FullRunMeasurement):
        between = project.full_run.time_between_failures if project.full_run else None
        return judge_full_run(measurement, project.requirements("full_run"), between)
    assert project.fabric is not None
    return _judge_fabric(measurement, project.fabric)


def _judge_fabric(measurement: FabricKind, plan: FabricPlan) -> tuple[Judgement, ...]:
    if isinstance(measurement, PairsMeasurement):
        return judge_pairs(measurement, plan)
    if isinstance(measurement, PlacementMeasurement):
        return judge_placement(measurement, plan)
    if isinstance(measurement, SynchronizationMeasurement):
        return judge_synchronization(measurement, plan)
    if isinstance(measurement, ReportedMeasurement):
        return judge_reported(measurement, plan)
    return judge_fabric(measurement, plan)

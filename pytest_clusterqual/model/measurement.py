"""Measurements: raw samples of every rank with the conditions they were taken under.

Never a bare number. All classes cross processes and files as JSON through `model.codec`.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.fabric import (
    FabricMeasurement,
    PairsMeasurement,
    PlacementMeasurement,
    ReportedMeasurement,
    SynchronizationMeasurement,
)
from pytest_clusterqual.model.full_run import FullRunMeasurement
from pytest_clusterqual.model.hardware import NodeHardware
from pytest_clusterqual.model.memory import MemoryLadderMeasurement, MemoryMeasurement
from pytest_clusterqual.model.training import ScalingMeasurement


@dataclass(frozen=True, kw_only=True, slots=True)
class NodesMeasurement:
    """What every node is made of. No rank ran for it, so there are no conditions but the nodes themselves."""

    nodes: tuple[NodeHardware, ...]
    started: float
    seconds: float
    conditions: Conditions | None = None


Measurement = (
    NodesMeasurement
    | MemoryMeasurement
    | MemoryLadderMeasurement
    | FabricMeasurement
    | PairsMeasurement
    | PlacementMeasurement
    | SynchronizationMeasurement
    | ReportedMeasurement
    | ScalingMeasurement
    | FullRunMeasurement
)
CRITERIA = ("nodes", "memory", "fabric", "scaling", "full_run", "decision")
# The kinds of measurements, as a run folder calls them. A criterion has one of its own name.
MEASUREMENTS: dict[str, type] = {
    "nodes": NodesMeasurement,
    "memory": MemoryMeasurement,
    "memory_ladder": MemoryLadderMeasurement,
    "fabric": FabricMeasurement,
    "pairs": PairsMeasurement,
    "placement": PlacementMeasurement,
    "synchronization": SynchronizationMeasurement,
    "reported": ReportedMeasurement,
    "scaling": ScalingMeasurement,
    "full_run": FullRunMeasurement,
}
# What a criterion measures, where that is more than the kind of its own name.
KINDS = {
    "memory": ("memory", "memory_ladder"),
    "fabric": ("fabric", "pairs", "placement", "synchronization", "reported"),
}

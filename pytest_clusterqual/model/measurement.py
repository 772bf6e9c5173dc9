"""Measurements: raw samples of every rank with the conditions they were taken under.

Never a bare number. All classes cross processes and files as JSON through `model.codec`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.fabric import (
    FabricMeasurement,
    PairsMeasurement,
    PlacementMeasurement,
    ReportedMeasurement,
    SynchronizationMeasurement,
)
from pytest_clusterqual.model.hardware import NodeHardware
from pytest_clusterqual.model.memory import MemoryLadderMeasurement, MemoryMeasurement
from pytest_clusterqual.model.training import ScalingMeasurement

SpanKind = Literal[
    "init",  # process start until the process group is ready and the model is built
    "load",  # reading the last complete checkpoint
    "data",  # waiting for the next batch
    "step",  # forward, backward, optimizer, communication
    "checkpoint",  # a save keeps training from going on
    "finish",  # waiting for the last background save
    "teardown",  # leaving the process group
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """`start` and `end` are seconds of this host's monotonic clock; `step` counts from 1, 0 if none."""

    kind: SpanKind
    attempt: int
    start: float
    end: float
    step: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """A moment on one rank, in the same clock as its spans.

    started: the process began · killed: about to be killed on purpose · failed: an exception from
    a peer's death · saved: a checkpoint of `step` became complete · resumed: training goes on
    after `step` (0: from the beginning) · done: the fixed work is finished.
    """

    kind: Literal["started", "killed", "failed", "saved", "resumed", "done"]
    attempt: int
    at: float
    step: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class RankRun:
    """Everything one rank logged over all attempts of a full run.

    `began` and `ended` are the launch as this rank's host saw it (agent started, agent ended).
    """

    rank: int
    began: float
    ended: float
    spans: tuple[Span, ...]
    marks: tuple[Mark, ...]
    losses: dict[str, float]  # step -> global loss, last attempt that did the step
    data_digest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NodesMeasurement:
    """What every node is made of. No rank ran for it, so there are no conditions but the nodes themselves."""

    nodes: tuple[NodeHardware, ...]
    started: float
    seconds: float
    conditions: Conditions | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class FullRunMeasurement:
    """`mode` is the checkpoint mode; `steps` and `tokens_per_step` the fixed work; `kill_step` 0 if none."""

    conditions: Conditions
    ranks: tuple[RankRun, ...]
    mode: str
    steps: int
    tokens_per_step: int
    kill_step: int
    started: float
    seconds: float


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

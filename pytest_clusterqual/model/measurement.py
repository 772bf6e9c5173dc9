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


@dataclass(frozen=True, kw_only=True, slots=True)
class RankMemory:
    """Memory of one rank over forward, backward and optimizer steps of the exact job, in bytes.

    `step_peaks[i]` is the peak of step i, in the terms that `counted` names. `reserved_peaks` is
    what the allocator held from the device (empty on CPU). `device_used` is the highest use seen
    at device level: the process' peak resident set on CPU, total minus free on CUDA. `limit` is
    the device memory, on CPU the rank's share; `limit_from` says where the limit comes from.
    `parts` splits the steady state: parameters, gradients, optimizer (bytes held on this rank).
    """

    rank: int
    step_peaks: tuple[int, ...]
    reserved_peaks: tuple[int, ...]
    device_used: int
    limit: int
    limit_from: str
    counted: str
    parts: dict[str, int]
    losses: tuple[float, ...]
    data_digest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Routing:
    """Where a mixture of experts sent the tokens of all steps, warm-up included, on all ranks of the job.

    `tokens[l][e]` went to expert e of layer l; each token counts `top_k` times in a layer. `degree` is the
    number of ranks that the experts of a layer are spread over.
    """

    degree: int
    top_k: int
    tokens: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineTimes:
    """The pipeline of a rank: `seconds[i]` of step i in its schedule, of which its stages were `computing`.

    `stages` are the ranks of the pipeline, each with `stages_per_rank`.
    """

    schedule: str
    stages: int
    stages_per_rank: int
    microbatches: int
    seconds: tuple[float, ...]
    computing: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RankTraining:
    """Training steps on one rank, warm-up first: all steps are kept, the judge cuts.

    `step_seconds` is the wall time of each optimizer step, data included; `data_seconds` the part
    spent waiting for data; `tokens_per_step` is global. `work_seconds` spans the fixed work's steps.
    `otherwise` says what of the layout was done by other means than torch's own.
    """

    rank: int
    warmup_seconds: tuple[float, ...]
    step_seconds: tuple[float, ...]
    data_seconds: tuple[float, ...]
    work_seconds: float
    tokens_per_step: int
    losses: tuple[float, ...]
    data_digest: str
    routing: Routing | None = None
    pipeline: PipelineTimes | None = None
    otherwise: tuple[str, ...] = ()


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
class MemoryMeasurement:
    conditions: Conditions
    ranks: tuple[RankMemory, ...]
    started: float
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingRun:
    """The fixed work done once on `conditions.nodes` nodes, in a process group of its own."""

    conditions: Conditions
    ranks: tuple[RankTraining, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingMeasurement:
    """Runs in the order they were made: baseline and candidates interleaved."""

    conditions: Conditions
    runs: tuple[ScalingRun, ...]
    started: float
    seconds: float


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
    | FabricMeasurement
    | PairsMeasurement
    | PlacementMeasurement
    | SynchronizationMeasurement
    | ReportedMeasurement
    | ScalingMeasurement
    | FullRunMeasurement
)
CRITERIA = ("nodes", "memory", "fabric", "scaling", "full_run")
# The kinds of measurements, as a run folder calls them. A criterion has one of its own name.
MEASUREMENTS: dict[str, type] = {
    "nodes": NodesMeasurement,
    "memory": MemoryMeasurement,
    "fabric": FabricMeasurement,
    "pairs": PairsMeasurement,
    "placement": PlacementMeasurement,
    "synchronization": SynchronizationMeasurement,
    "reported": ReportedMeasurement,
    "scaling": ScalingMeasurement,
    "full_run": FullRunMeasurement,
}
FABRIC_KINDS = ("fabric", "pairs", "placement", "synchronization", "reported")

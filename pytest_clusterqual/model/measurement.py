"""Measurements: raw samples of every rank with the conditions they were taken under.

Never a bare number. All classes cross processes and files as JSON through `model.codec`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pytest_clusterqual.model.hardware import NodeHardware
from pytest_clusterqual.model.telemetry import NodeTelemetry
from pytest_clusterqual.model.topology import Links


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """What else the measuring machines did meanwhile.

    `other_cpu` is the share of the measured cores' time (0 to 1) that went to processes outside
    the measurement or was stolen by the hypervisor; the worst node counts.
    """

    other_cpu: float
    node: str

    @property
    def heavy(self) -> bool:
        """True where timing on CPU says as much about the neighbours as about the machine."""
        return self.other_cpu > 0.15


@dataclass(frozen=True, kw_only=True, slots=True)
class Conditions:
    """Under which circumstances a measurement was taken. None where a field has no meaning.

    `rank_nodes[r]` is the name of the node that rank r is on. `telemetry` is what each node said
    about itself meanwhile, `rank_map` how the ranks were placed where that was asked for by name.
    """

    nodes: int
    nproc_per_node: int
    ranks: int
    hosts: tuple[str, ...]
    rank_nodes: tuple[str, ...] = ()
    simulated: bool
    oversubscribed: bool
    device: str
    device_name: str
    backend: str
    versions: dict[str, str]
    layout: str | None = None
    workload: str | None = None
    collective: str | None = None
    bytes: int | None = None
    group: str | None = None
    algorithm: str | None = None
    rank_map: str | None = None
    load: Load | None = None
    telemetry: tuple[NodeTelemetry, ...] = ()


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
class CollectiveTiming:
    """One message size on one rank. `bytes` is the whole array as nccl-tests counts it.

    `seconds[i]` is sample i: the time of one collective, averaged over `iterations` back-to-back
    calls after a barrier. `instances[i]` is what single call i took; it is the same call on every
    rank of the group, and ranks come to it as they please. `wrong` counts wrong result elements
    over all checks.
    """

    bytes: int
    iterations: int
    seconds: tuple[float, ...]
    wrong: int
    instances: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class RankFabric:
    """`group_size` is the number of ranks in this rank's group; 0 if it is in none."""

    rank: int
    group_size: int
    timings: tuple[CollectiveTiming, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PairTiming:
    """Messages of `bytes` from a rank of one node to that of another: on both it is the `rail`-th, counted from 0.

    `seconds[i]` is repeat i, from when all ranks of the job had met until the receiver had it all.
    Pairs of the same `turn` were at work at the same time, but a pair that was `alone`.
    """

    sender: str
    receiver: str
    bytes: int
    seconds: tuple[float, ...]
    rail: int = 0
    turn: int = 0
    alone: bool = False


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
class FabricMeasurement:
    """`rounds[r]` is the r-th pass over all sizes, with the result of every rank.

    `groups` are the ranks of every group of the kind. All of them were at work at the same time; in
    `alone` they took turns, at some of the sizes. `pairs` are what pairs of nodes exchanged, both
    directions of each, where that was asked for, `without_pairs` why they could not be had. `links`
    is what the nodes themselves say.
    """

    conditions: Conditions
    rounds: tuple[tuple[RankFabric, ...], ...]
    started: float
    seconds: float
    groups: tuple[tuple[int, ...], ...] = ()
    alone: tuple[tuple[RankFabric, ...], ...] = ()
    pairs: tuple[PairTiming, ...] = ()
    without_pairs: str = ""
    links: Links = field(default_factory=Links)


@dataclass(frozen=True, kw_only=True, slots=True)
class PairsMeasurement:
    """What all pairs of nodes exchanged, both directions of each; `links` as in `FabricMeasurement`."""

    conditions: Conditions
    pairs: tuple[PairTiming, ...]
    started: float
    seconds: float
    links: Links = field(default_factory=Links)


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """One pass under one rank map. `paths[r]` is the class of the path from rank r's device to its nearest NIC."""

    rank_map: str
    groups: tuple[tuple[int, ...], ...]
    ranks: tuple[RankFabric, ...]
    paths: tuple[str | None, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacementMeasurement:
    """One collective under several rank maps, in random order and repeated."""

    conditions: Conditions
    placements: tuple[Placement, ...]
    started: float
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RankLadder:
    """Seconds of the steps of one rank, rung by rung; step i of a rung is the same on every rank.

    `compute`: the step without communication, each rank by itself. `barrier`: with an empty barrier
    where the step communicates. `payload`: with the bytes exchanged there, nothing else. `step`: the
    real one. Steps of a round follow each other.
    """

    rank: int
    compute: tuple[float, ...]
    barrier: tuple[float, ...]
    payload: tuple[float, ...]
    step: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SynchronizationMeasurement:
    """`rounds[r]` holds one pass over the ladder of every rank."""

    conditions: Conditions
    rounds: tuple[tuple[RankLadder, ...], ...]
    started: float
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportedTiming:
    """One line of another tool's table: seconds of one call, out of place and in place, None where not told.

    `wrong` is the number of wrong elements, None where they were not checked.
    """

    bytes: int
    seconds: float | None
    seconds_in_place: float | None
    wrong: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportedSweep:
    """One run of another tool over its sizes; `source` is the file and line it was read from.

    `out_of_bounds` is how many wrong values the tool counted in the whole run, `group` which of the
    groups ran it, counted from 0, where they ran side by side.
    """

    source: str
    timings: tuple[ReportedTiming, ...]
    out_of_bounds: int = 0
    group: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportedMeasurement:
    """One collective as another tool measured it, in one or several runs under the same conditions."""

    conditions: Conditions
    tool: str
    sweeps: tuple[ReportedSweep, ...]
    started: float
    seconds: float
    links: Links = field(default_factory=Links)


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

"""The sections of the project file as pydantic models, each with the checks it can do alone.

What needs two sections to be judged stands in `read.checks`.
"""

from __future__ import annotations

import itertools
import math
import os
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from pytest_clusterqual import units
from pytest_clusterqual.model.decision import Outcome
from pytest_clusterqual.model.expected import Algorithm
from pytest_clusterqual.model.full_run import FAILURES, CheckpointMode, FailureKind, GoOn
from pytest_clusterqual.model.project import GROUPS, Collective, Engine, GroupKind, LauncherKind
from pytest_clusterqual.model.rank_map import Strategy
from pytest_clusterqual.model.workload import Loader, ModelShape, Optimizer, Workload
from pytest_clusterqual.read.demands import Demand, FabricDemand, FullRunDemand, MemoryDemand, ScalingDemand
from pytest_clusterqual.read.fields import (
    Address,
    Date,
    Fault,
    HostNames,
    Identifier,
    Interface,
    Minutes,
    Name,
    Natural,
    Number,
    Positive,
    RankMap,
    Rate,
    Seconds,
    Section,
    Size,
    Span,
    Times,
    Word,
    one_or_more,
)
from pytest_clusterqual.read.messages import shown


def _vocabulary(value: int) -> int:
    if value < 256:
        raise ValueError(f"got {value}, want at least 256: the data are bytes")
    return value


class Head(Section):
    version: int
    project: Name


class SlurmSection(Section):
    """What salloc is asked for outside an allocation; inside one it is not used."""

    partition: Word | None = None
    account: Word | None = None
    qos: Word | None = None
    constraint: Word | None = None
    gres: Word | None = None
    reservation: Word | None = None
    exclude: Word | None = None
    time: Seconds | None = None
    cpus_per_task: Positive | None = None
    mem: Word | None = None
    exclusive: bool = True

    def options(self) -> dict[str, str | bool]:
        """salloc's own spelling: option -> value, True for one without a value."""
        given: dict[str, Any] = self.model_dump(exclude_none=True, exclude={"time"})
        options = {
            key.replace("_", "-"): value if isinstance(value, bool) else str(value) for key, value in given.items()
        }
        return options if self.time is None else {**options, "time": str(math.ceil(self.time / 60))}  # minutes


class LauncherSection(Section):
    kind: LauncherKind = "local"
    nproc_per_node: Positive = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"
    oversubscribe: bool = False
    hosts: HostNames = ()
    interface: Interface | None = None
    address: Address | None = None
    python: Name | None = None
    rank_map: RankMap = "block"
    slurm: SlurmSection = SlurmSection()
    start_timeout: Seconds = 120.0
    job_timeout: Seconds = 120.0
    survey_timeout: Seconds = 30.0
    queue_timeout: Seconds = 86400.0

    def faults(self) -> Iterator[Fault]:
        if self.kind in ("local", "slurm") and self.hosts:
            yield ("hosts",), f"got hosts for kind {self.kind}, want kind ssh or mpi, or no hosts"


class ModelSection(Section):
    layers: Positive
    hidden: Positive
    heads: Positive
    kv_heads: Positive
    ffn: Positive
    vocab: Annotated[int, AfterValidator(_vocabulary)]
    experts: Natural = 0
    top_k: Positive = 1

    def faults(self) -> Iterator[Fault]:
        if self.top_k > max(self.experts, 1):
            yield ("top_k",), f"got {self.top_k}, want at most experts {self.experts}"
        if self.hidden % self.heads:
            yield ("heads",), f"got {self.heads}, want a divisor of hidden {self.hidden}"
        elif self.hidden // self.heads % 2:
            head = f"{self.hidden} / {self.heads} = {self.hidden // self.heads}"
            yield ("hidden",), f"got {self.hidden}, want an even size a head for rotary positions, not {head}"
        if self.heads % self.kv_heads:
            yield ("kv_heads",), f"got {self.kv_heads}, want a divisor of heads {self.heads}"


class OptimizerSection(Section):
    name: Literal["adamw"]
    lr: Number
    implementation: Literal["default", "foreach", "fused"] = "default"


class LoaderSection(Section):
    workers: Natural = 0
    prefetch: Natural = 2

    def faults(self) -> Iterator[Fault]:
        if self.workers and not self.prefetch:
            yield ("prefetch",), "got 0, want 1 or more: workers read ahead"


class DataSection(LoaderSection):
    path: Name | None = None


class JobSection(Section):
    """A job that this package's own loop does."""

    precision: Literal["fp32", "bf16", "fp16"]
    microbatch: Positive
    global_batch: Positive
    steps: Positive
    seed: Natural

    @abstractmethod
    def job(self, folder: Path) -> Workload:
        """The words; `folder` is that of the project file."""


class WorkloadSection(JobSection):
    """The reference transformer."""

    model: ModelSection
    optimizer: OptimizerSection
    sequence_length: Positive
    data: DataSection = DataSection()

    def job(self, folder: Path) -> Workload:
        path = self.data.path
        return Workload(
            model=ModelShape(**self.model.model_dump()),
            optimizer=Optimizer(**self.optimizer.model_dump()),
            data_path=None if path is None else os.path.abspath(folder / path),  # ranks may have another folder
            loader=Loader(**self.data.model_dump(exclude={"path"})),
            **self.model_dump(exclude={"model", "optimizer", "data"}),
        )


class LayoutSection(Section):
    name: Identifier
    fsdp: Literal["full", "grad-op", "hybrid", None] = None
    activation_checkpointing: Literal["none", "selective", "full"] = "none"
    tensor: Positive = 1
    pipeline: Positive = 1
    context: Positive = 1
    expert: Positive = 1
    schedule: Literal["1f1b", "gpipe", "interleaved"] = "1f1b"
    stages_per_rank: Positive = 1

    def faults(self) -> Iterator[Fault]:
        if self.schedule != "1f1b" and self.pipeline == 1:
            yield ("schedule",), f"got {shown(self.schedule)}, want a pipeline of 2 or more with it"
        elif self.schedule == "interleaved" and self.stages_per_rank == 1:
            yield ("schedule",), f"got {shown(self.schedule)}, want stages_per_rank of 2 or more with it"
        elif self.schedule != "interleaved" and self.stages_per_rank > 1:
            yield ("stages_per_rank",), f"got {self.stages_per_rank}, want 1, or schedule: interleaved"


class TargetSection(Section):
    tokens: Number
    time: Span


class DecisionSection(Section):
    expect: Outcome | None = None
    goal: Literal["time", "throughput"] = "time"


class ExceptionSection(Section):
    test: Name
    reason: Name
    until: Date


class CriterionSection(Section):
    """`require` is read entry by entry as `demand`, so that one bad entry does not hide the others' faults."""

    demand: ClassVar[type[Demand]]
    require: list[Any] = Field(default_factory=list)


class TrainingSection(CriterionSection):
    """A criterion that runs the workload: under all layouts of the file, or under those it names."""

    layouts: list[str] | None = Field(default=None, min_length=1)

    def faults(self) -> Iterator[Fault]:
        yield from _repeated("layouts", self.layouts or [])


def _repeated(key: str, names: Sequence[str]) -> Iterator[Fault]:
    for index, name in enumerate(names):
        if name in names[:index]:
            yield (key, index), f"got {shown(name)} again, want each once"


class MemorySection(TrainingSection):
    demand = MemoryDemand
    steps: Positive = 3
    ladder: bool = False
    device_memory: Size | None = None
    budget: Seconds = 120.0


class SizesSection(Section):
    from_: Annotated[Size, Field(alias="from")]
    to: Size
    factor: Annotated[int, Field(gt=1)] = 4

    def faults(self) -> Iterator[Fault]:
        if self.to < self.from_:
            small, large = (units.show(size, units.BYTES) for size in (self.to, self.from_))
            yield ("to",), f"got {small}, want at least the {large} of from"

    def expand(self) -> tuple[int, ...]:
        """The sizes in bytes, each `factor` times the one before, none above `to`."""
        sizes, size = [], int(self.from_)
        while size <= self.to:
            sizes.append(size)
            size *= self.factor
        return tuple(sizes)


class LinksSection(Section):
    intra_node: Rate | None = None
    nic: Rate | None = None
    nics_per_node: Positive = 1


class FabricSection(CriterionSection):
    demand = FabricDemand
    collectives: list[Collective] | None = Field(default=None, min_length=1)
    groups: list[GroupKind] = Field(default_factory=lambda: list(GROUPS), min_length=1)
    sizes: SizesSection = SizesSection.model_construct(from_=2.0**12, to=2.0**24, factor=4)
    traffic: bool = True
    links: LinksSection = LinksSection()
    algorithm: Algorithm = "ring"
    engine: Engine = "torch"
    pairs: bool = False
    rank_maps: list[Strategy] = Field(default_factory=list)
    synchronization: list[str] = Field(default_factory=list)
    budget: Seconds = 20.0

    def faults(self) -> Iterator[Fault]:
        for key in ("rank_maps", "collectives", "groups", "synchronization"):
            yield from _repeated(key, getattr(self, key) or [])


class ScalingSection(TrainingSection):
    demand = ScalingDemand
    points: list[Positive] = Field(default_factory=lambda: [1, 2], min_length=1)
    repeats: Times = 6
    launches: Times = 1
    waterfall: bool = True
    warmup_steps: Natural = 3
    rank_maps: list[Strategy] = Field(default_factory=list)
    budget: Seconds = 120.0

    def faults(self) -> Iterator[Fault]:
        yield from super().faults()
        yield from _repeated("rank_maps", self.rank_maps)
        for index, (before, after) in enumerate(itertools.pairwise(self.points)):
            if after <= before:
                yield ("points", index + 1), f"got {after} after {before}, want node counts in rising order"


class CheckpointSection(Section):
    every: Positive = 10
    mode: CheckpointMode = "async"
    folder: Name | None = None


class FailureSection(Section):
    kill_rank: Natural | None = None
    hang_rank: Natural | None = None
    raise_rank: Natural | None = None
    fail_save: Natural | None = None
    kill_node: Natural | None = None
    sigterm: Literal[True] | None = None
    at_step: Positive
    go_on: GoOn = "same"

    @property
    def kind(self) -> FailureKind:
        return next(kind for kind in FAILURES if getattr(self, kind) is not None)

    @property
    def target(self) -> int:
        return 0 if self.sigterm else int(getattr(self, self.kind))

    def faults(self) -> Iterator[Fault]:
        given = [kind for kind in FAILURES if getattr(self, kind) is not None]
        if len(given) != 1:
            what = f"got {' and '.join(given)}" if given else "nothing is to fail"
            yield (*given[1:2],), f"{what}, want one of {', '.join(FAILURES)}"
        elif self.go_on != "same" and self.kind != "kill_node":
            yield ("go_on",), f"got {shown(self.go_on)}, want same: only a node that is lost can be replaced"


class FullRunSection(TrainingSection):
    demand = FullRunDemand
    steps: Positive | None = None
    minutes: Minutes | None = None
    checkpoint: Annotated[list[CheckpointSection], BeforeValidator(one_or_more), Field(min_length=1)] = Field(
        default_factory=lambda: [CheckpointSection()]
    )
    failure: Annotated[list[FailureSection] | None, BeforeValidator(one_or_more)] = None
    hang_timeout: Seconds = 30.0
    time_between_failures: Span | None = None
    alone: bool = True
    apart: bool = True

    def faults(self) -> Iterator[Fault]:
        yield from super().faults()
        if self.steps and self.minutes:
            yield ("minutes",), f"got {self.minutes:g} beside steps {self.steps}, want one of them"
        for key, entries in (("checkpoint", self.checkpoint), ("failure", self.failure or [])):
            for index, entry in enumerate(entries):
                if entry in entries[:index]:
                    yield (key, index), "the same again, want each once"

"""The project file as words: what to run, on what, and what is demanded.

`read.project` makes these from YAML; nothing here knows the file's syntax.
"""

from __future__ import annotations

import datetime
import fnmatch
import operator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from pytest_clusterqual.errors import ClusterQualError
from pytest_clusterqual.model.baseline import Baseline
from pytest_clusterqual.model.command import CommandJob
from pytest_clusterqual.model.decision import Outcome
from pytest_clusterqual.model.expected import Algorithm
from pytest_clusterqual.model.full_run import Checkpoints, Failure
from pytest_clusterqual.model.groups import mesh
from pytest_clusterqual.model.purchase import PurchasePlan
from pytest_clusterqual.model.rank_map import Arrangement, Strategy
from pytest_clusterqual.model.requirement import Op, Requirement
from pytest_clusterqual.model.topology import Links
from pytest_clusterqual.model.workload import Layout, Workload

LauncherKind = Literal["local", "ssh", "slurm", "mpi"]
LAUNCHERS: tuple[LauncherKind, ...] = ("local", "ssh", "slurm", "mpi")
Collective = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "all_to_all_v", "send_recv", "broadcast"
]
COLLECTIVES: tuple[Collective, ...] = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "all_to_all_v", "send_recv", "broadcast",
)  # fmt: skip
# `layouts` stands for the groups that the layouts of the file make, such as ``tp2.tensor``.
GroupKind = Literal["intra_node", "inter_node", "rails", "world", "layouts"]
GROUPS: tuple[GroupKind, ...] = ("intra_node", "inter_node", "rails", "world", "layouts")
Engine = Literal["torch", "nccl-tests"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LauncherOptions:
    """How ranks are started and where they sit. All time-outs are in seconds.

    `hosts` are those of ssh and mpi. `interface` is what ranks talk over, `address` where the nodes
    reach the session, `python` what runs on the nodes; None leaves it to the launcher. `slurm` holds
    salloc's options, by name.
    """

    kind: LauncherKind = "local"
    nproc_per_node: int = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"
    oversubscribe: bool = False
    hosts: tuple[str, ...] = ()
    interface: str | None = None
    address: str | None = None
    python: str | None = None
    rank_map: Arrangement = "block"
    slurm: dict[str, str | bool] = field(default_factory=lambda: {"exclusive": True})
    start_timeout: float = 120.0
    job_timeout: float = 120.0
    survey_timeout: float = 30.0
    queue_timeout: float = 86400.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """The whole training run that the job is a sample of: tokens, and seconds it may take."""

    tokens: float
    time: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TopologyDemand:
    """What the file promises of every node, such as `key` ``gpu_memory``, `op` ``>=``, `value` 8e10 (bytes).

    A count is exact (``==``), a name is a part of the real one, in capitals or not (``in``).
    """

    key: str
    op: Op | Literal["==", "in"]
    value: float | str
    text: str
    source: str

    def met_by(self, value: float | str) -> bool:
        """Compare what one device or node has."""
        if isinstance(self.value, str) or isinstance(value, str):
            return str(self.value).lower() in str(value).lower()
        return bool(_COMPARED[self.op](value, self.value))


@dataclass(frozen=True, kw_only=True, slots=True)
class TopologyPlan:
    """What nodes are held against: each other, and the promises in `demands`.

    `clock_tolerance` is the share by which GPU clocks may differ; None leaves them alone. `source`
    is the place of the section.
    """

    source: str
    demands: tuple[TopologyDemand, ...] = ()
    clock_tolerance: float | None = None

    def demand(self, key: str) -> TopologyDemand | None:
        return next((demand for demand in self.demands if demand.key == key), None)


_COMPARED = {"==": operator.eq, "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPlan:
    """`steps` optimizer steps in fresh processes. `layouts` names some of the file's; None: all.

    `ladder` gives a test of all ways to make the job fit, from one device up. In it, `device_memory` in
    bytes lets each device have less than there is, as if it were a smaller one; None: all of it. What fits
    is timed for about `budget` seconds.
    """

    layouts: tuple[str, ...] | None = None
    require: tuple[Requirement, ...] = ()
    steps: int = 3
    ladder: bool = False
    device_memory: int | None = None
    budget: float = 120.0


@dataclass(frozen=True, kw_only=True, slots=True)
class FabricPlan:
    """Sizes in bytes. `budget` is the seconds one test may measure before it must conclude.

    `collectives` None: those that the layouts need, and broadcast. `traffic` adds the message sizes
    of the layouts to `sizes`. `algorithm` is what the expected level is derived for. `pairs` gives
    a test of all pairs of nodes. Each of `rank_maps` gives tests of its own, and two or more a
    comparison; without any the launcher's is used. `synchronization` names the layouts whose step
    is taken apart.
    """

    collectives: tuple[Collective, ...] | None = None
    groups: tuple[GroupKind, ...] = GROUPS
    sizes: tuple[int, ...] = ()
    traffic: bool = True
    links: Links = field(default_factory=Links)
    algorithm: Algorithm = "ring"
    engine: Engine = "torch"
    pairs: bool = False
    rank_maps: tuple[Strategy, ...] = ()
    synchronization: tuple[str, ...] = ()
    require: tuple[Requirement, ...] = ()
    budget: float = 20.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingPlan:
    """`points` are node counts, the first one the baseline; `repeats` runs of each before judging.

    They are spread over `launches` of the ranks. `waterfall` takes the step of the larger points apart.
    """

    points: tuple[int, ...] = (1, 2)
    repeats: int = 6
    launches: int = 1
    waterfall: bool = True
    warmup_steps: int = 3
    layouts: tuple[str, ...] | None = None
    rank_maps: tuple[Strategy, ...] = ()
    require: tuple[Requirement, ...] = ()
    budget: float = 120.0


@dataclass(frozen=True, kw_only=True, slots=True)
class FullRunPlan:
    """Every one of `failures` is a run with the first of `checkpoints`; every other of `checkpoints` one without a
    failure. Without failures every one of `checkpoints` is such a run.

    `steps` replaces the workload's own number of steps for this criterion; with `minutes`, in seconds, there are as
    many steps as take that long. A rank from which nothing is heard for `hang_timeout` seconds hangs.
    `time_between_failures` is what is assumed of the whole job, seconds; None: nothing. `alone` compares with the same
    run on one node, and `apart` takes the step apart.
    """

    steps: int | None = None
    minutes: float | None = None
    checkpoints: tuple[Checkpoints, ...] = (Checkpoints(),)
    failures: tuple[Failure, ...] = ()
    hang_timeout: float = 30.0
    time_between_failures: float | None = None
    alone: bool = True
    apart: bool = True
    layouts: tuple[str, ...] | None = None
    require: tuple[Requirement, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class DecisionPlan:
    """`expect` is the outcome that the file expects, None to be told only.

    `goal` is what more hardware is for: one job done sooner, or more work of independent jobs.
    `source` is the place of the expectation.
    """

    expect: Outcome | None = None
    goal: Literal["time", "throughput"] = "time"
    source: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownException:
    """A failure that is accepted until a day, for a reason. `test` is a shell-style pattern."""

    test: str
    reason: str
    until: datetime.date

    def covers(self, test: str, today: datetime.date) -> bool:
        """True if `test` (a node id or the test's own name) is excepted today, the last day included."""
        name = test.rsplit("::", 1)[-1]
        return today <= self.until and (fnmatch.fnmatch(test, self.test) or fnmatch.fnmatch(name, self.test))


@dataclass(frozen=True, kw_only=True, slots=True)
class Project:
    """`job` is what trains: one that this package runs itself, or a command of the user's own, which has one layout.

    `baseline` is no part of the file: a known good run that the tests are held against as well.
    """

    path: Path
    name: str
    launcher: LauncherOptions
    job: Workload | CommandJob
    layouts: tuple[Layout, ...]
    target: Target | None = None
    topology: TopologyPlan | None = None
    memory: MemoryPlan | None = None
    fabric: FabricPlan | None = None
    scaling: ScalingPlan | None = None
    full_run: FullRunPlan | None = None
    decision: DecisionPlan | None = None
    purchase: PurchasePlan | None = None
    exceptions: tuple[KnownException, ...] = ()
    baseline: Baseline | None = None

    def of_test(self, test: str) -> Project:
        """The project as it judges one test: of the baseline, what that demands of this test alone."""
        return replace(self, baseline=self.baseline.only(test)) if self.baseline else self

    def requirements(self, criterion: str) -> tuple[Requirement, ...]:
        plans = {"memory": self.memory, "fabric": self.fabric, "scaling": self.scaling, "full_run": self.full_run}
        plan = plans.get(criterion)
        return plan.require if plan else ()

    @property
    def command(self) -> CommandJob | None:
        """The job, if it is a command."""
        return self.job if isinstance(self.job, CommandJob) else None

    @property
    def workload(self) -> Workload:
        """The job, of which everything is known.

        Raises:
            ClusterQualError: it is a command.
        """
        if isinstance(self.job, CommandJob):
            raise ClusterQualError(f"of the job {self.job.name} only its command is known: this cannot be told of it")
        return self.job

    def layout(self, name: str) -> Layout:
        return next(layout for layout in self.layouts if layout.name == name)

    def unfit(self, layout: str, *, nodes: int, nproc_per_node: int) -> str:
        """Why the exact job cannot be spread like that over so many nodes; a command says so itself."""
        if self.command is not None:
            return ""
        try:
            self.workload.accumulation(mesh(self.layout(layout), nodes * nproc_per_node, nproc_per_node).data)
        except ValueError as error:
            return str(error)
        return ""

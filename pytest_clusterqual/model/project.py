"""The project file as words: what to run, on what, and what is demanded.

`read.project` makes these from YAML; nothing here knows the file's syntax.
"""

from __future__ import annotations

import datetime
import fnmatch
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pytest_clusterqual.model.requirement import Requirement
from pytest_clusterqual.model.topology import Links
from pytest_clusterqual.model.workload import Layout, Workload

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]
GroupKind = Literal["intra_node", "inter_node", "world"]
COLLECTIVES: tuple[Collective, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
GROUPS: tuple[GroupKind, ...] = ("intra_node", "inter_node", "world")


@dataclass(frozen=True, kw_only=True, slots=True)
class LauncherOptions:
    """How ranks are started. `start_timeout` and `job_timeout` are in seconds."""

    kind: Literal["local"] = "local"
    nproc_per_node: int = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"
    oversubscribe: bool = False
    start_timeout: float = 120.0
    job_timeout: float = 120.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """The whole training run that the job is a sample of: tokens, and seconds it may take."""

    tokens: float
    time: float


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPlan:
    """`steps` optimizer steps in fresh processes. `layouts` names some of the file's; None: all."""

    layouts: tuple[str, ...] | None = None
    require: tuple[Requirement, ...] = ()
    steps: int = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class FabricPlan:
    """Sizes in bytes. `budget` is the seconds one test may measure before it must conclude."""

    collectives: tuple[Collective, ...] = COLLECTIVES
    groups: tuple[GroupKind, ...] = GROUPS
    sizes: tuple[int, ...] = ()
    links: Links = field(default_factory=Links)
    require: tuple[Requirement, ...] = ()
    budget: float = 20.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingPlan:
    """`points` are node counts, the first one the baseline; `repeats` runs of each before judging."""

    points: tuple[int, ...] = (1, 2)
    repeats: int = 6
    warmup_steps: int = 3
    layouts: tuple[str, ...] | None = None
    require: tuple[Requirement, ...] = ()
    budget: float = 120.0


@dataclass(frozen=True, kw_only=True, slots=True)
class FullRunPlan:
    """A checkpoint every `checkpoint_every` steps; rank `kill_rank` is killed at `kill_step` (0: never).

    `steps` replaces the workload's own number of steps for this criterion if it is given.
    """

    steps: int | None = None
    checkpoint_every: int = 10
    checkpoint_mode: Literal["sync", "async"] = "async"
    kill_rank: int | None = None
    kill_step: int = 0
    layouts: tuple[str, ...] | None = None
    require: tuple[Requirement, ...] = ()


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
    path: Path
    name: str
    launcher: LauncherOptions
    workload: Workload
    layouts: tuple[Layout, ...]
    target: Target | None = None
    memory: MemoryPlan | None = None
    fabric: FabricPlan | None = None
    scaling: ScalingPlan | None = None
    full_run: FullRunPlan | None = None
    exceptions: tuple[KnownException, ...] = ()

    def requirements(self, criterion: str) -> tuple[Requirement, ...]:
        plan = {"memory": self.memory, "fabric": self.fabric, "scaling": self.scaling, "full_run": self.full_run}[
            criterion
        ]
        return plan.require if plan else ()

    def layout(self, name: str) -> Layout:
        return next(layout for layout in self.layouts if layout.name == name)

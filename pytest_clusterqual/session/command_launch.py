"""One run of a user's own command: started by torchrun on all nodes, watched from outside, read where it wrote."""

from __future__ import annotations

import json
import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pytest_clusterqual.errors import JobError, LaunchError, MeasurementError
from pytest_clusterqual.launch.agents import Launch
from pytest_clusterqual.launch.plan import Launcher, LaunchPlan, NodePlan
from pytest_clusterqual.model.codec import to_json
from pytest_clusterqual.model.command import BESIDE, OUTPUT, OWN, PROBES, CommandJob, CommandProcess, probed_bytes
from pytest_clusterqual.model.full_run import Failure
from pytest_clusterqual.model.project import LauncherOptions
from pytest_clusterqual.model.topology import RankPlace, check_world
from pytest_clusterqual.session.command_trouble import failure_of, processes_of, steps_done, struck
from pytest_clusterqual.session.launch_end import agents_began, agents_ended, lost_nodes, nodes_after, of_both
from pytest_clusterqual.session.wire import Wire
from pytest_clusterqual.session.world import Progress

BACKEND = "backend not known"
_LOOK_SECONDS = 0.05
_TELL_SECONDS = 1.0
# What another launcher than torchrun runs on each rank: it may know of scripts only.
_SCRIPT = "rank.py"
_ON_EACH_RANK = "from pytest_clusterqual.rank.__main__ import main\n\nmain()\n"
_PORTS = range(20000, 30000)  # below those that systems give to connections
_BEHIND_SECONDS = 60.0  # NFS looks at a folder again half a minute after it did


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandRun:
    """What came of one run. `folder` holds what was written, for whoever reads it before it is thrown away.

    `processes` are all of each rank, first to last, `places` where the first ones were. `began` and `ended` say when
    the agent of each rank's node began at first and ended at last, in seconds of that host's monotonic clock; a rank
    that did not come back has no end. `samples` are what the guards told of their nodes. `out_of_memory` says who ran
    out of memory; such a run came to no end.
    """

    folder: Path
    processes: dict[int, tuple[CommandProcess, ...]]
    places: tuple[RankPlace, ...]
    began: dict[int, float]
    ended: dict[int, float]
    samples: dict[str, list[dict[str, Any]]]
    out_of_memory: str = ""

    @property
    def last(self) -> list[CommandProcess]:
        """The last process of each rank, in rank order."""
        return [processes[-1] for _, processes in sorted(self.processes.items())]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Launched:
    """One launch. Without `ended` a failure on purpose has ended it, or memory ran out; `lost` are nodes that are no
    more.
    """

    began: dict[str, float]
    ended: dict[str, float]
    samples: dict[str, list[dict[str, Any]]]
    lost: frozenset[str] = frozenset()
    out_of_memory: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandLaunch:
    """One run of a command, which may take two launches: what they have in common.

    `folder` is the run's own, which the caller removes; what ranks printed is kept in `logs`. `steps` is what the
    command is told to do, `hang_timeout` the seconds after which a rank that was stopped on purpose is found.
    """

    launcher: Launcher
    nproc_per_node: int
    job: CommandJob
    steps: int | None
    hang_timeout: float
    device: Literal["cpu", "cuda"]
    limits: LauncherOptions
    folder: Path
    logs: Path
    tell: Callable[[Progress], None]
    what: str

    def run(self, nodes: Sequence[NodePlan], failure: Failure | None, spare: NodePlan | None) -> CommandRun:
        """Run the command to its end.

        Where the failure ends the agents as well, another launch goes on, as in a full run of this package's own loop.

        Raises:
            JobError: it failed or did not end in time; the message names who, and shows what it printed last.
            LaunchError: another world ran than was asked for, or the folder cannot be made.
        """
        _make(self.folder)
        first = last = self._launch(nodes, failure)
        processes = processes_of(self.folder)
        if first.out_of_memory:
            return CommandRun(
                folder=self.folder, processes=processes, places=_places(processes, 0), began={}, ended={},
                samples=first.samples, out_of_memory=first.out_of_memory,
            )  # fmt: skip
        if not first.ended:
            assert failure is not None
            self._check(_places(processes, 0), nodes)
            nodes = nodes_after(failure, nodes, first.lost, spare)
            last = self._launch(nodes, None)
            if last.out_of_memory:
                raise JobError(f"{self.what} ran out of memory once it went on: {last.out_of_memory}")
        size = len(nodes) * self.nproc_per_node
        processes = _arrived(self.folder, size, here=self.launcher.simulated)
        if self.job.launcher_line and not processes:
            raise self._nothing_begun()
        processes = _whole(processes, size, self.folder)
        began, there = _places(processes, 0), _places(processes, -1)[:size]
        self._check(there, nodes)
        return CommandRun(
            folder=self.folder, processes=processes, places=began,
            began={place.rank: first.began[place.node] for place in began},
            ended={place.rank: last.ended[place.node] for place in there},
            samples=first.samples if last is first else of_both(first.samples, last.samples),
        )  # fmt: skip

    def _nothing_begun(self) -> LaunchError:
        """A line of the user's own may end well without having started anything."""
        storage = (
            f"; if it does, the nodes do not share {self.folder} with the session: put the run folder where all of "
            "them see it, with --qual-run-dir"
        )
        return LaunchError(
            f"no rank has begun, though {self.job.launcher_line[0]} ended well on every node: workload.launcher_line "
            "must run the script and the words that are put behind it, on each rank"
            + ("" if self.launcher.simulated else storage)
        )

    def _check(self, places: Sequence[RankPlace], nodes: Sequence[NodePlan]) -> None:
        check_world(
            places, nodes=[node.name for node in nodes], hosts=[node.host for node in nodes], device=self.device,
            nproc_per_node=self.nproc_per_node, backend=BACKEND,
        )  # fmt: skip

    def _launch(self, nodes: Sequence[NodePlan], failure: Failure | None) -> _Launched:
        plan = self._plan(nodes, failure)
        size = len(nodes) * self.nproc_per_node
        watch = _Watch(
            folder=self.folder, size=size, start=self.limits.start_timeout, before=_starts(self.folder),
            limit=self.job.time_limit or self.limits.job_timeout,
        )  # fmt: skip
        wire = Wire(self.launcher, plan, logs=self.logs)
        try:
            late = not _ended(wire.launch, watch, lambda done: self._tell(size, done))
            if not (self.folder / BESIDE).is_dir():
                raise JobError(
                    f"{self.what}: {self.folder}, where its ranks write, is gone: the command has removed or renamed "
                    "it; have it tidy up in {run} only"
                )
            processes = wire.launch.processes
            began = agents_began(processes)
            samples = {process.node.name: process.samples for process in processes}
            if late or any(process.poll() != 0 for process in processes):
                if failure is not None and failure.ends_launch and not late and struck(self.folder / PROBES):
                    lost = lost_nodes(wire.launch, failure)
                    return _Launched(began=began, ended={}, samples=samples, lost=lost)
                failed = failure_of(wire.launch, self.folder, self.what, watch.allowed if late else None)
                if not failed.out_of_memory or sorted(processes_of(self.folder)) != list(range(size)):
                    raise failed
                return _Launched(began=began, ended={}, samples=samples, out_of_memory=failed.out_of_memory)
            wire.launch.check_machines()
            ended = agents_ended(processes)
        finally:
            wire.close()
            _keep_output(self.folder, self.logs / f"{plan.launch}-output")
        return _Launched(began=began, ended=ended, samples=samples)

    def _plan(self, nodes: Sequence[NodePlan], failure: Failure | None) -> LaunchPlan:
        filled = partial(
            self.job.filled, run=str(self.folder / OWN), steps=self.steps, ranks=len(nodes) * self.nproc_per_node,
            nodes=len(nodes),
        )  # fmt: skip
        order = {
            "folder": str(self.folder), "home": self.job.folder, "failure": to_json(failure) if failure else None,
            "victim": nodes[failure.target].name if failure and failure.kind == "kill_node" else "",
            "hang_timeout": self.hang_timeout,
            "environment": {name: filled(text) for name, text in self.job.environment.items()},
        }  # fmt: skip
        return LaunchPlan(
            nodes=tuple(nodes), nproc_per_node=self.nproc_per_node, device=self.device, mode="command",
            launch=secrets.token_hex(4), store=("", 0), interface=self.launcher.interface,
            max_restarts=1 if failure and not failure.ends_launch else 0, timeout=self.limits.start_timeout,
            words=tuple(map(filled, self.job.words)),
            variables={"CLUSTERQUAL_COMMAND": json.dumps(order)}, line=self.job.launcher_line,
            script=str(self.folder / _SCRIPT), port=secrets.choice(_PORTS),
        )  # fmt: skip

    def _tell(self, size: int, done: int) -> None:
        self.tell(Progress(self.what, size, done=done, total=self.steps or 0))


def _places(processes: dict[int, tuple[CommandProcess, ...]], which: int) -> tuple[RankPlace, ...]:
    """Where the first (0) or the last (-1) process of each rank was."""
    starts = [each[which].start for _, each in sorted(processes.items())]
    return tuple(
        RankPlace(
            rank=start.rank, local_rank=start.local_rank, node=start.node, host=start.host, pid=start.pid,
            device=start.device, device_name="", backend=BACKEND, cores=start.cores, versions=start.versions,
        )
        for start in starts
    )  # fmt: skip


def _make(folder: Path) -> None:
    try:
        for name in (BESIDE, OUTPUT, OWN, PROBES):
            (folder / name).mkdir(parents=True)
        (folder / _SCRIPT).write_text(_ON_EACH_RANK, encoding="utf-8")
    except OSError as error:
        raise LaunchError(
            f"{folder}: cannot be made for the command's run: {error.strerror}; name another run folder with "
            "--qual-run-dir"
        ) from None


def _keep_output(folder: Path, kept: Path) -> None:
    """What the ranks printed stays in the run folder."""
    if (folder / OUTPUT).is_dir() and any((folder / OUTPUT).iterdir()):
        shutil.copytree(folder / OUTPUT, kept)


@dataclass(kw_only=True, slots=True)
class _Watch:
    """How far a launch is, and until when it may go on: `start` seconds until all ranks have begun, then `limit` more.

    `before` is how many processes had begun when it was begun itself.
    """

    folder: Path
    size: int
    start: float
    limit: float
    before: int
    deadline: float = 0.0
    begun: bool = False
    looked: float = 0.0

    @property
    def allowed(self) -> float:
        """The limit that it is under, seconds."""
        return self.limit if self.begun else self.start

    def late(self) -> bool:
        now = time.monotonic()
        self.deadline = self.deadline or now + self.start
        if not self.begun and now - self.looked > _TELL_SECONDS / 4:
            self.looked = now
            self.begun = _starts(self.folder) >= self.before + self.size
            self.deadline = now + self.limit if self.begun else self.deadline
        return now > self.deadline


def _starts(folder: Path) -> int:
    return sum(1 for _ in (folder / BESIDE).glob("*.start.json"))


def _ended(launch: Launch, watch: _Watch, tell: Callable[[int], None]) -> bool:
    """Wait until all agents have ended or one of them badly, and `tell` the steps done; False if it is late."""
    told = 0.0
    while True:
        ended = launch.ended()
        if len(ended) == len(launch.processes) or any(process.poll() != 0 for process in ended):
            return True
        if watch.late():
            return False
        if time.monotonic() - told > _TELL_SECONDS:
            told = time.monotonic()
            tell(steps_done(watch.folder / PROBES).get(0, 0))
        time.sleep(_LOOK_SECONDS)


def _arrived(folder: Path, size: int, *, here: bool) -> dict[int, tuple[CommandProcess, ...]]:
    """All that was written; shared storage may show it a while after it was, where that was not `here`."""
    deadline = time.monotonic() + _BEHIND_SECONDS
    while True:
        processes = processes_of(folder)
        ends = {rank: each[-1].end for rank, each in processes.items() if rank < size}
        whole = (end is not None and probed_bytes(folder / PROBES, rank) >= end.probed for rank, end in ends.items())
        if (ends.keys() >= set(range(size)) and all(whole)) or time.monotonic() > deadline:
            return processes
        if here and not processes:
            return processes
        time.sleep(_LOOK_SECONDS)


def _whole(
    processes: dict[int, tuple[CommandProcess, ...]], size: int, folder: Path
) -> dict[int, tuple[CommandProcess, ...]]:
    """World check: of every rank there is a process, in a world as large as it was asked for."""
    if missing := sorted(set(range(size)) - set(processes)):
        raise LaunchError(
            f"of {len(missing)} of {size} ranks (first rank {missing[0]}) nothing is written in {folder}: the nodes do "
            "not share this storage with the session; put the run folder where all of them see it, with --qual-run-dir"
        )
    for rank, each in sorted(processes.items())[:size]:
        start = each[-1].start
        if start.world != size:
            raise LaunchError(f"rank {rank} on {start.node} was in a world of {start.world}, asked were {size} ranks")
        if (end := each[-1].end) is None or end.code:
            raise MeasurementError(f"rank {rank} on {start.node} did not tell that it ended well")
    if len(scripts := {each[-1].start.script for each in processes.values()}) > 1:
        raise LaunchError(f"the ranks ran different scripts: digests {', '.join(sorted(scripts))}")
    return processes

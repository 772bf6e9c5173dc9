"""One run of a user's own command: started by torchrun on all nodes, watched from outside, read where it wrote."""

from __future__ import annotations

import json
import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pytest_clusterqual.command_trouble import failure_of, processes_of, steps_done
from pytest_clusterqual.errors import LaunchError, MeasurementError
from pytest_clusterqual.launch.agents import Launch
from pytest_clusterqual.launch.plan import Launcher, LaunchPlan, NodePlan
from pytest_clusterqual.model.codec import to_json
from pytest_clusterqual.model.command import BESIDE, OUTPUT, OWN, PROBES, CommandJob, CommandProcess, probed_bytes
from pytest_clusterqual.model.full_run import Failure
from pytest_clusterqual.model.project import LauncherOptions
from pytest_clusterqual.model.topology import RankPlace, check_world
from pytest_clusterqual.training_launch import Clock, agent_clocks
from pytest_clusterqual.wire import Wire
from pytest_clusterqual.world import Progress

BACKEND = "backend not known"
_LOOK_SECONDS = 0.05
_TELL_SECONDS = 1.0
_BEHIND_SECONDS = 60.0  # NFS looks at a folder again half a minute after it did


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandRun:
    """What came of one run. `folder` holds what was written, for whoever reads it before it is thrown away.

    `processes` are all of each rank, first to last; `clocks` say when the agent of each node began and ended; `samples`
    are what the guards told of their nodes. `out_of_memory` says who ran out of memory; such a run came to no end.
    """

    folder: Path
    processes: dict[int, tuple[CommandProcess, ...]]
    places: tuple[RankPlace, ...]
    clocks: dict[str, Clock]
    samples: dict[str, list[dict[str, Any]]]
    out_of_memory: str = ""

    @property
    def last(self) -> list[CommandProcess]:
        """The last process of each rank, in rank order."""
        return [processes[-1] for _, processes in sorted(self.processes.items())]


def run_command(
    launcher: Launcher,
    nodes: Sequence[NodePlan],
    nproc_per_node: int,
    job: CommandJob,
    *,
    steps: int | None,
    failure: Failure | None,
    device: Literal["cpu", "cuda"],
    limits: LauncherOptions,
    folder: Path,
    logs: Path,
    tell: Callable[[Progress], None],
    what: str,
) -> CommandRun:
    """Run the command to its end, with a `folder` of its own, which the caller removes.

    Raises:
        JobError: it failed or did not end in time; the message names who, and shows what it printed last.
        LaunchError: another world ran than was asked for, or the folder cannot be made.
    """
    _make(folder)
    launch_id = secrets.token_hex(4)
    own = str(folder / OWN)
    order = {
        "folder": str(folder), "home": job.folder, "failure": to_json(failure) if failure else None,
        "environment": {name: job.filled(text, run=own, steps=steps) for name, text in job.environment.items()},
    }  # fmt: skip
    plan = LaunchPlan(
        nodes=tuple(nodes), nproc_per_node=nproc_per_node, device=device, mode="command", launch=launch_id,
        store=("", 0), interface=launcher.interface, max_restarts=1 if failure else 0, timeout=limits.start_timeout,
        words=tuple(job.filled(word, run=own, steps=steps) for word in job.words),
        variables={"CLUSTERQUAL_COMMAND": json.dumps(order)},
    )  # fmt: skip
    limit = job.time_limit or limits.job_timeout
    size = len(nodes) * nproc_per_node
    wire = Wire(launcher, plan, logs=logs)
    try:
        watch = _Watch(folder=folder, size=size, start=limits.start_timeout, limit=limit)
        late = not _ended(wire.launch, watch, lambda done: tell(Progress(what, size, done=done, total=steps or 0)))
        samples = {process.node.name: process.samples for process in wire.launch.processes}
        if late or any(process.poll() != 0 for process in wire.launch.processes):
            limit = limit if watch.begun else limits.start_timeout
            failed = failure_of(wire.launch, folder, what, limit if late else None)
            processes = processes_of(folder)
            if not failed.out_of_memory or sorted(processes) != list(range(size)):
                raise failed
            return CommandRun(
                folder=folder, processes=processes, places=_places(processes), clocks={}, samples=samples,
                out_of_memory=failed.out_of_memory,
            )  # fmt: skip
        wire.launch.check_machines()
        clocks = agent_clocks(wire.launch.processes)
    finally:
        wire.close()
        _keep_output(folder, logs / f"{launch_id}-output")
    processes = _whole(_arrived(folder, size), size, folder)
    places = _places(processes)
    check_world(
        places, nodes=[node.name for node in nodes], hosts=[node.host for node in nodes], device=device,
        nproc_per_node=nproc_per_node, backend=BACKEND,
    )  # fmt: skip
    return CommandRun(folder=folder, processes=processes, places=places, clocks=clocks, samples=samples)


def _places(processes: dict[int, tuple[CommandProcess, ...]]) -> tuple[RankPlace, ...]:
    last = [each[-1].start for _, each in sorted(processes.items())]
    return tuple(
        RankPlace(
            rank=start.rank, local_rank=start.local_rank, node=start.node, host=start.host, pid=start.pid,
            device=start.device, device_name="", backend=BACKEND, cores=start.cores, versions=start.versions,
        )
        for start in last
    )  # fmt: skip


def _make(folder: Path) -> None:
    try:
        for name in (BESIDE, OUTPUT, OWN, PROBES):
            (folder / name).mkdir(parents=True)
    except OSError as error:
        raise LaunchError(
            f"{folder}: cannot be made for the command's run: {error.strerror}; name another run folder with "
            "--qual-run-dir"
        ) from None


def _keep_output(folder: Path, kept: Path) -> None:
    """What the ranks printed stays in the run folder."""
    if any((folder / OUTPUT).iterdir()):
        shutil.copytree(folder / OUTPUT, kept)


@dataclass(kw_only=True, slots=True)
class _Watch:
    """How far a run is, and until when it may go on: `start` seconds until all ranks have begun, then `limit` more."""

    folder: Path
    size: int
    start: float
    limit: float
    deadline: float = 0.0
    begun: bool = False
    looked: float = 0.0

    def late(self) -> bool:
        now = time.monotonic()
        self.deadline = self.deadline or now + self.start
        if not self.begun and now - self.looked > _TELL_SECONDS / 4:
            self.looked = now
            self.begun = sum(1 for _ in (self.folder / BESIDE).glob("*-attempt0.start.json")) >= self.size
            self.deadline = now + self.limit if self.begun else self.deadline
        return now > self.deadline


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


def _arrived(folder: Path, size: int) -> dict[int, tuple[CommandProcess, ...]]:
    """All that was written; shared storage may show it a while after it was."""
    deadline = time.monotonic() + _BEHIND_SECONDS
    while True:
        processes = processes_of(folder)
        ends = {rank: each[-1].end for rank, each in processes.items()}
        here = (end is not None and probed_bytes(folder / PROBES, rank) >= end.probed for rank, end in ends.items())
        if (len(ends) == size and all(here)) or time.monotonic() > deadline:
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
    for rank, each in processes.items():
        start = each[-1].start
        if start.world != size:
            raise LaunchError(f"rank {rank} on {start.node} was in a world of {start.world}, asked were {size} ranks")
        if (end := each[-1].end) is None or end.code:
            raise MeasurementError(f"rank {rank} on {start.node} did not tell that it ended well")
    if len(scripts := {each[-1].start.script for each in processes.values()}) > 1:
        raise LaunchError(f"the ranks ran different scripts: digests {', '.join(sorted(scripts))}")
    return processes

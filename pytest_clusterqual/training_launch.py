"""A full run: one launch in which torchrun itself restarts what dies, watched from outside."""

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pytest_clusterqual.errors import JobError, MeasurementError
from pytest_clusterqual.launch.agents import Launch
from pytest_clusterqual.launch.plan import Launcher, LaunchPlan, NodePlan
from pytest_clusterqual.launch.process import NodeProcess, how_it_ended
from pytest_clusterqual.model.codec import from_json
from pytest_clusterqual.model.full_run import RankRun
from pytest_clusterqual.model.project import LauncherOptions
from pytest_clusterqual.model.topology import RankPlace, check_world
from pytest_clusterqual.trouble import tells_of_a_lost_peer
from pytest_clusterqual.wire import Wire
from pytest_clusterqual.world import Progress, RankResult

# Agents leave within a second or two of their last rank.
_LEAVE_SECONDS = 15.0
# What an agent notes about its ranks comes a little after the first sign of trouble.
_NOTE_SECONDS = 1.0
_ANSWER_SECONDS = 4.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """What each rank logged, where it was and what load it saw; and what the guards told of their nodes."""

    runs: tuple[RankRun, ...]
    places: list[RankPlace]
    results: list[RankResult]
    samples: dict[str, list[dict[str, Any]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Clock:
    """When the agent of a node began and ended, in seconds of its host's monotonic clock."""

    began: float
    ended: float


def train(
    launcher: Launcher,
    nodes: Sequence[NodePlan],
    nproc_per_node: int,
    args: Mapping[str, Any],
    *,
    device: Literal["cpu", "cuda"],
    max_restarts: int,
    limits: LauncherOptions,
    logs: Path,
    tell: Callable[[Progress], None],
    what: str,
) -> Trained:
    """Run `rank.full_run` to its end.

    Raises:
        JobError: the run failed for good or did not end in time.
        LaunchError: another world answered than was asked for.
    """
    size = len(nodes) * nproc_per_node
    plan = LaunchPlan(
        nodes=tuple(nodes), nproc_per_node=nproc_per_node, device=device, mode="train",
        launch=secrets.token_hex(4), store=("", 0), interface=launcher.interface, max_restarts=max_restarts,
        timeout=limits.start_timeout,
    )  # fmt: skip
    hosts = [node.host for node in nodes]
    wire = Wire(launcher, plan, logs=logs)
    try:
        order = {
            "args": dict(args), "timeout": limits.job_timeout,
            "ranks_on_host": max(hosts.count(host) for host in hosts) * nproc_per_node,
        }  # fmt: skip
        wire.channel.put("train", order)
        _wait(wire, time.monotonic() + limits.start_timeout + limits.job_timeout, size, tell, what)
        answers = [wire.channel.get(f"result/{rank}") for rank in range(size)]
        wire.launch.check_machines()
        clocks = _clocks(wire.launch.processes)
        samples = {process.node.name: process.samples for process in wire.launch.processes}
    finally:
        wire.close()
    places = [from_json(RankPlace, answer["place"], where=f"rank {rank}") for rank, answer in enumerate(answers)]
    check_world(
        places, nodes=[node.name for node in nodes], nproc_per_node=nproc_per_node, device=device,
        backend="nccl" if device == "cuda" else "gloo", hosts=hosts,
    )  # fmt: skip
    # The guard's clock saw the whole launch, a rank only its own attempts.
    told = [
        from_json(tuple[RankRun, ...], answer["value"], where=str(place))
        for place, answer in zip(places, answers, strict=True)
    ]
    runs = tuple(
        replace(run, began=clocks[place.node].began, ended=clocks[place.node].ended) if run.rank == place.rank else run
        for place, mine in zip(places, told, strict=True)
        for run in mine
    )
    results = [
        RankResult(rank=rank, value=None, seconds=0.0, taken=tuple(answer["taken"]))
        for rank, answer in enumerate(answers)
    ]
    return Trained(runs=runs, places=places, results=results, samples=samples)


def _wait(wire: Wire, deadline: float, size: int, tell: Callable[[Progress], None], what: str) -> None:
    while not wire.channel.has("ready"):
        time.sleep(0.02)
        ended = wire.launch.ended()
        if time.monotonic() > deadline or any(p.poll() != 0 for p in ended) or len(ended) == len(wire.launch.processes):
            if wire.channel.has("ready"):  # the last rank answered while its agent was leaving
                return
            raise _failure(wire.launch, what, late=time.monotonic() > deadline)
        done = total = 0.0
        if wire.channel.has("progress"):
            _rank, done, total, _detail = wire.channel.get("progress")
        tell(Progress(what, size, done, total))


def _clocks(processes: Sequence[NodeProcess]) -> dict[str, _Clock]:
    """When the agent of each node began and ended, by the monotonic clock of its own host."""
    deadline = time.monotonic() + _LEAVE_SECONDS
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
        time.sleep(0.02)
    clocks = {}
    for process in processes:
        first, last = process.event("began"), process.event("ended")
        if first is None or last is None:
            raise MeasurementError(
                f"the agent on {process.node.name} did not end within {_LEAVE_SECONDS:g} s of its last rank, "
                "so the run has no end to be measured to"
            )
        clocks[process.node.name] = _Clock(began=first.data["monotonic"], ended=last.data["monotonic"])
    return clocks


def _failure(launch: Launch, what: str, *, late: bool) -> JobError:
    """Name who failed, strongest evidence first: a lost node, a killed rank, a stopped one, one that ended badly."""
    time.sleep(_NOTE_SECONDS)
    gone = [process for process in launch.ended() if process.event("ended") is None]
    exits = {
        (local_rank, process.node.name): code
        for process in launch.processes
        for local_rank, code in process.agent_saw().items()
    }
    killed = {where: code for where, code in exits.items() if code < 0 and code != -signal.SIGTERM}
    victims = {process.node.name for process in launch.processes if tells_of_a_lost_peer(process.tail(3000))}
    exits = {where: code for where, code in exits.items() if where[1] not in victims} or exits
    stopped: list[str] = []
    if not gone and not killed:
        # Those who failed may only have lost a peer: look at who is still there.
        there = {
            process: process.rank_states(_ANSWER_SECONDS) for process in launch.processes if process.poll() is None
        }
        gone = [process for process, states in there.items() if states is None]
        stopped = [
            f"local rank {rank} on {process.node.name}"
            for process, states in there.items() if states is not None
            for rank, state in states.items() if state.startswith("T")
        ]  # fmt: skip
    if gone:
        culprits = [process.node.name for process in gone]
        told = [launch.why(process) or f"{process.node.name} does not answer any more" for process in gone]
    elif stopped:
        culprits, told = stopped, [f"{name} is stopped" for name in stopped]
    else:
        culprits = [f"local rank {local_rank} on {node}" for local_rank, node in killed or exits]
        told = [f"{n} {how_it_ended(c)}" for n, c in zip(culprits, (killed or exits).values(), strict=True)]
    first = next((p for p in launch.processes if any(c.endswith(p.node.name) for c in culprits)), launch.processes[0])
    why = "did not end within its time limit" if late else "failed"
    return JobError(
        f"{what} {why}: {'; '.join(told) or 'no rank is known to have died'}\n"
        f"last lines of {first.node.name}:\n{first.tail(3000).strip()}",
        culprits=culprits,
    )

"""A full run, watched from outside: torchrun restarts ranks that die; where it dies with them, it is launched again."""

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pytest_clusterqual.errors import JobError, MeasurementError
from pytest_clusterqual.launch.agents import Launch
from pytest_clusterqual.launch.plan import Launcher, LaunchPlan, NodePlan
from pytest_clusterqual.launch.process import NodeProcess, how_it_ended
from pytest_clusterqual.model.codec import from_json
from pytest_clusterqual.model.full_run import Failure, RankRun
from pytest_clusterqual.model.project import LauncherOptions
from pytest_clusterqual.model.topology import RankPlace, check_world
from pytest_clusterqual.session.trouble import tells_of_a_lost_peer
from pytest_clusterqual.session.wire import Wire
from pytest_clusterqual.session.world import Progress, RankResult

# Agents leave within a second or two of their last rank; where other work has the cores, within many.
_LEAVE_SECONDS = 60.0
# What an agent notes about its ranks comes a little after the first sign of trouble.
_NOTE_SECONDS = 1.0
# An agent that is told to end gives its ranks 30 s for their last checkpoint.
_GRACE_SECONDS = 40.0
# For the ranks of other nodes to write down what they saw of a lost one, before they are ended.
_MOMENT = 0.25
_ANSWER_SECONDS = 4.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """What each rank logged, where it was and what load it saw; and what the guards told of their nodes."""

    runs: tuple[RankRun, ...]
    places: list[RankPlace]
    results: list[RankResult]
    samples: dict[str, list[dict[str, Any]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Clock:
    """When the agent of a node began and ended, in seconds of its host's monotonic clock."""

    began: float
    ended: float


@dataclass(frozen=True, kw_only=True, slots=True)
class _Launched:
    """One launch: where its ranks were, and what they answered: nothing if the failure ended it.

    `began` and `ended` are what the clocks of the nodes said of their agents; `lost` are nodes that are no more.
    """

    places: list[RankPlace]
    began: dict[str, float]
    ended: dict[str, float]
    answers: list[dict[str, Any]]
    lost: frozenset[str]
    samples: dict[str, list[dict[str, Any]]]


def train(
    launcher: Launcher,
    nodes: Sequence[NodePlan],
    nproc_per_node: int,
    args: Mapping[str, Any],
    *,
    device: Literal["cpu", "cuda"],
    failure: Failure | None,
    spare: NodePlan | None,
    path: Sequence[str],
    limits: LauncherOptions,
    expected: float = 0.0,
    logs: Path,
    tell: Callable[[Progress], None],
    what: str,
) -> Trained:
    """Run `rank.full_run` to its end, which takes `expected` seconds more than a job may.

    Where the failure ends the agents as well, another launch goes on, of the same nodes, of fewer, or with the `spare`
    one in the place of the one that was lost. What that launch costs is part of the recovery: it is this package that
    launches again, as a scheduler or an operator would, and not torchrun.

    Raises:
        JobError: the run failed for good or did not end in time.
        LaunchError: another world answered than was asked for.
    """
    launch = partial(
        _launch, launcher, nproc_per_node=nproc_per_node, device=device, path=path, limits=limits, expected=expected,
        logs=logs, tell=tell, what=what,
    )  # fmt: skip
    if failure is None or not failure.ends_launch:
        first = last = launch(nodes, args, max_restarts=1 if failure else 0, ends_by=None)
    else:
        first = last = launch(nodes, args, max_restarts=0, ends_by=failure)
        if not first.answers:
            last = launch(nodes_after(failure, nodes, first.lost, spare), {**args, "failure": None}, max_restarts=0)
    return _trained(first, last)


def nodes_after(
    failure: Failure, nodes: Sequence[NodePlan], lost: frozenset[str], spare: NodePlan | None
) -> Sequence[NodePlan]:
    """The nodes of the next launch, once the failure has ended the one before."""
    if failure.go_on == "same":
        return nodes
    in_its_place = [spare] if failure.go_on == "spare" and spare is not None else []
    return [now for node in nodes for now in ([node] if node.name not in lost else in_its_place)]


def _launch(
    launcher: Launcher,
    nodes: Sequence[NodePlan],
    args: Mapping[str, Any],
    *,
    nproc_per_node: int,
    device: Literal["cpu", "cuda"],
    max_restarts: int,
    ends_by: Failure | None = None,
    path: Sequence[str],
    limits: LauncherOptions,
    expected: float,
    logs: Path,
    tell: Callable[[Progress], None],
    what: str,
) -> _Launched:
    size = len(nodes) * nproc_per_node
    plan = LaunchPlan(
        nodes=tuple(nodes), nproc_per_node=nproc_per_node, device=device, mode="train",
        launch=secrets.token_hex(4), store=("", 0), interface=launcher.interface, max_restarts=max_restarts,
        timeout=limits.start_timeout,
    )  # fmt: skip
    hosts = [node.host for node in nodes]
    wire = Wire(launcher, plan, logs=logs)
    processes = wire.launch.processes
    try:
        order = {
            "args": dict(args), "path": list(path), "timeout": limits.job_timeout,
            "ranks_on_host": max(hosts.count(host) for host in hosts) * nproc_per_node,
        }  # fmt: skip
        wire.channel.put("train", order)
        deadline = time.monotonic() + limits.start_timeout + limits.job_timeout + expected
        whole = _wait(wire, deadline, size, tell, what, may_be_struck=ends_by is not None)
        told = [wire.channel.get(f"place/{rank}") for rank in range(size)]
        answers = [wire.channel.get(f"result/{rank}") for rank in range(size)] if whole else []
        wire.launch.check_machines()
        lost = frozenset[str]() if ends_by is None or whole else lost_nodes(wire.launch, ends_by)
        clocks = agent_clocks(processes) if whole else {}
        began = agents_began(processes)
        samples = {process.node.name: process.samples for process in processes}
    finally:
        wire.close()
    places = [from_json(RankPlace, place, where=f"rank {rank}") for rank, place in enumerate(told)]
    check_world(
        places, nodes=[node.name for node in nodes], nproc_per_node=nproc_per_node, device=device,
        backend="nccl" if device == "cuda" else "gloo", hosts=hosts,
    )  # fmt: skip
    return _Launched(
        places=places, began=began, ended={name: clock.ended for name, clock in clocks.items()}, answers=answers,
        lost=lost, samples=samples,
    )  # fmt: skip


def lost_nodes(launch: Launch, failure: Failure) -> frozenset[str]:
    """Wait until the failure has done its work: the nodes it has taken away; none if the job was only told to end.

    Raises:
        JobError: a node was to be lost, and none was.
    """
    leaves = failure.kind == "sigterm"
    deadline = time.monotonic() + (_GRACE_SECONDS if leaves else _NOTE_SECONDS)
    while time.monotonic() < deadline:
        ended = launch.ended()
        lost = frozenset(process.node.name for process in ended if _killed(process))
        if lost:
            time.sleep(_MOMENT)
            return lost
        if leaves and len(ended) == len(launch.processes):
            return lost
        time.sleep(0.02)
    raise _failure(launch, f"the run, in which {failure.told},", late=False)


def _killed(process: NodeProcess) -> bool:
    """True if the agent of this node was killed, or went without a word."""
    ended = process.event("ended")
    return ended is None or ended.data["code"] < 0


def _trained(first: _Launched, last: _Launched) -> Trained:
    """The guards' clocks saw the whole run, a rank only its own attempts."""
    began = {place.rank: first.began[place.node] for place in first.places}
    ended = {place.rank: last.ended[place.node] for place in last.places}
    told = [
        from_json(tuple[RankRun, ...], answer["value"], where=str(place))
        for place, answer in zip(last.places, last.answers, strict=True)
    ]
    runs = sorted((run for mine in told for run in mine), key=lambda run: run.rank)
    samples = dict(first.samples)
    if last is not first:
        samples |= {node: [*first.samples.get(node, []), *more] for node, more in last.samples.items()}
    return Trained(
        runs=tuple(replace(run, began=began[run.rank], ended=ended.get(run.rank, run.ended)) for run in runs),
        places=first.places,
        results=[
            RankResult(rank=rank, value=None, seconds=0.0, taken=tuple(answer["taken"]))
            for rank, answer in enumerate(last.answers)
        ],
        samples=samples,
    )


def _wait(
    wire: Wire, deadline: float, size: int, tell: Callable[[Progress], None], what: str, *, may_be_struck: bool
) -> bool:
    """True once all ranks have answered; False if a failure has ended the launch that was to do so."""
    while not wire.channel.has("ready"):
        time.sleep(0.02)
        ended = wire.launch.ended()
        if time.monotonic() > deadline or any(p.poll() != 0 for p in ended) or len(ended) == len(wire.launch.processes):
            if wire.channel.has("ready"):  # the last rank answered while its agent was leaving
                return True
            if may_be_struck and wire.channel.has("struck"):
                return False
            raise _failure(wire.launch, what, late=time.monotonic() > deadline)
        done = total = 0.0
        if wire.channel.has("progress"):
            _rank, done, total, _detail = wire.channel.get("progress")
        tell(Progress(what, size, done, total))
    return True


def agents_began(processes: Sequence[NodeProcess]) -> dict[str, float]:
    """When the agent of each node began, by the monotonic clock of its own host."""
    return {p.node.name: event.data["monotonic"] for p in processes if (event := p.event("began"))}


def agent_clocks(processes: Sequence[NodeProcess]) -> dict[str, Clock]:
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
        clocks[process.node.name] = Clock(began=first.data["monotonic"], ended=last.data["monotonic"])
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
    # The guard has ended those that the agent could not: it is not what happened to them.
    stopped = [
        f"local rank {event.data['local_rank']} on {process.node.name}"
        for process in launch.processes for event in process.events if event.name == "stopped"
    ]  # fmt: skip
    if not gone and not killed and not stopped:
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

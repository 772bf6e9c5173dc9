"""How a launch ended, as seen from outside: when its agents did, which nodes it lost, who failed; and what goes on."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_clusterqual.errors import JobError, MeasurementError
from pytest_clusterqual.launch.agents import Launch
from pytest_clusterqual.launch.plan import NodePlan
from pytest_clusterqual.launch.process import NodeProcess, how_it_ended
from pytest_clusterqual.model.full_run import Failure
from pytest_clusterqual.session.trouble import tells_of_a_lost_peer

# Agents leave within a second or two of their last rank; where other work has the cores, within many.
_LEAVE_SECONDS = 60.0
# What an agent notes about its ranks comes a little after the first sign of trouble.
_NOTE_SECONDS = 1.0
# An agent that is told to end gives its ranks 30 s for their last checkpoint.
_GRACE_SECONDS = 40.0
# For the ranks of other nodes to write down what they saw of a lost one, before they are ended.
_MOMENT = 0.25
_ANSWER_SECONDS = 4.0


def agents_began(processes: Sequence[NodeProcess]) -> dict[str, float]:
    """When the agent of each node began, by the monotonic clock of its own host."""
    return {p.node.name: event.data["monotonic"] for p in processes if (event := p.event("began"))}


def agents_ended(processes: Sequence[NodeProcess]) -> dict[str, float]:
    """When the agent of each node ended, by the monotonic clock of its own host; waits until all have.

    Raises:
        MeasurementError: names the node whose agent does not end.
    """
    deadline = time.monotonic() + _LEAVE_SECONDS
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
        time.sleep(0.02)
    ended = {p.node.name: event.data["monotonic"] for p in processes if (event := p.event("ended"))}
    if there := [process.node.name for process in processes if process.node.name not in ended]:
        raise MeasurementError(
            f"the agent on {there[0]} did not end within {_LEAVE_SECONDS:g} s of its last rank, so the run has no end "
            "to be measured to"
        )
    return ended


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
    raise who_failed(launch, f"the run, in which {failure.told},", late=False)


def _killed(process: NodeProcess) -> bool:
    """True if the agent of this node was killed, or went without a word."""
    ended = process.event("ended")
    return ended is None or ended.data["code"] < 0


def nodes_after(
    failure: Failure, nodes: Sequence[NodePlan], lost: frozenset[str], spare: NodePlan | None
) -> Sequence[NodePlan]:
    """The nodes of the next launch, once the failure has ended the one before."""
    if failure.go_on == "same":
        return nodes
    in_its_place = [spare] if failure.go_on == "spare" and spare is not None else []
    return [now for node in nodes for now in ([node] if node.name not in lost else in_its_place)]


def of_both(first: Mapping[str, list[Any]], last: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """What the guards told of each node in a launch and in the one that went on after it."""
    return {node: [*first.get(node, []), *last.get(node, [])] for node in {**first, **last}}


def who_failed(launch: Launch, what: str, *, late: bool) -> JobError:
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

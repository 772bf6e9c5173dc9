"""From what the ranks answered and how they ended to one error that names who failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_clusterqual.errors import JobError, LaunchError
from pytest_clusterqual.launch.agents import Launch
from pytest_clusterqual.launch.process import NodeProcess, how_it_ended

# What gloo and NCCL say when a peer is gone: a consequence, never the cause.
_PEER_IS_GONE = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "remote process exited",
    "NCCL communicator was aborted",
    "Socket Timeout",
    "Connection refused",
)


def tells_of_a_lost_peer(text: str) -> bool:
    """True if what was printed or raised is what a rank says when another one is gone."""
    return any(words in text for words in _PEER_IS_GONE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What one rank said about a job; all defaults: it said nothing.

    `out_of_memory` is what it could not allocate, if that was the `error`.
    """

    value: Any = None
    seconds: float = 0.0
    taken: tuple[float, float] = (0.0, 0.0)
    error: str = ""
    traceback: str = ""
    out_of_memory: str = ""
    answered: bool = False

    @classmethod
    def read(cls, message: Mapping[str, Any]) -> Answer:
        return cls(
            value=message.get("value"),
            seconds=float(message.get("seconds", 0.0)),
            taken=tuple(message.get("taken", (0.0, 0.0))),
            error=str(message.get("error", "")),
            traceback=str(message.get("traceback", "")),
            out_of_memory=str(message.get("out_of_memory", "")),
            answered=True,
        )

    @property
    def consequence(self) -> bool:
        """True if the error only says that a peer went away."""
        return tells_of_a_lost_peer(self.error)


@dataclass(frozen=True, kw_only=True, slots=True)
class Exit:
    """How one worker ended. `ended_by_us`: it was still there when the session ended its generation."""

    code: int
    state: str = ""
    stacks: str = ""
    out_of_memory: bool = False
    ended_by_us: bool = False

    @classmethod
    def read(cls, message: Mapping[str, Any], *, ended_by_us: bool) -> Exit:
        return cls(
            code=int(message["code"]),
            state=str(message["state"]),
            stacks=str(message["stacks"]),
            out_of_memory=bool(message["out_of_memory"]),
            ended_by_us=ended_by_us,
        )

    @property
    def in_collective(self) -> bool:
        """True if the innermost Python frame of the dumped stack is torch's own distributed code."""
        frame = next((line for line in self.stacks.splitlines() if line.lstrip().startswith("File ")), "")
        return "/torch/distributed/" in frame or "/torch/autograd/" in frame

    @property
    def own_frames(self) -> str:
        """The stack down to where the job was called; below that it is this package's own."""
        return self.stacks.partition("/pytest_clusterqual/rank/worker.py")[0].rpartition("\n")[0].rstrip()

    def __str__(self) -> str:
        if self.out_of_memory:
            return "was killed by the kernel for want of memory (SIGKILL, out of memory)"
        return how_it_ended(self.code)


def not_started(
    launch: Launch, what: str, missing: Sequence[str], guilty: Sequence[NodeProcess] | None = None
) -> LaunchError:
    """One message: what happened, on which nodes, why, and the last lines of the first of them.

    `missing` are the nodes with ranks that are not there; they are guilty unless others are.
    """
    processes = list(guilty or [process for process in launch.processes if process.node.name in missing])
    first = (processes or launch.processes)[0]
    why = "; ".join(dict.fromkeys(filter(None, map(launch.why, processes))))
    names = ", ".join(process.node.name for process in processes) or "no node"
    lines = [f"the ranks did not start: {why or f'{what} on {names}'}"]
    if others := [name for name in missing if name not in names.split(", ")]:
        lines.append(f"not there either, as a consequence or for reasons of their own: {', '.join(others)}")
    if not why:
        lines.append(f"last lines of {first.node.name} ({first.log}):\n{first.tail().strip()}")
    return LaunchError("\n".join(lines), culprits=[process.node.name for process in processes])


def describe(
    what: str,
    answers: Mapping[int, Answer],
    exits: Mapping[int, Exit],
    nodes: Mapping[int, str],
    *,
    timeout: float | None,
    tails: Mapping[str, str],
) -> JobError:
    """Name the ranks the evidence points at, strongest evidence first.

    A death outweighs an exception, an exception of its own outweighs one that only tells of a
    lost peer, a stopped process outweighs one that waits for it.
    """
    name = {rank: f"rank {rank} on {node}" for rank, node in nodes.items()}
    died = [rank for rank, end in exits.items() if not end.ended_by_us and end.code != 0]
    left = [rank for rank, end in exits.items() if not end.ended_by_us and end.code == 0]
    raised = [rank for rank, answer in answers.items() if answer.error and not answer.consequence]
    stopped = [rank for rank, end in exits.items() if end.ended_by_us and end.state.startswith("T")]
    silent = [rank for rank, answer in answers.items() if not answer.answered and rank not in died]
    lost = [rank for rank in silent if rank not in exits]
    if died or left:
        culprits = died + left
        told = [f"{name[rank]} {exits[rank]}" for rank in culprits]
    elif raised:
        culprits = raised
        told = [f"{name[rank]} raised {answers[rank].error}" for rank in raised]
    elif stopped:
        culprits = stopped
        told = [f"{name[rank]} is stopped (state {exits[rank].state})" for rank in stopped]
    elif lost:
        culprits = lost
        told = [f"{name[rank]} does not answer, nor does its supervisor" for rank in lost]
    elif silent:
        # A rank inside a collective waits for its peers; one that is elsewhere is waited for.
        busy = [rank for rank in silent if not exits[rank].in_collective]
        culprits = busy or silent
        told = [f"{name[rank]} did not answer" for rank in culprits]
    else:
        culprits = [rank for rank, answer in answers.items() if answer.error]
        told = [f"{name[rank]}: {answers[rank].error}" for rank in culprits]
    ended = "failed" if timeout is None else f"did not end within its limit of {timeout:g} s"
    lines = [f"{what} {ended}: " + "; ".join(told)]
    told_once = {answers[rank].traceback: rank for rank in reversed(raised)}  # ranks that failed alike show it once
    lines += [
        f"traceback of {name[rank]}:\n{answers[rank].traceback.rstrip()}" for rank in sorted(told_once.values())[:3]
    ]
    if timeout is not None:
        lines += [
            f"stack of {name[rank]} (state {exits[rank].state or 'unknown'}):\n"
            + (exits[rank].own_frames or "  none: it runs no code")
            for rank in silent
            if rank in exits
        ]
    after = [rank for rank, answer in answers.items() if answer.consequence and rank not in culprits]
    if after:
        lines.append(
            "as a consequence: " + "; ".join(f"{name[rank]} saw {_first_line(answers[rank].error)}" for rank in after)
        )
    if died or lost:
        for node in sorted({nodes[rank] for rank in (*died, *lost)}):
            if tails.get(node, "").strip():
                lines.append(f"last lines of {node}:\n{tails[node].strip()[-1500:]}")
    return JobError(
        "\n".join(lines),
        culprits=[name[rank] for rank in culprits],
        out_of_memory=_out_of_memory(culprits, answers, {rank: exits[rank] for rank in died}, name),
    )


def _out_of_memory(
    culprits: Sequence[int], answers: Mapping[int, Answer], died: Mapping[int, Exit], name: Mapping[int, str]
) -> str:
    """Who ran out of memory; empty unless all the culprits did."""
    told = []
    for rank in culprits:
        if rank in died and died[rank].out_of_memory:
            told.append(f"{name[rank]} {died[rank]}")
        elif rank in answers and answers[rank].out_of_memory:
            told.append(f"{name[rank]} could not allocate {answers[rank].out_of_memory}")
        else:
            return ""
    return "; ".join(told)


def _first_line(text: str) -> str:
    return text.splitlines()[0] if text else ""

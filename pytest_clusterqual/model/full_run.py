"""Full runs: what is asked of one, and what every rank wrote down of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.fabric import RankLadder
from pytest_clusterqual.model.probe import ProbedProcess

CheckpointMode = Literal["sync", "async", "async-process"]
FailureKind = Literal["kill_rank", "hang_rank", "raise_rank", "fail_save", "kill_node", "sigterm"]
FAILURES: tuple[FailureKind, ...] = ("kill_rank", "hang_rank", "raise_rank", "fail_save", "kill_node", "sigterm")
GoOn = Literal["same", "spare", "fewer"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoints:
    """One way to save: after every `every` steps, while training waits (sync) or goes on, the copy being written by a
    thread (async) or by a process of its own (async-process). `folder` None: in the run folder.
    """

    every: int = 10
    mode: CheckpointMode = "async"
    folder: str | None = None

    def __str__(self) -> str:
        return f"{self.mode}-every{self.every}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """What is done to a run on purpose, once, when `step` begins.

    kill_rank: SIGKILL. hang_rank: SIGSTOP. raise_rank: an exception. fail_save: the first save from `step` on cannot
    write on that rank. kill_node: all processes of a node are killed, its torchrun agent too. sigterm: every agent gets
    SIGTERM, as a scheduler sends it before it takes the nodes away.

    `target` is the rank, or the index of the node; nothing for sigterm. After a lost node the run goes on, with as many
    nodes as before, on the same nodes or with a spare in the lost one's place, or on fewer.
    """

    kind: FailureKind
    step: int
    target: int = 0
    go_on: GoOn = "same"

    def __str__(self) -> str:
        return self.kind if self.go_on == "same" else f"{self.kind}-{self.go_on}"

    @property
    def ends_launch(self) -> bool:
        """Whether torchrun's agents end with their ranks, so that nobody is left to start them again."""
        return self.kind in ("kill_node", "sigterm")

    def on_one_node(self, ranks: int) -> Failure:
        """The same with so many ranks on the only node there is: that comes back at once, for there are no fewer."""
        least = 1 if self.kind == "kill_node" else ranks
        go_on: GoOn = "same" if self.go_on == "fewer" else self.go_on
        return replace(self, target=min(self.target, least - 1), go_on=go_on)

    def unnoticed(self, ranks: int) -> str:
        """Why it cannot be done to so many ranks; empty if it can."""
        return "a single rank that hangs is noticed by nobody" if self.kind == "hang_rank" and ranks == 1 else ""

    @property
    def told(self) -> str:
        """What happened, for people."""
        who = {"kill_node": f"node of index {self.target}", "sigterm": "the job"}.get(self.kind, f"rank {self.target}")
        done = {
            "kill_rank": "killed", "hang_rank": "stopped", "raise_rank": "made to raise an error",
            "fail_save": "kept from writing its checkpoint", "kill_node": "killed", "sigterm": "told to end (SIGTERM)",
        }  # fmt: skip
        then = {"same": "", "spare": ", replaced by a spare node", "fewer": ", not replaced"}[self.go_on]
        return f"{who} {done[self.kind]} at step {self.step}{then}"


@dataclass(frozen=True, kw_only=True, slots=True)
class RankRun:
    """Everything that one rank wrote, process after process.

    `began` and `ended` are the launches as this rank's host saw them (first agent started, last agent ended), in
    seconds of the clocks of the first and of the last process. `bubble` is the share of its steps that a pipeline had
    nothing to do, in the last process.
    """

    rank: int
    began: float
    ended: float
    processes: tuple[ProbedProcess, ...]
    data_digest: str
    bubble: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class FullRun:
    """One run of `steps` steps from the first agent's start to the last one's end.

    `tokens_per_step` and `sequences_per_step` are of the whole job, 0 where they are not known. Without `checkpoints`
    it is the run of a command, which saves by itself, and need not tell its losses, nor that it is done. `precision`
    is empty where it is not known.
    """

    conditions: Conditions
    ranks: tuple[RankRun, ...]
    steps: int
    tokens_per_step: int
    sequences_per_step: int = 0
    checkpoints: Checkpoints | None
    failure: Failure | None = None
    precision: str = ""

    @property
    def saving(self) -> str:
        """How it saves, for people."""
        if self.checkpoints is None:
            return "checkpoints of its own"
        return f"{self.checkpoints.mode} checkpoints every {self.checkpoints.every}"


@dataclass(frozen=True, kw_only=True, slots=True)
class FullRunMeasurement:
    """The `run` on all nodes; `alone`, the same on one node, is what it is compared with; `not_alone` says why there is
    none.

    `apart` is the step on all nodes taken apart beside the run, a round each with the result of every rank; `not_apart`
    says why it could not be.
    """

    conditions: Conditions
    run: FullRun
    started: float
    seconds: float
    alone: FullRun | None = None
    not_alone: str = ""
    apart: tuple[tuple[RankLadder, ...], ...] = ()
    not_apart: str = ""

"""The slurm launcher: inside an allocation it uses its nodes; outside it asks for one and holds it.

One srun a node starts one guard there, so that each node has a lifeline, a log and an end of its
own. The allocation made outside belongs to an salloc whose command waits for the end of its
standard input: when the session goes, however it goes, Slurm gets the nodes back.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytest_clusterqual.errors import LaunchError
from pytest_clusterqual.launch.plan import NO_PACKAGE, NO_PYTHON, NodePlan, Remote, choose, first_address
from pytest_clusterqual.launch.process import Held, ask

_HOLD = (
    "import os, sys; print(os.environ['SLURM_JOB_ID'], os.environ['SLURM_JOB_NODELIST'], flush=True); sys.stdin.read()"
)
_ASK_SECONDS = 30.0
_GO_ON = "the records so far are kept: go on with --qual-resume"

_SAYINGS = (
    (r"CANCELLED AT \S+ DUE TO TIME LIMIT",
     f"the allocation reached its time limit: ask for more with slurm.time; {_GO_ON}"),
    (r"CANCELLED AT \S+ DUE TO PREEMPTION", f"a job of higher priority took the nodes; {_GO_ON}"),
    (r"CANCELLED AT \S+ DUE TO NODE FAILURE", f"a node of the allocation failed; {_GO_ON} when it is back"),
    (r"Node failure on \S+", f"Slurm lost that node; {_GO_ON} without it or when it is back"),
    (r"(?:STEP|JOB) \S+ ON \S+ CANCELLED AT \S+", f"somebody cancelled it (scancel); {_GO_ON}"),
    (r"Job/step already completing or completed|Invalid job id specified|Job has expired|Expired or invalid job \d+",
     f"the allocation is gone (its time limit, scancel, or a failed node); {_GO_ON}"),
    (r"Force Terminated job \d+|Job allocation \d+ has been revoked", f"the allocation was taken back; {_GO_ON}"),
    (r"Required node not available \(down, drained or reserved\)", "return the node to service, or leave it out"),
    (r"Unable to (?:contact|create step|confirm allocation|allocate resources)[^\n]*", "see `squeue` and `sinfo -R`"),
    (r"srun: error: [^\n]*(?:execve|No such file or directory)[^\n]*", NO_PYTHON),
    (r"No module named '?pytest_clusterqual\S*", NO_PACKAGE),
    (r"srun: error: [^\n]*", "see Slurm's own log for the step"),
)  # fmt: skip


class SlurmLauncher(Remote):
    """`options` are salloc's, for use outside an allocation: ``{"partition": "gpu", "time": "02:00:00"}``."""

    sayings = _SAYINGS

    def __init__(
        self,
        *,
        options: Mapping[str, str | bool] | None = None,
        queue_timeout: float = 86400.0,
        environ: Mapping[str, str] = os.environ,
        tell: Callable[[str], None] = lambda text: None,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self._options = dict(options or {})
        self._queue_timeout = queue_timeout
        self._tell = tell
        self._held: Held | None = None
        self._job = environ.get("SLURM_JOB_ID", "")
        self._node_list = environ.get("SLURM_JOB_NODELIST", "")
        self._mpi = environ.get("SLURM_MPI_TYPE", "pmix")

    def nodes(self, count: int, nproc_per_node: int) -> tuple[NodePlan, ...]:
        """`count` nodes of the allocation, which is asked for first if there is none.

        Raises:
            LaunchError: Slurm refuses, does not answer, or has fewer nodes in the allocation.
        """
        if not self._job:
            self._allocate(count)
        listed = ask(["scontrol", "show", "hostnames", self._node_list], timeout=_ASK_SECONDS)
        if listed.code != 0:
            raise LaunchError(f"scontrol show hostnames {self._node_list}: {listed.err.strip() or 'failed'}")
        chosen = choose(listed.out.split(), count, f"Slurm job {self._job}")
        self.address = self.address or first_address(chosen)
        return chosen

    def _allocate(self, count: int) -> None:
        self._held = held = Held(salloc(count, self._options))
        began, looked = time.monotonic(), 0.0
        while not held.said.endswith("\n"):
            if held.poll() is not None and not held.said:
                words = [line.removeprefix("salloc: ") for line in held.complained.strip().splitlines()]
                raise LaunchError(
                    f"salloc did not give {count} nodes: {words[-1] if words else 'it said nothing'}; correct "
                    "launcher.slurm in the project file, or --nodes"
                )
            now = time.monotonic()
            if now - began > self._queue_timeout:
                held.release()
                raise LaunchError(
                    f"Slurm did not give {count} nodes within {self._queue_timeout:g} s; wait longer with "
                    "launcher.queue_timeout, or ask for fewer"
                )
            if now - looked > 2.0:
                looked = now
                self._tell(self._queue_state(held.complained, count))
            time.sleep(0.05)
        self._job, self._node_list = held.said.split()

    @staticmethod
    def _queue_state(complained: str, count: int) -> str:
        job = re.search(r"(?:Pending job allocation|job) (\d+)", complained)
        if job is None:
            return f"asking Slurm for {count} nodes"
        state = ask(["squeue", "--noheader", "--jobs", job[1], "--format", "%T|%r|%S"], timeout=_ASK_SECONDS)
        words = state.out.strip().split("|")
        if len(words) != 3:
            return f"Slurm job {job[1]} for {count} nodes is queued"
        start = "" if words[2] in ("N/A", "") else f", expected to start {words[2]}"
        return f"Slurm job {job[1]} for {count} nodes is {words[0].lower()} ({words[1]}){start}"

    @property
    def allocation(self) -> dict[str, str]:
        """What another process of this machine must find in its environment to use the same nodes."""
        return {"SLURM_JOB_ID": self._job, "SLURM_JOB_NODELIST": self._node_list}

    def command(self, node: NodePlan, program: Sequence[str], *, store: tuple[str, int] | None = None) -> list[str]:
        """One step of one task, beside any other step on the node and with all of its cores."""
        return [
            "srun", f"--jobid={self._job}", f"--nodelist={node.host}", "--nodes=1", "--ntasks=1", "--overlap",
            "--cpu-bind=none", "--mem=0", "--unbuffered", "--job-name=clusterqual", *program,
        ]  # fmt: skip

    def together(self, nodes: Sequence[NodePlan], each: int, program: Sequence[str]) -> list[str]:
        """One step of all tasks; SLURM_MPI_TYPE says which MPI the program was built with, if it is not PMIx."""
        return [
            "srun", f"--jobid={self._job}", f"--nodelist={','.join(node.host for node in nodes)}",
            f"--nodes={len(nodes)}", f"--ntasks={each * len(nodes)}", f"--ntasks-per-node={each}", f"--mpi={self._mpi}",
            "--overlap", "--cpu-bind=none", "--mem=0", "--unbuffered", "--job-name=clusterqual", *program,
        ]  # fmt: skip

    def close(self) -> None:
        """Give back an allocation that was made here; one that was there before stays."""
        held, self._held = self._held, None
        if held is not None:
            held.release()


def salloc(count: int, options: Mapping[str, str | bool]) -> list[str]:
    """The command that asks for `count` nodes and holds them while its standard input is open."""
    asked = [
        f"--{name}" if value is True else f"--{name}={value}" for name, value in options.items() if value is not False
    ]
    return [
        "salloc", f"--nodes={count}", "--ntasks-per-node=1", "--job-name=clusterqual", *asked, "--",
        sys.executable, "-c", _HOLD,
    ]  # fmt: skip

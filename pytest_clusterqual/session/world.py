"""A world: one launch of warm ranks that run jobs until one of them dies or hangs.

A world holds one torchrun agent a node and one supervisor a rank. A *generation* of workers is
forked from the supervisors; it serves any number of jobs, and the next generation costs a fork,
not a launch.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pytest_clusterqual.errors import JobError, LaunchError
from pytest_clusterqual.launch.plan import Launcher, LaunchPlan, NodePlan
from pytest_clusterqual.launch.process import NodeProcess
from pytest_clusterqual.model.codec import from_json
from pytest_clusterqual.model.rank_map import Seat, arrange
from pytest_clusterqual.model.topology import RankMap, RankPlace, check_world
from pytest_clusterqual.session.reach import ask, no_way_between
from pytest_clusterqual.session.trouble import Answer, Exit, describe, not_started
from pytest_clusterqual.session.wire import Pause, Wire, backend_of

# A host that cannot even start a Python within this time is named; importing torch may take longer.
_HELLO_SECONDS = 45.0
# After the first sign of trouble the other ranks get this long to tell what they saw.
_GRACE = 3.0
_STACKS_GRACE = 5.0
# Ranks whose supervisors are all there join their group within seconds, if nothing lies between them.
_JOIN_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the running job on `ranks` ranks is; `total` 0 means unknown."""

    what: str
    ranks: int
    done: float = 0.0
    total: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A function on every rank of `ranks`. With `new_group` it gets a process group of its own.

    `done` of `total` jobs like this one came before it; with `total` 0 the job's own reports count.
    """

    name: str
    args: Mapping[str, Any] = field(default_factory=dict)
    ranks: tuple[int, ...]
    timeout: float
    new_group: bool = False
    watch: bool = False
    what: str = ""
    done: int = 0
    total: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class RankResult:
    """What one rank returned; `seconds` inside the function.

    `taken` is the core-seconds that other work took from the rank's cores meanwhile, and the
    core-seconds there were; zeros unless the job was watched.
    """

    rank: int
    value: Any
    seconds: float
    taken: tuple[float, float]


class World:
    """Warm ranks on a set of nodes."""

    def __init__(
        self,
        launcher: Launcher,
        nodes: Sequence[NodePlan],
        nproc_per_node: int,
        *,
        device: Literal["cpu", "cuda"],
        logs: Path,
        start_timeout: float,
        path: Sequence[str],
        tell: Callable[[Progress], None],
    ) -> None:
        self.nproc_per_node = nproc_per_node
        self.nodes = tuple(nodes)
        self._seats = arrange("block", [node.name for node in nodes], nproc_per_node, {})
        self._path = list(path)
        self._tell = tell
        self._start_timeout = start_timeout
        self._generation = ""
        self._generations = 0
        self._orders = 0
        self._jobs = 0
        plan = LaunchPlan(
            nodes=self.nodes,
            nproc_per_node=nproc_per_node,
            device=device,
            mode="serve",
            launch=secrets.token_hex(4),
            store=("", 0),
            interface=launcher.interface,
            timeout=start_timeout,
        )
        self._wire = Wire(launcher, plan, logs=logs)
        self._channel = self._wire.channel
        self.backend = backend_of(device)
        self.device = device
        self.rank_map = RankMap(places=())
        try:
            self._await_supervisors()
        except BaseException:
            self.close()
            raise

    @property
    def size(self) -> int:
        return len(self.nodes) * self.nproc_per_node

    @property
    def usable(self) -> bool:
        """False once an agent has ended: nothing more can be run here."""
        return bool(self._wire.launch.processes) and not self._wire.launch.ended()

    # -- start -----------------------------------------------------------------------------------

    def _await_supervisors(self) -> None:
        """World check, first half: torchrun formed the world that was asked for, on the nodes asked for."""
        wanted = [(node.name, local) for node in self.nodes for local in range(self.nproc_per_node)]
        began = time.monotonic()
        keys = [f"present/{node}/{local}" for node, local in wanted]
        pause = Pause()
        while not self._channel.has(*keys):
            self._tell(Progress("starting", self.size))
            waited = time.monotonic() - began
            if ended := self._wire.launch.ended():
                raise self._launch_failure("the agent ended", wanted, ended)
            if waited > self._start_timeout:
                raise self._launch_failure(f"no answer within {self._start_timeout:.0f} s", wanted)
            if waited > _HELLO_SECONDS and (mute := self._wire.launch.not_there([node for node, _ in wanted])):
                raise self._launch_failure(f"no answer within {_HELLO_SECONDS:.0f} s", wanted, mute)
            pause()
        self._wire.launch.check_machines()
        present = {place: self._channel.get(key) for place, key in zip(wanted, keys, strict=True)}
        ranks: dict[int, str] = {}
        for (node, _local), said in present.items():
            if said["world_size"] != self.size or said["nproc_per_node"] != self.nproc_per_node:
                raise LaunchError(
                    f"{node} is in a world of {said['world_size']} ranks, asked were {self.size}: torchrun formed "
                    "another world (a clock that is behind by more than 15 s does this); nothing was measured"
                )
            if said["rank"] in ranks:
                raise LaunchError(f"rank {said['rank']} answered from {ranks[said['rank']]} and from {node}")
            ranks[said["rank"]] = node

    def _launch_failure(
        self, what: str, wanted: list[tuple[str, int]], guilty: Sequence[NodeProcess] | None = None
    ) -> LaunchError:
        missing = sorted({node for node, local in wanted if not self._channel.has(f"present/{node}/{local}")})
        return not_started(self._wire.launch, what, missing, guilty)

    def _start_generation(self) -> None:
        self._generations += 1
        self._jobs = 0
        generation = self._generation = f"g{self._generations}"
        hosts = [node.host for node in self.nodes]
        self._order({
            "do": "start", "generation": generation, "path": self._path,
            "nodes": [seat.node for seat in self._seats],
            "ranks": {f"{seat.node}/{seat.local_rank}": [rank, seat.device] for rank, seat in enumerate(self._seats)},
            "ranks_on_host": max(hosts.count(host) for host in hosts) * self.nproc_per_node,
        })  # fmt: skip
        keys = [f"{generation}/hello/{rank}" for rank in range(self.size)]
        began = time.monotonic()
        asked = False
        pause = Pause()
        while not self._channel.has(*keys):
            waited = time.monotonic() - began
            late = waited > self._start_timeout
            failed = late or self._channel.has(f"{generation}/trouble") or not self.usable
            if not asked and self.usable and (failed or waited > _JOIN_SECONDS):
                asked = True
                unreached = ask(self._channel, self._order, f"{generation}/reach", [node.name for node in self.nodes])
                if (error := no_way_between(unreached)) and not self._channel.has(*keys):
                    self._end_generation()
                    raise error
            if failed:
                tails = self._tails()
                exits = self._end_generation()
                answers = {rank: Answer() for rank in range(self.size) if not self._channel.has(keys[rank])}
                raise describe(
                    "joining the process group",
                    answers,
                    exits,
                    self._node_of_rank,
                    timeout=self._start_timeout if late else None,
                    tails=tails,
                )
            pause()
        places = [from_json(RankPlace, self._channel.get(key), where=key) for key in keys]
        check_world(
            places,
            nodes=[node.name for node in self.nodes],
            hosts=hosts,
            nproc_per_node=self.nproc_per_node,
            device=self.device,
            backend=self.backend,
        )
        self.rank_map = RankMap(places=tuple(places))

    @property
    def _node_of_rank(self) -> dict[int, str]:
        return {rank: seat.node for rank, seat in enumerate(self._seats)}

    # -- jobs ------------------------------------------------------------------------------------

    def fresh(self) -> None:
        """Make the next job start in new processes."""
        if self._generation:
            self._leave_generation()

    def ready(self, seats: Sequence[Seat] | None = None) -> RankMap:
        """Have a generation of checked workers and return where they are.

        `seats` are where the ranks are to sit, in rank order; None leaves them as they are.
        """
        if seats is not None and tuple(seats) != self._seats:
            self.fresh()
            self._seats = tuple(seats)
        if not self._generation:
            try:
                self._start_generation()
            except BaseException:
                self._generation = ""
                raise
        return self.rank_map

    def run(self, job: Job) -> list[RankResult]:
        """Run `job` and return the results of its ranks in order.

        Raises:
            JobError: a rank raised, died or did not answer in time; it names rank and node. The
                generation is gone then; the next job gets a new one.
        """
        __tracebackhide__ = True
        self.ready()
        prefix, number = self._generation, self._jobs
        try:
            self._channel.put(f"{prefix}/job/{number}", {
                "do": "run", "job": job.name, "args": dict(job.args), "ranks": list(job.ranks),
                "new_group": job.new_group, "watch": job.watch,
            })  # fmt: skip
        except TypeError as error:
            raise JobError(f"{job.name}: an argument is not a JSON value: {error}") from None
        self._jobs += 1
        try:
            answered = self._await_answers(job, prefix, number)
        except BaseException:
            # Ctrl-C, a time limit: whatever interrupts a job, its ranks must not go on with it.
            self.close()
            raise
        results = [f"{prefix}/result/{number}/{rank}" for rank in range(self.size)]
        answers = {
            rank: Answer.read(self._channel.get(key)) if self._channel.has(key) else Answer()
            for rank, key in enumerate(results)
        }
        # The store is this process' memory: what was read is dropped, or a long run would fill it.
        self._channel.drop(*results, f"{prefix}/job/{number}", f"{prefix}/progress/{number}")
        if answered and not any(answer.error for answer in answers.values()):
            return [
                RankResult(
                    rank=rank, value=answers[rank].value, seconds=answers[rank].seconds, taken=answers[rank].taken
                )
                for rank in job.ranks
            ]
        tails = self._tails()
        exits = self._end_generation()
        hung = not answered and not exits.keys() - {r for r, e in exits.items() if e.ended_by_us}
        raise describe(
            job.what or job.name,
            answers,
            exits,
            self._node_of_rank,
            timeout=job.timeout if hung and not any(a.error for a in answers.values()) else None,
            tails=tails,
        )

    def _await_answers(self, job: Job, prefix: str, number: int) -> bool:
        """True if every rank answered; False after trouble and its grace, or at the deadline."""
        ready, trouble, progress = f"{prefix}/ready/{number}", f"{prefix}/trouble", f"{prefix}/progress/{number}"
        began = time.monotonic()
        deadline, give_up = began + job.timeout, None
        done, total = float(job.done), float(job.total)
        pause = Pause()
        while not self._channel.has(ready):
            pause()
            now = time.monotonic()
            if now > deadline or (give_up is not None and (now > give_up or self._all_told(prefix, number))):
                return False
            if not pause.slow:
                continue
            if give_up is None and (self._channel.has(trouble) or not self.usable):
                give_up = now + _GRACE
            if not job.total and self._channel.has(progress):
                _rank, done, total, _detail = self._channel.get(progress)
            self._tell(Progress(job.what or job.name, len(job.ranks), done, total))
        return True

    def _all_told(self, prefix: str, number: int) -> bool:
        """True if every rank has answered the job or ended."""
        return all(
            self._channel.has(f"{prefix}/result/{number}/{rank}") or self._channel.has(f"{prefix}/exit/{rank}")
            for rank in range(self.size)
        )

    # -- end -------------------------------------------------------------------------------------

    def _order(self, message: dict[str, Any]) -> None:
        self._channel.put(f"control/{self._orders}", message)
        self._orders += 1

    def _leave_generation(self) -> None:
        """Let idle workers go; the next generation may start once their supervisors have seen it."""
        generation, self._generation = self._generation, ""
        self._channel.put(f"{generation}/job/{self._jobs}", {"do": "leave"})
        keys = [f"{generation}/exit/{rank}" for rank in range(self.size)]
        deadline = time.monotonic() + _STACKS_GRACE
        pause = Pause()
        while not self._channel.has(*keys):
            if time.monotonic() > deadline:
                self._generation = generation
                self._end_generation()
                return
            pause()

    def _end_generation(self) -> dict[int, Exit]:
        """Stop all workers of the generation; their exits tell who had died before and where the others stood."""
        generation, self._generation = self._generation, ""
        before = {rank for rank in range(self.size) if self._channel.has(f"{generation}/exit/{rank}")}
        self._order({"do": "end"})
        deadline = time.monotonic() + _STACKS_GRACE
        keys = [f"{generation}/exit/{rank}" for rank in range(self.size)]
        while not self._channel.has(*keys) and time.monotonic() < deadline:
            time.sleep(0.02)
        exits = {
            rank: Exit.read(self._channel.get(key), ended_by_us=rank not in before)
            for rank, key in enumerate(keys)
            if self._channel.has(key)
        }
        if len(exits) < self.size or not self.usable:
            exits |= self._exits_from_agents(exits)
            self.close()  # a supervisor that does not answer is no longer ours to command
        return exits

    def _exits_from_agents(self, known: Mapping[int, Exit]) -> dict[int, Exit]:
        """What the torchrun agents noted about ranks whose supervisor died."""
        rank_at = {(seat.node, seat.local_rank): rank for rank, seat in enumerate(self._seats)}
        found: dict[int, Exit] = {}
        for process in self._wire.launch.processes:
            for local_rank, code in process.agent_saw().items():
                rank = rank_at.get((process.node.name, local_rank))
                if rank is not None and rank not in known:
                    found[rank] = Exit(code=code)
        return found

    def _tails(self) -> dict[str, str]:
        """Node -> why the way to it ended, if that is known, else the last lines printed there."""
        launch = self._wire.launch
        gone = {process.node.name: launch.why(process) for process in launch.ended()}
        return {p.node.name: gone.get(p.node.name) or p.tail() for p in launch.processes}

    def samples(self) -> dict[str, list[dict[str, Any]]]:
        """Node -> what its guard has told about its condition since this was asked last."""
        told = {}
        for process in self._wire.launch.processes:
            process.poll()
            told[process.node.name], process.samples = process.samples, []
        return told

    def close(self) -> None:
        """End every process of this world. May be called again."""
        self._generation = ""
        if self._wire.launch.processes and self.usable:
            self._order({"do": "leave"})
            deadline = time.monotonic() + 1.5
            while not all(p.poll() is not None for p in self._wire.launch.processes) and time.monotonic() < deadline:
                time.sleep(0.02)
        self._wire.close()

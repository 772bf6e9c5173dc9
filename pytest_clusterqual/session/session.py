"""The session: has the nodes, keeps their ranks warm, and runs jobs on them.

It knows no pytest and judges nothing. `measure` makes measurements of its jobs.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pytest_clusterqual.errors import JobError, LaunchError
from pytest_clusterqual.launch.plan import Launcher, NodePlan
from pytest_clusterqual.launch.surveys import survey
from pytest_clusterqual.model.conditions import Conditions, Load
from pytest_clusterqual.model.full_run import Failure
from pytest_clusterqual.model.hardware import NodeHardware
from pytest_clusterqual.model.project import Project
from pytest_clusterqual.model.rank_map import Arrangement, arrange, surrounded
from pytest_clusterqual.model.telemetry import NodeTelemetry, summarize
from pytest_clusterqual.model.topology import Links, RankMap, RankPlace, Topology
from pytest_clusterqual.read.survey import read_survey
from pytest_clusterqual.session.command_launch import CommandLaunch, CommandRun
from pytest_clusterqual.session.perf_run import perf_run
from pytest_clusterqual.session.training_launch import Trained, train
from pytest_clusterqual.session.world import Job, Progress, RankResult, World

_TRIES = 2


class Session:
    """All measurements of one run on `nodes` with `nproc_per_node` ranks each, or after `use` on some of them.

    `folder` is the run folder: logs of the ranks, what the nodes answered, checkpoints.
    """

    def __init__(
        self,
        project: Project,
        launcher: Launcher,
        nodes: Sequence[NodePlan],
        *,
        nproc_per_node: int,
        folder: Path,
        path: Sequence[str],
        tell: Callable[[Progress], None],
    ) -> None:
        self.project = project
        self.nproc_per_node = nproc_per_node
        self._launcher = launcher
        self._all = self._nodes = tuple(nodes)
        self._device: Literal["cpu", "cuda"] | None = None
        self._folder = folder
        self._logs = folder / "ranks"
        self._path = path
        self._tell = tell
        self._world: World | None = None
        self._hardware: dict[str, NodeHardware] = {}
        self._samples: dict[str, list[dict[str, Any]]] = {}
        self._failures = 0
        self._failure: LaunchError | None = None
        self._guilty: tuple[str, ...] = ()

    # -- nodes -----------------------------------------------------------------------------------

    @property
    def all_nodes(self) -> tuple[str, ...]:
        """The names of the nodes of the run, whichever are in use."""
        return tuple(node.name for node in self._all)

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of the nodes in use."""
        return tuple(node.name for node in self._nodes)

    def use(self, names: Collection[str]) -> None:
        """From now on use these nodes of the run only; warm ranks on others are ended."""
        nodes = tuple(node for node in self._all if node.name in names)
        if nodes != self._nodes:
            self.release()
            self._nodes, self._device, self._failures = nodes, None, 0

    @property
    def hardware(self) -> dict[str, NodeHardware]:
        """Node -> what was found on it, of the nodes in use; asks those that were not asked yet.

        Raises:
            LaunchError: names the nodes that did not answer, with the reason.
        """
        if unknown := [node for node in self._nodes if node.name not in self._hardware]:
            asked = unknown[:1] if self._launcher.simulated else unknown
            self._tell(Progress("asking the nodes what they have", 0))
            answers = survey(self._launcher, asked, timeout=self.project.launcher.survey_timeout)
            if silent := {name: answer.problem for name, answer in answers.items() if answer.problem}:
                told = "; ".join(f"{name}: {problem}" for name, problem in silent.items())
                raise LaunchError(f"no answer from {told}", culprits=list(silent))
            keep = self._folder / "nodes"
            keep.mkdir(exist_ok=True)
            for name, answer in answers.items():
                (keep / f"{name}.json").write_text(answer.text + "\n", encoding="utf-8")
            first = next(iter(answers.values()))
            texts = {node.name: answers.get(node.name, first).text for node in unknown}
            found = {node.name: read_survey(texts[node.name], node=node.name) for node in unknown}
            self._hardware |= {node.name: _share(found[node.name], node) for node in unknown}
        return {node.name: self._hardware[node.name] for node in self._nodes}

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        """What the ranks use; where the file leaves it open, what the nodes have.

        Raises:
            LaunchError: some nodes have GPUs and some have none.
        """
        if self._launcher.device != "auto":
            return self._launcher.device
        if self._device is None:
            with_gpus = [name for name, node in self.hardware.items() if node.gpus]
            if with_gpus and len(with_gpus) < len(self.nodes):
                without = [name for name in self.nodes if name not in with_gpus]
                raise LaunchError(
                    f"no GPU was found on {', '.join(without)}, but there are some on {', '.join(with_gpus)}; repair "
                    "or leave out the odd nodes, or set launcher.device: cpu"
                )
            self._device = "cuda" if with_gpus else "cpu"
        return self._device

    @property
    def topology(self) -> Topology:
        """What this run is made of, hardware included; asks the nodes at the first use."""
        return Topology(
            nodes=self.nodes, nproc_per_node=self.nproc_per_node, device=self.device,
            simulated=self._launcher.simulated, oversubscribed=self._launcher.oversubscribed,
            links=self.project.fabric.links if self.project.fabric else Links(),
            hardware=tuple(self.hardware.values()),
        )  # fmt: skip

    # -- ranks and jobs --------------------------------------------------------------------------

    def rank_map(self, arrangement: Arrangement | None = None) -> RankMap:
        """Where the ranks really are, with what is near to them; starts them if need be."""
        world = self._ready(arrangement)
        return RankMap(places=tuple(surrounded(place, self.hardware[place.node]) for place in world.rank_map.places))

    def run(
        self,
        function: str,
        args: Mapping[str, Any] | None = None,
        *,
        nodes: int | Sequence[str] | None = None,
        per_node: int | None = None,
        timeout: float | None = None,
        new_group: bool = False,
        fresh: bool = False,
        watch: bool = True,
        arrangement: Arrangement | None = None,
        what: str = "",
        progress: tuple[int, int] = (0, 0),
    ) -> list[RankResult]:
        """Run ``package.module:function`` on every rank of `nodes`: the first so many, or those named (default: all).

        `per_node` limits it to the first so many ranks of each of them. `fresh` gives it new processes,
        `new_group` a process group of its own. `arrangement` is the rank map (default: the project's).

        Raises:
            JobError: a rank raised, died or hung; LaunchError: the ranks could not be had.
        """
        __tracebackhide__ = True  # a failing test shows its own line and the message, not how jobs are sent
        names = self._chosen(function, nodes)
        if fresh and self._world is not None:
            self._world.fresh()
        world = self._ready(arrangement)
        ranks = tuple(place.rank for place in _among(world.rank_map.places, names, per_node))
        job = Job(
            name=function, args=args or {}, ranks=ranks, timeout=timeout or self.project.launcher.job_timeout,
            new_group=new_group, watch=watch, what=what, done=progress[0], total=progress[1],
        )  # fmt: skip
        return world.run(job)

    def _chosen(self, function: str, nodes: int | Sequence[str] | None) -> tuple[str, ...]:
        if nodes is None:
            return self.nodes
        if isinstance(nodes, int):
            if not 1 <= nodes <= len(self.nodes):
                raise JobError(f"{function}: got nodes={nodes}, want 1 to {len(self.nodes)}: this run has no more")
            return self.nodes[:nodes]
        if unknown := [name for name in nodes if name not in self.nodes] or not nodes:
            raise JobError(f"{function}: got nodes={list(nodes)}, want some of {', '.join(self.nodes)} ({unknown})")
        return tuple(nodes)

    def _ready(self, arrangement: Arrangement | None = None) -> World:
        """Warm ranks in the seats asked for. Nodes that failed to start twice are not tried a third time.

        A launch that failed is tried again by the next test, for what passes; what does not pass costs
        minutes each time.
        """
        if self._world is not None and not self._world.usable:
            self.release()
        if self._failures >= _TRIES:
            raise LaunchError(
                f"{self._failure}\nthis failed {_TRIES} times and was not tried again", culprits=self._guilty
            )
        wanted = arrangement or self.project.launcher.rank_map
        if self._nodes != self._all and not isinstance(wanted, str):
            wanted = "block"  # an explicit list seats the ranks of all nodes
        try:
            if self._world is None:
                self._world = World(
                    self._launcher, self._nodes, self.nproc_per_node, device=self.device, logs=self._logs,
                    start_timeout=self.project.launcher.start_timeout, path=self._path, tell=self._tell,
                )  # fmt: skip
            self._world.ready(arrange(wanted, self.nodes, self.nproc_per_node, self.hardware))
        except LaunchError as error:
            self._failures = self._failures + 1 if error.culprits == self._guilty else 1
            self._failure, self._guilty = error, error.culprits
            raise
        self._failures = 0
        return self._world

    def release(self) -> None:
        """End the warm ranks; the next job starts new ones."""
        world, self._world = self._world, None
        if world is not None:
            world.close()

    def close(self) -> None:
        """End everything of this session, and give its nodes back. May be called again."""
        self.release()
        self._launcher.close()

    # -- full runs and conditions ----------------------------------------------------------------

    def train(
        self, args: Mapping[str, Any], *, nodes: int, failure: Failure | None, what: str, expected: float = 0.0
    ) -> Trained:
        """One full run on the first `nodes`, the next one being the spare; it has them for itself.

        It may take its limit and the `expected` seconds.
        """
        self.release()
        trained = train(
            self._launcher, self._nodes[:nodes], self.nproc_per_node, args, path=self._path, device=self.device,
            failure=failure, spare=self._spare(nodes, failure), limits=self.project.launcher, expected=expected,
            logs=self._logs, tell=self._tell, what=what,
        )  # fmt: skip
        self._keep(trained.samples)
        return trained

    @contextmanager
    def commanded(
        self, *, nodes: int, steps: int | None = None, failure: Failure | None = None, what: str
    ) -> Iterator[CommandRun]:
        """One run of the project's command on the first `nodes`, which it has for itself; inside, what it wrote."""
        assert self.project.command is not None
        self.release()
        plan = self.project.full_run
        folder = Path(self._folder).absolute() / f"command-{secrets.token_hex(4)}"
        try:
            launch = CommandLaunch(
                launcher=self._launcher, nproc_per_node=self.nproc_per_node, job=self.project.command, steps=steps,
                hang_timeout=plan.hang_timeout if plan else 0.0, device=self.device, limits=self.project.launcher,
                folder=folder, logs=self._logs, tell=self._tell, what=what,
            )  # fmt: skip
            run = launch.run(self._nodes[:nodes], failure, self._spare(nodes, failure))
            self._keep(run.samples)
            yield replace(run, places=tuple(replace(p, device_name=self._device_name(p)) for p in run.places))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _spare(self, nodes: int, failure: Failure | None) -> NodePlan | None:
        """The node behind the first `nodes`, if the failure takes one away that it is to replace."""
        return self._nodes[nodes] if failure is not None and failure.go_on == "spare" else None

    def _device_name(self, place: RankPlace) -> str:
        """What the survey of its node found."""
        node = self.hardware[place.node]
        if place.device == "cpu":
            return node.cpu.model or "cpu"
        return node.gpus[place.local_rank].model or "GPU" if place.local_rank < len(node.gpus) else "GPU"

    def perf(self, collective: str, group: str, *, number: int, total: int) -> list[Path]:
        """The `number`-th of `total` runs of a program of nccl-tests, as `perf_run`; it has the nodes for itself."""
        assert self.project.fabric is not None
        self.release()
        ranks = len(self.nodes) * self.nproc_per_node
        self._tell(Progress(f"nccl-tests: {collective} in {group}", ranks, done=number - 1, total=total))
        return perf_run(
            self._launcher, self._nodes, self.nproc_per_node, self.project.fabric, collective=collective, group=group,
            number=number, limits=self.project.launcher, logs=self._logs,
        )  # fmt: skip

    def checkpoint_folder(self, wanted: str | None) -> Path:
        """A folder for one run's checkpoints, below the one `wanted` or the run folder; every node must see it."""
        return Path(wanted or self._folder) / f"checkpoints-{secrets.token_hex(4)}"

    @property
    def places(self) -> tuple[RankPlace, ...]:
        """Where the ranks of the last job were; nothing if none were started."""
        return self._world.rank_map.places if self._world is not None else ()

    def forget_samples(self) -> None:
        """Begin a measurement: what the nodes told before does not belong to it."""
        if self._world is not None:
            self._world.samples()
        self._samples = {}

    def _keep(self, samples: Mapping[str, Sequence[dict[str, Any]]]) -> None:
        for node, told in samples.items():
            self._samples.setdefault(node, []).extend(told)

    def telemetry(self, nodes: Collection[str] | None = None) -> tuple[NodeTelemetry, ...]:
        """The ranges that the condition of each node (or of `nodes`) moved in since the measurement began."""
        if self._world is not None:
            self._keep(self._world.samples())
        wanted = self.nodes if nodes is None else nodes
        return tuple(summarize(told, node=node) for node, told in self._samples.items() if told and node in wanted)

    def conditions(
        self,
        results: Sequence[RankResult] = (),
        *,
        nodes: int | Sequence[str] | None = None,
        per_node: int | None = None,
        places: Sequence[RankPlace] | None = None,
        **what: Any,
    ) -> Conditions:
        """Of a measurement with these results on `nodes`, as in `run`; there are none until ranks have `places`."""
        places = list(places or self.places)
        names = self._chosen("conditions", nodes)
        used = _among(places, names, per_node)
        return Conditions(
            nodes=len(names), nproc_per_node=per_node or self.nproc_per_node, ranks=len(used),
            hosts=tuple(dict.fromkeys(place.host for place in used)),
            rank_nodes=tuple(place.node for place in used), simulated=self._launcher.simulated,
            oversubscribed=self._launcher.oversubscribed, device=self.device,
            device_name=used[0].device_name, backend=used[0].backend, versions=used[0].versions,
            load=_load(results, {place.rank: place.node for place in places}), **what,
        )  # fmt: skip


def _among(places: Sequence[RankPlace], names: Collection[str], per_node: int | None) -> list[RankPlace]:
    """The ranks on nodes of these names, of each node the first `per_node`."""
    return [
        place for place in places if place.node in names and (per_node is None or place.local_rank < per_node)
    ]  # fmt: skip


def _share(node: NodeHardware, plan: NodePlan) -> NodeHardware:
    """The part of a machine that a plan gives to its node."""
    return replace(node, gpus=tuple(gpu for gpu in node.gpus if gpu.index in plan.gpus)) if plan.gpus else node


def _load(results: Sequence[RankResult], nodes: Mapping[int, str]) -> Load | None:
    """The worst rank's share of taken core time, over all its jobs; None after less than a second."""
    sums: dict[int, tuple[float, float]] = {}
    for result in results:
        taken, available = sums.get(result.rank, (0.0, 0.0))
        sums[result.rank] = (taken + result.taken[0], available + result.taken[1])
    shares = {rank: taken / available for rank, (taken, available) in sums.items() if available >= 1.0}
    if not shares:
        return None
    worst = max(shares, key=shares.__getitem__)
    return Load(other_cpu=min(1.0, max(0.0, shares[worst])), node=nodes[worst])

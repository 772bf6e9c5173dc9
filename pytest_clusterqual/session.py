"""The session: leases nodes, keeps their ranks warm, runs jobs and makes measurements of them.

It knows no pytest and judges nothing: whoever calls it decides how many samples are enough.
"""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pytest_clusterqual.errors import JobError, MeasurementError
from pytest_clusterqual.launch.plan import Launcher
from pytest_clusterqual.model.codec import from_json, to_json
from pytest_clusterqual.model.measurement import (
    Conditions,
    FabricMeasurement,
    FullRunMeasurement,
    Load,
    MemoryMeasurement,
    RankFabric,
    RankMemory,
    RankTraining,
    ScalingMeasurement,
    ScalingRun,
)
from pytest_clusterqual.model.project import Project
from pytest_clusterqual.model.topology import Links, RankMap, RankPlace, Topology
from pytest_clusterqual.model.workload import Layout
from pytest_clusterqual.training_launch import train
from pytest_clusterqual.world import Job, Progress, RankResult, World

T = TypeVar("T")
_SAMPLE_SECONDS = 0.01  # one fabric sample; long against the clock, short against the budget


class Session:
    """All measurements of one run on `nodes` nodes with `nproc_per_node` ranks each."""

    def __init__(
        self,
        project: Project,
        launcher: Launcher,
        *,
        nodes: int,
        nproc_per_node: int,
        logs: Path,
        path: Sequence[str],
        tell: Callable[[Progress], None],
    ) -> None:
        self.project = project
        self._launcher = launcher
        self._nodes = launcher.nodes(nodes, nproc_per_node)
        self._logs = logs
        self._path = path
        self._tell = tell
        self._world: World | None = None
        self.topology = Topology(
            nodes=tuple(node.name for node in self._nodes), nproc_per_node=nproc_per_node, device=launcher.device,
            simulated=launcher.simulated, oversubscribed=launcher.oversubscribed,
            links=project.fabric.links if project.fabric else Links(),
        )  # fmt: skip

    # -- ranks and jobs --------------------------------------------------------------------------

    @property
    def rank_map(self) -> RankMap:
        """Where the ranks really are; starts them if need be."""
        return self._ready().rank_map

    def run(
        self,
        function: str,
        args: Mapping[str, Any] | None = None,
        *,
        nodes: int | None = None,
        timeout: float | None = None,
        new_group: bool = False,
        fresh: bool = False,
        watch: bool = True,
        what: str = "",
        progress: tuple[int, int] = (0, 0),
    ) -> list[RankResult]:
        """Run ``package.module:function`` on every rank of the first `nodes` nodes (default: all).

        `fresh` gives it new processes, `new_group` a process group of its own.

        Raises:
            JobError: a rank raised, died or hung; LaunchError: the ranks could not be had.
        """
        __tracebackhide__ = True  # a failing test shows its own line and the message, not how jobs are sent
        count = len(self._nodes) if nodes is None else nodes
        if not 1 <= count <= len(self._nodes):
            raise JobError(f"{function}: got nodes={count}, want 1 to {len(self._nodes)}: this run has no more")
        if fresh and self._world is not None:
            self._world.fresh()
        world = self._ready()
        chosen = [
            place.rank for name in self.topology.nodes[:count] for place in world.rank_map.places if place.node == name
        ]
        job = Job(
            name=function, args=args or {}, ranks=tuple(chosen), timeout=timeout or self.project.launcher.job_timeout,
            new_group=new_group, watch=watch, what=what, done=progress[0], total=progress[1],
        )  # fmt: skip
        return world.run(job)

    def _ready(self) -> World:
        if self._world is not None and not self._world.usable:
            self.release()
        if self._world is None:
            self._world = World(
                self._launcher, self._nodes, self.topology.nproc_per_node, logs=self._logs,
                start_timeout=self.project.launcher.start_timeout, path=self._path, tell=self._tell,
            )  # fmt: skip
        self._world.ready()
        return self._world

    def release(self) -> None:
        """End the warm ranks; the next job starts new ones."""
        world, self._world = self._world, None
        if world is not None:
            world.close()

    close = release

    # -- the four criteria -----------------------------------------------------------------------

    def memory(self, layout: Layout) -> MemoryMeasurement:
        """Peak memory of the exact job on all nodes, in fresh processes."""
        assert self.project.memory is not None
        began = _Clock()
        args = {**self._job_args(layout), "steps": self.project.memory.steps}
        results = self.run("pytest_clusterqual.rank.memory:measure", args, fresh=True, what=f"memory of {layout.name}")
        ranks = tuple(parse(RankMemory, result, self.rank_map) for result in results)
        conditions = self._conditions(
            results, layout=layout.name, workload=self._fingerprint([r.data_digest for r in ranks])
        )
        return MemoryMeasurement(conditions=conditions, ranks=ranks, started=began.wall, seconds=began.seconds)

    def fabric(
        self, collective: str, group: str, *, rounds: int, before: FabricMeasurement | None = None
    ) -> FabricMeasurement:
        """`rounds` passes over all sizes of one collective, added to those made `before`."""
        assert self.project.fabric is not None
        began = _Clock()
        args = {
            "collective": collective,
            "group": group,
            "sizes": list(self.project.fabric.sizes),
            "seconds": _SAMPLE_SECONDS,
        }
        made: list[tuple[RankFabric, ...]] = []
        everything: list[RankResult] = []
        for done in range(rounds):
            results = self.run(
                "pytest_clusterqual.rank.collectives:sweep",
                args,
                what=f"{collective} in {group}",
                progress=(done, rounds),
            )
            made.append(tuple(parse(RankFabric, result, self.rank_map) for result in results))
            everything += results
        conditions = self._conditions(everything, collective=collective, group=group)
        return FabricMeasurement(
            conditions=merge_load(conditions, before.conditions if before else None),
            rounds=(before.rounds if before else ()) + tuple(made),
            started=before.started if before else began.wall,
            seconds=began.seconds + (before.seconds if before else 0.0),
        )

    def scaling(
        self, layout: Layout, points: Sequence[int], *, repeats: int, before: ScalingMeasurement | None = None
    ) -> ScalingMeasurement:
        """The fixed work on each number of nodes in `points`, `repeats` times, interleaved."""
        assert self.project.scaling is not None
        began = _Clock()
        args = {**self._job_args(layout), "warmup": self.project.scaling.warmup_steps}
        runs: list[ScalingRun] = []
        everything: list[RankResult] = []
        done = len(before.runs) // len(points) if before else 0
        for repeat in range(done, done + repeats):
            # A B, B A, A B ...: slow drift of the machine then cancels in the ratios.
            for nodes in points if repeat % 2 == 0 else list(reversed(points)):
                results = self.run(
                    "pytest_clusterqual.rank.training:fixed_work", args, nodes=nodes, new_group=True,
                    what=f"fixed work with {layout.name}", progress=(len(runs), repeats * len(points)),
                )  # fmt: skip
                ranks = tuple(parse(RankTraining, result, self.rank_map) for result in results)
                workload = self._fingerprint([rank.data_digest for rank in ranks])
                conditions = self._conditions(results, nodes=nodes, layout=layout.name, workload=workload)
                runs.append(ScalingRun(conditions=conditions, ranks=ranks))
                everything += results
        conditions = self._conditions(
            everything, nodes=max(points), layout=layout.name, workload=runs[-1].conditions.workload
        )
        return ScalingMeasurement(
            conditions=merge_load(conditions, before.conditions if before else None),
            runs=(before.runs if before else ()) + tuple(runs),
            started=before.started if before else began.wall,
            seconds=began.seconds + (before.seconds if before else 0.0),
        )

    def full_run(self, layout: Layout) -> FullRunMeasurement:
        """One complete run under torchrun's own restart, with the failure the plan asks for."""
        plan = self.project.full_run
        assert plan is not None
        self.release()  # a full run has the nodes for itself
        began = _Clock()
        steps = plan.steps or self.project.workload.steps
        folder = self._logs.parent / f"checkpoints-{secrets.token_hex(4)}"
        args = {
            **self._job_args(layout), "steps": steps, "checkpoint_every": plan.checkpoint_every,
            "checkpoint_mode": plan.checkpoint_mode, "kill_rank": plan.kill_rank,
            "kill_step": plan.kill_step if plan.kill_rank is not None else 0, "folder": str(folder),
        }  # fmt: skip
        folder.mkdir()
        try:
            ranks, places, results = train(
                self._launcher, self._nodes, self.topology.nproc_per_node, args,
                max_restarts=1 if plan.kill_rank is not None else 0, limits=self.project.launcher, logs=self._logs,
                tell=self._tell, what=f"full run of {layout.name}",
            )  # fmt: skip
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return FullRunMeasurement(
            conditions=self._conditions(results, places=places, layout=layout.name,
                                        workload=self._fingerprint([r.data_digest for r in ranks], places)),
            ranks=ranks, mode=plan.checkpoint_mode, steps=steps,
            tokens_per_step=self.project.workload.tokens_per_step, kill_step=args["kill_step"],
            started=began.wall, seconds=began.seconds,
        )  # fmt: skip

    def conditions(self) -> Conditions | None:
        """Of whatever was run last on the warm ranks; None if none were started."""
        return self._conditions([]) if self._world is not None and len(self._world.rank_map) else None

    # -- conditions ------------------------------------------------------------------------------

    def _job_args(self, layout: Layout) -> dict[str, Any]:
        return {"workload": to_json(self.project.workload), "layout": to_json(layout)}

    def _fingerprint(self, digests: Sequence[str], places: Sequence[RankPlace] | None = None) -> str:
        if len(set(digests)) != 1:
            raise MeasurementError(f"the ranks read different training data: digests {', '.join(sorted(set(digests)))}")
        versions = (places or self.rank_map.places)[0].versions
        return self.project.workload.fingerprint(versions=versions, data_digest=digests[0])

    def _conditions(
        self,
        results: Sequence[RankResult],
        *,
        nodes: int | None = None,
        places: Sequence[RankPlace] | None = None,
        **what: str | None,
    ) -> Conditions:
        places = list(places or self.rank_map.places)
        count = nodes or len(self.topology.nodes)
        used = [place for place in places if place.node in self.topology.nodes[:count]]
        return Conditions(
            nodes=count, nproc_per_node=self.topology.nproc_per_node, ranks=len(used),
            hosts=tuple(dict.fromkeys(place.host for place in used)),
            rank_nodes=tuple(place.node for place in used), simulated=self.topology.simulated,
            oversubscribed=self.topology.oversubscribed, device=self.topology.device,
            device_name=used[0].device_name, backend=used[0].backend, versions=used[0].versions,
            load=_load(results, {place.rank: place.node for place in places}), **what,  # type: ignore[arg-type]  # str fields only
        )  # fmt: skip


class _Clock:
    def __init__(self) -> None:
        self.wall = time.time()
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began


def parse(kind: type[T], result: RankResult, rank_map: RankMap) -> T:
    """Read what a rank returned as `kind`.

    Raises:
        MeasurementError: names the rank, its node and the field that is missing or of another type.
    """
    try:
        return from_json(kind, result.value, where=f"{rank_map[result.rank]} returned")
    except ValueError as error:
        raise MeasurementError(str(error)) from None


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


def merge_load(now: Conditions, before: Conditions | None) -> Conditions:
    """The conditions of a continued measurement: the heavier load of its parts counts."""
    from dataclasses import replace

    if before is None or before.load is None or (now.load and now.load.other_cpu >= before.load.other_cpu):
        return now
    return replace(now, load=before.load)

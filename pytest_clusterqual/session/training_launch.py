"""A full run, watched from outside: torchrun restarts ranks that die; where it dies with them, it is launched again."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pytest_clusterqual.launch.plan import Launcher, LaunchPlan, NodePlan
from pytest_clusterqual.model.codec import from_json
from pytest_clusterqual.model.full_run import Failure, RankRun
from pytest_clusterqual.model.project import LauncherOptions
from pytest_clusterqual.model.topology import RankPlace, check_world
from pytest_clusterqual.session.launch_end import (
    agents_began,
    agents_ended,
    lost_nodes,
    nodes_after,
    of_both,
    who_failed,
)
from pytest_clusterqual.session.wire import Wire, backend_of
from pytest_clusterqual.session.world import Progress, RankResult


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """What each rank logged, where it was and what load it saw; and what the guards told of their nodes."""

    runs: tuple[RankRun, ...]
    places: list[RankPlace]
    results: list[RankResult]
    samples: dict[str, list[dict[str, Any]]]


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
        ended = agents_ended(processes) if whole else {}
        began = agents_began(processes)
        samples = {process.node.name: process.samples for process in processes}
    finally:
        wire.close()
    places = [from_json(RankPlace, place, where=f"rank {rank}") for rank, place in enumerate(told)]
    check_world(
        places, nodes=[node.name for node in nodes], nproc_per_node=nproc_per_node, device=device,
        backend=backend_of(device), hosts=hosts,
    )  # fmt: skip
    return _Launched(places=places, began=began, ended=ended, answers=answers, lost=lost, samples=samples)


def _trained(first: _Launched, last: _Launched) -> Trained:
    """The guards' clocks saw the whole run, a rank only its own attempts."""
    began = {place.rank: first.began[place.node] for place in first.places}
    ended = {place.rank: last.ended[place.node] for place in last.places}
    told = [
        from_json(tuple[RankRun, ...], answer["value"], where=str(place))
        for place, answer in zip(last.places, last.answers, strict=True)
    ]
    runs = sorted((run for mine in told for run in mine), key=lambda run: run.rank)
    return Trained(
        runs=tuple(replace(run, began=began[run.rank], ended=ended.get(run.rank, run.ended)) for run in runs),
        places=first.places,
        results=[
            RankResult(rank=rank, value=None, seconds=0.0, taken=tuple(answer["taken"]))
            for rank, answer in enumerate(last.answers)
        ],
        samples=first.samples if last is first else of_both(first.samples, last.samples),
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
            raise who_failed(wire.launch, what, late=time.monotonic() > deadline)
        done = total = 0.0
        if wire.channel.has("progress"):
            _rank, done, total, _detail = wire.channel.get("progress")
        tell(Progress(what, size, done, total))
    return True

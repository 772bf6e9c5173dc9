"""What Nodes, Memory and Scaling ask of a session, the measurements that come of it, and what all of them share.

No judging: whoever calls decides how many samples are enough, and passes what there is as `before`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from pytest_clusterqual import units
from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.model.codec import from_json, to_json
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.fabric import RankLadder
from pytest_clusterqual.model.measurement import NodesMeasurement
from pytest_clusterqual.model.memory import MemoryMeasurement, RankMemory
from pytest_clusterqual.model.rank_map import Arrangement
from pytest_clusterqual.model.topology import RankPlace
from pytest_clusterqual.model.training import RankTraining, ScalingMeasurement, ScalingRun
from pytest_clusterqual.model.workload import Layout
from pytest_clusterqual.session.session import Session
from pytest_clusterqual.session.world import RankResult

T = TypeVar("T")
_APART_SHARE = 1 / 40  # of the budget; long steps take more


def nodes(session: Session) -> NodesMeasurement:
    """What every node is made of; no rank is started for it."""
    began = Clock()
    found = tuple(session.hardware.values())
    return NodesMeasurement(nodes=found, started=began.wall, seconds=began.seconds)


def memory(session: Session, layout: Layout) -> MemoryMeasurement:
    """Peak memory of the exact job on all nodes, in fresh processes."""
    assert session.project.memory is not None
    began = Clock()
    session.forget_samples()
    args = {**job_args(session, layout), "steps": session.project.memory.steps}
    results = session.run("pytest_clusterqual.rank.memory:measure", args, fresh=True, what=f"memory of {layout.name}")
    ranks = tuple(parse(RankMemory, result, session.places) for result in results)
    conditions = conditions_of(
        session, results, layout=layout.name, workload=fingerprint(session, [r.data_digest for r in ranks])
    )
    return MemoryMeasurement(conditions=conditions, ranks=ranks, started=began.wall, seconds=began.seconds)


def scaling(
    session: Session,
    layout: Layout,
    points: Sequence[int],
    *,
    repeats: int,
    arrangement: Arrangement | None = None,
    before: ScalingMeasurement | None = None,
) -> ScalingMeasurement:
    """The fixed work on each number of nodes in `points`, `repeats` times, interleaved.

    Those that the plan asks for are spread over its launches; what is added later belongs to the last one.
    """
    plan = session.project.scaling
    assert plan is not None
    began = Clock()
    if before is None:
        session.forget_samples()
    args = {**job_args(session, layout), "warmup": plan.warmup_steps}
    launch = before.runs[-1].launch if before else 1
    runs: list[ScalingRun] = []
    everything: list[RankResult] = []
    done = len(before.runs) // len(points) if before else 0
    for repeat in range(done, done + repeats):
        wanted = min(repeat, plan.repeats - 1) * plan.launches // plan.repeats + 1
        if wanted > launch:
            session.telemetry()  # what the nodes have told goes with their ranks
            session.release()
            launch = wanted
        # A B, B A, A B ...: slow drift of the machine then cancels in the ratios.
        for count in points if repeat % 2 == 0 else list(reversed(points)):
            results = session.run(
                "pytest_clusterqual.rank.training:fixed_work", args, nodes=count, new_group=True,
                arrangement=arrangement, what=f"fixed work with {layout.name}",
                progress=(len(runs), repeats * len(points)),
            )  # fmt: skip
            ranks = tuple(parse(RankTraining, result, session.places) for result in results)
            workload = fingerprint(session, [rank.data_digest for rank in ranks])
            conditions = session.conditions(results, nodes=count, layout=layout.name, workload=workload)
            assert conditions is not None
            runs.append(ScalingRun(conditions=conditions, ranks=ranks, launch=launch))
            everything += results
    conditions = conditions_of(
        session, everything, nodes=max(points), layout=layout.name, workload=runs[-1].conditions.workload,
        rank_map=map_name(arrangement),
    )  # fmt: skip
    return ScalingMeasurement(
        conditions=heavier(conditions, before.conditions if before else None),
        runs=(before.runs if before else ()) + tuple(runs),
        started=before.started if before else began.wall,
        seconds=began.seconds + (before.seconds if before else 0.0),
    )


def taken_apart(
    session: Session,
    layout: Layout,
    *,
    rounds: int,
    least: int,
    arrangement: Arrangement | None = None,
    before: ScalingMeasurement,
) -> ScalingMeasurement:
    """`before`, with `rounds` more passes over the rungs of the step on its most nodes.

    They take a small share of the budget. Of long steps there are fewer, down to `least`; below that only where
    what is left of the budget, or half of the job timeout, is too short.
    """
    plan = session.project.scaling
    assert plan is not None
    began = Clock()
    limit = min(plan.budget - before.seconds, session.project.launcher.job_timeout / 2)
    if limit <= 0:
        spent, budget = (units.show(seconds, units.SECONDS) for seconds in (before.seconds, plan.budget))
        raise MeasurementError(f"the runs took {spent} of the {budget} of scaling.budget: there is no time left")
    args = {
        **job_args(session, layout), "rounds": rounds, "least": least,
        "seconds": min(plan.budget * _APART_SHARE, limit), "limit": limit, "whole": False,
    }  # fmt: skip
    nodes = before.conditions.nodes
    results = session.run(
        "pytest_clusterqual.rank.ladder:climb", args, nodes=nodes, new_group=True, arrangement=arrangement,
        what=f"step of {layout.name} taken apart",
    )  # fmt: skip
    ladders = [parse(tuple[RankLadder, ...], result, session.places) for result in results]
    now = session.conditions(results, nodes=nodes)
    assert now is not None  # results came from ranks
    return replace(
        before,
        conditions=replace(before.conditions, load=heavier(now, before.conditions).load),
        apart=before.apart + tuple(zip(*ladders, strict=True)),
        seconds=before.seconds + began.seconds,
    )


def parse(kind: type[T], result: RankResult, places: Sequence[RankPlace]) -> T:
    """Read what a rank returned as `kind`.

    Raises:
        MeasurementError: names the rank, its node and the field that is missing or of another type.
    """
    try:
        return from_json(kind, result.value, where=f"{places[result.rank]} returned")
    except ValueError as error:
        raise MeasurementError(str(error)) from None


def job_args(session: Session, layout: Layout) -> dict[str, Any]:
    return {"workload": to_json(session.project.workload), "layout": to_json(layout)}


def fingerprint(session: Session, digests: Sequence[str], places: Sequence[RankPlace] | None = None) -> str:
    """That of the exact job, whose ranks read data with these digests.

    Raises:
        MeasurementError: the digests differ.
    """
    if len(set(digests)) != 1:
        raise MeasurementError(f"the ranks read different training data: digests {', '.join(sorted(set(digests)))}")
    versions = (places or session.places)[0].versions
    return session.project.workload.fingerprint(versions=versions, data_digest=digests[0])


def conditions_of(session: Session, results: Sequence[RankResult], **what: Any) -> Conditions:
    """The conditions of a whole measurement, with what the nodes told of themselves meanwhile."""
    conditions = session.conditions(results, telemetry=session.telemetry(), **what)
    assert conditions is not None  # results came from ranks
    return conditions


def heavier(now: Conditions, before: Conditions | None) -> Conditions:
    """The conditions of a continued measurement: the heavier load of its parts counts."""
    if before is None or before.load is None or (now.load and now.load.other_cpu >= before.load.other_cpu):
        return now
    return replace(now, load=before.load)


def map_name(arrangement: Arrangement | None) -> str | None:
    return arrangement if arrangement is None or isinstance(arrangement, str) else "explicit"


class Clock:
    def __init__(self) -> None:
        self.wall = time.time()
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

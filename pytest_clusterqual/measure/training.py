"""What Nodes, Memory and Scaling ask of a session, and the measurements that come of it.

No judging: whoever calls decides how many samples are enough, and passes what there is as `before`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_clusterqual import units
from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.measure.parts import (
    Clock,
    begin,
    conditions_of,
    fingerprint,
    heavier,
    interleaved,
    job_args,
    map_name,
    parse,
    section,
    step_apart,
)
from pytest_clusterqual.model.measurement import NodesMeasurement
from pytest_clusterqual.model.memory import MemoryMeasurement, RankMemory
from pytest_clusterqual.model.rank_map import Arrangement
from pytest_clusterqual.model.training import RankTraining, ScalingMeasurement, ScalingRun
from pytest_clusterqual.model.workload import Layout
from pytest_clusterqual.session.session import Session
from pytest_clusterqual.session.world import RankResult

_APART_SHARE = 1 / 40  # of the budget; long steps take more


def nodes(session: Session) -> NodesMeasurement:
    """What every node is made of; no rank is started for it."""
    clock = Clock()
    found = tuple(session.hardware.values())
    return NodesMeasurement(nodes=found, started=clock.started, seconds=clock.seconds)


def memory(session: Session, layout: Layout) -> MemoryMeasurement:
    """Peak memory of the exact job on all nodes, in fresh processes."""
    clock = begin(session)
    args = {**job_args(session, layout), "steps": section(session.project.memory).steps}
    results = session.run("pytest_clusterqual.rank.memory:measure", args, fresh=True, what=f"memory of {layout.name}")
    ranks = tuple(parse(RankMemory, result, session.places) for result in results)
    conditions = conditions_of(
        session, results, layout=layout.name, workload=fingerprint(session, [r.data_digest for r in ranks])
    )
    return MemoryMeasurement(conditions=conditions, ranks=ranks, started=clock.started, seconds=clock.seconds)


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
    plan = section(session.project.scaling)
    clock = begin(session, before)
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
        for count in interleaved(points, repeat):
            results = session.run(
                "pytest_clusterqual.rank.training:fixed_work", args, nodes=count, new_group=True,
                arrangement=arrangement, what=f"fixed work with {layout.name}",
                progress=(len(runs), repeats * len(points)),
            )  # fmt: skip
            ranks = tuple(parse(RankTraining, result, session.places) for result in results)
            workload = fingerprint(session, [rank.data_digest for rank in ranks])
            conditions = session.conditions(results, nodes=count, layout=layout.name, workload=workload)
            runs.append(ScalingRun(conditions=conditions, ranks=ranks, launch=launch))
            everything += results
    conditions = conditions_of(
        session, everything, before, nodes=max(points), layout=layout.name, workload=runs[-1].conditions.workload,
        rank_map=map_name(arrangement),
    )  # fmt: skip
    return ScalingMeasurement(
        conditions=conditions, runs=(before.runs if before else ()) + tuple(runs), started=clock.started,
        seconds=clock.seconds,
    )  # fmt: skip


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
    plan = section(session.project.scaling)
    clock = begin(session, before)
    limit = min(plan.budget - before.seconds, session.project.launcher.job_timeout / 2)
    if limit <= 0:
        spent, budget = (units.show(seconds, units.SECONDS) for seconds in (before.seconds, plan.budget))
        raise MeasurementError(f"the runs took {spent} of the {budget} of scaling.budget: there is no time left")
    nodes = before.conditions.nodes
    results, apart = step_apart(
        session, layout, rounds=rounds, least=least, seconds=plan.budget * _APART_SHARE, limit=limit, nodes=nodes,
        whole=False, arrangement=arrangement,
    )  # fmt: skip
    load = heavier(session.conditions(results, nodes=nodes), before.conditions).load
    return replace(
        before, conditions=replace(before.conditions, load=load), apart=before.apart + apart, seconds=clock.seconds
    )

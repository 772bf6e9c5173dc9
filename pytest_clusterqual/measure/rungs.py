"""What the memory ladder asks of a session: which rungs fit, and what those that fit cost in time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pytest_clusterqual.errors import JobError
from pytest_clusterqual.measure.parts import Clock, begin, conditions_of, fingerprint, interleaved, parse, section
from pytest_clusterqual.model.codec import to_json
from pytest_clusterqual.model.memory import MemoryLadderMeasurement, RankMemory, Rung, RungResult
from pytest_clusterqual.model.rungs import rungs
from pytest_clusterqual.model.training import RankTraining, ScalingRun
from pytest_clusterqual.session.session import Session
from pytest_clusterqual.session.world import RankResult

# The smallest number of independent runs that gives a 95 % interval of a median.
_ROUNDS = 6


def memory_ladder(session: Session) -> MemoryLadderMeasurement:
    """All rungs from one device up; a rung that runs out of memory is a result, whatever else fails is an error."""
    plan = section(session.project.memory)
    clock = begin(session)
    places = tuple(session.rank_map().places)
    results = list(_climbed(session))
    answers = _timed(session, results, plan.budget)
    digests = [rank.data_digest for result in results for rank in result.ranks]
    conditions = conditions_of(
        session, answers, places=places, workload=fingerprint(session, digests, places) if digests else None
    )
    return MemoryLadderMeasurement(
        conditions=conditions, rungs=tuple(results), device_memory=plan.device_memory, started=clock.started,
        seconds=clock.seconds,
    )  # fmt: skip


def _climbed(session: Session) -> Iterator[RungResult]:
    """Memory on every rung, each in fresh processes; of several numbers of nodes up to the first that fits."""
    enough = ""
    for rung in rungs(session.project.workload, nodes=len(session.nodes), nproc_per_node=session.nproc_per_node):
        if rung.impossible:
            yield RungResult(rung=rung)
        elif rung.kind == "nodes" and enough:
            yield RungResult(rung=rung, untried=f"{enough} are enough")
        else:
            result = _memory(session, rung)
            if rung.kind == "nodes" and not result.out_of_memory:
                enough = rung.name
            yield result


def _memory(session: Session, rung: Rung) -> RungResult:
    plan = section(session.project.memory)
    args = {**_job(session, rung), "steps": plan.steps, "device_memory": plan.device_memory}
    try:
        results = session.run(
            "pytest_clusterqual.rank.memory:measure", args, nodes=rung.nodes, per_node=rung.per_node, fresh=True,
            what=f"memory ladder, {rung.name}",
        )  # fmt: skip
    except JobError as error:
        return _out_of_memory(RungResult(rung=rung), error)
    return RungResult(
        rung=rung,
        rank_nodes=tuple(session.places[result.rank].node for result in results),
        ranks=tuple(parse(RankMemory, result, session.places) for result in results),
    )


def _timed(session: Session, results: list[RungResult], budget: float) -> list[RankResult]:
    """Add runs of the fixed work to the rungs that fit, interleaved, until there are enough or the budget is spent."""
    clock, longest = Clock(), 0.0
    answers: list[RankResult] = []
    for number in range(_ROUNDS):
        fitting = [index for index, result in enumerate(results) if result.ranks and not result.out_of_memory]
        before = clock.seconds
        if number and before + longest > budget:
            break
        for done, index in enumerate(interleaved(fitting, number)):
            progress = (number * len(fitting) + done, _ROUNDS * len(fitting))
            results[index] = _once_more(session, results[index], answers, progress)
        longest = max(longest, clock.seconds - before)
    return answers


def _once_more(
    session: Session, result: RungResult, answers: list[RankResult], progress: tuple[int, int]
) -> RungResult:
    rung, scaling = result.rung, session.project.scaling
    args = {**_job(session, rung), "warmup": scaling.warmup_steps if scaling else 3}
    try:
        found = session.run(
            "pytest_clusterqual.rank.training:fixed_work", args, nodes=rung.nodes, per_node=rung.per_node,
            new_group=True, what=f"memory ladder, time of {rung.name}", progress=progress,
        )  # fmt: skip
    except JobError as error:
        return _out_of_memory(replace(result, runs=()), error)
    answers += found
    ranks = tuple(parse(RankTraining, each, session.places) for each in found)
    workload = fingerprint(session, [rank.data_digest for rank in ranks])
    conditions = session.conditions(
        found, nodes=rung.nodes, per_node=rung.per_node, layout=rung.layout.name, workload=workload
    )
    return replace(result, runs=(*result.runs, ScalingRun(conditions=conditions, ranks=ranks)))


def _out_of_memory(result: RungResult, error: JobError) -> RungResult:
    """A rung that does not fit. Anything else than want of memory stays an error."""
    if not error.out_of_memory:
        raise error
    return replace(result, out_of_memory=error.out_of_memory)


def _job(session: Session, rung: Rung) -> dict[str, Any]:
    workload = replace(session.project.workload, microbatch=rung.microbatch)
    return {"workload": to_json(workload), "layout": to_json(rung.layout)}

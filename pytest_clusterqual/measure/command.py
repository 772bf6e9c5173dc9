"""What the criteria ask of a user's own command, and the measurements that come of what it tells of itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_clusterqual.errors import ClusterQualError, MeasurementError
from pytest_clusterqual.measure.command_reading import Probed, logged, probed, rank_memory, trained
from pytest_clusterqual.measure.command_steps import PROBE_LINES, check_logged_losses, steps_of, work_of
from pytest_clusterqual.measure.parts import begin, conditions_of, interleaved, section
from pytest_clusterqual.model.command import CommandJob, RankStart
from pytest_clusterqual.model.full_run import Failure, FullRun, FullRunMeasurement, RankRun
from pytest_clusterqual.model.memory import MemoryMeasurement, RankMemory
from pytest_clusterqual.model.probe import ProbedProcess
from pytest_clusterqual.model.topology import RankPlace
from pytest_clusterqual.model.training import ScalingMeasurement, ScalingRun
from pytest_clusterqual.session.command_launch import CommandRun
from pytest_clusterqual.session.session import Session
from pytest_clusterqual.session.world import RankResult

FROM_OUTSIDE = "a command's step is seen from outside only"


def memory(session: Session) -> MemoryMeasurement:
    """The most memory that each process of the command had, on all nodes; or who ran out of it."""
    job, plan = _job(session), section(session.project.memory)
    clock = begin(session)
    nodes, steps = len(session.nodes), plan.steps if job.takes_steps else None
    what = f"memory of {job.name}"
    with session.commanded(nodes=nodes, steps=steps, what=what) as run:
        conditions = conditions_of(session, _results(run), **_under(run, job))
        unknown = ["what it is made of", "in which step it was"]
        ranks: tuple[RankMemory, ...] = ()
        if not run.out_of_memory:
            told = _that_trained(run, job, steps, what)
            ranks = tuple(
                rank_memory(run, process, told.get(process.start.rank, ()), _gpu_memory(session, process.start))
                for process in run.last
            )
            unknown += [] if all(rank.losses for rank in ranks) else ["losses"]
    return MemoryMeasurement(
        conditions=conditions, ranks=ranks, started=clock.started, seconds=clock.seconds, unknown=tuple(unknown),
        out_of_memory=run.out_of_memory,
    )  # fmt: skip


def _that_trained(run: CommandRun, job: CommandJob, steps: int | None, what: str) -> Probed:
    """The lines of every rank, if there is a probe: a job that did no step has a low peak, which says nothing."""
    if job.log:
        check_logged_losses(logged(run, job), job.name)
        return {}
    told = probed(run, job)
    _steps_done(told, steps, what)
    return told


def scaling(
    session: Session, points: Sequence[int], *, repeats: int, before: ScalingMeasurement | None = None
) -> ScalingMeasurement:
    """The command on each number of nodes in `points`, `repeats` times, interleaved; each run is a launch."""
    job, plan = _job(session), section(session.project.scaling)
    clock = begin(session, before)
    steps = plan.warmup_steps + job.steps if job.takes_steps and job.steps else None
    runs = list(before.runs) if before else []
    everything: list[RankResult] = []
    places: tuple[RankPlace, ...] = ()
    for repeat in range(len(runs) // len(points), len(runs) // len(points) + repeats):
        for count in interleaved(points, repeat):
            what = f"fixed work with {job.name}, run {len(runs) + 1}"
            with session.commanded(nodes=count, steps=steps, what=what) as run:
                _check_memory(run, what)
                ranks = trained(run, job, warmup=plan.warmup_steps)
            conditions = session.conditions(_results(run), nodes=count, **_under(run, job))
            runs.append(ScalingRun(conditions=conditions, ranks=ranks, launch=len(runs) + 1))
            everything += _results(run)
            places = max(places, run.places, key=len)
    last = runs[-1].conditions
    conditions = conditions_of(
        session, everything, before, nodes=max(points), layout=job.name, workload=last.workload, places=places
    )
    return ScalingMeasurement(
        conditions=conditions, runs=tuple(runs), started=clock.started, seconds=clock.seconds, not_apart=FROM_OUTSIDE
    )


def full_run(session: Session, failure: Failure | None, *, nodes: int) -> FullRunMeasurement:
    """One complete run with the failure the case asks for, and the same on one node."""
    job, plan = _job(session), section(session.project.full_run)
    clock = begin(session)
    run = _full_run(session, job, failure, nodes=nodes)
    alone, not_alone = None, "full_run.alone: false"
    if plan.alone:
        alone, not_alone = _alone(session, job, failure, beside=nodes)
    return FullRunMeasurement(
        conditions=run.conditions, run=run, started=clock.started, seconds=clock.seconds, alone=alone,
        not_alone=not_alone, not_apart=FROM_OUTSIDE,
    )  # fmt: skip


def _alone(session: Session, job: CommandJob, failure: Failure | None, *, beside: int) -> tuple[FullRun | None, str]:
    if beside == 1:
        return None, "the run had one node only"
    try:
        return _full_run(session, job, failure and failure.on_one_node(session.nproc_per_node), nodes=1), ""
    except ClusterQualError as error:
        return None, str(error)


def _full_run(session: Session, job: CommandJob, failure: Failure | None, *, nodes: int) -> FullRun:
    plan = section(session.project.full_run)
    on = "one node" if nodes == 1 else f"{nodes} nodes"
    what = f"full run of {job.name} on {on}"
    steps = plan.steps or job.steps if job.takes_steps else None
    with session.commanded(nodes=nodes, steps=steps, failure=failure, what=what) as run:
        _check_memory(run, what)
        told = probed(run, job)
    ranks = tuple(
        RankRun(
            rank=place.rank, began=run.began[place.rank], processes=told[place.rank], data_digest="",
            ended=run.ended.get(place.rank, _last_sign(told[place.rank])),
        )
        for place in run.places
    )  # fmt: skip
    conditions = conditions_of(session, _results(run), nodes=nodes, **_under(run, job))
    work = work_of(job, [process for processes in told.values() for process in processes])
    return FullRun(
        conditions=conditions, ranks=ranks, steps=_steps_done(told, steps, what), tokens_per_step=work.tokens,
        sequences_per_step=work.sequences, checkpoints=None, failure=failure,
    )  # fmt: skip


def _last_sign(processes: Sequence[ProbedProcess]) -> float:
    """When a rank that did not come back was last heard of."""
    last = processes[-1]
    return max((line.at + line.seconds for line in last.lines), default=last.start.at)


def _steps_done(told: Probed, wanted: int | None, what: str) -> int:
    """How many steps the run had, by what all ranks tell."""
    done = set().union(*(steps_of(processes) for processes in told.values()))
    if not done:
        raise MeasurementError(f"{what}: its probe tells of no step; write {PROBE_LINES}")
    if min(done) != 1:
        raise MeasurementError(f"{what}: its first step is {min(done)}; probe.step(number) counts from 1")
    if wanted is not None and max(done) != wanted:
        raise MeasurementError(f"{what}: it did {max(done)} steps, {{steps}} told it to do {wanted}")
    return max(done)


def _job(session: Session) -> CommandJob:
    return section(session.project.command)


def _gpu_memory(session: Session, start: RankStart) -> int | None:
    """Bytes of the device that a rank uses, which is the one that its local rank counts; None on CPU."""
    gpus = session.hardware[start.node].gpus
    return gpus[start.local_rank].memory if start.device != "cpu" and start.local_rank < len(gpus) else None


def _results(run: CommandRun) -> list[RankResult]:
    return [
        RankResult(rank=process.start.rank, value=None, seconds=0.0, taken=process.end.taken if process.end else (0, 0))
        for process in run.last
    ]


def _under(run: CommandRun, job: CommandJob) -> dict[str, Any]:
    """The conditions that only a command's run can tell."""
    start = run.last[0].start
    workload = job.fingerprint(versions=start.versions, script=start.script)
    return {"places": run.places, "layout": job.name, "workload": workload}


def _check_memory(run: CommandRun, what: str) -> None:
    if run.out_of_memory:
        raise MeasurementError(f"{what} ran out of memory: {run.out_of_memory}")

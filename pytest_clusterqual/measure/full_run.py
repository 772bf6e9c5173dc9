"""What Full-Run asks of a session: the step taken apart, the run, and the same run on one node."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace

from pytest_clusterqual.errors import ClusterQualError, MeasurementError
from pytest_clusterqual.measure.parts import begin, conditions_of, fingerprint, job_args, section, step_apart
from pytest_clusterqual.model.codec import to_json
from pytest_clusterqual.model.fabric import RankLadder
from pytest_clusterqual.model.full_run import Checkpoints, Failure, FullRun, FullRunMeasurement, RankRun
from pytest_clusterqual.model.workload import Layout
from pytest_clusterqual.session.session import Session

_APART_ROUNDS, _APART_LEAST = 12, 3
_APART_SECONDS = 10.0
_ALONE_SECONDS = 30 * 60.0  # what the same work on one node may take beside a run of some minutes


def full_run(
    session: Session, layout: Layout, checkpoints: Checkpoints, failure: Failure | None, *, nodes: int
) -> FullRunMeasurement:
    """One complete run on the first `nodes` with the failure the case asks for, and what it is to be seen beside."""
    plan = section(session.project.full_run)
    clock = begin(session)
    apart, not_apart = _apart(session, layout, nodes) if plan.apart else ((), "full_run.apart: false")
    run = _run(session, layout, checkpoints, failure, nodes=nodes, seconds=plan.minutes)
    alone, not_alone = None, "full_run.alone: false"
    if plan.alone:
        alone, not_alone = _alone(session, layout, run, checkpoints, failure)
    return FullRunMeasurement(
        conditions=run.conditions, run=run, started=clock.started, seconds=clock.seconds, alone=alone,
        not_alone=not_alone, apart=apart, not_apart=not_apart,
    )  # fmt: skip


def _apart(session: Session, layout: Layout, nodes: int) -> tuple[tuple[tuple[RankLadder, ...], ...], str]:
    """The step of the run taken apart, a round each with every rank; and why not, if it could not be."""
    if nodes * session.nproc_per_node == 1:
        return (), "one rank waits for nobody"
    limit = session.project.launcher.job_timeout / 2
    try:
        _, apart = step_apart(
            session, layout, rounds=_APART_ROUNDS, least=_APART_LEAST, seconds=_APART_SECONDS, limit=limit, nodes=nodes,
            whole=False,
        )  # fmt: skip
    except ClusterQualError as error:  # it explains a run, which stands without it
        return (), _in_short(error)
    return apart, ""


def _alone(
    session: Session, layout: Layout, run: FullRun, checkpoints: Checkpoints, failure: Failure | None
) -> tuple[FullRun | None, str]:
    """The same steps on one node; and why not, if they are not done there."""
    plan = section(session.project.full_run)
    nodes = run.conditions.nodes
    if nodes == 1:
        return None, "the run had one node only"
    if why := session.project.unfit(layout.name, nodes=1, nproc_per_node=session.nproc_per_node):
        return None, f"one node cannot do it: {why}"
    if plan.minutes is not None and (likely := plan.minutes * nodes) > _ALONE_SECONDS:
        return None, (
            f"{run.steps} steps would take one node about {likely / 60:.3g} min; compare in a run of fewer, "
            f"with full_run.steps or at most {_ALONE_SECONDS / 60 / nodes:.3g} full_run.minutes"
        )
    if failure is not None and (unnoticed := failure.unnoticed(session.nproc_per_node)):
        return None, unnoticed
    failure = failure and failure.on_one_node(session.nproc_per_node)
    try:
        return _run(session, layout, checkpoints, failure, nodes=1, steps=run.steps), ""
    except ClusterQualError as error:
        return None, _in_short(error)


def _in_short(error: ClusterQualError) -> str:
    """Without the last lines of a log."""
    return str(error).partition("\n")[0]


def _run(
    session: Session,
    layout: Layout,
    checkpoints: Checkpoints,
    failure: Failure | None,
    *,
    nodes: int,
    steps: int | None = None,
    seconds: float | None = None,
) -> FullRun:
    """The file's number of steps, or `steps`, or as many as take `seconds`."""
    plan = section(session.project.full_run)
    work = session.project.workload
    steps = steps or plan.steps or work.steps
    folder = session.checkpoint_folder(checkpoints.folder)
    args = {
        **job_args(session, layout), "steps": steps, "seconds": seconds, "checkpoints": to_json(checkpoints),
        "failure": to_json(failure) if failure else None, "folder": str(folder), "hang_timeout": plan.hang_timeout,
    }  # fmt: skip
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise MeasurementError(
            f"{folder}: cannot be made for checkpoints: {error.strerror}; name another folder with "
            "full_run.checkpoint.folder"
        ) from None
    on = "one node" if nodes == 1 else f"{nodes} nodes"
    what = f"{'minutes of the ' if seconds else ''}full run of {layout.name} on {on}"
    # What took all nodes some minutes takes one of them at most as long as all of them one after the other.
    expected = seconds or (plan.minutes or 0.0) * len(session.nodes)
    try:
        trained = session.train(args, nodes=nodes, failure=failure, what=what, expected=expected)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    workload = fingerprint(session, [rank.data_digest for rank in trained.runs], trained.places)
    return FullRun(
        conditions=conditions_of(
            session, trained.results, nodes=nodes, places=trained.places, layout=layout.name, workload=workload
        ),
        ranks=trained.runs, steps=_last_step(trained.runs) if seconds else steps,
        tokens_per_step=work.tokens_per_step, sequences_per_step=work.global_batch,
        checkpoints=replace(checkpoints, folder=str(folder.parent)),
        failure=failure, precision=work.precision,
    )  # fmt: skip


def _last_step(ranks: Sequence[RankRun]) -> int:
    """That some rank has done; whether all have is for the judge to see."""
    lines = (line for rank in ranks for process in rank.processes for line in process.lines)
    return max((line.step for line in lines if line.what == "step" and not line.error), default=0)

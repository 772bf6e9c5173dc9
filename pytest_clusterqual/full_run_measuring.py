"""What Full-Run asks of a session: the step taken apart, the run, and the same run on one node."""

from __future__ import annotations

import shutil
from dataclasses import replace

from pytest_clusterqual.errors import ClusterQualError, MeasurementError
from pytest_clusterqual.measuring import Clock, conditions_of, fingerprint, job_args, parse
from pytest_clusterqual.model.codec import to_json
from pytest_clusterqual.model.fabric import RankLadder
from pytest_clusterqual.model.full_run import Checkpoints, Failure, FullRun, FullRunMeasurement
from pytest_clusterqual.model.workload import Layout
from pytest_clusterqual.session import Session

_APART_ROUNDS, _APART_LEAST = 12, 3
_APART_SECONDS = 10.0


def full_run(session: Session, layout: Layout, checkpoints: Checkpoints, failure: Failure | None) -> FullRunMeasurement:
    """One complete run with the failure the case asks for, and what it is to be seen beside."""
    plan = session.project.full_run
    assert plan is not None
    began = Clock()
    session.forget_samples()
    apart, not_apart = _apart(session, layout) if plan.apart else ((), "full_run.apart: false")
    nodes = len(session.nodes)
    run = _run(session, layout, checkpoints, failure, nodes=nodes)
    alone, not_alone = _alone(session, layout, checkpoints, failure) if plan.alone else (None, "full_run.alone: false")
    return FullRunMeasurement(
        conditions=run.conditions, run=run, started=began.wall, seconds=began.seconds, alone=alone,
        not_alone=not_alone, apart=apart, not_apart=not_apart,
    )  # fmt: skip


def _apart(session: Session, layout: Layout) -> tuple[tuple[tuple[RankLadder, ...], ...], str]:
    """The step of the run taken apart, a round each with every rank; and why not, if it could not be."""
    if len(session.nodes) * session.nproc_per_node == 1:
        return (), "one rank waits for nobody"
    limit = session.project.launcher.job_timeout / 2
    args = {
        **job_args(session, layout), "rounds": _APART_ROUNDS, "least": _APART_LEAST,
        "seconds": min(_APART_SECONDS, limit), "limit": limit, "whole": False,
    }  # fmt: skip
    try:
        results = session.run(
            "pytest_clusterqual.rank.ladder:climb", args, new_group=True, what=f"step of {layout.name} taken apart"
        )
        ladders = [parse(tuple[RankLadder, ...], result, session.places) for result in results]
    except ClusterQualError as error:  # it explains a run, which stands without it
        return (), str(error)
    return tuple(zip(*ladders, strict=True)), ""


def _alone(
    session: Session, layout: Layout, checkpoints: Checkpoints, failure: Failure | None
) -> tuple[FullRun | None, str]:
    if len(session.nodes) == 1:
        return None, "the run had one node only"
    if failure is not None and failure.go_on == "fewer":
        return None, "one node cannot go on with fewer"
    if failure is not None:
        least = 1 if failure.kind == "kill_node" else session.nproc_per_node
        failure = replace(failure, target=min(failure.target, least - 1))
    try:
        return _run(session, layout, checkpoints, failure, nodes=1), ""
    except ClusterQualError as error:
        return None, str(error)


def _run(session: Session, layout: Layout, checkpoints: Checkpoints, failure: Failure | None, *, nodes: int) -> FullRun:
    plan = session.project.full_run
    assert plan is not None
    work = session.project.workload
    steps = plan.steps or work.steps
    folder = session.checkpoint_folder(checkpoints.folder)
    args = {
        **job_args(session, layout), "steps": steps, "checkpoints": to_json(checkpoints),
        "failure": to_json(failure) if failure else None, "folder": str(folder),
    }  # fmt: skip
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise MeasurementError(
            f"{folder}: cannot be made for checkpoints: {error.strerror}; name another folder with "
            "full_run.checkpoint.folder"
        ) from None
    on = "one node" if nodes == 1 else f"{nodes} nodes"
    try:
        trained = session.train(
            args, nodes=nodes, max_restarts=1 if failure else 0, what=f"full run of {layout.name} on {on}"
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    workload = fingerprint(session, [rank.data_digest for rank in trained.runs], trained.places)
    return FullRun(
        conditions=conditions_of(
            session, trained.results, nodes=nodes, places=trained.places, layout=layout.name, workload=workload
        ),
        ranks=trained.runs, steps=steps, tokens_per_step=work.tokens_per_step, checkpoints=checkpoints,
        failure=failure,
    )  # fmt: skip

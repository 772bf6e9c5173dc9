"""The criteria: the path from a case to a measurement that can be judged.

A measurement is continued while its verdict is open and its budget lasts. No pytest here.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from pytest_clusterqual.errors import ClusterQualError, JobError, MeasurementError
from pytest_clusterqual.judge.fabric.confirming import to_confirm
from pytest_clusterqual.judge.fabric.pair_causes import least_of
from pytest_clusterqual.judge.fabric.pairs import worth_asking
from pytest_clusterqual.judge.scaling.waterfall import SHARES
from pytest_clusterqual.judge.step.apart import take_apart
from pytest_clusterqual.judge.step.ladder import reduced
from pytest_clusterqual.judge.step.waiting_causes import LEAST_ROUNDS, worth_another_look
from pytest_clusterqual.judge.verdict import judge
from pytest_clusterqual.measure import command, fabric, full_run, pairs, perf, rungs, training
from pytest_clusterqual.measure.cases import Case
from pytest_clusterqual.measure.narrowing import narrowed
from pytest_clusterqual.measure.parts import section
from pytest_clusterqual.model.fabric import (
    FabricMeasurement,
    PairsMeasurement,
    PlacementMeasurement,
    ReportedMeasurement,
    SynchronizationMeasurement,
)
from pytest_clusterqual.model.measurement import Measurement
from pytest_clusterqual.model.project import FabricPlan, Project, ScalingPlan
from pytest_clusterqual.model.rank_map import Arrangement
from pytest_clusterqual.model.record import Judgement, Verdict
from pytest_clusterqual.model.training import ScalingMeasurement
from pytest_clusterqual.model.workload import Layout
from pytest_clusterqual.session.session import Session

M = TypeVar(
    "M", FabricMeasurement, PairsMeasurement, PlacementMeasurement, ReportedMeasurement, ScalingMeasurement,
    SynchronizationMeasurement,
)  # fmt: skip
P = TypeVar("P", FabricMeasurement, PairsMeasurement)
# The smallest number of independent samples that gives a 95 % interval of a median.
_FIRST_ROUNDS = 6
_MORE_ROUNDS = 4
_MORE_REPEATS = 3
# Enough to tell one slow rank of two from chance where single steps differ by half.
_LADDER_ROUNDS = 16
# Of long steps; in each of so many one of two ranks is the slower one by chance in 1 of 2048.
_APART_ROUNDS = 12


def measure(session: Session, case: Case) -> Measurement:
    """Measure one case, on and on while its verdict is open and the budget lasts."""
    layout = session.project.layout(case.layout) if case.layout else None
    if case.criterion == "nodes":
        return training.nodes(session)
    if case.criterion == "fabric":
        return _fabric(session, section(session.project.fabric), case)
    if case.part == "ladder":
        return rungs.memory_ladder(session)
    assert layout is not None
    if session.project.command is not None:
        return _command(session, case)
    if case.criterion == "memory":
        return training.memory(session, layout)
    if case.criterion == "full_run":
        assert case.checkpoints is not None
        return full_run.full_run(session, layout, case.checkpoints, case.failure, nodes=case.nodes)
    return _scaling(session, section(session.project.scaling), case, layout)


def _command(session: Session, case: Case) -> Measurement:
    if case.criterion == "memory":
        return command.memory(session)
    if case.criterion == "full_run":
        return command.full_run(session, case.failure, nodes=case.nodes)
    plan = section(session.project.scaling)
    work = partial(command.scaling, session, (case.baseline, case.nodes))
    return _continued(session, work(repeats=plan.repeats), partial(work, repeats=_MORE_REPEATS), plan.budget)


def _scaling(session: Session, plan: ScalingPlan, case: Case, layout: Layout) -> ScalingMeasurement:
    """The fixed work on the baseline and on the case's nodes, and then the step there taken apart."""
    work = partial(training.scaling, session, layout, (case.baseline, case.nodes), arrangement=case.rank_map)
    measurement = _continued(session, work(repeats=plan.repeats), partial(work, repeats=_MORE_REPEATS), plan.budget)
    if not plan.waterfall:
        return measurement
    apart = partial(
        training.taken_apart, session, layout, rounds=_LADDER_ROUNDS, least=_APART_ROUNDS, arrangement=case.rank_map
    )
    try:
        measurement = apart(before=measurement)
    except ClusterQualError as error:  # it explains a verdict, which stands without it
        return replace(measurement, not_apart=str(error))
    with suppress(ClusterQualError):
        measurement = _continued(session, measurement, apart, plan.budget, about=SHARES)
        return apart(before=measurement) if _doubtful(measurement) else measurement
    return measurement


def _fabric(session: Session, plan: FabricPlan, case: Case) -> Measurement:
    if case.part == "pairs":
        ask = partial(pairs.pairs, session, arrangement=case.rank_map)
        return _confirmed(session, _continued(session, ask(), ask, plan.budget), case.rank_map)
    if case.part == "synchronization":
        layout = session.project.layout(case.layout or "")
        climb = partial(fabric.synchronization, session, layout, rounds=_LADDER_ROUNDS, least=LEAST_ROUNDS)
        measurement = _continued(session, climb(), climb, plan.budget)
        return climb(before=measurement) if _doubtful(measurement) else measurement
    assert case.collective is not None and case.group is not None
    if case.part == "placement":
        compare = partial(
            fabric.placement, session, case.collective, case.group, sizes=case.sizes,
            rank_maps=plan.rank_maps,
        )  # fmt: skip
        return _continued(session, compare(repeats=_FIRST_ROUNDS), partial(compare, repeats=_MORE_REPEATS), plan.budget)
    if plan.engine == "nccl-tests":
        runs = partial(perf.perf, session, case.collective, case.group)
        return _continued(session, runs(rounds=_FIRST_ROUNDS), partial(runs, rounds=_MORE_ROUNDS), plan.budget)
    return _sweep(session, plan, case, case.collective, case.group)


def _sweep(session: Session, plan: FabricPlan, case: Case, collective: str, group: str) -> FabricMeasurement:
    """A sweep, and where it missed a rate what pairs of nodes exchange."""
    sizes = case.sizes or plan.sizes
    sweep = partial(fabric.sweep, session, collective, group, sizes=sizes, arrangement=case.rank_map)
    try:
        measurement = _continued(session, sweep(rounds=_FIRST_ROUNDS), partial(sweep, rounds=_MORE_ROUNDS), plan.budget)
    except JobError as error:
        raise narrowed(session, error, collective, sizes) from error
    if not worth_asking(measurement, _judged(session.project, measurement)):
        return measurement
    try:
        with_pairs = pairs.after_sweep(session, measurement, arrangement=case.rank_map)
    except ClusterQualError as error:  # a pair that hangs takes nothing away from what was measured
        return replace(measurement, without_pairs=str(error))
    return _confirmed(session, with_pairs, case.rank_map)


def _confirmed(session: Session, measurement: P, arrangement: Arrangement | None) -> P:
    """With a second round of what was slow among many, alone; if that fails, what was seen is not confirmed."""
    with suppress(ClusterQualError):
        alone = to_confirm(measurement.pairs, least=least_of(measurement.conditions))
        return pairs.tried_alone(session, measurement, alone, arrangement=arrangement)
    return measurement


def _doubtful(m: SynchronizationMeasurement | ScalingMeasurement) -> bool:
    """True if a step taken apart makes somebody look odd who may not be."""
    try:
        if isinstance(m, ScalingMeasurement):
            return worth_another_look(take_apart(m.conditions, m.apart, "scaling").ladder)
        return worth_another_look(reduced(m.conditions, m.rounds, "synchronization"))
    except MeasurementError:  # whoever judges it meets the error
        return False


def _continued(
    session: Session, first: M, more: Callable[..., M], budget: float, *, about: Container[str] | None = None
) -> M:
    """Add samples until the verdict is closed, or the next addition would exceed the `budget` in seconds.

    `about` are the quantities whose verdicts count (default: all).
    """
    measurement = first
    step = 0.0
    while _open(_judged(session.project, measurement), about) and measurement.seconds + step <= budget:
        before = measurement.seconds
        measurement = more(before=measurement)
        step = measurement.seconds - before
    return measurement


def _judged(project: Project, measurement: Measurement) -> tuple[Judgement, ...]:
    """The judgements so far; none of a measurement that is none: it is kept, and whoever judges it meets the error."""
    try:
        return judge(project, measurement)
    except MeasurementError:
        return ()


def _open(judgements: tuple[Judgement, ...], about: Container[str] | None) -> bool:
    """True if more samples could close a verdict: no number of them makes up for a loaded machine."""
    return any(
        judgement.verdict is Verdict.UNDECIDED
        and (about is None or judgement.quantity in about)
        and judgement.requirement is not None
        and (
            judgement.interval is None
            or judgement.interval.low <= judgement.requirement.value <= judgement.interval.high
        )
        for judgement in judgements
    )

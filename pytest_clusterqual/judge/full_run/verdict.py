"""Full run: where the wall clock went, and what is left for training that counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from pytest_clusterqual import units
from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.full_run.blame import failure_note
from pytest_clusterqual.judge.full_run.figures import CLOCK, Figure, figures, gain
from pytest_clusterqual.judge.full_run.interval_advice import interval_advice
from pytest_clusterqual.judge.full_run.ledger import Ledger, account
from pytest_clusterqual.judge.full_run.resumed import judge_resumed
from pytest_clusterqual.judge.full_run.save_figures import save_figures
from pytest_clusterqual.judge.judgement import (
    NO_TOKENS,
    NO_WORK,
    Case,
    applicable,
    judge_each,
    judge_missing,
    judge_quantity,
    rank_name,
)
from pytest_clusterqual.judge.over_time.per_work import ALONG_TIME
from pytest_clusterqual.judge.over_time.verdict import over_time
from pytest_clusterqual.judge.statistics import LEVEL, median, minimum_samples
from pytest_clusterqual.judge.step.apart import Apart, take_apart
from pytest_clusterqual.model.full_run import FullRun, FullRunMeasurement
from pytest_clusterqual.model.over_time import OverTime
from pytest_clusterqual.model.record import Finding, Interval, Judgement
from pytest_clusterqual.model.requirement import QUANTITIES, Requirement

T = TypeVar("T")
_OF_FAILURE = ("detection", "restart", "rendezvous", "recovery", "steps_lost")


def judge_full_run(
    m: FullRunMeasurement, requirements: Iterable[Requirement], time_between_failures: float | None = None
) -> tuple[Judgement, ...]:
    """Judge what one run shows, in the units of `QUANTITIES`; see `interval_advice` for `time_between_failures`.

    Goodput is the time that the steps would take at this run's steady step time, as a share of the wall clock. A single
    run has no spread: its interval is the resolution of the clocks. What is required but did not happen is an ERROR.

    Raises:
        MeasurementError: see `account`.
    """
    apart, not_apart = _or_why_not(lambda: take_apart(m.run.conditions, m.apart, "full run"), m.apart, m.not_apart)
    alone, not_alone = _or_why_not(lambda: _alone(m), m.alone, m.not_alone)
    ledger = account(m.run, apart)
    steady = median(ledger.steps)
    if not math.isfinite(steady) or steady <= 0:
        raise MeasurementError(f"full run: the steady step time is {steady} s, want one above 0")
    found = figures(m.run, ledger) | dict(save_figures(m.run, ledger.events.saves))
    if alone is not None:
        found["gain"] = gain(ledger, alone)
    seen = over_time(ledger.course, m.run.conditions.telemetry)
    if seen.drift is not None and seen.interval is not None:
        found["drift"] = Figure(
            value=seen.drift, low=seen.interval.low, high=seen.interval.high, steps=seen.steps, kind="bootstrap"
        )
    m = replace(m, not_apart=not_apart, not_alone=not_alone)
    judgements = _judged(m, ledger, found, seen, tuple(requirements))
    advice = interval_advice(m.run, ledger, time_between_failures)
    resumed = judge_resumed(m if alone is not None else replace(m, alone=None))
    return (*judgements, *filter(None, [resumed]), *_states(m, ledger, apart), *advice)


def _or_why_not(reduce: Callable[[], T], measured: object, why_not: str) -> tuple[T | None, str]:
    """What was measured beside the run, which stands without it."""
    if not measured:
        return None, why_not
    try:
        return reduce(), ""
    except MeasurementError as error:
        return None, str(error)


def _alone(m: FullRunMeasurement) -> Ledger:
    assert m.alone is not None
    here, there = (
        (run.conditions.workload, run.steps, run.tokens_per_step, run.sequences_per_step) for run in (m.run, m.alone)
    )
    if not any(here[2:]):
        raise MeasurementError(NO_WORK)
    if here != there:
        raise MeasurementError("the run on one node did other work: " + " against ".join(map(_work, (m.alone, m.run))))
    return account(m.alone)


def _work(run: FullRun) -> str:
    work = f"{run.tokens_per_step} tokens" if run.tokens_per_step else f"{run.sequences_per_step} sequences"
    return f"{run.steps} steps of {work} of workload {run.conditions.workload}"


def _judged(
    m: FullRunMeasurement,
    ledger: Ledger,
    found: dict[str, Figure],
    seen: OverTime,
    requirements: Sequence[Requirement],
) -> Iterator[Judgement]:
    story = _story(m.run, ledger)
    for quantity, unit in QUANTITIES["full_run"].items():
        required = applicable(requirements, "full_run", quantity, m.conditions)
        figure = found.get(quantity)
        findings = _findings(m, ledger, seen, quantity)
        if figure is None:
            why = "; ".join(seen.untold) if quantity == "drift" else _why_not(m, quantity)
            # One node is what several are compared with: of it no gain can be required.
            asked = [None] * len(required) if quantity == "gain" and m.conditions.nodes == 1 else required
            missing = [judge_missing(quantity, "", unit, why, requirement) for requirement in asked]
            if findings and not missing:  # they were seen all the same
                missing = [judge_missing(quantity, "", unit, why)]
            yield from (replace(judgement, findings=findings) for judgement in missing)
            continue
        case = Case(
            quantity=quantity,
            label="",
            value=figure.value,
            unit=unit,
            timing=figure.low != figure.high,
            load=m.conditions.load,
            interval=_interval(figure),
            samples=(figure.value,),
            counted="steps" if figure.steps else "runs",
            per_rank=figure.per_rank,
            note="; ".join(filter(None, (figure.note, story))),
            findings=findings,
        )
        yield from judge_each(case, required)


def _findings(m: FullRunMeasurement, ledger: Ledger, seen: OverTime, quantity: str) -> tuple[Finding, ...]:
    """What is told beside a quantity."""
    if quantity == "drift":
        return seen.findings
    if quantity == "goodput":
        return tuple(_accounted(m, ledger))
    return tuple(filter(None, [failure_note(m.run)])) if quantity == "recovery" else ()


def _accounted(m: FullRunMeasurement, ledger: Ledger) -> Iterator[Finding]:
    """Notes on how the seconds of some ranks were sorted."""
    for text, ranks in ledger.warnings.items():
        seen, _, todo = text.partition(": ")
        whose = units.show_some([rank_name(m.conditions, rank) for rank in ranks], 1)
        yield Finding(suspect=whose, kind="account", evidence=seen, check_next=todo, level="note")


def _interval(figure: Figure) -> Interval:
    if figure.steps:
        return Interval(low=figure.low, high=figure.high, kind=figure.kind, level=LEVEL, samples=figure.steps)
    if figure.low == figure.high:
        return Interval(low=figure.low, high=figure.high, kind="count")
    return Interval(low=figure.low, high=figure.high, kind="resolution", samples=1)


def _why_not(m: FullRunMeasurement, quantity: str) -> str:
    if quantity == "gain":
        return m.not_alone
    if quantity == "throughput":
        return NO_TOKENS
    if quantity == "goodput":
        return ALONG_TIME
    if quantity == "checkpoint_load":
        return "no checkpoint was loaded"
    if quantity in _OF_FAILURE:
        return "the clocks of different hosts cannot tell it" if m.run.failure else "nothing failed in this run"
    if quantity == "checkpoint_inflation":
        return f"fewer than {minimum_samples()} steps ran beside a save, or without one"
    return "no checkpoint was saved" if quantity.startswith("checkpoint_") else "it cannot be known from this run"


def _states(m: FullRunMeasurement, ledger: Ledger, apart: Apart | None) -> Iterator[Judgement]:
    """The seconds of each state: of one rank, so that they add up to its wall clock."""
    told = max(ledger.there, key=lambda rank: abs(rank.seconds["residual"]))
    note = f"seconds of {rank_name(m.conditions, told.rank)}; with all others they add up to {told.wall:.4g} s"
    if apart is None:
        note += f"; transfer and wait are in kept: {m.not_apart}"
    for name, value in told.seconds.items():
        yield judge_quantity(
            Case(
                quantity="time",
                label=name,
                value=value,
                unit="s",
                interval=Interval(low=value - CLOCK, high=value + CLOCK, kind="resolution", samples=1),
                timing=True,
                note=note,
                per_rank={str(rank.rank): rank.seconds[name] for rank in ledger.ranks if name in rank.seconds},
            )
        )


def _story(run: FullRun, ledger: Ledger) -> str:
    failure = f", {run.failure.told}" if run.failure else ""
    if run.failure and run.failure.ends_launch:
        failure += " and launched again by this package"
    world = f"{run.conditions.nodes} x {run.conditions.nproc_per_node} ranks"
    return f"one run of {run.steps} steps on {world}{failure}, {ledger.lost} steps done again"

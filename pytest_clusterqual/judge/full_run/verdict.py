"""Full run: where the wall clock went, and what is left for training that counts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.full_run.figures import CLOCK, Figure, figures, gain
from pytest_clusterqual.judge.full_run.ledger import Ledger, account
from pytest_clusterqual.judge.judgement import Case, applicable, judge_each, judge_missing, judge_quantity, rank_name
from pytest_clusterqual.judge.statistics import median
from pytest_clusterqual.judge.step.apart import Apart, take_apart
from pytest_clusterqual.model.full_run import FullRun, FullRunMeasurement
from pytest_clusterqual.model.record import Interval, Judgement
from pytest_clusterqual.model.requirement import QUANTITIES, Requirement

_OF_FAILURE = ("detection", "restart", "rendezvous", "recovery", "steps_lost")


def judge_full_run(m: FullRunMeasurement, requirements: Iterable[Requirement]) -> tuple[Judgement, ...]:
    """Judge what one run shows, in the units of `QUANTITIES`.

    Goodput is the time that the steps would take at this run's steady step time, as a share of the wall clock. A single
    run has no spread: its interval is the resolution of the clocks. What is required but did not happen is an ERROR.

    Raises:
        MeasurementError: see `account`.
    """
    apart = take_apart(m.run.conditions, m.apart, "full run") if m.apart else None
    ledger = account(m.run, apart)
    steady = median(ledger.steps)
    if not math.isfinite(steady) or steady <= 0:
        raise MeasurementError(f"full run: the steady step time is {steady} s, want one above 0")
    found = figures(m.run, ledger)
    if m.alone is not None:
        found["gain"] = gain(ledger, account(m.alone))
    judgements = _judged(m, ledger, found, tuple(requirements))
    return (*judgements, *_states(m, ledger, apart))


def _judged(
    m: FullRunMeasurement, ledger: Ledger, found: dict[str, Figure], requirements: Sequence[Requirement]
) -> Iterator[Judgement]:
    story = _story(m.run, ledger)
    for quantity, unit in QUANTITIES["full_run"].items():
        required = applicable(requirements, "full_run", quantity, m.conditions)
        figure = found.get(quantity)
        if figure is None:
            why = _why_not(m, quantity)
            yield from (judge_missing(quantity, "", unit, why, requirement) for requirement in required)
            continue
        exact = figure.low == figure.high
        case = Case(
            quantity=quantity,
            label="",
            value=figure.value,
            unit=unit,
            timing=not exact,
            load=m.conditions.load,
            interval=Interval(
                low=figure.low, high=figure.high, kind="count" if exact else "resolution", samples=0 if exact else 1
            ),
            samples=(figure.value,),
            counted="runs",
            per_rank=figure.per_rank,
            note="; ".join(filter(None, (figure.note, story))),
        )
        yield from judge_each(case, required)


def _why_not(m: FullRunMeasurement, quantity: str) -> str:
    if quantity == "gain":
        return m.not_alone
    if quantity == "checkpoint_load":
        return "no checkpoint was loaded"
    if quantity in _OF_FAILURE:
        return "nothing failed in this run"
    return "no checkpoint was saved" if quantity.startswith("checkpoint_") else "it cannot be known from this run"


def _states(m: FullRunMeasurement, ledger: Ledger, apart: Apart | None) -> Iterator[Judgement]:
    """The seconds of each state: of one rank, so that they add up to its wall clock."""
    told = max(ledger.ranks, key=lambda rank: abs(rank.seconds["residual"]))
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
    world = f"{run.conditions.nodes} x {run.conditions.nproc_per_node} ranks"
    return f"one run of {run.steps} steps on {world}{failure}, {ledger.lost} steps done again"

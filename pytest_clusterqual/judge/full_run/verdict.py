"""Full run: where the wall clock went, and what is left for training that counts."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.full_run.ledger import CATEGORIES, Ledger, account, category, killed_mark, last_attempts
from pytest_clusterqual.judge.judgement import Case, applicable, judge_each, judge_missing, judge_quantity, rank_name
from pytest_clusterqual.judge.statistics import median, steady_start
from pytest_clusterqual.model.measurement import FullRunMeasurement
from pytest_clusterqual.model.record import Interval, Judgement
from pytest_clusterqual.model.requirement import QUANTITIES, Requirement

__all__ = ["Ledger", "account", "judge_full_run"]

CLOCK = 1e-3  # seconds: what one reading of a clock is trusted to
POLL = 0.1  # seconds: how late the end of a background save may be noticed


@dataclass(frozen=True, kw_only=True, slots=True)
class _Figure:
    value: float
    low: float
    high: float
    note: str = ""
    per_rank: dict[str, float] = field(default_factory=dict)


def judge_full_run(
    m: FullRunMeasurement, requirements: Iterable[Requirement], steady_step_time: float | None = None
) -> tuple[Judgement, ...]:
    """Judge what one run shows; goodput and data_stall are shares, throughput tokens/s, the rest seconds.

    Goodput is the time that the steps would take at `steady_step_time` (s) as a share of the
    wall clock; without it, at the steady step time of this run. A single run has no spread: its
    interval is the resolution of the clocks. What is required but did not happen is an ERROR.

    Raises:
        MeasurementError: see `account`.
    """
    ledger = account(m)
    steady = _steady_step_time(m) if steady_step_time is None else steady_step_time
    if not math.isfinite(steady) or steady <= 0:
        raise MeasurementError(f"full run: the steady step time is {steady} s, want one above 0")
    figures = _figures(m, ledger, steady)
    requirements = tuple(requirements)
    judgements: list[Judgement] = []
    for quantity, unit in QUANTITIES["full_run"].items():
        required = applicable(requirements, "full_run", quantity, m.conditions)
        figure = figures.get(quantity)
        if figure is None:
            why = "no checkpoint was saved" if quantity.startswith("checkpoint_") else "no rank was killed in this run"
            why = "no checkpoint was loaded" if quantity == "checkpoint_load" else why
            judgements += [judge_missing(quantity, "", unit, why, requirement) for requirement in required]
            continue
        case = Case(
            quantity=quantity,
            label="",
            value=figure.value,
            unit=unit,
            timing=True,
            load=m.conditions.load,
            interval=Interval(low=figure.low, high=figure.high, kind="resolution", samples=1),
            samples=(figure.value,),
            counted="runs",
            per_rank=figure.per_rank,
            note="; ".join(filter(None, (figure.note, _story(m, ledger)))),
        )
        judgements += judge_each(case, required)
    return (*judgements, *_accounts(m, ledger))


def _accounts(m: FullRunMeasurement, ledger: Ledger) -> list[Judgement]:
    """The steps done again, and the seconds of each category: of one rank, so that they add up to its wall clock."""
    told = max(ledger.ranks, key=lambda r: abs(r.seconds["residual"]))
    lost = ledger.events.steps_lost
    note = f"seconds of {rank_name(m.conditions, told.rank)}; with all others they add up to {told.wall:.4g} s"
    count = Interval(low=lost, high=lost, kind="count")
    cases = [
        Case(
            quantity="steps_lost", label="", value=lost, unit="1", interval=count, timing=False, note=_story(m, ledger)
        )
    ]
    for name in CATEGORIES:
        value = told.seconds[name]
        spread = Interval(low=value - CLOCK, high=value + CLOCK, kind="resolution", samples=1)
        cases.append(
            Case(
                quantity="time",
                label=name,
                value=value,
                unit="s",
                interval=spread,
                timing=True,
                note=note,
                per_rank={str(r.rank): r.seconds[name] for r in ledger.ranks},
            )
        )
    return [judge_quantity(case) for case in cases]


def _figures(m: FullRunMeasurement, ledger: Ledger, steady: float) -> dict[str, _Figure]:
    wall, events, tokens = ledger.wall, ledger.events, m.steps * m.tokens_per_step
    shortest = max(wall - CLOCK, CLOCK)
    figures = {
        "goodput": _Figure(
            value=m.steps * steady / wall,
            low=m.steps * (steady - CLOCK) / (wall + CLOCK),
            high=m.steps * (steady + CLOCK) / shortest,
            note=f"{m.steps} x {steady:.4g} s of {wall:.4g} s",
            per_rank={str(r.rank): m.steps * steady / r.wall for r in ledger.ranks},
        ),
        "throughput": _Figure(value=tokens / wall, low=tokens / (wall + CLOCK), high=tokens / shortest),
        "data_stall": _data_stall(m, ledger),
    }
    seconds = {"detection": events.detection, "restart": events.restart, "recovery": events.recovery}
    for quantity, value in {**seconds, "checkpoint_load": events.load}.items():
        if value is not None:
            figures[quantity] = _seconds(value, CLOCK)
    if events.saves:
        worst = max(events.saves, key=lambda save: save.blocking)
        note = f"worst of {len(events.saves)}, step {worst.step}"
        figures["checkpoint_blocking"] = _seconds(worst.blocking, CLOCK, note)
    complete = [(save.completion, save.step) for save in events.saves if save.completion is not None]
    if complete:
        slowest, step = max(complete)
        figures["checkpoint_completion"] = _seconds(slowest, POLL, f"worst of {len(complete)}, step {step}")
    return figures


def _seconds(value: float, resolution: float, note: str = "") -> _Figure:
    return _Figure(value=value, low=max(value - resolution, 0.0), high=value + resolution, note=note)


def _data_stall(m: FullRunMeasurement, ledger: Ledger) -> _Figure:
    """The share of data and step time that the worst rank waited for data."""
    busy = {r.rank: r.seconds["data"] + r.seconds["kept"] + r.seconds["lost"] for r in ledger.ranks}
    shares = {r.rank: r.seconds["data"] / busy[r.rank] for r in ledger.ranks}
    worst = max(shares, key=shares.__getitem__)
    share, error = shares[worst], CLOCK / busy[worst]
    return _Figure(
        value=share,
        low=max(share - error, 0.0),
        high=share + error,
        note=rank_name(m.conditions, worst),
        per_rank={str(rank): value for rank, value in shares.items()},
    )


def _story(m: FullRunMeasurement, ledger: Ledger) -> str:
    failure = f", rank {killed_mark(m)[0].rank} killed at step {m.kill_step}" if m.kill_step else ""
    world = f"{m.conditions.nodes} x {m.conditions.nproc_per_node} ranks"
    return f"one run of {m.steps} steps on {world}{failure}, {ledger.events.steps_lost} steps done again"


def _steady_step_time(m: FullRunMeasurement) -> float:
    """Median over the steps that count, each as long as on its slowest rank, warm-up cut."""
    longest: dict[int, float] = {}
    for run in m.ranks:
        last = last_attempts(run)
        for span in run.spans:
            if category(span, last) == "kept":
                longest[span.step] = max(longest.get(span.step, 0.0), span.end - span.start)
    steps = [longest[step] for step in sorted(longest)]
    return median(steps[steady_start(steps) :])

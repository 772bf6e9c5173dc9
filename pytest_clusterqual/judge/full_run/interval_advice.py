"""What the way a run was saved loses of the time, and what the best interval between saves would lose."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from pytest_clusterqual import units
from pytest_clusterqual.judge.full_run.interval import (
    BetweenFailures,
    Cost,
    assumed,
    availability,
    best_steps,
    daly,
    measured,
    young,
)
from pytest_clusterqual.judge.full_run.ledger import Ledger
from pytest_clusterqual.judge.full_run.saves import inflation
from pytest_clusterqual.judge.judgement import Case, judge_missing, judge_quantity
from pytest_clusterqual.judge.statistics import LEVEL, median
from pytest_clusterqual.model.full_run import FullRun
from pytest_clusterqual.model.record import Finding, Interval, Judgement

_WORTH_TELLING = 1e-3  # of the time, that another interval would save


def interval_advice(run: FullRun, ledger: Ledger, time_between_failures: float | None) -> Iterator[Judgement]:
    """`checkpoint_loss` and `checkpoint_interval`; nothing where no save became complete.

    `time_between_failures`, seconds, is what the project file assumes; None: what the run itself shows of it, failures
    on purpose not counted.
    """
    cost, every = _cost(run, ledger), _every(run, ledger)
    if cost is None or every is None:
        return
    step = median(ledger.steps)
    between = _between(run, ledger) if time_between_failures is None else assumed(time_between_failures)
    way = str(run.checkpoints or f"own-every{every}")
    yield _loss(way, every, cost, step, between)
    yield _interval(way, every, cost, step, between)


def _every(run: FullRun, ledger: Ledger) -> int | None:
    """Steps between two saves; None where a command saved less than twice."""
    if run.checkpoints is not None:
        return run.checkpoints.every
    pairs = itertools.pairwise(ledger.events.saves)
    between = [later.step - save.step for save, later in pairs if later.step > save.step]
    return round(median(between)) if between else None


def _cost(run: FullRun, ledger: Ledger) -> Cost | None:
    """The medians of all complete saves, each as its slowest rank saw it."""
    complete = [(save.blocking, save.completion) for save in ledger.events.saves if save.completion is not None]
    if not complete:
        return None
    blocking, completion = (median(each) for each in zip(*complete, strict=True))
    found = inflation(run)
    slower = max(found.value, 0.0) if found else 0.0
    events = ledger.events
    parts = (events.detection, events.restart, events.rendezvous, events.load)
    return Cost(
        blocking=blocking,
        completion=completion,
        slowdown=max(completion - blocking, 0.0) * slower / (1 + slower),
        recovery=sum(part for part in parts if part is not None),
    )


def _between(run: FullRun, ledger: Ledger) -> BetweenFailures:
    ends = max(len(rank.processes) for rank in run.ranks) - 1
    return measured(max(ends - (run.failure is not None), 0), ledger.wall)


def _lost(work: float, cost: Cost, between: BetweenFailures) -> float:
    """Share of the time; without a mean time between failures that of saving alone."""
    if between.mean is None:
        return 1 - work / max(work + cost.saving, cost.completion)
    return 1 - availability(work, cost, between.mean)


def _loss(way: str, every: int, cost: Cost, step: float, between: BetweenFailures) -> Judgement:
    work = every * step
    saving = 1 - work / max(work + cost.saving, cost.completion)
    whole = _lost(work, cost, between)
    return judge_quantity(
        Case(
            quantity="checkpoint_loss",
            label=way,
            value=whole,
            unit=units.RATIO,
            interval=None,
            timing=True,
            parts={"saving": saving, "failures": whole - saving},
            note=f"of the time, {_told(between)}; {_told_cost(cost)}",
        )
    )


def _interval(way: str, every: int, cost: Cost, step: float, between: BetweenFailures) -> Judgement:
    told = interval_told(every, cost, step, between)
    if between.mean is None:
        return judge_missing("checkpoint_interval", "", units.SECONDS, told)
    best, least, most = (best_steps(step, cost, mean) for mean in (between.mean, between.low, between.high))
    own, lost = (_lost(steps * step, cost, between) for steps in (every, best))
    note = Finding(
        suspect=way, kind="checkpoint interval", evidence=told, check_next=f"saving every {best} steps",
        level="note",
    )  # fmt: skip
    thumb = ", ".join(
        f"{name} {units.show(rule(cost.saving, between.mean), units.SECONDS)}"
        for name, rule in (("Young", young), ("Daly", daly))
    )
    return judge_quantity(
        Case(
            quantity="checkpoint_interval",
            label="",
            value=best * step,
            unit=units.SECONDS,
            interval=None if between.assumed else _known(least * step, most * step, between),
            timing=True,
            findings=(note,) if own - lost > _WORTH_TELLING else (),
            note=f"every {best} steps; {told}; {_told_cost(cost)}; {thumb}",
        )
    )


def interval_told(every: int, cost: Cost, step: float, between: BetweenFailures) -> str:
    """What saving every so many steps of `step` seconds loses, against the best interval."""
    if between.mean is None:
        steps = best_steps(step, cost, between.low)
        return f"{_told(between)}, for which every {steps} steps would be best; the true interval is that or longer"
    best, least, most = (best_steps(step, cost, mean) for mean in (between.mean, between.low, between.high))
    own, lost = (units.show_share(_lost(steps * step, cost, between)) for steps in (every, best))
    reach = "" if between.assumed else f", {least} to {most} as far as failures are known"
    return f"{_told(between)}; every {every} steps loses {own} of the time, every {best} steps {lost}{reach}"


def _known(low: float, high: float, between: BetweenFailures) -> Interval:
    return Interval(low=low, high=high, kind="poisson", level=LEVEL, samples=between.failures or 0)


def _told(between: BetweenFailures) -> str:
    low, high = (units.show(bound, units.SECONDS) for bound in (between.low, between.high))
    if between.assumed:
        return f"a failure every {low}, assumed"
    if between.mean is None:
        return f"no failure was seen: they are {low} or more apart ({units.show_share(LEVEL)})"
    mean = units.show(between.mean, units.SECONDS)
    return f"a failure every {mean} [{low}, {high}], measured: {between.failures} were seen"


def _told_cost(cost: Cost) -> str:
    """What it all rests on."""
    parts = {"blocking": cost.blocking, "completion": cost.completion, "slower steps": cost.slowdown,
             "recovery": cost.recovery}  # fmt: skip
    told = ", ".join(f"{name} {units.show(seconds, units.SECONDS)}" for name, seconds in parts.items() if seconds)
    return f"with {told}" + ("" if cost.recovery else ", what a recovery costs aside")

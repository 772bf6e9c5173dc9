"""One number with its interval, one requirement: one verdict and one sentence that explains it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from pytest_clusterqual import units
from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.statistics import minimum_samples, samples_needed
from pytest_clusterqual.model.conditions import Conditions, Load
from pytest_clusterqual.model.record import Demand, Finding, Interval, Judgement, Verdict
from pytest_clusterqual.model.requirement import Requirement

NO_WORK = "neither tokens nor sequences of a step are known, and without work per step nothing is said about speed"
NO_TOKENS = "it is not known how many tokens a step has"
_AGAIN = "--qual-resume RUN --qual-again -k TEST"
# How long samples are added: a key of the project file. A resumed run keeps its file.
_BUDGETS = {"fabric": "fabric.budget", "scaling": "scaling.budget"}
_ELSEWHERE = ("fabric.budget", "runs")  # of nccl-tests, which may have been started by hand
_PLURAL = re.compile(r"\b(pass(?=es)|\w+?(?=s\b))(?:es|s)\b")


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A quantity that was measured, ready to be judged.

    `value` and `interval` are in the canonical `unit`. `timing` says that other work on the
    machine spoils it. `counted` is what the samples are called, `note` ends the reason.
    """

    quantity: str
    label: str
    value: float
    unit: str
    interval: Interval | None
    timing: bool
    load: Load | None = None
    samples: tuple[float, ...] = ()
    counted: str = "samples"
    per_rank: dict[str, float] = field(default_factory=dict)
    parts: dict[str, float] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    note: str = ""


def decide(
    value: float,
    interval: Interval | None,
    requirement: Requirement,
    *,
    load: Load | None = None,
    timing: bool,
    samples: Sequence[float] = (),
    counted: str = "samples",
) -> tuple[Verdict, str]:
    """Judge one value, by its whole interval, against one absolute requirement.

    Returns:
        The verdict and one sentence. Never PASS if anything is not finite or the interval does
        not enclose the value; never FAIL by time on a machine that other work kept busy.

    Raises:
        ValueError: the requirement is still a share of an expected level.
    """
    if requirement.of_expected:
        raise ValueError(f"{requirement} is relative: resolve it first")
    if broken := _broken(value, interval, requirement):
        return Verdict.ERROR, f"{requirement.quantity} cannot be judged: {broken}"
    measured = f"{requirement.quantity} {_shown(value, interval, requirement)}"
    wanted = f"the required {_required(requirement)}"
    if interval is None:
        return Verdict.UNDECIDED, (
            f"{measured} has no interval to hold against {wanted}: {_there(samples, counted)}, "
            f"at least {minimum_samples()} are needed{_way_out(requirement, load, timing=timing, counted=counted)}"
        )
    good = [requirement.met_by(interval.low), requirement.met_by(interval.high)]
    if all(good):
        return Verdict.PASS, f"{measured} meets {wanted}"
    if any(good):
        more = _more(samples, requirement.value, counted)
        out = _way_out(requirement, load, timing=timing, counted=counted)
        return Verdict.UNDECIDED, f"{measured} straddles {wanted}: {more}{out}"
    failed = f"{measured} is {'above' if requirement.upper_bound else 'below'} {wanted}"
    if timing and load is not None and _loaded(load):
        return Verdict.UNDECIDED, f"{failed}, but {_of_load(load)}; measure again when it is idle ({_AGAIN})"
    return Verdict.FAIL, failed


def judge_quantity(
    case: Case, requirement: Requirement | None = None, *, expected_from: str | None = None
) -> Judgement:
    """Judge a case by one absolute requirement; MEASURED without one, ERROR if it is not a number.

    `expected_from` says where the level comes from if the file demands a share of an expected one.
    """
    if requirement is None:
        verdict, reason = _measured(case)
    else:
        verdict, reason = decide(
            case.value,
            case.interval,
            requirement,
            load=case.load,
            timing=case.timing,
            samples=case.samples,
            counted=case.counted,
        )
    return Judgement(
        quantity=case.quantity,
        label=case.label,
        value=case.value,
        unit=case.unit,
        interval=case.interval,
        verdict=verdict,
        reason=f"{reason} ({case.note})" if case.note else reason,
        requirement=None if requirement is None else demand(requirement, expected_from),
        margin=None if requirement is None else margin(case.value, requirement),
        samples=case.samples,
        per_rank=case.per_rank,
        parts=case.parts,
        findings=case.findings,
    )


def judge_each(case: Case, requirements: Iterable[Requirement]) -> tuple[Judgement, ...]:
    """One judgement for each of the absolute requirements, or a single MEASURED one if there are none."""
    return tuple(judge_quantity(case, requirement) for requirement in requirements) or (judge_quantity(case),)


def judge_missing(quantity: str, label: str, unit: str, why: str, requirement: Requirement | None = None) -> Judgement:
    """What is said of a quantity that could not be had: ERROR if it is required, else MEASURED without a number."""
    return Judgement(
        quantity=quantity,
        label=label,
        value=None,
        unit=unit,
        interval=None,
        verdict=Verdict.MEASURED if requirement is None else Verdict.ERROR,
        reason=f"{quantity} was not measured: {why}",
        requirement=None if requirement is None else demand(requirement),
    )


def applicable(
    requirements: Iterable[Requirement],
    criterion: str,
    quantity: str,
    conditions: Conditions,
    *,
    nodes: int | None = None,
    size: float | None = None,
) -> tuple[Requirement, ...]:
    """The requirements on one quantity under the given conditions; `nodes` replaces that of the conditions."""
    return tuple(
        requirement
        for requirement in requirements
        if requirement.criterion == criterion
        and requirement.quantity == quantity
        and requirement.applies(
            nodes=conditions.nodes if nodes is None else nodes,
            layout=conditions.layout,
            collective=conditions.collective,
            group=conditions.group,
            size=size,
        )
    )


def demand(requirement: Requirement, expected_from: str | None = None) -> Demand:
    return Demand(
        op=requirement.op,
        value=requirement.value,
        unit=requirement.unit,
        text=requirement.text,
        source=requirement.source,
        expected_from=expected_from,
    )


def margin(value: float, requirement: Requirement) -> float | None:
    """Distance to the bound as a share of the bound, + on the good side; None where that is no number."""
    if requirement.value == 0 or not math.isfinite(value) or not math.isfinite(requirement.value):
        return None
    distance = requirement.value - value if requirement.upper_bound else value - requirement.value
    return distance / abs(requirement.value)


def worst_load(loads: Iterable[Load | None]) -> Load | None:
    """The load of the busiest node, None if none was recorded."""
    known = [load for load in loads if load is not None]
    return max(known, key=lambda load: load.other_cpu if math.isfinite(load.other_cpu) else math.inf, default=None)


def check_ranks(conditions: Conditions, ranks: Sequence[int], what: str) -> None:
    """Demand one result of every rank.

    Raises:
        MeasurementError: the message names the ranks that are missing, doubled or unknown.
    """
    wanted = range(conditions.ranks)
    if conditions.ranks < 1:
        raise MeasurementError(f"{what}: the world has {conditions.ranks} ranks, want at least 1")
    if missing := sorted(set(wanted) - set(ranks)):
        raise MeasurementError(f"{what}: no result of {_list(missing)}, want one of each of {conditions.ranks} ranks")
    if surplus := sorted({rank for rank in ranks if rank not in wanted or ranks.count(rank) > 1}):
        raise MeasurementError(f"{what}: unknown or repeated result of {_list(surplus)} in {conditions.ranks} ranks")


def rank_name(conditions: Conditions, rank: int) -> str:
    """``rank 3 on node1``, or ``rank 3`` where the node is not known."""
    nodes = conditions.rank_nodes
    return f"rank {rank} on {nodes[rank]}" if rank < len(nodes) else f"rank {rank}"


def _measured(case: Case) -> tuple[Verdict, str]:
    if broken := _broken(case.value, case.interval, None):
        return Verdict.ERROR, f"{case.quantity} was not really measured: {broken}"
    shown = with_interval(units.show(case.value, case.unit), case.interval, lambda bound: units.show(bound, case.unit))
    return Verdict.MEASURED, f"{case.quantity} {shown}; nothing is required of it"


def _broken(value: float, interval: Interval | None, requirement: Requirement | None) -> str | None:
    if not math.isfinite(value):
        return f"its value is {value}"
    if requirement is not None and not math.isfinite(requirement.value):
        return f"its bound is {requirement.value}"
    if interval is None:
        return None
    if not math.isfinite(interval.low) or not math.isfinite(interval.high):
        return f"its interval is [{interval.low}, {interval.high}]"
    if not interval.low <= value <= interval.high:
        return f"its interval [{interval.low:g}, {interval.high:g}] does not enclose its value {value:g}"
    return None


def _more(samples: Sequence[float], bound: float, counted: str) -> str:
    needed = samples_needed(samples, bound)
    if needed is None:
        return f"{_number(len(samples), counted)} cannot tell them apart"
    more = needed - len(samples)
    if more < 1:  # by a normal approximation, which the interval does not rest on
        return f"{_there(samples, counted)}, and a few more should tell them apart"
    return f"about {_number(more, f'more {counted}')} {'is' if more == 1 else 'are'} needed, {_there(samples, counted)}"


def _there(samples: Sequence[float], counted: str) -> str:
    return f"{_number(len(samples), counted)} {'is' if len(samples) == 1 else 'are'} there"


def _number(count: int, counted: str) -> str:
    """``1 more pair of runs``, ``2 more pairs of runs``."""
    return f"{count} {_PLURAL.sub(lambda word: word[1], counted, count=1) if count == 1 else counted}"


def _way_out(requirement: Requirement, load: Load | None, *, timing: bool, counted: str) -> str:
    """What may decide it: nothing that could be said of samples from elsewhere, which only their origin can add to."""
    if not timing or (budget := _BUDGETS.get(requirement.criterion)) is None or (budget, counted) == _ELSEWHERE:
        return ""
    if load is not None and _loaded(load):
        return f"; {_of_load(load)}; measure again when it is idle ({_AGAIN}), or in a new run with a larger {budget}"
    return f"; on an idle machine samples scatter less ({_AGAIN}), a larger {budget} allows for more in a new run"


def _loaded(load: Load) -> bool:
    return load.heavy or not math.isfinite(load.other_cpu)


def _of_load(load: Load) -> str:
    share = units.show_share(load.other_cpu) if math.isfinite(load.other_cpu) else "an unknown share"
    return f"the machine was loaded: other work took {share} of the cores' time on {load.node}"


def _show(value: float, requirement: Requirement) -> str:
    if requirement.unit == units.RATIO and "%" in requirement.text:
        return units.show_share(value)  # in the words of the project file
    return units.show(value, requirement.unit)


def _shown(value: float, interval: Interval | None, requirement: Requirement) -> str:
    return with_interval(_show(value, requirement), interval, lambda bound: _show(bound, requirement))


def with_interval(text: str, interval: Interval | None, show: Callable[[float], str]) -> str:
    """A shown value with its bounds behind it, their unit once where it is the same."""
    if interval is None or interval.low == interval.high:
        return text
    return f"{text} {units.show_interval(text, show(interval.low), show(interval.high))}"


def _required(requirement: Requirement) -> str:
    bound = f"{requirement.op} {_show(requirement.value, requirement)}"
    return f"{bound} ({requirement.text})" if "expected" in requirement.text else bound


def _list(ranks: Sequence[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {units.show_some(ranks, 8)}"

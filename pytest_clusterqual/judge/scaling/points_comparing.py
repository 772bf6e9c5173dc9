"""What is said of one scaling point beside another, and what of it can be held against a requirement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pytest_clusterqual import units
from pytest_clusterqual.judge.judgement import Case, judge_each, judge_missing
from pytest_clusterqual.judge.scaling.points_pairs import Pair, bubble_note, common_rates, convergence_note, slower_note
from pytest_clusterqual.judge.statistics import apart_ratio_interval, mapped, median, minimum_samples
from pytest_clusterqual.model.points import Comparison, Point
from pytest_clusterqual.model.record import Finding, Judgement, Verdict
from pytest_clusterqual.model.requirement import Requirement
from pytest_clusterqual.model.workload import Workload

RATIOS = ("speedup", "efficiency")
_MEANS = {
    "strong scaling": "the same job and the same global batch on more devices",
    "weak scaling": "the same batch on each device, so more work in a step: no speedup of one job, and no efficiency "
    "of strong scaling",
    "other topology": "the same job on other nodes, not on more of them: no point of the same curve",
    "same devices": "two ways on the same devices: techniques are compared, not sizes",
    "another regime": "not the same job on more of the same nodes, so no efficiency",
}


def compared(
    pair: Pair, places: tuple[int, int], requirements: Sequence[Requirement], workload: Workload | None
) -> Comparison:
    """`places` are those of both points in the table, `requirements` those on the larger, of the job `workload`."""
    rates = common_rates(pair)
    ratio = median(rates[1]) / median(rates[0]) if rates else None
    if pair.scaling == "strong scaling":
        judgements = list(_strong(pair, rates, requirements, another_job(pair.point, workload)))
    elif pair.scaling == "undecided":
        judgements = [undecided(judge_missing("efficiency", pair.point.label, units.RATIO, _readings(pair, ratio)))]
    else:
        judgements = list(_normalized(pair, rates))
    return Comparison(
        baseline=places[0], point=places[1], kind=pair.kind, would_be=pair.would_be, why=_why(pair, ratio),
        differences=pair.differences, missing=pair.missing, judgements=tuple(judgements),
        notes=tuple(_notes(pair, ratio)),
    )  # fmt: skip


def another_job(point: Point, workload: Workload | None) -> str:
    """Why requirements on `workload` decide nothing of a point; empty where it may be that job."""
    if workload is None:
        return ""
    told = {
        "global batch": (point.global_batch, workload.global_batch),
        "sequence length": (point.sequence_length, workload.sequence_length),
    }
    found = [
        f"{what} {wanted}, the table {got}"
        for what, (got, wanted) in told.items()
        if wanted and got not in (None, wanted)
    ]
    return f"the project file is of another job: it has {'; '.join(found)}" if found else ""


def undecided(judgement: Judgement, doubt: str = "") -> Judgement:
    """The same, deciding nothing, because of `doubt` where its own reason does not say it."""
    if doubt and judgement.value is not None:
        value = units.show(judgement.value, judgement.unit)
        judgement = replace(judgement, reason=f"{judgement.quantity} {value} decides nothing: {doubt}")
    return replace(judgement, verdict=Verdict.UNDECIDED)


def _why(pair: Pair, ratio: float | None) -> str:
    if pair.scaling == "undecided":
        return f"cannot be decided: {_readings(pair, ratio)}"
    if pair.would_be:
        told = _listed(pair.missing)
        return f"cannot be decided, because the table does not tell {told}: {pair.would_be} if it is the same"
    means = _MEANS[pair.kind]
    return f"{means}: {'; '.join(pair.differences)}" if pair.differences else means


def _readings(pair: Pair, ratio: float | None) -> str:
    """What follows from either batch that may have been meant."""
    without = f"the table does not tell {_listed(pair.missing)}"
    multiple = units.show(pair.multiple, units.RATIO)
    if ratio is not None:
        return f"{without}; {units.show(ratio, units.RATIO)} times the work a second on {multiple} times the devices"
    if not pair.base.rates or not pair.point.rates or pair.base.work != pair.point.work:
        return without
    faster = median(pair.point.rates) / median(pair.base.rates)
    return (
        f"{without}; a speedup of {units.show(faster, units.RATIO)} if the global batch was the same, "
        f"{units.show(faster * pair.multiple, units.RATIO)} times the work a second on {multiple} times the devices if "
        "the batch of each device was the same"
    )


def _strong(
    pair: Pair, rates: tuple[Sequence[float], Sequence[float]] | None, requirements: Sequence[Requirement], job: str
) -> Iterator[Judgement]:
    missing = f"the table does not tell {_listed(pair.missing)}" if pair.missing else ""
    for quantity, multiple in (("speedup", 1.0), ("efficiency", pair.multiple)):
        # Requirements are by nodes: more devices of one node are not what they are about.
        required = [each for each in requirements if each.quantity == quantity and pair.base.nodes != pair.point.nodes]
        if rates is None:
            why = "no throughput is told, and a time to train also holds how soon a run happened to converge"
            yield from (
                undecided(judge_missing(quantity, pair.point.label, units.RATIO, why, each))
                for each in required or (None,)
            )
            continue
        case = _ratio(quantity, pair, rates, multiple)
        doubt = missing or (job if required else "")
        yield from (undecided(each, doubt) if doubt else each for each in judge_each(case, required))
    if pair.base.times_to_train and pair.point.times_to_train:
        times = pair.point.times_to_train, pair.base.times_to_train
        yield from judge_each(_ratio("speedup_by_time_to_train", pair, times, 1.0), ())


def _normalized(pair: Pair, rates: tuple[Sequence[float], Sequence[float]] | None) -> Iterator[Judgement]:
    """Throughput a device beside the baseline's: a fact, never an efficiency."""
    if rates is not None:
        (judgement,) = judge_each(_ratio("normalized_throughput", pair, rates, pair.multiple), ())
        missing = f"the table does not tell {_listed(pair.missing)}"
        yield undecided(judgement, missing) if pair.would_be else judgement


def _ratio(quantity: str, pair: Pair, rates: tuple[Sequence[float], Sequence[float]], multiple: float) -> Case:
    before, after = rates
    interval = apart_ratio_interval(after, before)
    runs = f"{len(before)} and {len(after)} runs" if len(before) + len(after) > 2 else "one run of each"
    fewer = min(len(before), len(after)) < minimum_samples()
    return Case(
        quantity=quantity, label=pair.point.label, value=median(after) / median(before) / multiple, unit=units.RATIO,
        interval=mapped(interval, lambda bound: bound / multiple),
        timing=False, samples=tuple(rate / median(before) / multiple for rate in after), counted="runs",
        note=f"{pair.point.label} against {pair.base.label}, {runs}{', too few for an interval' if fewer else ''}",
    )  # fmt: skip


def _notes(pair: Pair, ratio: float | None) -> Iterator[Finding]:
    if pair.missing and pair.kind == "undecided":
        yield Finding(
            suspect="the table", kind="missing evidence", level="note",
            evidence=f"it does not tell {_listed(pair.missing)}",
            check_next="add a column for each, also where all lines have the same in it",
        )  # fmt: skip
    timed = bool(pair.base.times_to_train and pair.point.times_to_train)
    if timed and pair.scaling == "strong scaling" and (note := convergence_note(pair)):
        yield note
    if note := bubble_note(pair):
        yield note
    if ratio is not None and (note := slower_note(pair, ratio)):
        yield note


def _listed(words: Sequence[str]) -> str:
    return ", ".join(words)

"""Scaling points that somebody else measured, judged by the rules of those measured here.

Strong scaling is the same job on more of the same nodes. Anything else is called what it is, and has no
efficiency. What the table does not tell is not taken for the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_clusterqual import units
from pytest_clusterqual.judge.judgement import Case, judge_each, judge_missing
from pytest_clusterqual.judge.scaling.points_comparing import RATIOS, another_job, compared, undecided
from pytest_clusterqual.judge.scaling.points_pairs import common_rates, families, pair_of, pairs
from pytest_clusterqual.judge.scaling.projection import FURTHEST, project, why_not_projected
from pytest_clusterqual.judge.statistics import mapped, median, median_interval
from pytest_clusterqual.model.points import Comparison, Curve, JudgedPoints, Point
from pytest_clusterqual.model.projection import SizeTime
from pytest_clusterqual.model.record import Judgement
from pytest_clusterqual.model.requirement import QUANTITIES, Requirement
from pytest_clusterqual.model.workload import Workload

_FIGURES = ("throughput", "step_time", "time_to_train")


def judge_points(
    points: Sequence[Point], requirements: Sequence[Requirement] = (), workload: Workload | None = None
) -> JudgedPoints:
    """Judge every point by itself and beside the one it can best be compared with.

    `requirements` are those of Training Scaling on the job `workload`; of another job they decide nothing. Each
    is answered: ERROR where points are not the same job, UNDECIDED where the table does not tell.
    """
    comparisons = tuple(
        compared(pair, places, _on(points[places[1]], requirements), workload) for places, pair in pairs(points)
    )
    figures = tuple(tuple(_figures(point, _on(point, requirements), workload)) for point in points)
    return JudgedPoints(
        points=tuple(points), order=tuple(place for family in families(points) for place in family),
        figures=figures, comparisons=comparisons, curves=tuple(_curves(points, comparisons)),
        unanswered=tuple(_unanswered(points, comparisons, requirements)),
    )  # fmt: skip


def _on(point: Point, requirements: Sequence[Requirement]) -> tuple[Requirement, ...]:
    layout = point.identity.get("layout")
    return tuple(each for each in requirements if each.applies(nodes=point.nodes or 0, layout=layout))


def _figures(point: Point, requirements: Sequence[Requirement], workload: Workload | None) -> Iterator[Judgement]:
    for quantity, (unit, samples) in _samples(point).items():
        required = [each for each in requirements if each.quantity == quantity]
        wanted = QUANTITIES["scaling"][quantity]
        if required and (not samples or unit != wanted):
            why = f"the table does not tell it in {wanted}, or not what is needed to work it out"
            yield from (undecided(judge_missing(quantity, point.label, wanted, why, each)) for each in required)
        elif samples:
            case = Case(
                quantity=quantity, label=point.label, value=median(samples), unit=unit, timing=False, counted="runs",
                interval=median_interval(samples), samples=tuple(samples),
                note=f"{units.show_count(len(samples), 'run')} on {point.label}",
            )  # fmt: skip
            doubt = another_job(point, workload) if required else ""
            yield from (undecided(each, doubt) if doubt else each for each in judge_each(case, required))


def _samples(point: Point) -> dict[str, tuple[str, Sequence[float]]]:
    """Quantity -> its unit, and one sample a run."""
    tokens, steps = point.scale("tokens"), point.scale("steps")
    rates = [rate * tokens for rate in point.rates] if tokens else point.rates
    return {
        "throughput": (units.TOKEN_RATE if tokens else f"{point.work}{'/s' * (point.work != 'peaks')}", rates),
        "step_time": (units.SECONDS, [1 / (rate * steps) for rate in point.rates] if steps else ()),
        "time_to_train": (units.SECONDS, point.times_to_train),
    }


def _curves(points: Sequence[Point], comparisons: Sequence[Comparison]) -> Iterator[Curve]:
    strong = [each for each in comparisons if each.kind == "strong scaling"]
    for baseline in dict.fromkeys(each.baseline for each in strong):
        places = (baseline, *(each.point for each in strong if each.baseline == baseline))
        base = points[baseline]
        found = [(points[place], common_rates(pair_of(base, points[place]))) for place in places]
        times = [_time(point, *rates) for point, rates in found if rates and point.nodes]
        if len(times) < len(places) or base.nodes == times[-1].nodes:  # no throughput, or all inside one node
            continue
        furthest = FURTHEST * times[-1].nodes
        why_not = why_not_projected(times, furthest)
        yield Curve(points=places, envelope=None if why_not else project(times, furthest), why_not=why_not)


def _time(point: Point, before: Sequence[float], after: Sequence[float]) -> SizeTime:
    """The time of the work that the baseline does in one second."""
    interval, base = median_interval(after), median(before)
    return SizeTime(
        nodes=point.nodes or 0, seconds=base / median(after),
        interval=mapped(interval, lambda bound: base / bound),
    )  # fmt: skip


def _unanswered(
    points: Sequence[Point], comparisons: Sequence[Comparison], requirements: Sequence[Requirement]
) -> Iterator[Judgement]:
    """What is required of no point, or of one that is no point of a curve: nothing vanishes."""
    answered = {each.point for each in comparisons if "strong scaling" in (each.kind, each.would_be)}
    baselines = {each.baseline for each in comparisons} - answered
    for requirement in requirements:
        unit = QUANTITIES["scaling"][requirement.quantity]
        on = [place for place, point in enumerate(points) if requirement in _on(point, requirements)]
        if requirement.quantity not in (*RATIOS, *_FIGURES):
            why = "a table of points does not tell it"
            yield undecided(judge_missing(requirement.quantity, "", unit, why, requirement))
        elif not on:
            nodes = f" of {requirement.nodes} nodes" if requirement.nodes else ""
            layout = f" of layout {requirement.layout}" if requirement.layout else ""
            why = f"there is no point{nodes}{layout}"
            yield undecided(judge_missing(requirement.quantity, "", unit, why, requirement))
        elif requirement.quantity in RATIOS:
            named = requirement.nodes is not None
            for place in on:
                if place not in answered and (named or place not in baselines or len(on) == len(baselines)):
                    yield _refused(points[place], [each for each in comparisons if each.point == place], requirement)


def _refused(point: Point, comparisons: Sequence[Comparison], requirement: Requirement) -> Judgement:
    why = (
        "; ".join(each.why for each in comparisons)
        or "there is nothing to compare it with, or it is the baseline itself"
    )
    missing = judge_missing(requirement.quantity, point.label, units.RATIO, why, requirement)
    refused = comparisons and all(each.kind != "undecided" for each in comparisons)
    return missing if refused else undecided(missing)

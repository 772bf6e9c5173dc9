"""The memory ladder: which ways to do the exact job fit, what memory each takes and what it costs in time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from pytest_clusterqual import units
from pytest_clusterqual.judge.judgement import Case, applicable, judge_missing, judge_quantity
from pytest_clusterqual.judge.memory.rungs import Climbed, climbed
from pytest_clusterqual.judge.scaling.runs import Point
from pytest_clusterqual.judge.statistics import median, median_interval, ratio_interval
from pytest_clusterqual.model.conditions import Load
from pytest_clusterqual.model.memory import MemoryLadderMeasurement
from pytest_clusterqual.model.record import Finding, Interval, Judgement
from pytest_clusterqual.model.requirement import Requirement


def judge_memory_ladder(m: MemoryLadderMeasurement, requirements: Iterable[Requirement]) -> tuple[Judgement, ...]:
    """Tell of every rung, by its name: nothing is required of a single one.

    `fits` is 1 or 0. `peak` (bytes) and `headroom` (share) are Memory's own. Of a rung that fits there are
    also `step_time` (s), `throughput` (tokens/s), and `price`: its time to fixed work over that of the
    fastest rung that fits. `first_fit` names the first rung that fits with the headroom that the file
    requires of all layouts; its value is the number of nodes.

    Raises:
        MeasurementError: there is no rung, or of one that was tried a rank, a step or a time is missing.
    """
    rungs = climbed(m)
    required = applicable(requirements, "memory", "headroom", m.conditions)
    timed = [rung for rung in rungs if rung.fits and rung.point is not None]
    fastest = min(timed, key=lambda rung: rung.seconds, default=None)
    told = [judgement for rung in rungs for judgement in _judge_rung(rung, fastest, m.conditions.load)]
    prices = {each.label: each for each in told if each.quantity == "price" and each.value is not None}
    return (_first_fit(rungs, required, fastest, prices), *told)


def _judge_rung(rung: Climbed, fastest: Climbed | None, load: Load | None) -> Iterator[Judgement]:
    if rung.fits is None:
        yield judge_missing("fits", rung.name, units.RATIO, rung.why)
        return
    value = float(rung.fits)
    yield judge_quantity(
        Case(
            quantity="fits", label=rung.name, value=value, unit=units.RATIO, timing=False,
            interval=Interval(low=value, high=value, kind="count", samples=rung.rung.ranks), note=rung.why,
        )
    )  # fmt: skip
    yield from map(judge_quantity, rung.memory)
    if rung.fits and rung.point is not None and fastest is not None:
        yield from _judge_times(rung, rung.point, load)
        yield _price(rung, fastest, load)


def _judge_times(rung: Climbed, point: Point, load: Load | None) -> Iterator[Judgement]:
    tokens, seconds = point.runs[0].ranks[0].tokens_per_step, point.step_times
    figures = [("step_time", units.SECONDS, seconds)]
    if tokens:
        figures.append(("throughput", units.TOKEN_RATE, tuple(tokens / each for each in seconds)))
    for quantity, unit, samples in figures:
        yield judge_quantity(
            Case(
                quantity=quantity, label=rung.name, value=median(samples), unit=unit,
                interval=median_interval(samples), timing=True, load=load, samples=samples, counted="runs",
                note=point.note,
            )
        )  # fmt: skip


def _price(rung: Climbed, fastest: Climbed, load: Load | None) -> Judgement:
    if differences := rung.not_alike(fastest):
        why = f"{rung.name} and {fastest.name} did not do the same job ({'; '.join(differences)})"
        return judge_missing("price", rung.name, units.RATIO, why)
    assert rung.point and fastest.point
    pairs = min(len(rung.point.runs), len(fastest.point.runs))
    own, best = rung.point.work_times[:pairs], fastest.point.work_times[:pairs]
    against = f"{pairs} pairs of runs, {rung.rung.ranks} against {fastest.rung.ranks} devices"
    note = f"time to fixed work against {fastest.name}, {against}" if rung is not fastest else "the fastest that fits"
    return judge_quantity(
        Case(
            quantity="price", label=rung.name, value=median(own) / median(best), unit=units.RATIO,
            interval=ratio_interval(own, best), timing=True, load=load, counted="runs", note=note,
            samples=tuple(one / other for one, other in zip(own, best, strict=True)),
        )
    )  # fmt: skip


def _first_fit(
    rungs: Sequence[Climbed],
    required: tuple[Requirement, ...],
    fastest: Climbed | None,
    prices: Mapping[str, Judgement],
) -> Judgement:
    wanted = f" with headroom {' and '.join(each.text for each in required)}" if required else ""
    first = next((rung for rung in rungs if rung.fits_with(required)), None)
    findings = (_shown(rungs, first, wanted, _priced(first, fastest, prices)),)
    if first is None:
        missing = judge_missing("first_fit", "", units.NODES, f"no rung fits{wanted}")
        return replace(missing, findings=findings)
    return judge_quantity(
        Case(
            quantity="first_fit", label=first.name, value=float(first.rung.nodes), unit=units.NODES, interval=None,
            timing=False, findings=findings, note=f"the first rung that fits{wanted}: {first.why}",
        )
    )  # fmt: skip


def _priced(rung: Climbed | None, fastest: Climbed | None, prices: Mapping[str, Judgement]) -> str:
    """What a rung costs in time, in words; empty where there is nothing to compare it with."""
    if rung is None or fastest is None or rung.name not in prices or len(prices) < 2:
        return ""
    price = prices[rung.name]
    if rung is fastest:
        return ", as fast as any that fits"
    if price.interval and price.interval.low <= 1.0:
        return f", in a time not told apart from that of {fastest.name}, the fastest"
    assert price.value is not None
    return f" at {units.show(price.value, units.RATIO)} x the time of {fastest.name}"


def _shown(rungs: Sequence[Climbed], first: Climbed | None, wanted: str, price: str) -> Finding:
    """What the ladder as a whole says about the need for devices and nodes."""
    inside = [rung for rung in rungs if rung.rung.nodes == 1]
    largest = max(rung.rung.nodes for rung in rungs)
    lacks = {True: "has too little left", False: "runs out of memory", None: "cannot do this job"}[rungs[0].fits]
    if first is None:
        evidence = f"no rung fits{wanted}, up to {units.show_count(largest, 'node')}"
        check = "a lower precision, an optimizer with less state, offloading, a larger device, or more nodes"
    elif first is rungs[0]:
        evidence = f"one device is enough{wanted}{price}: more nodes are not needed for memory"
        check = "Training Scaling: whether more nodes shorten the job"
    elif first.rung.nodes == 1:
        evidence = f"one device {lacks}; {first.name} fits{wanted}{price}: more nodes are not needed for memory"
        check = "Training Scaling: whether more nodes shorten the job by more than they cost"
    else:
        left_out = [rung.name for rung in inside if rung.fits is None]
        beside = f" (impossible for this job: {', '.join(left_out)})" if left_out else ""
        evidence = f"no way inside one node fits{wanted}{beside}; {first.name} do{price}"
        check = "other means inside a node first: a lower precision, an optimizer with less state, offloading"
    return Finding(suspect="this job", kind="memory ladder", evidence=evidence, check_next=check, level="note")

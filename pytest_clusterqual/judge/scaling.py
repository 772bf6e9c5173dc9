"""Training scaling: how much sooner the same fixed work is done on more nodes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytest_clusterqual import units
from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.judgement import (
    Case,
    applicable,
    check_ranks,
    judge_each,
    judge_missing,
    worst_load,
)
from pytest_clusterqual.judge.layout import expert_imbalance, notes, pipeline_bubble
from pytest_clusterqual.judge.statistics import median, median_interval, ratio_interval, slowest, steady_start
from pytest_clusterqual.model.conditions import Load
from pytest_clusterqual.model.record import Interval, Judgement
from pytest_clusterqual.model.requirement import QUANTITIES, Requirement
from pytest_clusterqual.model.training import RankTraining, ScalingMeasurement, ScalingRun

SAME_LOSS = 1e-3  # relative
RATIOS = ("speedup", "efficiency")


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """All runs on one number of nodes, in the order they were made; one figure a run, in seconds."""

    nodes: int
    runs: tuple[ScalingRun, ...]
    step_times: tuple[float, ...]
    work_times: tuple[float, ...]

    @property
    def label(self) -> str:
        return _nodes(self.nodes)

    @property
    def note(self) -> str:
        steps = len(self.runs[0].ranks[0].step_seconds)
        otherwise = "".join(f"; {means}" for means in self.runs[0].ranks[0].otherwise)
        return f"{len(self.runs)} runs of {steps} steps on {self.label}, slowest rank{otherwise}"


def judge_scaling(m: ScalingMeasurement, requirements: Iterable[Requirement]) -> tuple[Judgement, ...]:
    """Judge every point by itself, and the larger ones against the smallest.

    `step_time` (s) is the median of a run's steady steps, `throughput` (tokens/s) follows from
    it, `time_to_fixed_work` (s) spans all steps. `speedup` is the ratio of the times to fixed
    work, `efficiency` the speedup over the ratio of nodes; both exist only where the points did
    the same job. `bubble` and `imbalance` are those of `judge.layout`, where the layout has a pipeline
    or the model experts.

    Raises:
        MeasurementError: a run, a rank, a step or a positive time is missing.
    """
    requirements = tuple(requirements)
    points = _points(m)
    if m.conditions.nodes not in [point.nodes for point in points]:
        raise MeasurementError(f"scaling: there is no run on {_nodes(m.conditions.nodes)}")
    judgements: list[Judgement] = []
    for point in points:
        judgements += _judge_times(m, point, requirements)
        judgements += _judge_layout(m, point, requirements)
        if point is points[0]:
            judgements += _ratios_of_baseline(m, point, requirements)
        else:
            judgements += _judge_ratios(m, points[0], point, requirements)
    return tuple(judgements)


def different_regime(a: ScalingRun, b: ScalingRun) -> list[str]:
    """What makes two runs incomparable, one phrase each; empty where they did the same job."""
    names = (_nodes(a.conditions.nodes), _nodes(b.conditions.nodes))
    pairs: list[tuple[str, object, object]] = [
        (name.replace("_", " "), getattr(a.conditions, name), getattr(b.conditions, name))
        for name in ("workload", "layout", "device", "device_name", "backend", "simulated", "nproc_per_node")
    ]
    old, new = a.conditions.versions, b.conditions.versions
    pairs += [(f"version of {name}", old.get(name), new.get(name)) for name in sorted({**old, **new})]
    pairs += [
        ("tokens per step", a.ranks[0].tokens_per_step, b.ranks[0].tokens_per_step),
        ("number of steps", len(a.ranks[0].step_seconds), len(b.ranks[0].step_seconds)),
        ("data", _data(a), _data(b)),
    ]
    differences = [f"{what}: {one} on {names[0]}, {two} on {names[1]}" for what, one, two in pairs if one != two]
    return differences or _different_losses(a, b, names)


def _data(run: ScalingRun) -> str:
    return ", ".join(sorted({rank.data_digest for rank in run.ranks}))


def _different_losses(a: ScalingRun, b: ScalingRun, names: tuple[str, str]) -> list[str]:
    one, two = _losses(a), _losses(b)
    if len(one) != len(two):
        return [f"number of losses: {len(one)} on {names[0]}, {len(two)} on {names[1]}"]
    for step, (x, y) in enumerate(zip(one, two, strict=True), 1):
        if abs(x - y) > SAME_LOSS * max(abs(x), abs(y)):
            return [f"loss of step {step}: {x:.6g} on {names[0]}, {y:.6g} on {names[1]}"]
    return []


def _losses(run: ScalingRun) -> list[float]:
    """The loss of each step; the mean over ranks is right for global losses and for local ones."""
    return [sum(row) / len(row) for row in zip(*(rank.losses for rank in run.ranks), strict=True)]


def _points(m: ScalingMeasurement) -> list[Point]:
    if not m.runs:
        raise MeasurementError("scaling: no run was made")
    by_nodes: dict[int, list[ScalingRun]] = {}
    for number, run in enumerate(m.runs, 1):
        _check(run, f"scaling: run {number} on {_nodes(run.conditions.nodes)}")
        by_nodes.setdefault(run.conditions.nodes, []).append(run)
    return [
        Point(
            nodes=nodes,
            runs=tuple(runs),
            step_times=tuple(map(_step_time, runs)),
            work_times=tuple(max(rank.work_seconds for rank in run.ranks) for run in runs),
        )
        for nodes, runs in sorted(by_nodes.items())
    ]


def _check(run: ScalingRun, where: str) -> None:
    check_ranks(run.conditions, [rank.rank for rank in run.ranks], where)
    first = run.ranks[0]
    if run.conditions.ranks != run.conditions.nodes * run.conditions.nproc_per_node:
        raise MeasurementError(
            f"{where}: {run.conditions.ranks} ranks are not {run.conditions.nodes} x {run.conditions.nproc_per_node}"
        )
    for rank in run.ranks:
        shape = _shape(rank)
        if shape != _shape(first):
            raise MeasurementError(
                f"{where}: rank {rank.rank} has {shape[0]} steps, {shape[1]} losses and {shape[2]} tokens per step, "
                f"rank {first.rank} {_shape(first)[0]}, {_shape(first)[1]} and {_shape(first)[2]}"
            )
        if not all(shape):
            raise MeasurementError(
                f"{where}: rank {rank.rank} has {shape[0]} steps, {shape[1]} losses and {shape[2]} tokens per step"
            )
        if not all(math.isfinite(seconds) and seconds > 0 for seconds in (*rank.step_seconds, rank.work_seconds)):
            raise MeasurementError(f"{where}: rank {rank.rank} has a time that is not above 0")
        for number, loss in enumerate(rank.losses, 1):
            if not math.isfinite(loss):
                raise MeasurementError(f"{where}: the loss of step {number} is {loss} on rank {rank.rank}")


def _shape(rank: RankTraining) -> tuple[int, int, int]:
    return len(rank.step_seconds), len(rank.losses), rank.tokens_per_step


def _step_time(run: ScalingRun) -> float:
    steps = slowest([rank.step_seconds for rank in run.ranks])
    return median(steps[steady_start(steps) :])


def _judge_times(m: ScalingMeasurement, point: Point, requirements: Sequence[Requirement]) -> list[Judgement]:
    tokens = point.runs[0].ranks[0].tokens_per_step
    figures = {
        "step_time": point.step_times,
        "throughput": tuple(tokens / seconds for seconds in point.step_times),
        "time_to_fixed_work": point.work_times,
    }
    return [
        judgement
        for quantity, samples in figures.items()
        for judgement in judge_each(
            _case(
                quantity,
                point,
                value=median(samples),
                interval=median_interval(samples),
                samples=samples,
                load=_load(m, point),
                note=point.note,
            ),
            applicable(requirements, "scaling", quantity, m.conditions, nodes=point.nodes),
        )
    ]


def _judge_layout(m: ScalingMeasurement, point: Point, requirements: Sequence[Requirement]) -> list[Judgement]:
    found = {
        "bubble": [pipeline_bubble(run) for run in point.runs],
        "imbalance": [expert_imbalance(run) for run in point.runs],
    }
    beside = dict(notes(point.runs[0]))
    judgements: list[Judgement] = []
    for quantity, samples in found.items():
        required = applicable(requirements, "scaling", quantity, m.conditions, nodes=point.nodes)
        known = tuple(sample for sample in samples if sample is not None)
        if len(known) == len(samples):
            case = _case(
                quantity, point, value=median(known), interval=median_interval(known), samples=known,
                load=_load(m, point), note=beside[quantity],
            )  # fmt: skip
            judgements += judge_each(case, required)
        else:
            why = f"not every run on {point.label} has one"
            missing = required or ((None,) if known else ())
            unit = QUANTITIES["scaling"][quantity]
            judgements += [judge_missing(quantity, point.label, unit, why, each) for each in missing]
    return judgements


def _judge_ratios(
    m: ScalingMeasurement, base: Point, point: Point, requirements: Sequence[Requirement]
) -> list[Judgement]:
    required = {q: applicable(requirements, "scaling", q, m.conditions, nodes=point.nodes) for q in RATIOS}
    if differences := _differences(base, point):
        why = f"{base.label} and {point.label} did not do the same job ({'; '.join(differences)})"
        return [
            judge_missing(quantity, point.label, QUANTITIES["scaling"][quantity], why, requirement)
            for quantity in RATIOS
            for requirement in (required[quantity] or (None,))
        ]
    pairs = min(len(base.runs), len(point.runs))
    before, after = base.work_times[:pairs], point.work_times[:pairs]
    interval = ratio_interval(before, after)
    judgements: list[Judgement] = []
    for quantity, multiple in (("speedup", 1.0), ("efficiency", point.nodes / base.nodes)):
        case = _case(
            quantity,
            point,
            value=median(before) / median(after) / multiple,
            interval=_divided(interval, multiple),
            samples=tuple(b / a / multiple for b, a in zip(before, after, strict=True)),
            load=_load(m, base, point),
            note=f"{pairs} pairs of runs, {base.label} against {point.label}, "
            f"{len(point.runs[0].ranks[0].step_seconds)} steps each, slowest rank",
        )
        judgements += judge_each(case, required[quantity])
    return judgements


def _ratios_of_baseline(m: ScalingMeasurement, base: Point, requirements: Sequence[Requirement]) -> list[Judgement]:
    """A ratio that is required of the baseline by name has no answer, and must not vanish either."""
    return [
        judge_missing(quantity, base.label, units.RATIO, f"{base.label} is the baseline itself", requirement)
        for quantity in RATIOS
        for requirement in applicable(requirements, "scaling", quantity, m.conditions, nodes=base.nodes)
        if requirement.nodes is not None
    ]


def _differences(base: Point, point: Point) -> list[str]:
    found = [d for run in (*base.runs[1:], *point.runs) for d in different_regime(base.runs[0], run)]
    return list(dict.fromkeys(found))


def _case(
    quantity: str,
    point: Point,
    *,
    value: float,
    interval: Interval | None,
    samples: tuple[float, ...],
    load: Load | None,
    note: str,
) -> Case:
    return Case(
        quantity=quantity,
        label=point.label,
        value=value,
        unit=QUANTITIES["scaling"][quantity],
        interval=interval,
        timing=True,
        load=load,
        samples=samples,
        counted="runs",
        note=note,
    )


def _divided(interval: Interval | None, multiple: float) -> Interval | None:
    if interval is None:
        return None
    return Interval(
        low=interval.low / multiple,
        high=interval.high / multiple,
        kind=interval.kind,
        level=interval.level,
        samples=interval.samples,
    )


def _load(m: ScalingMeasurement, *points: Point) -> Load | None:
    return worst_load([m.conditions.load, *(run.conditions.load for point in points for run in point.runs)])


def _nodes(count: int) -> str:
    return f"{count} node" if count == 1 else f"{count} nodes"

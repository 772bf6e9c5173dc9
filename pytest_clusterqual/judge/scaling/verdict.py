"""Training scaling: how much sooner the same fixed work is done on more nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pytest_clusterqual import units
from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.judgement import (
    NO_TOKENS,
    NO_WORK,
    Case,
    applicable,
    judge_each,
    judge_missing,
    worst_load,
)
from pytest_clusterqual.judge.scaling.layout import expert_imbalance, notes, pipeline_bubble
from pytest_clusterqual.judge.scaling.points_comparing import RATIOS
from pytest_clusterqual.judge.scaling.runs import Point, points_of
from pytest_clusterqual.judge.scaling.waterfall import judge_waterfall
from pytest_clusterqual.judge.statistics import mapped, median, median_interval, ratio_interval
from pytest_clusterqual.model.conditions import Load
from pytest_clusterqual.model.project import Target
from pytest_clusterqual.model.record import Interval, Judgement
from pytest_clusterqual.model.requirement import QUANTITIES, Requirement
from pytest_clusterqual.model.training import ScalingMeasurement, ScalingRun

SAME_LOSS = 1e-3  # relative


def judge_scaling(
    m: ScalingMeasurement, requirements: Iterable[Requirement], target: Target | None = None
) -> tuple[Judgement, ...]:
    """Judge every point by itself, and the larger ones against the smallest.

    `step_time` (s) is the median of a run's steady steps, `throughput` (tokens/s) and `time_to_train` (s, for
    the tokens of `target`) follow from it, `time_to_fixed_work` (s) spans all steps. `speedup` is the ratio of
    the times to fixed work, `efficiency` the speedup over the ratio of nodes; both exist only where the points
    did the same job, else `throughput_per_device` (tokens/s) is shown. `bubble` and `imbalance` are those of
    `judge.scaling.layout`, where the layout has a pipeline or the model experts. Where the time goes is told by
    `judge.scaling.waterfall`.

    Raises:
        MeasurementError: a run, a rank, a step or a positive time is missing.
    """
    requirements = tuple(requirements)
    base, *others = points = points_of(m)
    if m.conditions.nodes not in [point.nodes for point in points]:
        raise MeasurementError(f"scaling: there is no run on {units.show_count(m.conditions.nodes, 'node')}")
    differences = {point.nodes: _differences(base, point) for point in others}
    judgements: list[Judgement] = []
    for point in points:
        judgements += _judge_times(m, point, requirements, target)
        if any(differences.values()) and point.runs[0].ranks[0].tokens_per_step:
            judgements += judge_each(_normalized(m, point), ())
        judgements += _judge_layout(m, point, requirements)
        same = point is not base and not differences[point.nodes] and "work" not in base.unknown | point.unknown
        judgements += judge_waterfall(m, base if same else None, point, requirements, load=_load(m, point))
        if point is base:
            judgements += _ratios_of_baseline(m, point, requirements)
        else:
            judgements += _judge_ratios(m, base, point, differences[point.nodes], requirements)
    return tuple(judgements)


def different_regime(a: ScalingRun, b: ScalingRun) -> list[str]:
    """What makes two runs incomparable, one phrase each; empty where they did the same job."""
    names = (units.show_count(a.conditions.nodes, "node"), units.show_count(b.conditions.nodes, "node"))
    pairs: list[tuple[str, object, object]] = [
        (name.replace("_", " "), getattr(a.conditions, name), getattr(b.conditions, name))
        for name in ("workload", "layout", "device", "device_name", "backend", "simulated", "nproc_per_node")
    ]
    old, new = a.conditions.versions, b.conditions.versions
    pairs += [(f"version of {name}", old.get(name), new.get(name)) for name in sorted({**old, **new})]
    pairs += [
        ("tokens per step", a.ranks[0].tokens_per_step, b.ranks[0].tokens_per_step),
        ("sequences per step", a.ranks[0].sequences_per_step, b.ranks[0].sequences_per_step),
        ("number of steps", len(a.ranks[0].step_seconds), len(b.ranks[0].step_seconds)),
        ("data", _data(a), _data(b)),
    ]
    differences = [f"{what}: {one} on {names[0]}, {two} on {names[1]}" for what, one, two in pairs if one != two]
    if any("inside" in rank.unknown for run in (a, b) for rank in run.ranks):
        return differences  # dropout and the order of its data may depend on the ranks, and its losses with them
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


def _judge_times(
    m: ScalingMeasurement, point: Point, requirements: Sequence[Requirement], target: Target | None
) -> list[Judgement]:
    tokens = point.runs[0].ranks[0].tokens_per_step
    figures = {"step_time": point.step_times}
    if tokens:
        figures["throughput"] = tuple(tokens / seconds for seconds in point.step_times)
    figures["time_to_fixed_work"] = point.work_times
    beside = dict.fromkeys(figures, point.note)
    if target and tokens:
        figures["time_to_train"] = tuple(target.tokens / tokens * seconds for seconds in point.step_times)
        beside["time_to_train"] = f"{target.tokens:.3g} tokens in steps like these, without checkpoints and failures"
        beside["time_to_train"] += f"; the file's target is {units.show(target.time, units.SECONDS)}"
    steps = {str(rank): seconds for rank, seconds in point.per_rank(lambda rank: rank.step_seconds).items()}
    judgements = [
        judgement
        for quantity, samples in figures.items()
        for judgement in judge_each(
            _case(
                quantity, point, value=median(samples), interval=median_interval(samples), samples=samples,
                load=_load(m, point), note=beside[quantity], per_rank=steps if quantity == "step_time" else {},
            ),
            () if "work" in point.unknown else _asked(m, point, quantity, requirements),
        )
    ]  # fmt: skip
    return judgements + list(_not_concluded(m, point, requirements, target))


def _not_concluded(
    m: ScalingMeasurement, point: Point, requirements: Sequence[Requirement], target: Target | None
) -> Iterator[Judgement]:
    """What is required of the times of a point, and cannot be told."""
    missing: dict[str, str] = {}
    if not point.runs[0].ranks[0].tokens_per_step:
        missing |= dict.fromkeys(("throughput", "time_to_train"), NO_TOKENS)
    if "work" in point.unknown:
        missing |= dict.fromkeys(("step_time", "time_to_fixed_work", "throughput", "time_to_train"), NO_WORK)
    if target is None:
        missing["time_to_train"] = "the file has no target.tokens"
    for quantity, why in missing.items():
        shown = (None,) if quantity == "throughput" else ()
        for each in _asked(m, point, quantity, requirements) or shown:
            yield judge_missing(quantity, point.label, QUANTITIES["scaling"][quantity], why, each)


def _asked(
    m: ScalingMeasurement, point: Point, quantity: str, requirements: Sequence[Requirement]
) -> tuple[Requirement, ...]:
    return applicable(requirements, "scaling", quantity, m.conditions, nodes=point.nodes)


def _normalized(m: ScalingMeasurement, point: Point) -> Case:
    """What may still be shown of points that did different jobs."""
    tokens = point.runs[0].ranks[0].tokens_per_step / point.runs[0].conditions.ranks
    samples = tuple(tokens / seconds for seconds in point.step_times)
    return _case(
        "throughput_per_device", point, value=median(samples), interval=median_interval(samples), samples=samples,
        load=_load(m, point), note=f"{point.note}; the points did not do the same job: this is no efficiency",
        unit=units.TOKEN_RATE,
    )  # fmt: skip


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
    m: ScalingMeasurement,
    base: Point,
    point: Point,
    differences: Sequence[str],
    requirements: Sequence[Requirement],
) -> list[Judgement]:
    required = {q: applicable(requirements, "scaling", q, m.conditions, nodes=point.nodes) for q in RATIOS}
    why = f"{base.label} and {point.label} did not do the same job ({'; '.join(differences)})" if differences else ""
    if "work" in base.unknown | point.unknown:
        why = NO_WORK
    if why:
        return [
            judge_missing(quantity, point.label, QUANTITIES["scaling"][quantity], why, requirement)
            for quantity in RATIOS
            for requirement in (required[quantity] or (None,))
        ]
    pairs = min(len(base.runs), len(point.runs))
    before, after = base.work_times[:pairs], point.work_times[:pairs]
    speedup = ratio_interval(before, after)
    judgements: list[Judgement] = []
    for quantity, multiple in (("speedup", 1.0), ("efficiency", point.nodes / base.nodes)):
        case = _case(
            quantity,
            point,
            value=median(before) / median(after) / multiple,
            interval=_divided(speedup, multiple),
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
    per_rank: dict[str, float] | None = None,
    unit: str = "",
) -> Case:
    return Case(
        quantity=quantity,
        label=point.label,
        value=value,
        unit=unit or QUANTITIES["scaling"][quantity],
        interval=interval,
        timing=True,
        load=load,
        samples=samples,
        counted="runs",
        per_rank=per_rank or {},
        note=note,
    )


def _divided(interval: Interval | None, multiple: float) -> Interval | None:
    return mapped(interval, lambda bound: bound / multiple)


def _load(m: ScalingMeasurement, *points: Point) -> Load | None:
    return worst_load([m.conditions.load, *(run.conditions.load for point in points for run in point.runs)])

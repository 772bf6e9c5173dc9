"""Where the time of a step goes that more nodes should have saved, by the difference of steps."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pytest_clusterqual import units
from pytest_clusterqual.judge.judgement import Case, applicable, judge_each, judge_missing
from pytest_clusterqual.judge.scaling.lost_time import findings
from pytest_clusterqual.judge.scaling.runs import Point
from pytest_clusterqual.judge.statistics import enclosing, median, median_interval, slowest
from pytest_clusterqual.judge.step.apart import RESOLUTION, Apart, take_apart
from pytest_clusterqual.model.conditions import Load
from pytest_clusterqual.model.record import Judgement
from pytest_clusterqual.model.requirement import Requirement
from pytest_clusterqual.model.training import ScalingMeasurement, ScalingRun

SHARES = ("exposed_communication", "waiting")  # judged by rounds of the step taken apart


def judge_waterfall(
    m: ScalingMeasurement,
    base: Point | None,
    point: Point,
    requirements: Sequence[Requirement],
    *,
    load: Load | None,
) -> list[Judgement]:
    """Judge `data_stall`; of the most nodes also `exposed_communication`, `waiting` and `lost_time`.

    The first three are shares of a step. `lost_time` (s of a step) is T_N - T_1 / k, where T_1 is the step of
    `base` and k the ratio of nodes; its parts add up to it, and the residual is what they leave or have too
    much. There is none without a `base` that did the same job.

    Raises:
        MeasurementError: a rank, a round, a step or a positive time of the step taken apart is missing.
    """
    judgements = list(_data_stall(m, point, requirements, load))
    apart = take_apart(m.conditions, m.apart, "scaling") if m.apart and point.nodes == m.conditions.nodes else None
    if apart is None:
        judgements += _not_apart(m, point, requirements)
    else:
        judgements += _shares(m, point, apart, requirements, load)
    if base is not None and (apart or m.not_apart) and "inside" not in base.unknown | point.unknown:
        judgements += judge_each(_lost_time(m, base, point, apart, load), ())
    return judgements


def _data_stall(
    m: ScalingMeasurement, point: Point, requirements: Sequence[Requirement], load: Load | None
) -> tuple[Judgement, ...]:
    """All steps count, not the typical one: what stalls now and then stalls all the same."""
    required = applicable(requirements, "scaling", "data_stall", m.conditions, nodes=point.nodes)
    if "data" in point.unknown:
        why = "what this job tells of itself does not say when it waited for data"
        return tuple(judge_missing("data_stall", point.label, units.RATIO, why, each) for each in required or (None,))
    shares = tuple(map(_stalled, point.runs))
    steps = point.per_rank(lambda rank: rank.step_seconds)
    ranks = {str(r): data / steps[r] for r, data in point.per_rank(lambda rank: rank.data_seconds).items()}
    case = Case(
        quantity="data_stall", label=point.label, value=median(shares), unit=units.RATIO,
        interval=median_interval(shares), timing=True, load=load, samples=shares, counted="runs", per_rank=ranks,
        note="the rank that waits longest for its data in each step",
    )  # fmt: skip
    return judge_each(case, required)


def _stalled(run: ScalingRun) -> float:
    data = slowest([rank.data_seconds for rank in run.ranks])
    return sum(data) / sum(slowest([rank.step_seconds for rank in run.ranks]))


def _not_apart(m: ScalingMeasurement, point: Point, requirements: Sequence[Requirement]) -> list[Judgement]:
    largest = point.nodes == m.conditions.nodes
    why = m.not_apart or "no step was taken apart (scaling.waterfall)"
    found = []
    for quantity in SHARES:
        required = applicable(requirements, "scaling", quantity, m.conditions, nodes=point.nodes)
        if largest:
            told = required or ((None,) if m.not_apart else ())
            found += [judge_missing(quantity, point.label, units.RATIO, why, each) for each in told]
            continue
        # A requirement on all points is meant for those that are taken apart; by name, it must not vanish.
        named = [each for each in required if each.nodes is not None]
        other = f"it is the step on {m.conditions.nodes} nodes that is taken apart"
        found += [judge_missing(quantity, point.label, units.RATIO, other, each) for each in named]
    return found


def _shares(
    m: ScalingMeasurement, point: Point, apart: Apart, requirements: Sequence[Requirement], load: Load | None
) -> list[Judgement]:
    data, bubble = median(point.data_times), median(point.bubbles)
    whole = [step + data for step in apart.step]
    rounds = list(zip(apart.alone, apart.held, apart.step, whole, strict=True))
    of = {
        "exposed_communication": tuple((step - alone - bubble) / all_ for alone, _, step, all_ in rounds),
        "waiting": tuple((held - alone) / all_ for alone, held, _, all_ in rounds),
    }
    until = {"exposed_communication": median(apart.step) - bubble, "waiting": median(apart.held)}
    beside = {
        "exposed_communication": f"transfer and wait; {apart.told}",
        "waiting": f"for the slowest rank; rank {max(apart.own, key=apart.own.__getitem__)} computes longest",
    }
    return [
        judgement
        for quantity, samples in of.items()
        for judgement in judge_each(
            Case(
                quantity=quantity, label=point.label, value=median(samples), unit=units.RATIO,
                interval=median_interval(samples), timing=True, load=load, samples=samples, counted="rounds",
                per_rank={str(rank): (until[quantity] - own) / median(whole) for rank, own in apart.own.items()},
                note=beside[quantity],
            ),
            applicable(requirements, "scaling", quantity, m.conditions, nodes=point.nodes),
        )
    ]  # fmt: skip


def _lost_time(m: ScalingMeasurement, base: Point, point: Point, apart: Apart | None, load: Load | None) -> Case:
    multiple = point.nodes / base.nodes
    step, before = median(point.step_times), median(base.step_times)
    parts = _parts(base, point, apart, multiple)
    parts["residual"] = step - before / multiple - math.fsum(parts.values())
    lost = sum(parts.values())
    pairs = zip(base.step_times, point.step_times, strict=False)
    samples = tuple(candidate - baseline / multiple for baseline, candidate in pairs)
    shown, shown_before = (units.show(seconds, units.SECONDS) for seconds in (step, before))
    told = [f"a step takes {shown} on {point.label}, {shown_before} on {base.label}, 1/{multiple:g} of which it should"]
    told += [_caveats(base, parts, step, apart) if apart else f"not taken apart: {m.not_apart}"]
    return Case(
        quantity="lost_time", label=point.label, value=lost, unit=units.SECONDS,
        interval=enclosing(median_interval(samples), lost), timing=True, load=load, samples=samples,
        counted="pairs of runs", parts=parts, findings=findings(point, apart, parts), note="; ".join(told),
    )  # fmt: skip


def _parts(base: Point, point: Point, apart: Apart | None, multiple: float) -> dict[str, float]:
    """All but the residual, in seconds of a step, in the order in which they are shown."""
    data, bubble = median(point.data_times), median(point.bubbles)
    data_before, bubble_before = median(base.data_times), median(base.bubbles)
    layout = {
        "pipeline bubble": bubble - bubble_before / multiple,
        "data stall": data - data_before / multiple,
    }
    if apart is None:
        return layout
    computing = median(base.step_times) - data_before - bubble_before
    return {
        "compute loss": median(apart.alone) - computing / multiple,
        "exposed transfer": apart.beyond - bubble,
        "wait": apart.wait,
        **layout,
        "host gaps": 0.0,
    }


def _caveats(base: Point, parts: dict[str, float], step: float, apart: Apart) -> str:
    told = [apart.told]
    if small := [name for name, part in parts.items() if 0 < abs(part) < RESOLUTION * step]:
        share = units.show_share(RESOLUTION)
        told.append(f"{', '.join(small)}: within the {share} of a step that differences resolve")
    if base.runs[0].conditions.ranks > 1:
        told.append(f"the communication of {base.label} counts as its computing")
    told.append("host gaps cannot be seen by difference")
    return "; ".join(told)

"""What waiting for each other costs a training step, and who or what makes the ranks wait."""

from __future__ import annotations

from pytest_clusterqual import units
from pytest_clusterqual.judge.judgement import Case, applicable, judge_each
from pytest_clusterqual.judge.statistics import median, ratio_interval
from pytest_clusterqual.judge.step.ladder import RUNGS, expected_slowest, reduced
from pytest_clusterqual.judge.step.waiting_causes import causes
from pytest_clusterqual.model.fabric import SynchronizationMeasurement
from pytest_clusterqual.model.project import FabricPlan
from pytest_clusterqual.model.record import Judgement


def judge_synchronization(m: SynchronizationMeasurement, plan: FabricPlan) -> tuple[Judgement, ...]:
    """Judge the amplification: the step with empty barriers over that of the typical rank on its own (ratio).

    Findings tell a slow rank, a common cause, communication that costs more than its bytes, or
    jitter that is each rank's own.

    Raises:
        MeasurementError: a rank, a round, a step or a positive time is missing; it names rank, round and rung.
    """
    ladder = reduced(m.conditions, m.rounds, "synchronization")
    alone, held = ladder.rounds["compute"], ladder.rounds["barrier"]
    interval = ratio_interval(held, alone)
    predicted = expected_slowest(ladder.compute) / median(alone)
    steps = [f"{rung} {units.show(median(ladder.rounds[rung]), units.SECONDS)}" for rung in RUNGS]
    case = Case(
        quantity="amplification",
        label="",
        value=median(held) / median(alone),
        unit=units.RATIO,
        interval=interval,
        timing=True,
        load=m.conditions.load,
        samples=tuple(together / apart for together, apart in zip(held, alone, strict=True)),
        counted="rounds",
        per_rank={str(rank): median(ladder.compute[..., rank].ravel().tolist()) for rank in range(m.conditions.ranks)},
        findings=causes(ladder, interval, predicted),
        note=f"{' -> '.join(steps)}; the ranks' own jitter leads to expect {predicted:.3g}",
    )
    return judge_each(case, applicable(plan.require, "fabric", "amplification", m.conditions))

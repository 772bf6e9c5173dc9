"""Idle stages and uneven experts: figures by hand, and what is missing is no figure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from judge_made import require, the
from made import conditions

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.scaling.layout import expert_imbalance, ideal_bubble, pipeline_bubble
from pytest_clusterqual.judge.scaling.verdict import judge_scaling
from pytest_clusterqual.model.record import Verdict
from pytest_clusterqual.model.training import PipelineTimes, RankTraining, Routing, ScalingMeasurement, ScalingRun

TIMES = PipelineTimes(
    schedule="1f1b", stages=2, stages_per_rank=1, microbatches=4, seconds=(1.0, 3.0), computing=(0.5, 2.5)
)
ROUTING = Routing(degree=2, top_k=1, tokens=((30, 10, 10, 10), (15, 15, 15, 15)))
RANK = RankTraining(
    rank=0, warmup_seconds=(1.0,), step_seconds=(1.0, 3.0), data_seconds=(0.0, 0.0), work_seconds=4.0,
    tokens_per_step=60, losses=(5.0, 4.0, 3.0), data_digest="3fb1", pipeline=TIMES, routing=ROUTING,
    otherwise=("context: gathered",),
)  # fmt: skip


def run(*ranks: dict[str, Any]) -> ScalingRun:
    made = tuple(replace(RANK, rank=rank, **change) for rank, change in enumerate(ranks))
    return ScalingRun(conditions=conditions(nodes=2, ranks=len(made), layout="pp2", workload="9f2c"), ranks=made)


BUSY = {"pipeline": replace(TIMES, computing=(1.0, 3.0))}


def judged(*runs: ScalingRun, requirements: Any = ()) -> Any:
    return judge_scaling(
        ScalingMeasurement(conditions=runs[0].conditions, runs=runs, started=0.0, seconds=1.0), requirements
    )


def test_the_idlest_rank_counts() -> None:
    assert pipeline_bubble(run({}, BUSY)) == pytest.approx(1 - 3 / 4)
    assert pipeline_bubble(run(BUSY, BUSY)) == 0


@pytest.mark.parametrize(
    ("stages", "each", "microbatches", "share"), [(2, 1, 4, 1 / 5), (4, 1, 1, 3 / 4), (4, 2, 8, 3 / 19)]
)
def test_the_bubble_that_no_schedule_of_its_kind_avoids(
    stages: int, each: int, microbatches: int, share: float
) -> None:
    times = replace(TIMES, stages=stages, stages_per_rank=each, microbatches=microbatches)
    assert ideal_bubble(times) == pytest.approx(share)


def test_the_worst_layer_counts() -> None:
    assert expert_imbalance(run({}, {})) == 2.0  # 30 of 60 tokens on one of four experts
    even = {"routing": replace(ROUTING, tokens=ROUTING.tokens[1:])}
    assert expert_imbalance(run(even, even)) == 1.0


def test_both_are_measured_with_what_explains_them() -> None:
    found = judged(run({}, {}))
    assert the(found, "bubble", "2 nodes").verdict is Verdict.MEASURED
    assert (
        "1f1b schedule of 2 stages on 2 ranks, 4 microbatches: 20 % at best" in the(found, "bubble", "2 nodes").reason
    )
    imbalance = the(found, "imbalance", "2 nodes")
    assert imbalance.value == 2.0
    assert "4 experts over 2 ranks, 1 a token; layer 0: 30, 10, 10, 10 tokens" in imbalance.reason
    assert "context: gathered" in the(found, "step_time", "2 nodes").reason


def test_they_can_be_required() -> None:
    demands = [require("scaling", "bubble", "<= 30 %"), require("scaling", "imbalance", "<= 1.5")]
    found = judged(*[run({}, {})] * 6, requirements=demands)
    assert the(found, "bubble", "2 nodes").verdict is Verdict.PASS
    assert the(found, "imbalance", "2 nodes").verdict is Verdict.FAIL


def test_a_layout_without_them_has_no_such_figure_and_what_was_required_is_no_pass() -> None:
    plain = {"pipeline": None, "routing": None}
    assert not {each.quantity for each in judged(run(plain, plain))} & {"bubble", "imbalance"}
    (missing,) = (
        each for each in judged(run(plain, plain), requirements=[require("scaling", "bubble", "<= 30 %")])
        if each.quantity == "bubble"
    )  # fmt: skip
    assert missing.verdict is Verdict.ERROR


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        (({}, {"pipeline": None}), "1 of 2 ranks told how long their stages computed"),
        (({}, {"pipeline": replace(TIMES, computing=(2.0, 2.5))}), "rank 1 computed 4.5 s of 4 s in its schedule"),
        (({}, {"pipeline": replace(TIMES, seconds=(), computing=())}), "rank 1 computed 0 s of 0 s in its schedule"),
        (({"routing": replace(ROUTING, tokens=((0, 0), (1, 1)))}, {}), "no token was routed in layer 0"),
    ],
)
def test_what_cannot_be_is_an_error(ranks: tuple[dict[str, Any], ...], message: str) -> None:
    with pytest.raises(MeasurementError, match=message):
        judged(run(*ranks))

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from judge_made import require, the, verdicts
from made import conditions

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.scaling.runs import between_launches
from pytest_clusterqual.judge.scaling.verdict import different_regime, judge_scaling
from pytest_clusterqual.model.conditions import Load
from pytest_clusterqual.model.project import Target
from pytest_clusterqual.model.record import Verdict
from pytest_clusterqual.model.training import RankTraining, ScalingMeasurement, ScalingRun

NOISE = (1.0, 1.01, 0.99, 1.02, 0.98, 1.0)
SPEEDUP = require("scaling", "speedup", ">= 1.3", nodes=2)
EFFICIENCY = require("scaling", "efficiency", ">= 0.6", nodes=2)


def run(nodes: int, step: float, *, ranks: dict[str, Any] | None = None, **under: Any) -> ScalingRun:
    """Ten steps of `step` seconds on the slowest rank, the last; the others take 90 % of that."""

    def one(rank: int) -> RankTraining:
        seconds = step if rank == nodes - 1 else 0.9 * step
        usual = RankTraining(
            rank=rank,
            warmup_seconds=(5 * step,),
            step_seconds=(seconds,) * 10,
            data_seconds=(0.0,) * 10,
            work_seconds=10 * seconds,
            tokens_per_step=8192,
            losses=(5.5, *(5.0 - 0.1 * i for i in range(10))),
            data_digest="3fb1",
        )
        return replace(usual, **(ranks or {}))

    here = {"nodes": nodes, "ranks": nodes, "layout": "ddp", "workload": "9f2c", **under}
    return ScalingRun(conditions=conditions(**here), ranks=tuple(map(one, range(nodes))))


def measured(*runs: ScalingRun, load: Load | None = None) -> ScalingMeasurement:
    nodes = max((r.conditions.nodes for r in runs), default=2)
    return ScalingMeasurement(
        conditions=conditions(nodes=nodes, ranks=nodes, layout="ddp", load=load), runs=runs, started=0.0, seconds=1.0
    )


def interleaved(base: float, candidate: float, noise: Sequence[float] = NOISE, **changes: Any) -> ScalingMeasurement:
    """Runs on 1 and on 2 nodes in turn; `changes` are to the latter."""
    return measured(*(r for f in noise for r in (run(1, base * f), run(2, candidate * f, **changes))))


def test_step_time_throughput_and_work_of_each_point_by_hand() -> None:
    judged = judge_scaling(interleaved(0.2, 0.125), [])
    assert {(j.quantity, j.label): round(j.value or 0, 6) for j in judged} == {
        ("step_time", "1 node"): 0.2,
        ("throughput", "1 node"): 40960,
        ("time_to_fixed_work", "1 node"): 2.0,
        ("data_stall", "1 node"): 0.0,
        ("step_time", "2 nodes"): 0.125,
        ("throughput", "2 nodes"): 65536,
        ("time_to_fixed_work", "2 nodes"): 1.25,
        ("data_stall", "2 nodes"): 0.0,
        ("speedup", "2 nodes"): 1.6,
        ("efficiency", "2 nodes"): 0.8,
    }
    assert {j.verdict for j in judged} == {Verdict.MEASURED}
    assert {j.unit for j in judged if j.quantity == "throughput"} == {"tokens/s"}


def test_speedup_and_efficiency_are_judged_by_their_interval() -> None:
    judged = judge_scaling(interleaved(0.2, 0.125), [SPEEDUP, EFFICIENCY])
    speedup, efficiency = the(judged, "speedup", "2 nodes"), the(judged, "efficiency", "2 nodes")
    assert (speedup.verdict, efficiency.verdict) == (Verdict.PASS, Verdict.PASS)
    assert speedup.interval is not None
    assert (speedup.interval.kind, speedup.interval.samples) == ("bootstrap", 6)
    assert efficiency.interval is not None
    assert efficiency.interval.low == speedup.interval.low / 2
    assert speedup.samples == pytest.approx((1.6,) * 6)
    assert speedup.reason.endswith("(6 pairs of runs, 1 node against 2 nodes, 10 steps each, slowest rank)")
    assert the(judged, "step_time", "2 nodes").reason.endswith("(6 runs of 10 steps on 2 nodes, slowest rank)")


def test_more_nodes_that_are_not_faster_fail() -> None:
    judged = verdicts(judge_scaling(interleaved(0.2, 0.21), [SPEEDUP, EFFICIENCY]))
    assert judged["speedup", "2 nodes"] is Verdict.FAIL
    assert judged["efficiency", "2 nodes"] is Verdict.FAIL


def test_efficiency_divides_by_the_multiple_of_the_baseline() -> None:
    runs = [r for f in NOISE for r in (run(2, 0.2 * f), run(8, 0.1 * f))]
    judged = judge_scaling(measured(*runs), [require("scaling", "efficiency", ">= 0.6")])
    assert the(judged, "speedup", "8 nodes").value == pytest.approx(2.0)
    assert the(judged, "efficiency", "8 nodes").value == pytest.approx(0.5)
    assert the(judged, "efficiency", "8 nodes").verdict is Verdict.FAIL


def test_the_slowest_rank_of_each_step_counts() -> None:
    base = run(2, 0.1)
    turns = [tuple(0.3 if (step + rank) % 2 else 0.1 for step in range(10)) for rank in range(2)]
    odd = replace(base, ranks=tuple(replace(r, step_seconds=turns[r.rank]) for r in base.ranks))
    assert the(judge_scaling(measured(odd), []), "step_time", "2 nodes").value == 0.3


def test_a_warm_up_inside_the_work_is_not_a_step_time() -> None:
    slow_start = run(1, 0.1, ranks={"step_seconds": (0.9, 0.9, 0.9, 0.9, *[0.1] * 5, 0.2), "work_seconds": 4.3})
    judged = judge_scaling(measured(slow_start), [])
    assert the(judged, "step_time", "1 node").value == 0.1
    assert the(judged, "time_to_fixed_work", "1 node").value == 4.3


def test_speedup_is_that_of_the_fixed_work_not_of_the_steps() -> None:
    """Steps twice as fast, and the whole work as slow as before."""
    m = interleaved(0.2, 0.1, ranks={"work_seconds": 2.0})
    assert the(judge_scaling(m, []), "speedup", "2 nodes").value == pytest.approx(1.0)


def test_too_few_runs_are_undecided_and_say_so() -> None:
    judged = the(judge_scaling(interleaved(0.2, 0.1, NOISE[:3]), [SPEEDUP]), "speedup", "2 nodes")
    assert judged.verdict is Verdict.UNDECIDED
    assert "3 runs are there, at least 6 are needed" in judged.reason


def test_a_straddling_speedup_says_how_many_more_runs_are_needed() -> None:
    runs = [r for a, b in zip(NOISE, reversed(NOISE), strict=True) for r in (run(1, 0.2 * a), run(2, 0.2 / 1.31 * b))]
    judged = the(judge_scaling(measured(*runs), [SPEEDUP]), "speedup", "2 nodes")
    assert judged.verdict is Verdict.UNDECIDED
    assert "straddles the required >= 1.3: about" in judged.reason
    assert "more runs are needed, 6 runs are there" in judged.reason
    assert "a larger scaling.budget allows for more in a new run" in judged.reason


def test_runs_without_a_partner_do_not_count_for_the_ratio() -> None:
    m = interleaved(0.2, 0.125)
    judged = the(judge_scaling(replace(m, runs=(*m.runs, run(1, 0.2))), [SPEEDUP]), "speedup", "2 nodes")
    assert "6 pairs of runs" in judged.reason


def test_load_of_any_run_excuses_a_failure_by_time() -> None:
    m = interleaved(0.2, 0.21, load=Load(other_cpu=0.6, node="node1"))
    judged = the(judge_scaling(m, [SPEEDUP]), "speedup", "2 nodes")
    assert judged.verdict is Verdict.UNDECIDED
    assert "other work took 60 % of the cores' time on node1" in judged.reason
    fast = interleaved(0.2, 0.1, load=Load(other_cpu=0.6, node="node1"))
    assert the(judge_scaling(fast, [SPEEDUP]), "speedup", "2 nodes").verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"workload": "aaaa"}, "workload: 9f2c on 1 node, aaaa on 2 nodes"),
        ({"device_name": "other"}, "device name: AMD EPYC 9654 on 1 node, other on 2 nodes"),
        ({"layout": "fsdp"}, "layout: ddp on 1 node, fsdp on 2 nodes"),
        ({"simulated": False}, "simulated: True on 1 node, False on 2 nodes"),
        (
            {"versions": {"torch": "2.12.0", "python": "3.11.2"}},
            "version of torch: 2.13.0 on 1 node, 2.12.0 on 2 nodes",
        ),
        ({"versions": {"torch": "2.13.0"}}, "version of python: 3.11.2 on 1 node, None on 2 nodes"),
        ({"ranks": {"tokens_per_step": 16384}}, "tokens per step: 8192 on 1 node, 16384 on 2 nodes"),
        (
            {"ranks": {"step_seconds": (0.1,) * 9, "data_seconds": (0.0,) * 9}},
            "number of steps: 10 on 1 node, 9 on 2 nodes",
        ),
        ({"ranks": {"data_digest": "ffff"}}, "data: 3fb1 on 1 node, ffff on 2 nodes"),
        (
            {"ranks": {"losses": (5.5, *(5.0 - 0.11 * i for i in range(10)))}},
            "loss of step 3: 4.9 on 1 node, 4.89 on 2 nodes",
        ),
        ({"ranks": {"losses": (5.5,)}}, "number of losses: 11 on 1 node, 1 on 2 nodes"),
    ],
)
def test_points_that_did_another_job_have_no_ratio(changes: dict[str, Any], difference: str) -> None:
    m = interleaved(0.2, 0.1, **changes)
    assert different_regime(m.runs[0], m.runs[1]) == [difference]
    judged = judge_scaling(m, [SPEEDUP])
    speedup, efficiency = the(judged, "speedup", "2 nodes"), the(judged, "efficiency", "2 nodes")
    assert (speedup.value, speedup.verdict) == (None, Verdict.ERROR)
    assert (efficiency.value, efficiency.verdict) == (None, Verdict.MEASURED)
    assert speedup.reason == f"speedup was not measured: 1 node and 2 nodes did not do the same job ({difference})"


def test_another_number_of_ranks_a_node_is_another_regime() -> None:
    two = replace(run(2, 0.1), conditions=replace(run(2, 0.1).conditions, nproc_per_node=2))
    assert different_regime(run(1, 0.1), two) == ["nproc per node: 1 on 1 node, 2 on 2 nodes"]


def test_other_regimes_show_what_each_device_does_and_no_efficiency() -> None:
    """Twice the tokens in a step: what looks like the same speed is half of it, and neither is an efficiency."""
    judged = judge_scaling(interleaved(0.2, 0.2, ranks={"tokens_per_step": 16384}), [EFFICIENCY])
    assert the(judged, "efficiency", "2 nodes").verdict is Verdict.ERROR
    one, two = (the(judged, "throughput_per_device", label) for label in ("1 node", "2 nodes"))
    assert [(round(j.value or 0), j.unit, j.verdict) for j in (one, two)] == [(40960, "tokens/s", Verdict.MEASURED)] * 2
    assert "the points did not do the same job: this is no efficiency" in two.reason
    same = judge_scaling(interleaved(0.2, 0.1), [])
    assert "throughput_per_device" not in {j.quantity for j in same}


def test_time_to_train_is_that_of_the_targets_tokens_at_each_measured_point() -> None:
    target = Target(tokens=8192 * 1000, time=150.0)
    judged = judge_scaling(interleaved(0.2, 0.125), [require("scaling", "time_to_train", "<= 150 s")], target)
    one, two = (the(judged, "time_to_train", label) for label in ("1 node", "2 nodes"))
    assert (one.value, one.verdict) == (pytest.approx(200.0), Verdict.FAIL)
    assert (two.value, two.verdict) == (pytest.approx(125.0), Verdict.PASS)
    assert "without checkpoints and failures; the file's target is 150 s" in two.reason
    told = the(judge_scaling(interleaved(0.2, 0.125), [], target), "time_to_train", "1 node")
    assert told.verdict is Verdict.MEASURED, "a target is no requirement by itself"


def test_time_to_train_without_a_target_is_an_error_where_it_is_required() -> None:
    required = require("scaling", "time_to_train", "<= 150 s", nodes=2)
    judged = judge_scaling(interleaved(0.2, 0.125), [required])
    assert the(judged, "time_to_train", "2 nodes").verdict is Verdict.ERROR
    assert {j.label for j in judged if j.quantity == "time_to_train"} == {"2 nodes"}


def test_step_time_has_a_median_for_every_rank() -> None:
    assert the(judge_scaling(interleaved(0.2, 0.1), []), "step_time", "2 nodes").per_rank == pytest.approx(
        {"0": 0.09, "1": 0.1}
    )


@pytest.mark.parametrize(
    ("figures", "launches", "share"),
    [
        ([1.0, 1.1, 2.0, 2.2], [1, 1, 2, 2], 0.98),
        ([1.0, 2.0, 1.0, 2.0], [1, 1, 2, 2], 0.0),
        ([1.0, 1.0, 2.0, 2.0], [1, 1, 2, 2], 1.0),
        ([1.0, 1.0, 1.0, 1.0], [1, 1, 2, 2], 0.0),
        ([1.0, 2.0, 3.0], [1, 1, 1], None),
        ([1.0, 2.0, 3.0], [1, 2, 3], None),
    ],
)
def test_the_share_of_variance_between_launches(figures: list[float], launches: list[int], share: float | None) -> None:
    assert between_launches(figures, launches) == (None if share is None else pytest.approx(share, abs=0.01))


def test_the_share_between_launches_is_found_again() -> None:
    """Half of the variance is that of launches: the mean over many measurements says so."""
    random, found = Random(5), []
    launches = [launch for launch in range(40) for _ in range(3)]
    for _ in range(100):
        centers = [random.gauss(0, 0.1) for _ in range(40)]
        found.append(between_launches([math.exp(centers[n] + random.gauss(0, 0.1)) for n in launches], launches) or 0.0)
    assert sum(found) / len(found) == pytest.approx(0.5, abs=0.06)


def test_several_launches_are_told_beside_the_figures() -> None:
    m = interleaved(0.2, 0.1)
    runs = tuple(replace(run, launch=1 + number // 6) for number, run in enumerate(m.runs))
    reason = the(judge_scaling(replace(m, runs=runs), []), "time_to_fixed_work", "2 nodes").reason
    assert "of their variance lies between 2 launches" in reason
    assert "launches" not in the(judge_scaling(m, []), "time_to_fixed_work", "2 nodes").reason


def test_one_odd_run_is_enough_and_all_differences_are_listed() -> None:
    m = interleaved(0.2, 0.1)
    odd = run(1, 0.2, workload="aaaa", device_name="other")
    judged = the(judge_scaling(replace(m, runs=(*m.runs[:-2], odd, m.runs[-1])), [SPEEDUP]), "speedup", "2 nodes")
    assert judged.verdict is Verdict.ERROR
    assert "workload: 9f2c on 1 node, aaaa on 1 node; device name:" in judged.reason


def test_losses_may_differ_by_rounding() -> None:
    close = tuple(loss * 1.0005 for loss in run(1, 0.1).ranks[0].losses)
    assert different_regime(run(1, 0.1), run(2, 0.1, ranks={"losses": close})) == []


def test_requirements_hold_for_the_nodes_they_name() -> None:
    required = [
        require("scaling", "step_time", "<= 0.15 s", nodes=2),
        require("scaling", "throughput", ">= 6e4 tokens/s", nodes=4),
        require("scaling", "time_to_fixed_work", "<= 1.5 s"),
        require("scaling", "speedup", ">= 9", nodes=2, layout="fsdp"),
    ]
    judged = verdicts(judge_scaling(interleaved(0.2, 0.125), required))
    assert judged["step_time", "1 node"] is Verdict.MEASURED
    assert judged["step_time", "2 nodes"] is Verdict.PASS
    assert judged["throughput", "2 nodes"] is Verdict.MEASURED
    assert judged["time_to_fixed_work", "1 node"] is Verdict.FAIL
    assert judged["time_to_fixed_work", "2 nodes"] is Verdict.PASS
    assert judged["speedup", "2 nodes"] is Verdict.MEASURED


def test_a_ratio_required_of_the_baseline_itself_is_an_error() -> None:
    judged = judge_scaling(interleaved(0.2, 0.125), [require("scaling", "speedup", ">= 1", nodes=1)])
    assert the(judged, "speedup", "1 node").verdict is Verdict.ERROR
    assert the(judged, "speedup", "1 node").reason == "speedup was not measured: 1 node is the baseline itself"


GOOD = run(2, 0.1)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (replace(GOOD, ranks=GOOD.ranks[:1]), "scaling: run 1 on 2 nodes: no result of rank 1"),
        (run(2, 0.1, ranks={"step_seconds": ()}), "rank 0 has 0 steps, 11 losses and 8192 tokens per step"),
        (run(2, 0.1, ranks={"losses": ()}), "rank 0 has 10 steps, 0 losses"),
        (run(2, math.nan), "rank 0 has a time that is not above 0"),
        (run(2, 0.0), "rank 0 has a time that is not above 0"),
        (run(2, 0.1, ranks={"work_seconds": math.inf}), "rank 0 has a time that is not above 0"),
        (run(2, 0.1, ranks={"losses": (5.0, math.nan)}), "the loss of step 2 is nan on rank 0"),
        (run(2, 0.1, ranks={"data_seconds": (0.0,) * 9}), "rank 0 has no time spent on data for each of its steps"),
        (run(2, 0.1, ranks={"data_seconds": (math.nan,) * 10}), "rank 0 has no time spent on data for each of its"),
        (run(2, 0.1, nproc_per_node=2), "2 ranks are not 2 x 2"),
        (
            replace(GOOD, ranks=(GOOD.ranks[0], replace(GOOD.ranks[1], step_seconds=(0.1,) * 9))),
            "rank 1 has 9 steps, 11 losses and 8192 tokens per step, rank 0 10, 11 and 8192",
        ),
    ],
)
def test_what_is_not_a_measurement_is_refused(broken: ScalingRun, message: str) -> None:
    with pytest.raises(MeasurementError, match=message):
        judge_scaling(measured(broken), [])


def test_no_runs_are_refused() -> None:
    with pytest.raises(MeasurementError, match="no run was made"):
        judge_scaling(measured(), [])
    with pytest.raises(MeasurementError, match="there is no run on 4 nodes"):
        judge_scaling(replace(measured(GOOD), conditions=conditions(nodes=4)), [])

"""Where the time of a step goes: parts that add up, told by the difference of steps, and what is at fault."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest
from judge_made import require, the
from made import conditions
from waterfall_made import Made

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.scaling.verdict import judge_scaling
from pytest_clusterqual.model.record import Finding, Judgement, Verdict
from pytest_clusterqual.model.training import PipelineTimes

NAMES = ["compute loss", "exposed transfer", "wait", "pipeline bubble", "data stall", "host gaps", "residual"]
LOST = Made(loss=0.01, barrier=0.005, transfer=0.02, payload=0.03, data=0.004, base_data=0.002, rest=0.001)


def lost_time(made: Made) -> Judgement:
    return the(judge_scaling(made.measurement(), []), "lost_time", f"{made.nodes} nodes")


def of_kind(judgement: Judgement, kind: str) -> Finding:
    (found,) = [finding for finding in judgement.findings if finding.kind == kind]
    return found


def test_the_parts_by_hand() -> None:
    judged = lost_time(LOST)
    assert list(judged.parts) == NAMES
    expected = (0.01, 0.02, 0.005, 0.0, 0.003, 0.0, 0.001)
    assert judged.parts == pytest.approx(dict(zip(NAMES, expected, strict=True)))
    assert judged.value == sum(judged.parts.values()) == pytest.approx(0.139 - 0.2 / 2)
    assert (judged.unit, judged.verdict) == ("s", Verdict.MEASURED)
    assert judged.reason.startswith("lost_time 39 ms; nothing is required of it")
    assert "a step takes 139 ms on 2 nodes, 200 ms on 1 node, 1/2 of which it should" in judged.reason
    assert "12 rounds; its bytes alone take 30 ms, of which 10 ms are hidden" in judged.reason
    assert "wait, data stall, residual: within the 5 % of a step that differences resolve" in judged.reason
    assert "host gaps cannot be seen by difference" in judged.reason


def test_a_step_that_gains_more_than_its_share_has_negative_parts() -> None:
    judged = lost_time(Made(loss=-0.02))
    assert judged.parts["compute loss"] == pytest.approx(-0.02)
    assert judged.value == pytest.approx(-0.02)
    assert judged.findings == ()


@pytest.mark.parametrize("seed", range(10))
def test_parts_are_found_again_in_noise(seed: int) -> None:
    random = Random(seed)
    planted = {name: random.uniform(0.0, 0.05) for name in ("loss", "barrier", "transfer", "data", "rest")}
    parts = lost_time(Made(**planted, noise=0.03, seed=seed, nodes=4)).parts  # type: ignore[arg-type]
    named = zip(("compute loss", "wait", "exposed transfer", "data stall", "residual"), planted.values(), strict=True)
    for name, seconds in named:
        assert parts[name] == pytest.approx(seconds, abs=0.012), name


def test_computing_and_communicating_that_hinder_each_other_are_told() -> None:
    reason = lost_time(Made(transfer=0.05, payload=0.02)).reason
    assert "its bytes alone take 20 ms: computing and communicating at once slow each other by 30 ms" in reason


def test_shares_of_the_step_with_an_interval_over_rounds() -> None:
    required = [
        require("scaling", "exposed_communication", "<= 10 %", nodes=2),
        require("scaling", "waiting", "<= 10 %"),
        require("scaling", "data_stall", "<= 1 %"),
    ]
    judged = judge_scaling(LOST.measurement(), required)
    exposed, waiting = the(judged, "exposed_communication", "2 nodes"), the(judged, "waiting", "2 nodes")
    assert exposed.value == pytest.approx(0.025 / 0.138)
    assert exposed.verdict is Verdict.FAIL
    assert exposed.interval is not None
    assert (exposed.interval.kind, exposed.interval.samples) == ("median", 12)
    assert (waiting.value, waiting.verdict) == (pytest.approx(0.005 / 0.138), Verdict.PASS)
    assert the(judged, "data_stall", "1 node").value == pytest.approx(0.01)
    stalled = the(judged, "data_stall", "2 nodes")
    assert (stalled.value, stalled.verdict) == (pytest.approx(0.004 / 0.139), Verdict.FAIL)
    assert {j.label for j in judged if j.quantity in ("exposed_communication", "waiting")} == {"2 nodes"}


def test_few_rounds_are_undecided() -> None:
    required = [require("scaling", "exposed_communication", "<= 10 %")]
    judged = the(judge_scaling(replace(LOST, rounds=5).measurement(), required), "exposed_communication", "2 nodes")
    assert judged.verdict is Verdict.UNDECIDED
    assert "5 rounds are there" in judged.reason


@pytest.mark.parametrize("barriers", [True, False])
def test_a_slow_rank_is_named_and_the_fast_one_waits(barriers: bool) -> None:
    made = Made(slow={1: 1.6}, noise=0.02, barriers=barriers, rounds=16)
    judged = judge_scaling(made.measurement(), [])
    lost = the(judged, "lost_time", "2 nodes")
    assert lost.parts["wait"] == pytest.approx(0.06, abs=0.01)
    assert max(lost.parts, key=lambda name: abs(lost.parts[name])) == "wait"
    assert of_kind(lost, "slow rank").suspect == "rank 1 on node1"
    assert of_kind(lost, "lost time").evidence.startswith("wait: ")
    waits = the(judged, "waiting", "2 nodes").per_rank
    assert (waits["0"] > 0.3, waits["1"] < 0.1) == (True, True)
    assert "rank 1 computes longest" in the(judged, "waiting", "2 nodes").reason


def test_without_barriers_it_says_what_wait_is() -> None:
    judged = lost_time(Made(barriers=False, transfer=0.05))
    assert judged.parts["exposed transfer"] == pytest.approx(0.05)
    assert judged.parts["wait"] == pytest.approx(0.0)
    assert "wait is what the ranks' own computing leads to expect" in judged.reason


def test_ranks_that_do_not_wait_are_not_looked_for() -> None:
    assert [finding.kind for finding in lost_time(Made(transfer=0.05, noise=0.02)).findings] == ["lost time"]


def test_the_largest_part_is_a_note_with_what_to_look_at() -> None:
    note = of_kind(lost_time(Made(transfer=0.04)), "lost time")
    assert (note.suspect, note.level) == ("the step", "note")
    assert note.evidence == "exposed transfer: 40 ms, 100 % of the lost 40 ms"
    assert "Fabric" in note.check_next


@pytest.mark.parametrize(("rest", "differ"), [(0.05, "more"), (-0.03, "less")])
def test_nothing_is_blamed_where_the_runs_and_the_step_taken_apart_disagree(rest: float, differ: str) -> None:
    note = of_kind(lost_time(Made(transfer=0.05, rest=rest)), "lost time")
    shown, lost = (f"{abs(seconds) * 1e3:.0f} ms" for seconds in (rest, 0.05 + rest))
    assert note.evidence == (
        f"cannot be decided, because the runs took {shown} {differ} a step than the step taken apart, where {lost} are "
        "lost"
    )
    assert "measure again" in note.check_next


def test_nothing_is_blamed_for_what_differences_do_not_resolve() -> None:
    assert lost_time(Made(transfer=0.003, loss=0.001)).findings == ()


def test_a_bubble_is_what_the_schedule_idles_at_best() -> None:
    """Two stages, four microbatches: a quarter of the 100 ms that a stage computes."""
    pipeline = PipelineTimes(
        schedule="1f1b", stages=2, stages_per_rank=1, microbatches=4, seconds=(0.14,) * 10, computing=(0.1,) * 10
    )
    judged = judge_scaling(Made(pipeline=pipeline, bubble=0.025, transfer=0.01, barriers=False).measurement(), [])
    parts = the(judged, "lost_time", "2 nodes").parts
    assert parts["pipeline bubble"] == pytest.approx(0.025)
    assert parts["exposed transfer"] == pytest.approx(0.01)
    exposed = the(judged, "exposed_communication", "2 nodes").value
    assert exposed == pytest.approx(0.01 / 0.135), "a bubble is no communication"


def test_the_rank_that_waits_for_its_data_is_named() -> None:
    judged = lost_time(Made(stalls={1: 0.03}, data=0.001))
    stall = of_kind(judged, "data stall")
    assert (stall.suspect, stall.level) == ("rank 1 on node1", "suspect")
    assert stall.evidence == "waits up to 31 ms a step for data, the rank that waits least 1 ms"
    assert judged.parts["data stall"] == pytest.approx(0.031)


def test_all_ranks_that_wait_for_data_alike_are_named_together() -> None:
    stall = of_kind(lost_time(Made(data=0.03)), "data stall")
    assert stall.suspect == "all ranks"
    assert stall.evidence == "waits up to 30 ms a step for data, as every rank does"


def test_a_step_that_could_not_be_taken_apart_says_why() -> None:
    m = replace(LOST.measurement(), apart=(), not_apart="there is no room for it twice")
    judged = judge_scaling(m, [require("scaling", "waiting", "<= 10 %", nodes=2)])
    exposed, waiting = the(judged, "exposed_communication", "2 nodes"), the(judged, "waiting", "2 nodes")
    assert (exposed.verdict, waiting.verdict) == (Verdict.MEASURED, Verdict.ERROR)
    assert waiting.reason == "waiting was not measured: there is no room for it twice"
    lost = the(judged, "lost_time", "2 nodes")
    assert list(lost.parts) == ["pipeline bubble", "data stall", "residual"]
    assert lost.value == sum(lost.parts.values())
    assert "not taken apart: there is no room for it twice" in lost.reason


def test_a_file_without_a_waterfall_has_none_and_a_requirement_does_not_vanish() -> None:
    m = replace(LOST.measurement(), apart=())
    assert not {"lost_time", "waiting", "exposed_communication"} & {j.quantity for j in judge_scaling(m, [])}
    (waiting,) = [j for j in judge_scaling(m, [require("scaling", "waiting", "<= 1 %")]) if j.quantity == "waiting"]
    assert (waiting.verdict, waiting.label) == (Verdict.ERROR, "2 nodes")


def test_a_point_that_is_not_taken_apart_is_an_error_where_a_requirement_names_it() -> None:
    judged = judge_scaling(LOST.measurement(), [require("scaling", "waiting", "<= 10 %", nodes=1)])
    assert the(judged, "waiting", "1 node").verdict is Verdict.ERROR
    assert the(judged, "waiting", "2 nodes").verdict is Verdict.MEASURED


def test_another_job_has_no_lost_time() -> None:
    m = LOST.measurement()
    odd = replace(m.runs[1], conditions=replace(m.runs[1].conditions, workload="other"))
    judged = judge_scaling(replace(m, runs=(m.runs[0], odd, *m.runs[2:])), [])
    assert "lost_time" not in {j.quantity for j in judged}
    assert the(judged, "exposed_communication", "2 nodes").value is not None


def test_communication_inside_a_baseline_of_several_ranks_is_told() -> None:
    m = LOST.measurement()
    assert "counts as its computing" not in the(judge_scaling(m, []), "lost_time", "2 nodes").reason
    two = conditions(nodes=1, nproc_per_node=2, ranks=2, layout="ddp", workload="9f2c", simulated=False)
    four = conditions(nodes=2, nproc_per_node=2, ranks=4, layout="ddp", workload="9f2c", simulated=False)
    runs = tuple(
        replace(run, conditions=two if run.conditions.nodes == 1 else four,
                ranks=tuple(replace(run.ranks[0], rank=rank) for rank in range(2 * run.conditions.nodes)))
        for run in m.runs
    )  # fmt: skip
    apart = tuple((*ranks, *(replace(each, rank=each.rank + 2) for each in ranks)) for ranks in m.apart)
    judged = judge_scaling(replace(m, conditions=four, runs=runs, apart=apart), [])
    assert "the communication of 1 node counts as its computing" in the(judged, "lost_time", "2 nodes").reason


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"barrier": ()}, "scaling, step taken apart: round 1, rank 1, barrier: got 0 steps, want 4"),
        ({"compute": (math.nan,) * 4}, "round 1, rank 1, compute: got a time of nan s, want one above 0"),
        ({"rank": 0}, "no result of rank 1"),
    ],
)
def test_what_is_no_ladder_is_refused(broken: dict[str, object], message: str) -> None:
    m = LOST.measurement()
    first, second = m.apart[0]
    with pytest.raises(MeasurementError, match=message):
        judge_scaling(replace(m, apart=((first, replace(second, **broken)), *m.apart[1:])), [])  # type: ignore[arg-type]

"""What is judged of a command, of which less is known: nothing is concluded from what is missing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from full_run_made import Rank, full_run, measured
from judge_made import require, the, verdicts
from made import conditions

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.full_run.verdict import judge_full_run
from pytest_clusterqual.judge.memory.verdict import judge_memory
from pytest_clusterqual.judge.scaling.verdict import judge_scaling
from pytest_clusterqual.model.full_run import FullRun
from pytest_clusterqual.model.memory import MemoryMeasurement, RankMemory
from pytest_clusterqual.model.record import Verdict
from pytest_clusterqual.model.training import RankTraining, ScalingMeasurement, ScalingRun

GIB = 1024**3
OF = {1: 1.0, 2: 0.6}  # nodes -> seconds of a step


def run(nodes: int, launch: int, *, ranks: int | None = None, **more: Any) -> ScalingRun:
    seconds = (OF[nodes] * (1 + 0.001 * launch),) * 8
    usual = {
        "warmup_seconds": (), "step_seconds": seconds, "data_seconds": (0.125,) * 8, "work_seconds": sum(seconds),
        "tokens_per_step": 4096, "losses": (), "data_digest": "aa", "unknown": ("losses", "inside"),
    }  # fmt: skip
    return ScalingRun(
        conditions=conditions(nodes=nodes, ranks=nodes, layout="own", workload="cc"),
        ranks=tuple(RankTraining(rank=rank, **{**usual, **more}) for rank in range(ranks or nodes)), launch=launch,
    )  # fmt: skip


def scaled(**more: Any) -> ScalingMeasurement:
    runs = tuple(run(nodes, 2 * number + nodes, **more) for number in range(6) for nodes in (1, 2))
    return ScalingMeasurement(
        conditions=runs[1].conditions, runs=runs, started=0.0, seconds=1.0, not_apart="from outside only"
    )


REQUIRED = [
    require("scaling", "speedup", ">= 1.5", nodes=2), require("scaling", "throughput", ">= 1 tokens/s"),
    require("scaling", "data_stall", "<= 50 %", nodes=2),
]  # fmt: skip


def test_with_work_and_data_a_command_is_judged_as_any_job() -> None:
    found = judge_scaling(scaled(), REQUIRED)
    assert the(found, "speedup", "2 nodes").verdict is Verdict.PASS
    assert the(found, "speedup", "2 nodes").value == pytest.approx(1.0 / 0.6, rel=0.01)
    assert {the(found, "throughput", f"{n} node{'s' * (n > 1)}").verdict for n in (1, 2)} == {Verdict.PASS}
    assert the(found, "data_stall", "2 nodes").verdict is Verdict.PASS
    assert "lost_time" not in {judgement.quantity for judgement in found}, "a step is seen from outside only"


def test_without_work_nothing_is_said_about_speed() -> None:
    found = judge_scaling(scaled(tokens_per_step=0, unknown=("losses", "work", "inside")), REQUIRED)
    for quantity in ("speedup", "throughput"):
        judged = the(found, quantity, "2 nodes")
        assert (judged.verdict, judged.value) == (Verdict.ERROR, None)
        assert "without work per step nothing is said about speed" in judged.reason
    assert the(found, "efficiency", "2 nodes").verdict is Verdict.MEASURED
    assert the(found, "step_time", "2 nodes").verdict is Verdict.MEASURED
    demanded = [require("scaling", "step_time", "<= 1 h"), require("scaling", "time_to_fixed_work", "<= 1 h")]
    found = judge_scaling(scaled(tokens_per_step=0, unknown=("losses", "work", "inside")), demanded)
    assert [j.verdict for j in found if j.requirement] == [Verdict.ERROR] * 4, "the same demand, on both points"


def test_sequences_are_work_too_but_no_tokens() -> None:
    found = judge_scaling(scaled(tokens_per_step=0, sequences_per_step=32), REQUIRED)
    assert the(found, "speedup", "2 nodes").verdict is Verdict.PASS
    assert the(found, "throughput", "2 nodes").reason.endswith("it is not known how many tokens a step has")


def test_another_batch_on_more_nodes_is_another_regime() -> None:
    m = scaled()
    doubled = tuple(
        one if one.conditions.nodes == 1
        else replace(one, ranks=tuple(replace(rank, tokens_per_step=8192) for rank in one.ranks))
        for one in m.runs
    )  # fmt: skip
    judged = the(judge_scaling(replace(m, runs=doubled), REQUIRED), "speedup", "2 nodes")
    assert judged.verdict is Verdict.ERROR
    assert "tokens per step: 4096 on 1 node, 8192 on 2 nodes" in judged.reason


def test_data_that_nobody_told_of_are_not_no_stall() -> None:
    found = judge_scaling(scaled(data_seconds=(), unknown=("losses", "data", "inside")), REQUIRED)
    judged = the(found, "data_stall", "2 nodes")
    assert (judged.verdict, judged.value) == (Verdict.ERROR, None)
    assert the(found, "data_stall", "1 node").verdict is Verdict.MEASURED


def test_rank_0_speaks_for_all_only_where_that_is_said() -> None:
    log = ("losses", "data", "ranks", "inside")
    assert the(judge_scaling(scaled(ranks=1, data_seconds=(), unknown=log), REQUIRED), "speedup", "2 nodes").value
    with pytest.raises(MeasurementError, match="no result of rank 1"):
        judge_scaling(scaled(ranks=1), REQUIRED)


def test_losses_that_depend_on_the_ranks_are_no_other_job() -> None:
    m = scaled(losses=(1.0,) * 8, unknown=("inside",))
    other = tuple(
        replace(one, ranks=tuple(replace(r, losses=(1.0 + one.conditions.nodes,) * 8) for r in one.ranks))
        for one in m.runs
    )  # fmt: skip
    assert the(judge_scaling(replace(m, runs=other), REQUIRED), "speedup", "2 nodes").verdict is Verdict.PASS


def memory(**more: Any) -> MemoryMeasurement:
    usual = {
        "step_peaks": (GIB,), "reserved_peaks": (), "device_used": GIB, "limit": 8 * GIB, "limit_from": "MemTotal",
        "counted": "resident set of the largest process of the rank", "parts": {}, "losses": (), "data_digest": "aa",
    }  # fmt: skip
    return MemoryMeasurement(
        conditions=conditions(layout="own"), ranks=tuple(RankMemory(rank=rank, **{**usual, **more}) for rank in (0, 1)),
        started=0.0, seconds=1.0, unknown=("what it is made of", "losses"),
    )  # fmt: skip


HELD = [require("memory", "peak", "<= 2 GiB"), require("memory", "headroom", ">= 10 %")]


def test_the_peak_of_a_command_says_what_is_not_known_of_it() -> None:
    found = judge_memory(memory(), HELD)
    assert verdicts(found) == {("peak", ""): Verdict.PASS, ("headroom", ""): Verdict.PASS}
    counted = "counted: resident set of the largest process of the rank"
    assert f"{counted}; not known: what it is made of, losses" in found[0].reason


def test_a_loss_that_is_told_must_be_a_number() -> None:
    with pytest.raises(MeasurementError, match="the loss of step 1 is nan"):
        judge_memory(memory(losses=(float("nan"),)), HELD)


def test_headroom_is_not_guessed_from_what_torch_reserved() -> None:
    peak, headroom = judge_memory(memory(device_used=0), HELD)
    assert peak.verdict is Verdict.PASS
    assert (headroom.verdict, headroom.value) == (Verdict.ERROR, None)


@pytest.mark.parametrize("required", [HELD, []])
def test_out_of_memory_is_a_fail_with_the_rank_whatever_is_required(required: list[Any]) -> None:
    m = replace(memory(), ranks=(), out_of_memory="rank 1 on node1 left with exit code 1: MemoryError")
    found = judge_memory(m, required)
    assert {judgement.verdict for judgement in found} == {Verdict.FAIL}
    assert len(found) == max(len(required), 1)
    assert found[0].reason == "the job ran out of memory: rank 1 on node1 left with exit code 1: MemoryError"


def own_run(*, steps: int = 6, done: bool = False, **more: Any) -> FullRun:
    """Steps without losses, of a script that ends without a word."""
    ranks = []
    for number in (0, 1):
        rank = Rank(number).passes(1.0).starts(imports=1.0)
        for step in range(1, steps + 1):
            rank.span("data", 0.25).span("step", 1.0, step=step)
        if done:
            rank.mark("done")
        ranks.append(rank.passes(0.25).ends(more.pop("error", "")).passes(0.125).run())
    return replace(full_run(*ranks, steps=steps), checkpoints=None, tokens_per_step=0, **more)


def test_a_command_need_not_tell_its_losses_its_work_or_that_it_is_done() -> None:
    required = [require("full_run", "goodput", ">= 10 %"), require("full_run", "throughput", ">= 1 tokens/s")]
    found = judge_full_run(measured(own_run()), required)
    assert the(found, "goodput").verdict is Verdict.PASS
    assert the(found, "throughput").verdict is Verdict.ERROR
    assert "it is not known how many tokens a step has" in the(found, "throughput").reason


def test_a_run_of_the_package_itself_has_to_tell_all() -> None:
    with pytest.raises(MeasurementError):
        judge_full_run(measured(replace(own_run(), checkpoints=full_run().checkpoints, tokens_per_step=10)), [])


def test_a_command_that_ended_by_an_error_did_not_finish() -> None:
    with pytest.raises(MeasurementError, match="has no done mark"):
        judge_full_run(measured(own_run(error="ValueError")), [])


def test_without_work_there_is_no_gain() -> None:
    gain = [require("full_run", "gain", ">= 1.1")]
    judged = the(judge_full_run(measured(own_run(), alone=own_run()), gain), "gain")
    assert judged.verdict is Verdict.ERROR
    assert "without work per step nothing is said about speed" in judged.reason
    told = replace(own_run(), sequences_per_step=8)
    assert the(judge_full_run(measured(told, alone=told), gain), "gain").value == pytest.approx(1.0)
    other = replace(told, sequences_per_step=16)
    assert "8 sequences" in the(judge_full_run(measured(told, alone=other), gain), "gain").reason

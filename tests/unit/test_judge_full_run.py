"""The figures of a full run by hand, their verdicts, and what is no measurement of one."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from full_run_made import (
    KILLED,
    TOKENS,
    Rank,
    broken_off,
    edited,
    full_run,
    killed_run,
    measured,
    quiet,
    quiet_run,
    shifted,
    without,
)
from judge_made import require, the, verdicts

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.full_run.ledger import account
from pytest_clusterqual.judge.full_run.verdict import judge_full_run
from pytest_clusterqual.model.conditions import Load
from pytest_clusterqual.model.full_run import FullRun, RankRun
from pytest_clusterqual.model.record import Verdict

# -- figures -------------------------------------------------------------------------------------


def test_goodput_throughput_and_shares_by_hand() -> None:
    judged = judge_full_run(measured(full_run(quiet(0), quiet(1, step=1.5, data=0.0))), [])
    wall = 21.375  # rank 1: ten steps of 1.5 s and 6.375 s besides
    assert the(judged, "goodput").value == pytest.approx(10 * 1.5 / wall)
    assert the(judged, "throughput").value == pytest.approx(10 * TOKENS / wall)
    assert the(judged, "ettr").value == pytest.approx(10.0 / 18.875), "of rank 0, which has the least"
    assert the(judged, "ettr").per_rank == {"0": pytest.approx(10 / 18.875), "1": pytest.approx(15 / wall)}
    assert the(judged, "data_stall").value == pytest.approx(0.2)
    assert the(judged, "data_stall").per_rank == {"0": pytest.approx(0.2), "1": 0.0}
    assert {j.verdict for j in judged} == {Verdict.MEASURED}


def test_steps_done_again_do_not_count_as_work() -> None:
    judged = judge_full_run(measured(killed_run()), [])
    assert the(judged, "goodput").value == pytest.approx(10 / 28.125)
    assert the(judged, "throughput").value == pytest.approx(10 * TOKENS / 28.125)
    assert the(judged, "ettr").value == pytest.approx(10 / 28.125)
    assert (the(judged, "steps_lost").value, the(judged, "rendezvous").value) == (2, 2.25)


def test_the_gain_is_what_one_node_takes_for_the_same_over_what_all_take() -> None:
    alone = full_run(quiet(0, data=0.5, step=3.0), nodes=1)
    m = measured(quiet_run(), alone=alone, not_alone="")
    (judged,) = [j for j in judge_full_run(m, [require("full_run", "gain", ">= 2")]) if j.quantity == "gain"]
    assert judged.value == pytest.approx(41.375 / 18.875)
    assert judged.verdict is Verdict.PASS
    assert "41.38 s on one node, 18.88 s here, one run each" in judged.reason


@pytest.mark.parametrize(
    ("alone", "why"),
    [
        (None, "full_run.alone: false"),
        (full_run(without(quiet(0), "done"), nodes=1), "rank 0 has no done mark"),
        (full_run(quiet(0, 9), steps=9, nodes=1), "did other work: 9 steps of 1000 tokens of workload 9f2c41d07a55e310 "
         "against 10 steps"),
        (full_run(quiet(0), nodes=1, workload="another"), "did other work: 10 steps of 1000 tokens of workload ano"),
    ],
    ids=["none", "broken", "shorter", "another job"],
)  # fmt: skip
def test_without_the_same_work_on_one_node_there_is_no_gain(alone: FullRun | None, why: str) -> None:
    m = measured(quiet_run(), alone=alone)
    assert not [j for j in judge_full_run(m, []) if j.quantity == "gain"]
    gain = the(judge_full_run(m, [require("full_run", "gain", ">= 1")]), "gain")
    assert (gain.verdict, gain.value) == (Verdict.ERROR, None)
    assert why in gain.reason
    assert the(judge_full_run(m, []), "goodput").value is not None


def test_of_one_node_no_gain_is_required() -> None:
    """The same file serves --nodes 1, where there is nothing to compare with; other demands still count."""
    m = measured(full_run(quiet(0), nodes=1), not_alone="the run had one node only")
    judged = judge_full_run(m, [require("full_run", "gain", ">= 1"), require("full_run", "goodput", ">= 1 %")])
    gain = the(judged, "gain")
    assert (gain.verdict, gain.value, gain.reason) == (
        Verdict.MEASURED, None, "gain was not measured: the run had one node only",
    )  # fmt: skip
    assert the(judged, "goodput").verdict is Verdict.PASS


def test_the_seconds_of_the_told_rank_add_up_to_its_wall_clock() -> None:
    judged = judge_full_run(measured(killed_run()), [])
    seconds = {j.label: j.value for j in judged if j.quantity == "time"}
    assert set(seconds) == set(account(killed_run()).ranks[0].seconds)
    assert sum(value or 0.0 for value in seconds.values()) == pytest.approx(28.125)
    assert "with all others they add up to 28.12 s" in the(judged, "time", "kept").reason


def test_the_figures_of_a_killed_run_are_judged_with_the_resolution_of_their_clocks() -> None:
    demands = {
        "goodput": ">= 40 %", "ettr": ">= 30 %", "checkpoint_blocking": "<= 0.5 s",
        "checkpoint_completion": "<= 2.7505 s",
        "detection": "<= 1 s", "restart": "<= 1.7495 s", "rendezvous": "<= 5 s", "recovery": "<= 60 s",
        "checkpoint_load": "<= 10 s", "steps_lost": "<= 4", "data_stall": "<= 10 %",
    }  # fmt: skip
    required = [require("full_run", quantity, text) for quantity, text in demands.items()]
    judged = judge_full_run(measured(killed_run()), required)
    found = verdicts([j for j in judged if j.quantity in demands])
    assert found == {
        ("goodput", ""): Verdict.FAIL, ("ettr", ""): Verdict.PASS, ("checkpoint_blocking", ""): Verdict.FAIL,
        ("checkpoint_completion", ""): Verdict.UNDECIDED, ("detection", ""): Verdict.PASS,
        ("restart", ""): Verdict.UNDECIDED, ("rendezvous", ""): Verdict.PASS, ("recovery", ""): Verdict.PASS,
        ("checkpoint_load", ""): Verdict.PASS, ("steps_lost", ""): Verdict.PASS, ("data_stall", ""): Verdict.FAIL,
    }  # fmt: skip
    blocking, completion = the(judged, "checkpoint_blocking"), the(judged, "checkpoint_completion")
    assert blocking.interval is not None
    assert (blocking.interval.kind, blocking.interval.low, blocking.interval.high) == ("resolution", 0.749, 0.751)
    assert completion.interval is not None
    assert (completion.value, completion.interval.low, completion.interval.high) == (2.75, 2.749, 2.751)
    assert blocking.reason == (
        "checkpoint_blocking 750 ms [749, 751] is above the required <= 500 ms (async, worst of 2, step 8, in the run "
        "folder; one run of 10 steps on 2 x 1 ranks, rank 1 killed at step 7, 2 steps done again)"
    )


@pytest.mark.parametrize(
    ("quantity", "why"),
    [
        ("recovery", "nothing failed in this run"),
        ("rendezvous", "nothing failed in this run"),
        ("steps_lost", "nothing failed in this run"),
        ("checkpoint_blocking", "no checkpoint was saved"),
        ("checkpoint_load", "no checkpoint was loaded"),
        ("gain", "full_run.alone: false"),
    ],
)
def test_what_is_required_but_did_not_happen_is_an_error(quantity: str, why: str) -> None:
    text = "<= 60" if quantity == "steps_lost" else ">= 1" if quantity == "gain" else "<= 60 s"
    judged = the(judge_full_run(measured(quiet_run()), [require("full_run", quantity, text)]), quantity)
    assert (judged.value, judged.verdict, judged.reason) == (None, Verdict.ERROR, f"{quantity} was not measured: {why}")


def test_an_attempt_that_found_no_checkpoint_has_loaded_none() -> None:
    rank = broken_off(0).mark("fault", 7, name="kill_rank").passes(2.5).back(after=0, builds=1.0).steps(1, 10)
    run = full_run(rank.finishes().run(), nodes=1, failure=replace(KILLED, target=0))
    ledger = account(run)
    assert (ledger.events.load, ledger.lost, ledger.ranks[0].seconds["reload"]) == (None, 6, 1.0)
    required = [require("full_run", "checkpoint_load", "<= 10 s")]
    why = the(judge_full_run(measured(run), required), "checkpoint_load").reason
    assert why == "checkpoint_load was not measured: no checkpoint was loaded"


def test_load_excuses_a_slow_run() -> None:
    m = measured(quiet_run(load=Load(other_cpu=0.5, node="node0")))
    assert the(judge_full_run(m, [require("full_run", "goodput", ">= 99 %")]), "goodput").verdict is Verdict.UNDECIDED


# -- what is no measurement ----------------------------------------------------------------------


def test_time_in_no_state_is_told_with_its_sign_and_too_much_of_it_is_an_error() -> None:
    def idle(seconds: float) -> RankRun:
        return Rank(0, at=100.0).ready().steps(1, 5).passes(seconds).steps(6, 10).finishes().run()

    assert account(full_run(idle(0.875), quiet(1))).ranks[0].seconds["residual"] == 0.875
    with pytest.raises(
        MeasurementError, match=r"1.12 s of the 20 s of rank 0 are in no state, more than 0.5 % and 1 s"
    ):
        account(full_run(idle(1.125), quiet(1)))
    twice = edited(quiet(0), lambda line: replace(line, seconds=1.09) if line.what == "step" else line)
    assert account(full_run(twice, quiet(1))).ranks[0].seconds["residual"] == pytest.approx(-0.9)
    twice = edited(quiet(0), lambda line: replace(line, seconds=1.2) if line.what == "step" else line)
    with pytest.raises(MeasurementError, match=r"-2 s of the 18.88 s of rank 0 are in no state"):
        account(full_run(twice, quiet(1)))


def test_half_a_percent_of_a_long_run_may_be_in_no_state() -> None:
    def idle(seconds: float) -> RankRun:
        return Rank().ready().steps(1, 5, seconds=100.0).passes(seconds).steps(6, 10, seconds=100.0).finishes().run()

    assert account(full_run(idle(4.5), nodes=1)).ranks[0].seconds["residual"] == 4.5
    with pytest.raises(MeasurementError, match="in no state"):
        account(full_run(idle(5.5), nodes=1))


def first(run: RankRun, what: str, **changes: object) -> RankRun:
    """With the first line of a kind changed."""
    target = next(line for process in run.processes for line in process.lines if line.what == what)
    return edited(run, lambda line: replace(line, **changes) if line is target else line)


QUIET = quiet(1)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (without(QUIET, "done"), "full run: rank 1 has no done mark: it did not finish its work"),
        (
            edited(QUIET, lambda line: None if line.what == "step" and line.step > 8 else line),
            r"rank 1 did not do step 9 \(2 of 10 steps are missing\)",
        ),
        (first(QUIET, "loss", value=math.nan), "rank 1: the loss of step 1 is missing or no number"),
        (first(QUIET, "loss", value=None), "rank 1: the loss of step 1 is missing or no number"),
        (without(QUIET, "loss"), "rank 1: the loss of step 1 is missing or no number"),
        (replace(QUIET, ended=QUIET.began - 1), "rank 1 wrote lines from 103.0.* its launch ran from 100.0.* to 99.0"),
        (replace(QUIET, began=QUIET.began + 10), "rank 1 wrote lines from 103.0.* its launch ran from 110.0"),
        (replace(QUIET, ended=math.nan), "rank 1 has a time that is not finite"),
        (first(QUIET, "data", seconds=math.inf), "rank 1 has a time that is not finite"),
        (first(QUIET, "data", seconds=-0.25), "rank 1: data of step 0 took -0.25 s"),
        (first(QUIET, "step", own=-0.5), r"rank 1: step of step 1 took 1 s, -0.5 s of them outside of the spans in it"),
        (first(QUIET, "step", own=1.5), "rank 1: step of step 1 took 1 s, 1.5 s of them outside"),
        (Rank(1, at=100.0).ready().steps(1, 10).span("save", 0.5, step=10).finishes().run(),
         "the checkpoint of step 10 never became complete: rank 1 has no saved mark"),
        (quiet(1, step=0.0), "rank 1 did its steps in no time"),
        (quiet(0), "full run: no result of rank 1"),
        (replace(QUIET, processes=()), "rank 1 wrote nothing"),
    ],
)  # fmt: skip
def test_what_is_not_a_measurement_is_refused(broken: RankRun, message: str) -> None:
    with pytest.raises(MeasurementError, match=message):
        judge_full_run(measured(full_run(quiet(0), broken)), [])


def cut_before_its_line(resumed: int) -> FullRun:
    """A command whose rank 1 is killed as step 6 is done, and goes on after step `resumed` that rank 0 had saved."""
    survivor = broken_off(0).breaks(after=0.5, step=7).passes(0.125).ends("RuntimeError").passes(1.5)
    victim = Rank(1).ready().steps(1, 4).saves(4).steps(5, 5).mark("fault", 6, name="kill_rank").passes(3.5)
    ranks = [
        rank.back(after=resumed, builds=1.0).steps(resumed + 1, 10).finishes().run() for rank in (survivor, victim)
    ]
    return replace(full_run(*ranks, failure=replace(KILLED, step=6)), checkpoints=None)


def test_a_step_that_others_saved_and_a_killed_rank_could_not_write_down_is_not_missing() -> None:
    ledger = account(cut_before_its_line(6))
    assert [rank.kept for rank in ledger.ranks] == [10, 9]
    assert len(ledger.steps) == 10
    with pytest.raises(MeasurementError, match=r"rank 0 did not do step 7 \(1 of 10 steps are missing\)"):
        account(cut_before_its_line(7))  # which rank 0 had an error in


def test_a_run_of_nothing_is_refused() -> None:
    with pytest.raises(MeasurementError, match="got 0 steps of 1000 tokens, want at least one each"):
        account(replace(quiet_run(), steps=0))


def test_what_was_to_fail_must_have_failed_once() -> None:
    told = "rank 1 killed at step 7"
    with pytest.raises(MeasurementError, match=f"{told}: it was planned and did not happen"):
        account(quiet_run(failure=KILLED))
    run = killed_run()
    twice = edited(run.ranks[1], lambda line: replace(line, what="fault") if line.what == "saved" else line)
    with pytest.raises(MeasurementError, match=f"{told}: it happened 3 times, planned once"):
        account(replace(run, ranks=(run.ranks[0], twice)))


def test_somebody_must_have_come_back_from_a_failure() -> None:
    still = Rank(1, at=100.0).ready().steps(1, 6).mark("fault", 7, name="kill_rank").steps(7, 10).finishes()
    with pytest.raises(MeasurementError, match="no rank began again after the failure"):
        account(full_run(quiet(0), still.run(), failure=KILLED))


def test_two_processes_that_were_one_rank_at_once_are_refused() -> None:
    run = killed_run()
    early = shifted(run.ranks[0], -5.0, first=1)
    with pytest.raises(MeasurementError, match=r"rank 0: attempt 1 on vm began .* s before attempt 0 on vm had ended"):
        account(replace(run, ranks=(early, run.ranks[1])))

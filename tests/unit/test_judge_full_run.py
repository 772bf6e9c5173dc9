from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judge_made import require, the, verdicts
from made import conditions

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.full_run.ledger import CATEGORIES, Save
from pytest_clusterqual.judge.full_run.verdict import account, judge_full_run
from pytest_clusterqual.model.conditions import Load
from pytest_clusterqual.model.measurement import FullRunMeasurement, Mark, RankRun, Span
from pytest_clusterqual.model.record import Verdict


class Log:
    """Writes one rank's run as time goes on."""

    def __init__(self, at: float) -> None:
        self.began = self.now = at
        self.attempt = 1
        self.spans: list[Span] = []
        self.marks: list[Mark] = []

    def span(self, kind: Any, seconds: float, step: int = 0) -> Log:
        self.spans.append(Span(kind=kind, attempt=self.attempt, start=self.now, end=self.now + seconds, step=step))
        self.now += seconds
        return self

    def mark(self, kind: Any, step: int = 0, after: float = 0.0) -> Log:
        self.marks.append(Mark(kind=kind, attempt=self.attempt, at=self.now + after, step=step))
        return self

    def wait(self, seconds: float) -> Log:
        self.now += seconds
        return self

    def steps(self, first: int, last: int, data: float = 0.25, seconds: float = 1.0) -> Log:
        for step in range(first, last + 1):
            self.span("data", data, step).span("step", seconds, step)
        return self

    def done(self, rank: int, steps: int) -> RankRun:
        return RankRun(
            rank=rank,
            began=self.began,
            ended=self.now,
            spans=tuple(self.spans),
            marks=tuple(self.marks),
            losses={str(step): 5.0 for step in range(1, steps + 1)},
            data_digest="3fb1",
        )


def measured(*ranks: RankRun, steps: int, kill_step: int = 0, **under: Any) -> FullRunMeasurement:
    here = conditions(**{"nodes": 2, "ranks": len(ranks), "layout": "ddp", "hosts": ("vm", "vm"), **under})
    return FullRunMeasurement(
        conditions=here,
        ranks=ranks,
        mode="async",
        steps=steps,
        tokens_per_step=1000,
        kill_step=kill_step,
        started=0.0,
        seconds=1.0,
    )


def quiet(rank: int = 0, steps: int = 10, *, at: float = 100.0, data: float = 0.25, step: float = 1.0) -> RankRun:
    """2 s launch, 3 s init, the steps, 0.5 s teardown, 0.125 s until the agent ends."""
    log = Log(at).wait(2.0).mark("started").span("init", 3.0).mark("resumed").steps(1, steps, data, step)
    return log.mark("done").span("teardown", 0.5).wait(0.125).done(rank, steps)


def killed_run() -> FullRunMeasurement:
    """Ten steps, a checkpoint after step 4 and one after 8; rank 1 dies before step 7, so 5 and 6 are done again.

    Launch 2 s, init 3 s, six steps of 1.25 s and one save of 0.5 s: the kill comes at 13.0 s. Rank 0
    sees it 0.25 s later. New processes begin at 15.25 s (rank 0) and 15.5 s (rank 1), load until
    18.5 s and go on with step 5.
    """
    logs = [Log(0.0), Log(0.0)]
    for log in logs:
        log.wait(2.0).mark("started").span("init", 3.0).mark("resumed").steps(1, 4)
        log.span("checkpoint", 0.5, 4).mark("saved", 4, after=1.5).steps(5, 6)
    assert logs[0].now == logs[1].now == 13.0
    logs[0].mark("failed", 7, after=0.25).wait(2.25)
    logs[1].mark("killed", 7).wait(2.5)
    for log, init in zip(logs, (2.25, 2.0), strict=True):
        log.attempt = 2
        log.mark("started").span("init", init).span("load", 1.0).mark("resumed", 4).steps(5, 8)
        log.span("checkpoint", 0.75, 8).mark("saved", 8, after=2.0).steps(9, 10)
        log.span("finish", 0.25).mark("done").span("teardown", 0.5).wait(0.125)
    return measured(logs[0].done(0, 10), logs[1].done(1, 10), steps=10, kill_step=7)


def test_the_ledger_of_a_quiet_run_by_hand() -> None:
    ledger = account(measured(quiet(0), quiet(1), steps=10))
    assert ledger.wall == 18.125
    assert ledger.ranks[1].seconds == {
        **dict.fromkeys(CATEGORIES, 0.0),
        "init": 5.0,
        "data": 2.5,
        "kept": 10.0,
        "teardown": 0.625,
        "residual": 0.0,
    }
    assert ledger.events.detection is ledger.events.restart is ledger.events.recovery is ledger.events.load is None
    assert (ledger.events.steps_lost, ledger.events.saves) == (0, ())


def test_the_ledger_of_a_killed_run_by_hand() -> None:
    ledger = account(killed_run())
    survivor, victim = ledger.ranks
    assert survivor.seconds == {
        "init": 7.25,
        "load": 1.0,
        "data": 3.0,
        "kept": 10.0,
        "lost": 2.0,
        "checkpoint": 1.25,
        "finish": 0.25,
        "detection": 0.25,
        "restart": 2.0,
        "teardown": 0.625,
        "residual": 0.0,
    }
    assert victim.seconds == {**survivor.seconds, "init": 7.0, "restart": 2.25}
    assert ledger.wall == survivor.wall == victim.wall == 27.625


def test_the_events_of_a_killed_run_by_hand() -> None:
    events = account(killed_run()).events
    assert events.detection == 0.25
    assert events.restart == 2.25  # until the last new process
    # 18.5 s + steps 5, 6 and 7 of 1.25 s = 22.25 s, 9.25 s after the kill
    assert events.recovery == 9.25
    assert events.load == 1.0
    assert events.steps_lost == 2
    assert events.saves == (
        Save(attempt=1, step=4, blocking=0.5, completion=2.0),
        Save(attempt=2, step=8, blocking=0.75, completion=2.75),
    )


@given(
    st.lists(st.tuples(st.floats(0, 5), st.floats(0.001, 5)), min_size=1, max_size=12),
    st.floats(0, 10),
    st.floats(0, 3),
    st.floats(0, 3),
    st.integers(0, 11),
)
def test_the_categories_add_up_to_the_wall(
    steps: list[tuple[float, float]], init: float, detection: float, restart: float, kill: int
) -> None:
    kill = kill % len(steps) + 1
    logs = [Log(0.0), Log(0.0)]
    for log in logs:
        log.mark("started").span("init", init)
        for step, (data, seconds) in enumerate(steps[: kill - 1], 1):
            log.span("data", data, step).span("step", seconds, step)
    logs[0].mark("failed", after=detection)
    logs[1].mark("killed", kill)
    for log in logs:
        log.wait(detection + restart)
        log.attempt = 2
        log.mark("started").span("init", init)
        for step, (data, seconds) in enumerate(steps, 1):
            log.wait(0.01).span("data", data, step).span("step", seconds, step)
        log.mark("done")
    runs = [log.done(rank, len(steps)) for rank, log in enumerate(logs)]
    ledger = account(measured(*runs, steps=len(steps), kill_step=kill))
    for rank in ledger.ranks:
        assert set(rank.seconds) == set(CATEGORIES)
        assert sum(rank.seconds.values()) == pytest.approx(rank.wall)
        assert rank.seconds["lost"] == pytest.approx(sum(seconds for _data, seconds in steps[: kill - 1]))
        assert rank.seconds["kept"] == pytest.approx(sum(seconds for _data, seconds in steps))
        assert rank.seconds["detection"] == pytest.approx(detection)
        assert rank.seconds["restart"] == pytest.approx(restart)
        assert rank.seconds["residual"] == pytest.approx(0.01 * len(steps), abs=1e-6)


def test_a_negative_residual_is_shown_not_clipped() -> None:
    run = replace(quiet(0), ended=quiet(0).ended - 1.0)
    assert account(measured(run, quiet(1), steps=10)).ranks[0].seconds["residual"] == -0.875


def test_a_span_that_the_failure_cut_short_is_not_counted_twice() -> None:
    """The survivor logs the broken step 7 up to the error: detection has no time of its own then."""
    m = killed_run()
    broken = Span(kind="step", attempt=1, start=13.0, end=13.25, step=7)
    survivor = account(replace(m, ranks=(replace(m.ranks[0], spans=(*m.ranks[0].spans, broken)), m.ranks[1]))).ranks[0]
    assert (survivor.seconds["lost"], survivor.seconds["detection"]) == (2.25, 0.0)
    assert survivor.seconds["residual"] == 0.0


def test_without_a_survivor_detection_ends_with_the_first_new_process() -> None:
    m = killed_run()
    silent = replace(m.ranks[0], marks=tuple(mark for mark in m.ranks[0].marks if mark.kind != "failed"))
    events = account(replace(m, ranks=(silent, m.ranks[1]))).events
    assert (events.detection, events.restart) == (2.25, 0.25)


def test_a_rank_that_is_back_before_the_others_noticed_has_no_restart_time() -> None:
    m = killed_run()
    late = tuple(replace(x, at=15.375) if x.kind == "failed" else x for x in m.ranks[0].marks)
    ledger = account(replace(m, ranks=(replace(m.ranks[0], marks=late), m.ranks[1])))
    assert (ledger.events.detection, ledger.events.restart) == (2.375, 0.125)
    assert [(r.seconds["detection"], r.seconds["restart"]) for r in ledger.ranks] == [(2.25, 0.0), (2.375, 0.125)]
    assert [r.seconds["residual"] for r in ledger.ranks] == [0.0, 0.0]


def test_an_attempt_that_found_no_checkpoint_has_loaded_none() -> None:
    log = Log(0.0).mark("started").span("load", 0.01).mark("resumed", 0).steps(1, 5).mark("done")
    assert account(measured(log.done(0, 5), steps=5, nodes=1)).events.load is None


def shifted(run: RankRun, by: float) -> RankRun:
    return replace(
        run,
        began=run.began + by,
        ended=run.ended + by,
        spans=tuple(replace(s, start=s.start + by, end=s.end + by) for s in run.spans),
        marks=tuple(replace(mark, at=mark.at + by) for mark in run.marks),
    )


def test_clocks_of_different_hosts_are_never_subtracted() -> None:
    m = killed_run()
    real = replace(m, conditions=replace(m.conditions, simulated=False, hosts=("a", "b")))
    apart = replace(real, ranks=(shifted(m.ranks[0], 5000.0), m.ranks[1]))
    for ledger in (account(real), account(apart)):
        assert ledger.wall == 27.625
        assert (ledger.events.detection, ledger.events.restart, ledger.events.recovery) == (0.25, 2.0, 9.25)
        assert [rank.seconds["residual"] for rank in ledger.ranks] == [0.0, 0.0]


def test_goodput_throughput_and_shares_by_hand() -> None:
    judged = judge_full_run(measured(quiet(0), quiet(1, step=1.5, data=0.0), steps=10), [])
    goodput, throughput, stall = (the(judged, q) for q in ("goodput", "throughput", "data_stall"))
    wall = 20.625  # rank 1: 10 steps of 1.5 s and 5.625 s besides
    assert goodput.value == pytest.approx(10 * 1.5 / wall)
    assert throughput.value == pytest.approx(10_000 / wall)
    assert stall.value == pytest.approx(0.2)
    assert stall.per_rank == {"0": pytest.approx(0.2), "1": 0.0}
    assert {j.quantity for j in judged} == {"goodput", "throughput", "data_stall", "steps_lost", "time"}
    assert {j.verdict for j in judged} == {Verdict.MEASURED}


def test_the_seconds_of_the_told_rank_add_up_to_its_wall_clock() -> None:
    run = killed_run()
    judged = judge_full_run(run, [])
    seconds = {j.label: j.value for j in judged if j.quantity == "time"}
    assert set(seconds) == set(account(run).ranks[0].seconds)
    assert sum(value for value in seconds.values() if value is not None) == pytest.approx(27.625)
    assert the(judged, "steps_lost").value == account(run).events.steps_lost > 0
    assert all(j.verdict is Verdict.MEASURED for j in judged if j.quantity in ("steps_lost", "time"))


def test_goodput_can_be_held_against_a_step_time_from_elsewhere() -> None:
    judged = judge_full_run(measured(quiet(0), quiet(1), steps=10), [], steady_step_time=0.5)
    assert the(judged, "goodput").value == pytest.approx(5.0 / 18.125)


def test_steps_done_again_do_not_count_as_work() -> None:
    assert the(judge_full_run(killed_run(), []), "goodput").value == pytest.approx(10 / 27.625)
    assert the(judge_full_run(killed_run(), []), "throughput").value == pytest.approx(10_000 / 27.625)


def test_the_warm_up_does_not_make_goodput_better() -> None:
    log = Log(0.0).mark("started").steps(1, 2, 0.0, 5.0).steps(3, 20, 0.0, 1.0).mark("done")
    judged = judge_full_run(measured(log.done(0, 20), steps=20, nodes=1), [])
    assert the(judged, "goodput").value == pytest.approx(20 / 28)


def test_the_figures_of_a_killed_run_are_judged_with_the_resolution_of_their_clocks() -> None:
    required = [
        require("full_run", "goodput", ">= 40 %"),
        require("full_run", "checkpoint_blocking", "<= 0.5 s"),
        require("full_run", "checkpoint_completion", "<= 2.8 s"),
        require("full_run", "detection", "<= 1 s"),
        require("full_run", "restart", "<= 2.2495 s"),
        require("full_run", "recovery", "<= 60 s"),
        require("full_run", "checkpoint_load", "<= 10 s"),
        require("full_run", "data_stall", "<= 10 %"),
    ]
    judged = judge_full_run(killed_run(), required)
    assert verdicts([j for j in judged if j.quantity not in ("steps_lost", "time")]) == {
        ("goodput", ""): Verdict.FAIL,
        ("throughput", ""): Verdict.MEASURED,
        ("checkpoint_blocking", ""): Verdict.FAIL,
        ("checkpoint_completion", ""): Verdict.UNDECIDED,
        ("checkpoint_load", ""): Verdict.PASS,
        ("detection", ""): Verdict.PASS,
        ("restart", ""): Verdict.UNDECIDED,
        ("recovery", ""): Verdict.PASS,
        ("data_stall", ""): Verdict.FAIL,
    }
    blocking, completion = the(judged, "checkpoint_blocking"), the(judged, "checkpoint_completion")
    assert blocking.interval is not None
    assert (blocking.interval.kind, blocking.interval.low, blocking.interval.high) == ("resolution", 0.749, 0.751)
    assert completion.interval is not None
    assert (completion.value, completion.interval.low, completion.interval.high) == (2.75, 2.65, 2.85)
    assert blocking.reason == (
        "checkpoint_blocking 750 ms [749, 751] is above the required <= 500 ms (worst of 2, step 8; "
        "one run of 10 steps on 2 x 1 ranks, rank 1 killed at step 7, 2 steps done again)"
    )


def test_the_worst_rank_and_the_worst_save_count() -> None:
    m = killed_run()
    slow = replace(
        m.ranks[1],
        spans=tuple(
            replace(s, end=s.end - 0.25) if s.kind == "checkpoint" and s.step == 8 else s for s in m.ranks[1].spans
        ),
    )
    assert account(replace(m, ranks=(m.ranks[0], slow))).events.saves[1].blocking == 0.75
    assert the(judge_full_run(replace(m, ranks=(m.ranks[0], slow)), []), "checkpoint_blocking").value == 0.75


def test_recovery_waits_for_the_slowest_rank() -> None:
    m = killed_run()
    quick = replace(
        m.ranks[0],
        spans=tuple(
            replace(s, end=s.end - 0.25) if (s.kind, s.step, s.attempt) == ("step", 7, 2) else s
            for s in m.ranks[0].spans
        ),
    )
    assert account(replace(m, ranks=(quick, m.ranks[1]))).events.recovery == 9.25


def test_a_save_that_the_kill_interrupted_has_no_completion() -> None:
    m = killed_run()
    marks = tuple(x for x in m.ranks[1].marks if not (x.kind == "saved" and x.attempt == 1))
    cut = replace(m, ranks=(m.ranks[0], replace(m.ranks[1], marks=marks)))
    assert [save.completion for save in account(cut).events.saves] == [None, 2.75]


@pytest.mark.parametrize(
    ("quantity", "why"),
    [
        ("recovery", "no rank was killed in this run"),
        ("detection", "no rank was killed in this run"),
        ("checkpoint_blocking", "no checkpoint was saved"),
        ("checkpoint_load", "no checkpoint was loaded"),
    ],
)
def test_what_is_required_but_did_not_happen_is_an_error(quantity: str, why: str) -> None:
    m = measured(quiet(0), quiet(1), steps=10)
    judged = the(judge_full_run(m, [require("full_run", quantity, "<= 60 s")]), quantity)
    assert (judged.value, judged.verdict, judged.reason) == (None, Verdict.ERROR, f"{quantity} was not measured: {why}")


def test_load_excuses_a_slow_run() -> None:
    m = measured(quiet(0), quiet(1), steps=10, load=Load(other_cpu=0.5, node="node0"))
    assert the(judge_full_run(m, [require("full_run", "goodput", ">= 99 %")]), "goodput").verdict is Verdict.UNDECIDED


def without(run: RankRun, kind: str) -> RankRun:
    return replace(run, marks=tuple(mark for mark in run.marks if mark.kind != kind))


QUIET = quiet(1)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (without(QUIET, "done"), "full run: rank 1 has no done mark: it did not finish its work"),
        (
            replace(QUIET, spans=tuple(s for s in QUIET.spans if s.kind != "step" or s.step < 9)),
            r"rank 1 did not do step 9 \(2 of 10 steps are missing\)",
        ),
        (replace(QUIET, losses={**QUIET.losses, "3": math.nan}), "rank 1: the loss of step 3 is nan"),
        (replace(QUIET, losses={}), "rank 1: the loss of step 1 is missing"),
        (replace(QUIET, ended=QUIET.began - 1), "rank 1 ended 1 s before it began"),
        (replace(QUIET, ended=math.nan), "rank 1 has a time that is not finite"),
        (
            replace(QUIET, spans=(*QUIET.spans, Span(kind="checkpoint", attempt=1, start=106.0, end=106.5, step=1))),
            "rank 1: step of step 1 in attempt 1 and checkpoint of step 1 in attempt 1 overlap by 0.25 s",
        ),
        (
            replace(QUIET, spans=(*QUIET.spans, Span(kind="teardown", attempt=1, start=300.0, end=299.0))),
            "rank 1: teardown in attempt 1 ends before it starts",
        ),
        (
            replace(QUIET, spans=(*QUIET.spans, Span(kind="checkpoint", attempt=1, start=200.0, end=201.0, step=10))),
            "the checkpoint of step 10 never became complete: rank 1 has no saved mark",
        ),
        (quiet(1, step=0.0), "rank 1 did its steps in no time"),
        (quiet(0), "full run: no result of rank 1"),
    ],
)
def test_what_is_not_a_measurement_is_refused(broken: RankRun, message: str) -> None:
    with pytest.raises(MeasurementError, match=message):
        judge_full_run(measured(quiet(0), broken, steps=10), [])


def test_a_planned_kill_must_have_come() -> None:
    with pytest.raises(MeasurementError, match="one kill at step 7 was planned, there are 0 killed marks"):
        account(measured(quiet(0), quiet(1), steps=10, kill_step=7))
    m = killed_run()
    with pytest.raises(MeasurementError, match="rank 0 has no started mark after the kill"):
        account(replace(m, ranks=(without(m.ranks[0], "started"), m.ranks[1])))
    early = tuple(replace(x, at=12.0) if x.kind == "failed" else x for x in m.ranks[0].marks)
    with pytest.raises(MeasurementError, match="rank 0: kill, detection and new process are out of order"):
        account(replace(m, ranks=(replace(m.ranks[0], marks=early), m.ranks[1])))


@pytest.mark.parametrize("steady", [0.0, math.nan, -1.0])
def test_a_steady_step_time_must_be_a_time(steady: float) -> None:
    with pytest.raises(MeasurementError, match="the steady step time is"):
        judge_full_run(measured(quiet(0), quiet(1), steps=10), [], steady_step_time=steady)

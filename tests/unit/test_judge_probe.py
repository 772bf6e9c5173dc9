"""The ledger of a probed run by hand, and where it must refuse or warn; random runs are in test_probe_trees.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from probe_made import Process, Run, killed_run, steps

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.full_run.probe import Accounts
from pytest_clusterqual.model.probe import STATES, Line, ProbeStart

EXACT = 1e-4  # seconds: each time is written to the microsecond


def hung(process: Process, seconds: float) -> None:
    with process.span("step"):
        process.passes(seconds)
        raise ConnectionError("closed by peer")


def test_a_killed_run_by_hand(tmp_path: Path) -> None:
    ledger = killed_run(tmp_path).ledger()
    (rank,) = ledger.ranks
    assert rank.seconds == pytest.approx({
        **dict.fromkeys(STATES, 0.0), "init": 3.0, "warm-up": 3.0, "kept": 12.0, "data": 15 * 0.25, "checkpoint": 1.25,
        "lost": 2.0, "outage": 4.75, "rendezvous": 2.5, "reload": 0.5, "hook evaluation": 1.5, "teardown": 0.25,
        "residual": 0.125,
    }, abs=EXACT)  # fmt: skip
    assert list(rank.seconds)[-3:] == ["hook evaluation", "teardown", "residual"]
    assert rank.wall == pytest.approx(sum(rank.seconds.values()), abs=EXACT)
    assert (rank.kept, rank.lost, rank.ends) == (12, 2, ("", "done"))
    assert rank.data_stall == pytest.approx(3.75 / 17.75, abs=EXACT)
    assert (ledger.world, ledger.kept, ledger.lost, ledger.restarts) == (1, 12, 2, 1)
    assert (ledger.unit, ledger.work) == ("tokens", 1200)
    assert ledger.goodput == pytest.approx(1200 / 34.625, rel=1e-5)
    assert ledger.step == pytest.approx(1.0, abs=EXACT)
    assert ledger.steady == pytest.approx(12 / 34.625, rel=1e-5)
    assert ledger.saves is not None
    assert (ledger.saves.count, ledger.saves.worst_step) == (2, 12)
    assert (ledger.saves.total, ledger.saves.worst) == pytest.approx((1.25, 0.75), abs=EXACT)
    assert ledger.warnings == ()


def test_spans_inside_spans_count_once(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with run.process() as process:
        with process.span("step"):
            process.passes(1.0)
            with process.span("evaluation"):
                process.passes(2.0)
                with process.span("save"):
                    process.passes(4.0)
        process.done()
    (rank,) = run.ledger().ranks
    assert {state: seconds for state, seconds in rank.seconds.items() if abs(seconds) > EXACT} == pytest.approx(
        {"kept": 1.0, "hook evaluation": 2.0, "checkpoint": 4.0}, abs=EXACT
    )


def test_what_was_written_of_a_step_that_a_kill_cut_short_is_not_the_outage_s_too(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with run.process() as process:
        steps(process, 1)
        with process.span("step"):
            process.passes(1.0)
            with process.span("data"):
                process.passes(0.5)
            process.passes(2.0)
            process.die()
    run.clock.now += 3.0
    with run.process() as process:
        process.resumed(1)
        steps(process, 1)
        process.done()
    (rank,) = run.ledger().ranks
    told = {state: rank.seconds[state] for state in ("data", "kept", "outage", "residual")}
    assert told == pytest.approx({"data": 1.0, "kept": 2.0, "outage": 6.0, "residual": 0.0}, abs=EXACT)


def test_a_process_may_end_while_a_span_is_open(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with run.process() as process, process.span("step"):
        process.passes(1.0)
        with process.span("data"):
            process.passes(0.5)
        process.probe.close()
    (rank,) = run.ledger().ranks
    assert (rank.seconds["teardown"], rank.seconds["residual"]) == pytest.approx((1.0, 0.0), abs=EXACT)


def test_the_first_steps_beyond_the_steady_ones_are_warm_up_also_after_a_restart(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with run.process() as process:
        steps(process, 1, step=6.0)
        steps(process, 9)
    run.clock.now += 3.0
    with run.process() as process:
        process.resumed(10)
        steps(process, 1, step=4.0)
        steps(process, 9)
        process.done()
    ledger = run.ledger()
    (rank,) = ledger.ranks
    told = {state: rank.seconds[state] for state in ("warm-up", "re-warm-up", "kept", "lost")}
    assert told == pytest.approx({"warm-up": 5.0, "re-warm-up": 3.0, "kept": 20.0, "lost": 0.0}, abs=EXACT)
    assert ledger.step == pytest.approx(1.0, abs=EXACT)
    assert ledger.step_interval is not None
    assert (ledger.step_interval.low, ledger.step_interval.high) == pytest.approx((1.0, 1.0), abs=EXACT)


def test_a_failure_that_raised_is_apart_from_the_restart(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with run.process() as process:
        steps(process, 2)
        with pytest.raises(ConnectionError):
            hung(process, 5.0)
        process.passes(0.5)
    run.clock.now += 3.0
    with run.process() as process:
        process.resumed(2)
        steps(process, 2)
        process.done()
    ledger = run.ledger()
    (rank,) = ledger.ranks
    told = {state: rank.seconds[state] for state in ("failed", "teardown", "outage", "kept")}
    assert told == pytest.approx({"failed": 5.0, "teardown": 0.5, "outage": 3.0, "kept": 4.0}, abs=EXACT)
    assert (rank.kept, rank.lost) == (4, 0)
    assert any("failed step" in text for text in ledger.unknown)


def test_a_rollback_inside_one_process_loses_steps_too(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with run.process() as process:
        steps(process, 6)
        process.resumed(3)  # the loss had a spike
        steps(process, 4)
        process.done()
    (rank,) = run.ledger().ranks
    assert (rank.kept, rank.lost) == (7, 3)
    assert (rank.seconds["kept"], rank.seconds["lost"]) == pytest.approx((7.0, 3.0), abs=EXACT)


def test_what_a_newer_checkpoint_still_holds_is_not_lost(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with run.process(kill_after=12.5) as process:
        steps(process, 10)
        process.die()
    with run.process() as process:
        process.resumed(2)  # found an old checkpoint, and died before its first step
        process.die()
    with run.process() as process:
        process.resumed(8)
        steps(process, 2)
        process.done()
    (rank,) = run.ledger().ranks
    assert (rank.kept, rank.lost) == (10, 2)


def test_a_run_that_has_just_resumed_has_lost_what_it_will_do_again(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with run.process() as process:
        steps(process, 10)
        process.die()
    with run.process(ends=False) as process:
        process.resumed(8)
    ledger = run.ledger()
    assert (ledger.ranks[0].kept, ledger.ranks[0].lost) == (8, 2)
    assert ledger.warnings == ("rank 0: the last process wrote no end: it was killed, or is still running",)


def test_a_step_counts_when_every_rank_has_kept_it_and_takes_as_long_as_on_the_slowest(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for rank, (count, seconds) in enumerate([(7, 1.5), (8, 1.0)]):
        run.clock.now = 1000.0
        with run.process(rank) as process:
            steps(process, count, step=seconds)
    ledger = run.ledger()
    assert (ledger.kept, ledger.work) == (7, 700)
    assert ledger.step == pytest.approx(1.5, abs=EXACT)


def test_a_job_that_goes_on_with_fewer_ranks_keeps_what_those_do(tmp_path: Path) -> None:
    accounts = Accounts()
    first = [line("step", 12 + i, 1, step=i + 1, tokens=8) for i in range(4)]
    then = [line("resumed", 31, step=3), *(line("step", 32 + i, 1, step=i + 4, tokens=8) for i in range(3))]
    again = start(world=2, attempt=1, began=30.0, at=31.0)
    for rank in (0, 1):
        accounts.add(rank, [(start(rank=rank, world=3), first), (replace(again, rank=rank), [*then, line("done", 36)])])
    accounts.add(2, [(start(rank=2, world=3), first)])
    ledger = accounts.ledger()
    assert (ledger.kept, ledger.lost, ledger.work) == (6, 1, 48)
    assert "the world had 2 and 3 ranks: another size, another step" in ledger.warnings


# What does not come from a probe on one host, or is not as it should be.


def start(**changes: Any) -> ProbeStart:
    usual = ProbeStart(
        probe=1, rank=0, world=1, attempt=0, restart=0, host="gpu001", clock="a", pid=7, began=10.0, at=11.0, wall=111.0
    )
    return replace(usual, **changes)


def line(what: Any, at: float, seconds: float = 0.0, **more: Any) -> Line:
    return Line(what=what, at=at, seconds=seconds, **more)


def test_between_hosts_the_wall_clocks_tell_the_outage_and_that_is_said() -> None:
    accounts = Accounts()
    accounts.add(0, [
        (start(), [line("step", 12, 1, step=1)]),
        (start(attempt=1, host="gpu002", clock="b", began=5000.0, at=5001.0, wall=121.0),
         [line("resumed", 5001, step=1), line("step", 5002, 1, step=2), line("done", 5003)]),
    ])  # fmt: skip
    ledger = accounts.ledger()
    (rank,) = ledger.ranks
    assert rank.seconds["outage"] == pytest.approx(120.0 - 113.0)
    assert (rank.wall, rank.hosts) == (pytest.approx(3 + 7 + 3), ("gpu001", "gpu002"))
    assert any("under another clock" in text for text in ledger.warnings)


def elsewhere(*lines: Line, wall: float, began: float = 5000.0) -> tuple[ProbeStart, list[Line]]:
    """A second process of a rank, on a host of another clock; `wall` is when it began by the wall clock."""
    return start(attempt=1, host="gpu002", clock="b", began=began, at=began, wall=wall), list(lines)


@pytest.mark.parametrize(("wall", "refused"), [(109.0, False), (107.0, True), (100.0, True)])
def test_processes_of_one_rank_on_two_hosts_may_overlap_no_more_than_their_wall_clocks_differ(
    wall: float, refused: bool
) -> None:
    """The first one ends at 13 s, when its wall clock says 113 s."""
    processes = [(start(), [line("step", 12, 1, step=1)]), elsewhere(line("step", 5001, 1, step=2), wall=wall)]
    if not refused:
        Accounts().add(0, processes)
        return
    told = rf"rank 0: attempt 1 on gpu002 began {113 - wall:g} s, by the wall clocks .* attempt 0 on gpu001 had ended"
    with pytest.raises(MeasurementError, match=told):
        Accounts().add(0, processes)


def test_what_happened_when_is_told_on_one_time_line_through_all_hosts() -> None:
    """300 steps of a second on each host, with an outage of 7 s between; the first host had been up for long."""
    first = [line("step", 1_000_000 + i, 1.0, step=i + 1, tokens=8) for i in range(300)]
    then = [line("step", 50 + 1.5 * i, 1.5, step=301 + i, tokens=8) for i in range(300)]
    accounts = Accounts()
    accounts.add(0, [
        (start(began=1_000_000, at=1_000_000, wall=2000.0), first),
        elsewhere(line("resumed", 50, step=300), *then, wall=2307.0, began=50.0),
    ])  # fmt: skip
    (change,) = [finding for finding in accounts.ledger().over_time.findings if finding.kind == "change"]
    assert "from step 301 on" in change.evidence
    assert "what happened 307 s after the first step" in change.check_next


def test_two_processes_that_were_one_rank_at_once_are_refused() -> None:
    with pytest.raises(MeasurementError, match=r"rank 0: attempt 1 on gpu001 began 2 s before .*: .*own rank"):
        Accounts().add(0, [(start(), [line("step", 12, 1, step=1)]), (start(attempt=1, began=11.0), [])])


def test_nobody_is_no_run() -> None:
    with pytest.raises(MeasurementError, match="no rank wrote anything"):
        Accounts().ledger()


@pytest.mark.parametrize(
    ("tokens", "unit", "work", "unknown"),
    [
        ([[8, 8], [8, 8]], "tokens", 16, ""),
        ([[8, 8], [None, None]], "tokens", 16, ""),
        ([[8, 8], [8, 9]], "tokens", None, "ranks name different tokens for the same step"),
        ([[8, None], [8, None]], "tokens", None, "1 of 2 kept steps name no tokens"),
        ([[None, None], [None, None]], "", None, "without work per step nothing is said about speed"),
        ([[], [8]], "", None, "no step that every rank has kept"),
    ],
)
def test_work_is_known_or_said_not_to_be(
    tokens: list[list[int | None]], unit: str, work: int | None, unknown: str
) -> None:
    accounts = Accounts()
    for rank, named in enumerate(tokens):
        lines = [line("step", 12 + i, 1, step=i + 1, tokens=count) for i, count in enumerate(named)]
        accounts.add(rank, [(start(rank=rank, world=2), [*lines, line("done", 15)])])
    ledger = accounts.ledger()
    assert (ledger.unit, ledger.work) == (unit, work)
    assert (ledger.goodput is None) == (work is None)
    assert unknown in "".join(ledger.unknown)


def test_sequences_stand_where_tokens_are_not_named() -> None:
    accounts = Accounts()
    accounts.add(0, [(start(), [line("step", 12, 1, step=1, sequences=32), line("done", 14)])])
    ledger = accounts.ledger()
    assert (ledger.unit, ledger.goodput) == ("sequences", 8.0)


@pytest.mark.parametrize(
    ("lines", "warning"),
    [
        ([line("step", 12, 1, step=1), line("step", 15.5, 1, step=2), line("done", 17)], "probe.hook(...); most"),
        ([line("step", 12, 1, step=1), line("data", 15.5, 1), line("done", 17)], "of them lie between step and data"),
        ([line("step", 12, 1, step=1), line("step", 13, 1, step=2), line("done", 17)], "between step and the end"),
        ([line("step", 12, 1, step=1), line("done", 13)], "of 1 of 2 ranks nothing is written, first rank 1"),
        ([line("step", 12, 1, step=1)], "wrote no end"),
        ([line("step", 12, 1, step=1, background=True), line("done", 13)], "another thread than the one that made"),
    ],
)
def test_what_should_be_looked_at_is_told(lines: list[Line], warning: str) -> None:
    accounts = Accounts()
    accounts.add(0, [(start(world=2), lines)])
    assert any(warning in text for text in accounts.ledger().warnings)


def test_a_script_that_never_says_where_it_resumed_is_told_what_that_means() -> None:
    accounts = Accounts()
    accounts.add(0, [
        (start(), [line("step", 12, 1, step=1), line("step", 13, 1, step=2)]),
        (start(attempt=1, began=20.0, at=21.0), [line("step", 22, 1, step=1), line("done", 23)]),
    ])  # fmt: skip
    ledger = accounts.ledger()
    assert (ledger.kept, ledger.lost) == (1, 2)
    assert any("never called resumed()" in text for text in ledger.warnings)


DONE_1 = line("step", 13, 1, step=1)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        # The folder of a finished run, for another one that says so, or counts from 0.
        ([DONE_1, line("done", 14)], 0, "a new run needs a new folder"),
        ([DONE_1, line("end", 14)], 0, "a new run needs a new folder"),
        ([line("step", 13, 1, step=0)], None, "never called resumed()"),
        # Its checkpoint was not found.
        ([DONE_1, line("save", 14, 1, step=1)], 0, "was its checkpoint found?"),
        # Before the first save, or where that failed, there is nothing to go on from.
        ([DONE_1], 0, ""),
        ([DONE_1, line("save", 14, 1, step=1, error="OSError")], 0, ""),
        ([DONE_1, line("save", 14, 1, step=1)], 1, ""),
    ],
)
def test_a_folder_that_is_used_again_is_told(before: list[Line], after: int | None, told: str) -> None:
    accounts = Accounts()
    then = [line("step", 22, 1, step=0)] if after is None else [line("resumed", 21, step=after)]
    again = [*then, line("step", 24, 1, step=(after or 0) + 1), line("done", 25)]
    accounts.add(0, [(start(), before), (start(attempt=1, began=20.0, at=20.5), again)])
    warnings = [text for text in accounts.ledger().warnings if "new folder" in text]
    assert (told in "".join(warnings)) if told else not warnings


def test_background_is_shown_and_never_added() -> None:
    accounts = Accounts()
    accounts.add(0, [
        # Threads may write in another order than their spans ended in.
        (start(), [line("save", 12, 3, background=True, step=1), line("step", 12, 1, step=1), line("done", 14)]),
    ])  # fmt: skip
    ledger = accounts.ledger()
    (rank,) = ledger.ranks
    assert rank.background == {"save": 3}
    assert rank.wall == 5.0
    assert (rank.seconds["checkpoint"], ledger.saves) == (0.0, None)
    assert sum(rank.seconds.values()) == pytest.approx(rank.wall)


def test_blocking_is_that_of_the_slowest_rank_save_by_save() -> None:
    accounts = Accounts()
    for rank, blocked in enumerate([(1.0, 4.0), (3.0, 2.0)]):
        lines = [line("save", 20 + 10 * i, seconds, step=i) for i, seconds in enumerate(blocked, 1)]
        accounts.add(rank, [(start(rank=rank, world=2), [*lines, line("done", 50)])])
    saves = accounts.ledger().saves
    assert saves is not None
    assert (saves.count, saves.total, saves.median, saves.worst, saves.worst_step) == (2, 7.0, 3.5, 4.0, 2)

"""Every second of every rank of a full run in one state, and what happens once in it, by hand."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from full_run_made import (
    KILLED,
    Rank,
    broken_off,
    edited,
    full_run,
    goes_on,
    killed_run,
    ladders,
    measured,
    on_two_hosts,
    quiet,
    quiet_run,
    shifted,
)
from judge_made import the

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.full_run.ledger import COMPUTING, account
from pytest_clusterqual.judge.full_run.verdict import judge_full_run
from pytest_clusterqual.model.full_run import Failure, FullRun
from pytest_clusterqual.model.probe import STATES, Line, RankLedger
from pytest_clusterqual.model.requirement import QUANTITIES

KINDS = ("detection", "restart", "rendezvous", "load", "recovery")


def spent(rank: RankLedger) -> dict[str, float]:
    """The states that took time."""
    return {state: seconds for state, seconds in rank.seconds.items() if seconds}


def times(run: FullRun) -> tuple[float | None, ...]:
    events = account(run).events
    return tuple(getattr(events, kind) for kind in KINDS)


# -- states --------------------------------------------------------------------------------------


def test_the_ledger_of_a_quiet_run_by_hand() -> None:
    ledger = account(quiet_run())
    assert ledger.wall == 18.875
    assert spent(ledger.ranks[1]) == {
        "init": 5.0, "load": 0.5, "kept": 10.0, "data": 2.5, "hook last save": 0.25, "teardown": 0.625,
    }  # fmt: skip
    assert list(ledger.ranks[1].seconds) == [*STATES[:-2], "hook last save", *STATES[-2:]]
    assert times(quiet_run()) == (None,) * 5
    assert (ledger.lost, ledger.events.saves, ledger.gone) == (0, (), ())


def test_the_ledger_of_a_killed_run_by_hand() -> None:
    ledger = account(killed_run())
    survivor, victim = ledger.ranks
    assert spent(survivor) == {
        "init": 5.0, "load": 0.5, "kept": 10.0, "data": 3.25, "checkpoint": 1.25, "lost": 2.0, "detection": 0.5,
        "restart": 1.5, "rendezvous": 2.25, "reload": 1.0, "hook last save": 0.25, "teardown": 0.625,
    }  # fmt: skip
    assert spent(victim) == {
        **spent(survivor), "data": 3.0, "detection": 0.75, "restart": 1.75, "rendezvous": 2.0,
    }  # fmt: skip
    assert ledger.wall == survivor.wall == victim.wall == 28.125
    assert (survivor.kept, survivor.lost, survivor.ends) == (10, 2, ("RuntimeError", "done"))
    assert victim.ends == ("", "done")


def test_every_rank_has_its_own_seconds_on_clocks_of_its_own() -> None:
    """No clock is subtracted from another: a rank knows when it noticed, and the killed one when it was struck."""
    here, ledger = account(killed_run()), account(on_two_hosts(killed_run()))
    assert spent(ledger.ranks[0]) == spent(here.ranks[0])
    assert spent(ledger.ranks[1]) == {
        state: seconds for state, seconds in {**spent(here.ranks[1]), "restart": 2.5}.items() if state != "detection"
    }
    assert ledger.wall == 28.125


def test_the_first_steps_of_each_process_pay_for_warming_up() -> None:
    first = Rank().ready().step(1, seconds=6.0).steps(2, 8).saves(8).mark("fault", 9, name="kill_rank")
    again = first.passes(3.0).back(after=8, builds=1.0).step(9, seconds=4.0).steps(10, 16).finishes()
    ledger = account(full_run(again.run(), steps=16, nodes=1, failure=replace(KILLED, step=9, target=0)))
    assert {state: ledger.ranks[0].seconds[state] for state in ("warm-up", "re-warm-up", "kept", "lost")} == {
        "warm-up": 5.0, "re-warm-up": 3.0, "kept": 16.0, "lost": 0.0,
    }  # fmt: skip
    assert ledger.steps == (1.0,) * 16


def test_compiling_is_warm_up_too_and_hooks_have_their_names() -> None:
    rank = Rank().ready().span("compile", 4.0).steps(1, 10).span("hook", 1.5, name="evaluation", step=10).finishes()
    ledger = account(full_run(rank.run(), nodes=1))
    assert [ledger.ranks[0].seconds[state] for state in ("warm-up", "hook evaluation", "hook last save")] == [
        4.0, 1.5, 0.25,
    ]  # fmt: skip


def test_what_was_written_inside_of_a_step_that_failed_is_not_the_failure_s_too() -> None:
    """Of the 0.5 s until the survivor's step 7 broke, 0.125 s went into data."""

    def fetched(line: Line) -> Line:
        return replace(line, own=0.375) if line.error and line.what == "step" else line

    survivor = broken_off(0).span("data", 0.25, step=6)
    survivor.mark("data", 6, seconds=0.125, nested=True).breaks(after=0.5, step=7, own=0.375).passes(0.125)
    survivor.ends("RuntimeError").passes(15.75 - survivor.now).back(after=4, builds=1.25)
    run = killed_run()
    ledger = account(replace(run, ranks=(goes_on(survivor).run(), run.ranks[1])))
    plain = account(replace(run, ranks=(edited(run.ranks[0], fetched), run.ranks[1])))
    assert spent(ledger.ranks[0]) == {**spent(account(run).ranks[0]), "data": 3.375, "detection": 0.375}
    assert plain.ranks[0].seconds["residual"] == 0.125, "data that nobody wrote down are in no state"


def test_a_step_that_only_one_rank_finished_is_lost_once() -> None:
    """The survivor wrote step 7 before it noticed: seven steps are done by it and six by the victim."""
    survivor = broken_off(0).step(7).breaks(after=0.5, step=8).ends("RuntimeError")
    survivor.passes(15.75 - survivor.now).back(after=4, builds=1.25)
    ledger = account(replace(killed_run(), ranks=(goes_on(survivor).run(), killed_run().ranks[1])))
    assert [(rank.kept, rank.lost, rank.seconds["lost"]) for rank in ledger.ranks] == [(10, 3, 3.0), (10, 2, 2.0)]
    assert ledger.lost == 3


NODE = Failure(kind="kill_node", step=7, target=1, go_on="fewer")


def lost_node() -> FullRun:
    """Two nodes of two ranks; the second node dies at 13.5 s, and the first one goes on alone."""
    ranks = []
    for number in (0, 1):
        rank = broken_off(number).span("data", 0.25, step=6).breaks(after=0.75, step=7).ends("RuntimeError")
        ranks.append(goes_on(rank.passes(2.0).back(after=4, builds=1.0)).run())
    ranks += [broken_off(number).mark("fault", 7, name="kill_node").run() for number in (2, 3)]
    return full_run(*ranks, failure=NODE, nproc_per_node=2)


def test_ranks_that_do_not_come_back_have_lost_what_the_others_did_again() -> None:
    ledger = account(lost_node())
    assert ledger.gone == (2, 3)
    assert [rank.rank for rank in ledger.there] == [0, 1]
    gone = ledger.ranks[2]
    assert spent(gone) == {"init": 5.0, "load": 0.5, "kept": 4.0, "data": 1.5, "checkpoint": 0.5, "lost": 2.0}
    assert (gone.wall, gone.kept, gone.lost, gone.ends) == (13.5, 4, 2, ("",))
    judged = judge_full_run(measured(lost_node()), [])
    assert the(judged, "ettr").per_rank == {"0": the(judged, "ettr").value, "1": the(judged, "ettr").value}
    assert sum(j.value or 0.0 for j in judged if j.quantity == "time") == ledger.wall == ledger.ranks[0].wall


def test_a_rank_that_outlived_its_node_s_failure_is_charged_until_its_end() -> None:
    """Rank 3 was not hurt itself: it noticed as rank 0 did, took half a second to end, and was not wanted any more."""
    run = lost_node()
    left = broken_off(3).span("data", 0.25, step=6).breaks(after=0.75, step=7).passes(0.5).ends("RuntimeError")
    gone = account(replace(run, ranks=(*run.ranks[:3], left.run()))).ranks[3]
    assert {state: gone.seconds[state] for state in ("lost", "detection", "restart", "failed", "residual")} == {
        "lost": 2.0, "detection": 0.75, "restart": 0.5, "failed": 0.0, "residual": 0.0,
    }  # fmt: skip


def test_a_rank_that_does_not_come_back_is_an_error_where_all_are_to() -> None:
    run = replace(lost_node(), failure=replace(NODE, go_on="same"))
    with pytest.raises(MeasurementError, match="rank 2 has no done mark: it did not finish its work"):
        account(run)


def test_how_a_rank_was_accounted_is_told_beside_goodput() -> None:
    run = killed_run()
    moved = replace(run, ranks=(run.ranks[0], shifted(run.ranks[1], 7000.0, clock="spare", first=1)))
    (note,) = the(judge_full_run(measured(moved), []), "goodput").findings
    assert (note.suspect, note.kind, note.level) == ("rank 1 on node1", "account", "note")
    assert note.evidence.startswith("went on under another clock (another host, or after a boot)")
    assert note.check_next == "are those of all hosts set by one time server?"
    assert the(judge_full_run(measured(run), []), "goodput").findings == ()


def test_a_command_that_never_says_where_it_resumed_is_told_once_for_all_its_ranks() -> None:
    ranks = [
        Rank(number).starts().steps(1, 4).ends("RuntimeError").starts().steps(1, 6).mark("done").run()
        for number in (0, 1)
    ]  # fmt: skip
    run = replace(full_run(*ranks, steps=6), checkpoints=None)
    (note,) = the(judge_full_run(measured(run), []), "goodput").findings
    assert note.suspect == "rank 0 on node0 and 1 more"
    assert "so that all steps before count as lost" in note.evidence
    assert note.check_next.startswith("call probe.resumed(step) where a checkpoint is loaded")


@pytest.mark.parametrize(("command", "told"), [
    (True, r'between step and data: give what the script does there a name, such as `with probe.hook\("evaluation"'),
    (False, "between step and data: what was measured is not the whole run"),
])  # fmt: skip
def test_time_in_no_state_is_an_error_that_says_where_it_lies(command: bool, told: str) -> None:
    rank = Rank().ready().steps(1, 4).passes(1.5).steps(5, 10).finishes()
    run = full_run(rank.run(), nodes=1)
    with pytest.raises(MeasurementError, match=rf"1\.5 s of the .* more than 0\.5 % and 1 s; most of them lie {told}"):
        account(replace(run, checkpoints=None) if command else run)


# -- what a step is made of ----------------------------------------------------------------------


def test_kept_steps_are_divided_as_the_step_that_was_taken_apart() -> None:
    """Of a step of 1.0 s rank 0 computes 0.5 s and rank 1 0.8 s, for which rank 0 waits; 0.2 s is transfer."""
    m = measured(quiet_run(), apart=ladders({0: 0.5, 1: 0.8}, held=0.8, step=1.0), not_apart="")
    seconds = {j.label: j for j in judge_full_run(m, []) if j.quantity == "time"}
    parts = {name: seconds[name].per_rank for name in COMPUTING}
    assert parts == {
        "kept": {"0": pytest.approx(5.0), "1": pytest.approx(8.0)},
        "exposed transfer": {"0": pytest.approx(2.0), "1": pytest.approx(2.0)},
        "wait": {"0": pytest.approx(3.0), "1": 0.0},
        "bubble": {"0": 0.0, "1": 0.0},
    }
    assert sum(j.value or 0.0 for j in seconds.values()) == pytest.approx(18.875)
    assert the(judge_full_run(m, []), "ettr").value == pytest.approx(10.0 / 18.875), "they are parts of steps"
    assert "transfer and wait are in kept" not in seconds["kept"].reason


def test_a_pipeline_s_bubble_is_no_transfer() -> None:
    idle = [replace(quiet(rank), bubble=0.125) for rank in (0, 1)]
    m = measured(full_run(*idle), apart=ladders({0: 0.8, 1: 0.8}, held=0.8, step=1.0), not_apart="")
    seconds = {j.label: j.value for j in judge_full_run(m, []) if j.quantity == "time"}
    assert [seconds[name] for name in COMPUTING] == pytest.approx([8.0, 0.75, 0.0, 1.25])


@pytest.mark.parametrize(("own", "held", "step"), [(3.0, 3.0, 1.0), (0.5, 0.5, 0.4), (0.1, 0.1, 1.0), (2.0, 1.0, 1.5)])
def test_however_the_step_taken_apart_differs_no_part_is_negative(own: float, held: float, step: float) -> None:
    for bubble in (0.0, 0.9, 1.5):
        ranks = [replace(quiet(rank), bubble=bubble) for rank in (0, 1)]
        m = measured(full_run(*ranks), apart=ladders({0: 0.1, 1: own}, held=held, step=step))
        judged = [j for j in judge_full_run(m, []) if j.quantity == "time"]
        assert min(value for j in judged for value in j.per_rank.values()) >= 0
        assert sum(j.value or 0.0 for j in judged) == pytest.approx(18.875)


def test_a_step_that_could_not_be_taken_apart_leaves_kept_whole_and_says_why() -> None:
    kept = the(judge_full_run(measured(quiet_run(), not_apart="rank 1 died"), []), "time", "kept")
    assert kept.value == 10.0
    assert kept.reason.endswith("transfer and wait are in kept: rank 1 died)")
    torn = ladders({0: 0.5}, held=0.8, step=1.0)
    kept = the(judge_full_run(measured(quiet_run(), apart=torn), []), "time", "kept")
    assert "full run, step taken apart: round 1: no result of rank 1" in kept.reason


# -- events --------------------------------------------------------------------------------------


def test_the_events_of_a_killed_run_by_hand() -> None:
    # Noticed at 14.25 s, the last new process at 16.0 s, the slowest 2.25 s until it has its job, step 7 at 22.75 s.
    assert times(killed_run()) == (0.75, 1.75, 2.25, 1.0, 9.25)
    saves = account(killed_run()).events.saves
    assert [(save.attempt, save.step, save.blocking, save.completion) for save in saves] == [
        (0, 4, 0.5, 2.0),
        (1, 8, 0.75, 2.75),
    ]


def test_on_clocks_of_their_own_ranks_tell_what_they_saw_by_themselves() -> None:
    # The survivor's last whole span ended at 13.75 s; only the victim knows from when on recovery counts.
    assert times(on_two_hosts(killed_run())) == (0.5, 1.5, 2.25, 1.0, 9.25)


def test_without_a_survivor_detection_ends_with_the_first_new_process() -> None:
    run = killed_run()
    silent = edited(run.ranks[0], lambda line: None if line.error else line)
    assert times(replace(run, ranks=(silent, run.ranks[1])))[:2] == (2.25, 0.25)
    alone = goes_on(broken_off(0).mark("fault", 7, name="kill_rank").passes(2.5).back(after=4, builds=1.0))
    assert times(full_run(alone.run(), nodes=1, failure=replace(KILLED, target=0))) == (2.5, 0.0, 2.0, 1.0, 9.25)


def test_a_rank_that_is_back_before_the_others_noticed_has_no_restart_time() -> None:
    run = killed_run()
    late = edited(run.ranks[0], lambda line: replace(line, seconds=1.9) if line.what == "step" and line.error else line)
    slow = edited(late, lambda line: replace(line, at=15.7) if line.what == "end" and line.error else line)
    back = shifted(run.ranks[1], -0.5, first=1)
    ledger = account(replace(run, ranks=(slow, back)))
    assert (ledger.events.detection, ledger.events.restart) == pytest.approx((2.15, 0.1))
    assert ledger.ranks[1].seconds["restart"] == 0.0
    assert ledger.ranks[1].seconds["detection"] == 2.0
    assert [rank.seconds["residual"] for rank in ledger.ranks] == pytest.approx([0.0, 0.0])


def test_the_first_thing_that_broke_is_when_a_survivor_noticed() -> None:
    """Not when it had tidied up: a process group may take long to end."""
    run = killed_run()
    tidied = edited(run.ranks[0], lambda line: replace(line, at=15.5) if line.what == "end" and line.error else line)
    assert times(replace(run, ranks=(tidied, run.ranks[1]))) == times(run)
    behind = Line(what="save", at=14.0, seconds=1.0, background=True, step=4)
    lines = run.ranks[0].processes[0].lines
    process = replace(run.ranks[0].processes[0], lines=(*lines[:-1], behind, lines[-1]))
    busy = replace(run.ranks[0], processes=(process, *run.ranks[0].processes[1:]))
    assert times(replace(run, ranks=(busy, run.ranks[1]))) == times(run)
    for both in (run, replace(run, ranks=(busy, run.ranks[1]))):
        assert times(on_two_hosts(both)) == times(on_two_hosts(run))


def failing(kind: str, victim: Callable[[Rank], Rank], *, noticed: float) -> FullRun:
    """Rank 1 fails at 13.5 s as `victim` writes it, rank 0 notices so many seconds later; both are back at 25 s."""
    ranks = [broken_off(0).span("data", 0.25, step=6), victim(broken_off(1))]
    ranks[0].breaks(after=noticed - 0.25, step=7).ends("RuntimeError")
    for rank in ranks:
        rank.passes(25.0 - rank.now).back(after=4, builds=1.0)
    return full_run(*(goes_on(rank).run() for rank in ranks), failure=replace(KILLED, kind=kind))  # type: ignore[arg-type]


FAILING: dict[str, tuple[Callable[[Rank], Rank], float]] = {
    "hang_rank": (lambda rank: rank.mark("fault", 7, name="hang_rank"), 5.25),
    "raise_rank": (lambda rank: rank.mark("fault", 7, name="raise_rank").ends("ValueError"), 0.5),
    "fail_save": (
        lambda rank: rank.mark("fault", 7, name="fail_save").breaks("OSError", what="save", after=0.25, step=6)
        .ends("OSError"), 1.5,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", FAILING)
def test_whatever_fails_its_cost_is_in_the_same_states(kind: str) -> None:
    victim, noticed = FAILING[kind]
    run = failing(kind, victim, noticed=noticed)
    ledger = account(run)
    assert times(run) == (noticed, 11.5 - noticed, 2.0, 1.0, 2.0 + 1.0 + 3.75 + 11.5)
    assert [rank.lost for rank in ledger.ranks] == [2, 2]
    survivor, failed = (rank.seconds for rank in ledger.ranks)
    assert (survivor["lost"], survivor["detection"], survivor["restart"]) == (2.0, noticed - 0.25, 11.5 - noticed)
    assert (failed["lost"], failed["detection"], failed["restart"]) == (2.0, noticed, 11.5 - noticed)
    assert survivor["failed"] == failed["failed"] == failed["outage"] == failed["residual"] == 0.0


def test_recovery_waits_for_the_slowest_rank() -> None:
    run = killed_run()
    quick = shifted(run.ranks[0], -0.25, first=1)
    assert times(replace(run, ranks=(quick, run.ranks[1])))[-1] == 9.25


def test_a_rank_that_goes_on_with_a_spare_node_leaves_recovery_to_those_that_stayed() -> None:
    """What a spare node needed by itself is known, and between two hosts the wall clocks tell."""
    run = killed_run()
    moved = replace(run, ranks=(run.ranks[0], shifted(run.ranks[1], 7000.0, clock="spare", first=1)))
    ledger = account(moved)
    assert ledger.ranks[1].wall == pytest.approx(28.125)
    assert (ledger.events.rendezvous, ledger.events.recovery) == (2.25, 9.25)
    own = on_two_hosts(run)
    moved = replace(own, ranks=(own.ranks[0], shifted(own.ranks[1], 7000.0, clock="spare", first=1)))
    assert account(moved).events.recovery == 9.0, "from the survivor's last whole span, before the failure was noticed"


def test_the_worst_rank_of_a_save_counts_for_blocking_and_for_completion() -> None:
    run = killed_run()
    longer = edited(run.ranks[1], lambda line: replace(line, value=3.0) if line.what == "saved" else line)
    later = edited(
        longer, lambda line: replace(line, at=line.at + 0.5) if (line.what, line.step) == ("saved", 8) else line
    )
    quick = edited(
        run.ranks[0], lambda line: replace(line, seconds=0.25) if (line.what, line.step) == ("save", 8) else line
    )
    save = account(replace(run, ranks=(quick, later))).events.saves[1]
    assert (save.blocking, save.completion, save.parts[1].size) == (0.75, 3.25, 3)


def test_a_save_that_the_failure_interrupted_has_no_completion() -> None:
    def torn(line: Line) -> Line | None:
        return None if (line.what, line.step) == ("saved", 4) else line

    run = killed_run()
    cut = replace(run, ranks=(run.ranks[0], edited(run.ranks[1], torn)))
    assert [save.completion for save in account(cut).events.saves] == [None, 2.75]


# -- the page ------------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[2] / "docs" / "full-run.md").read_text(encoding="utf-8")


def test_the_page_tells_of_every_state_and_every_figure() -> None:
    rows = [row.split("|")[1] for row in PAGE.splitlines() if row.startswith("| ")]
    told = {name.strip() for row in rows for name in row.split(",")}
    assert set(STATES) <= told
    elsewhere = {name for name in QUANTITIES["full_run"] if name.startswith("checkpoint_")} | {"drift"}
    assert set(QUANTITIES["full_run"]) - elsewhere <= told


def test_the_ledger_of_the_page_adds_up() -> None:
    (text,) = re.findall(r"^ledger +ddp-2nodes: (.*?); gain", PAGE, re.M | re.S)
    wall, _, parts = " ".join(text.split()).partition(" s = ")
    assert sum(float(part.rpartition(" ")[2]) for part in parts.split(", ")) == pytest.approx(float(wall), abs=0.05)

"""Every kind of failure as the ranks write it down: when it struck, who noticed, what it cost, and what came back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from full_run_made import Rank, broken_off, edited, full_run, goes_on, killed_run, measured, quiet, shifted
from judge_made import the

from pytest_clusterqual.judge.full_run.blame import failure_note
from pytest_clusterqual.judge.full_run.events import Events, events
from pytest_clusterqual.judge.full_run.ledger import Ledger, account
from pytest_clusterqual.judge.full_run.verdict import judge_full_run
from pytest_clusterqual.model.full_run import Failure, FullRun
from pytest_clusterqual.model.record import Judgement, Verdict

STRUCK = 13.5  # seconds: when step 7 begins, see `broken_off`


def failed(kind: Any, survivor: Rank, victim: Rank, **failure: Any) -> FullRun:
    """Both come back with step 4 and go on; what they did before is given."""
    ranks = [goes_on(came_back(rank)).run() for rank in (survivor, victim)]
    return full_run(*ranks, failure=Failure(kind=kind, step=7, target=1, **failure))


def came_back(rank: Rank, *, begun: float = 20.0, after: int = 4) -> Rank:
    """A new process at that second, with its job 2 s and the checkpoint 3 s later."""
    return rank.passes(begun - rank.now).back(after=after, builds=1.0)


def waits(rank: int = 0, *, after: float) -> Rank:
    """It waits so many seconds for the others in step 7, and fails."""
    return broken_off(rank).span("data", 0.25, step=6).breaks(after=after, step=7).ends("RuntimeError")


def struck(kind: str, rank: int = 1) -> Rank:
    return broken_off(rank).mark("fault", 7, name=kind)


def closes(ledger: Ledger) -> bool:
    """Every second of every rank is in one state, and none is negative."""
    return all(
        sum(rank.seconds.values()) == pytest.approx(rank.wall) and min(rank.seconds.values()) >= -1e-9
        for rank in ledger.ranks
    )


def seconds(run: FullRun, state: str) -> list[float]:
    return [rank.seconds[state] for rank in account(run).ranks]


def test_a_hang_is_detected_by_whoever_waits_too_long() -> None:
    run = failed("hang_rank", waits(after=5.0), struck("hang_rank"))
    found = events(run)
    assert (found.detection, found.restart, found.rendezvous) == (0.25 + 5.0, 20.0 - 18.75, 2.0)
    assert found.recovery == 23.0 + 3 * 1.25 - STRUCK
    assert seconds(run, "detection") == [5.0, 5.25], "the survivor's began with its step, 0.25 s later"
    assert closes(account(run))
    note = failure_note(run)
    assert note is not None
    assert (note.suspect, note.level) == ("rank 1 on node1", "note")
    assert note.evidence == (
        "rank 1 stopped at step 7; the first to notice was rank 0 on node0, 5.25 s later, by RuntimeError"
    )


def test_work_in_flight_is_lost_from_when_it_strikes() -> None:
    """Rank 1 is hit half a second after its last step, rank 0 has by then waited for it for a quarter."""
    victim = broken_off(1).passes(0.5).mark("fault", 7, name="kill_rank")
    run = failed("kill_rank", waits(after=1.0), victim)
    assert seconds(run, "lost") == [2.0 + 0.25, 2.0 + 0.5], "steps 5 and 6, and what was under way"
    assert seconds(run, "detection") == [0.75, 0.75]


def test_an_error_is_detected_by_the_survivors_or_by_whoever_raised_it() -> None:
    raising = struck("raise_rank").ends("RuntimeError")
    found = events(failed("raise_rank", waits(after=0.125), raising))
    assert (found.detection, found.restart) == (0.375, 20.0 - 13.875)
    alone = goes_on(came_back(struck("raise_rank", rank=0).passes(0.0625).ends("RuntimeError"))).run()
    run = full_run(alone, nodes=1, failure=Failure(kind="raise_rank", step=7))
    assert (events(run).detection, events(run).restart) == (0.0625, 20.0 - 13.5625)
    note = failure_note(run)
    assert note is not None
    assert note.evidence.endswith("; those who were hit knew by themselves")


def to_step_8(rank: int) -> Rank:
    return broken_off(rank).steps(7, 8)  # until 16.0 s


def test_a_save_that_fails_at_once_fails_on_all_ranks() -> None:
    survivor = to_step_8(0).breaks("ClusterQualError", what="save", after=0.5, step=8).ends("ClusterQualError")
    victim = to_step_8(1).mark("fault", 9, name="fail_save")
    victim.breaks("ClusterQualError", what="save", after=0.25, step=8).ends("ClusterQualError")
    run = failed("fail_save", survivor, victim)
    found = events(run)
    assert (found.detection, found.restart) == (0.5, 20.0 - 16.5)
    assert [(save.attempt, save.step) for save in found.saves] == [(0, 4), (1, 8)], "the broken one is no save"
    assert account(run).lost == 4
    assert seconds(run, "detection") == [0.5, 0.5]
    assert closes(account(run))


def test_a_save_that_fails_in_the_background_is_noticed_steps_later() -> None:
    ranks = [to_step_8(0), to_step_8(1).mark("fault", 9, name="fail_save")]
    for rank in ranks:
        rank.span("save", 0.5, step=8).step(9).ends("ClusterQualError")
    run = failed("fail_save", *ranks)
    found = events(run)
    assert (found.detection, found.restart) == (1.75, 20.0 - 17.75)
    assert found.recovery == 23.0 + 5 * 1.25 + 0.75 + 1.25 - 16.0, "step 10 is the first that was not done before"
    assert [(save.step, save.completion) for save in found.saves if save.attempt == 0] == [(4, 2.0), (8, None)]
    assert account(run).lost == 5
    assert closes(account(run))


def test_whoever_was_hit_knows_best_what_it_took_to_notice() -> None:
    """On another host nothing but the last whole step is known."""
    ranks = [to_step_8(0), to_step_8(1).mark("fault", 9, name="fail_save")]
    for rank in ranks:
        rank.span("save", 0.5, step=8).step(9).passes(0.125).ends("ClusterQualError")
    run = failed("fail_save", *ranks)
    apart = replace(run, ranks=(run.ranks[0], shifted(run.ranks[1], 5000.0, clock="other")))
    assert events(apart).detection == 1.875


def in_order(rank: int) -> Rank:
    """It is told to end, does its step, saves and leaves."""
    return struck("sigterm", rank).step(7).saves(7, then=0.0).ends()


@pytest.mark.parametrize("hosts", [1, 2])
def test_a_job_that_is_told_to_end_loses_nothing(hosts: int) -> None:
    ranks = []
    for rank in (0, 1):
        back = came_back(in_order(rank), after=7).steps(8, 8).saves(8).steps(9, 10).finishes().run()
        ranks.append(shifted(back, 5000.0, clock="other") if rank == hosts - 1 == 1 else back)
    run = full_run(*ranks, failure=Failure(kind="sigterm", step=7))
    found = events(run)
    assert (found.detection, found.restart) == (0.0, 20.0 - STRUCK)
    assert found.recovery == 23.0 + 1.25 - STRUCK
    ledger = account(run)
    assert ledger.lost == 0
    assert [rank.seconds["restart"] for rank in ledger.ranks] == [20.0 - 15.25] * 2, "the step and the save count"
    assert closes(ledger)


def lost_node(go_on: Any, second: str) -> FullRun:
    """Each rank on a node with a clock of its own; the second one is lost, and then there is the node `second`."""
    run = failed("kill_node", waits(after=0.25), struck("kill_node"), go_on=go_on)
    moved = shifted(run.ranks[1], 5000.0, clock="node1")
    if second != "node1":
        moved = shifted(moved, 300.0, clock=second, first=1)
    return replace(run, ranks=(run.ranks[0], moved))


def test_a_node_that_comes_back_tells_by_itself_how_long_it_was_away() -> None:
    run = lost_node("same", "node1")
    found = events(run)
    assert (found.detection, found.restart) == (0.25, 20.0 - 14.0)
    assert found.recovery == pytest.approx(23.0 + 3 * 1.25 - STRUCK)
    assert seconds(run, "detection") == [0.25, 0.0], "its own clock does not know when it was noticed elsewhere"
    assert seconds(run, "restart") == [20.0 - 14.0, 20.0 - STRUCK]


def test_of_a_node_that_is_replaced_the_others_tell() -> None:
    run = lost_node("spare", "node2")
    found = events(run)
    assert (found.detection, found.restart) == (0.25, 20.0 - 14.0)
    assert found.recovery == 23.0 + 3 * 1.25 - 13.75, "since the last whole span of the survivor"
    assert account(run).gone == ()
    note = failure_note(run)
    assert note is not None
    assert note.suspect == "node1"
    assert "replaced by a spare node" in note.evidence


def test_that_the_only_node_is_lost_is_seen_by_whoever_launched() -> None:
    alone = goes_on(came_back(struck("kill_node", rank=0))).run()
    run = full_run(alone, nodes=1, failure=Failure(kind="kill_node", step=7))
    assert (events(run).detection, events(run).restart) == (0.0, 20.0 - STRUCK)
    killed = full_run(alone, nodes=1, failure=Failure(kind="kill_rank", step=7))
    assert (events(killed).detection, events(killed).restart) == (20.0 - STRUCK, 0.0), "torchrun tells nobody"


def test_fewer_nodes_go_on_and_the_rest_of_the_ranks_are_gone() -> None:
    """The first node is lost: what was rank 1 is rank 0 from then on."""
    gone = shifted(waits(1, after=0.25).run(), 5000.0, clock="node1")
    first = struck("kill_node", rank=0)
    first.world = 1
    moved = shifted(goes_on(came_back(first)).run(), 5000.0, clock="node1", first=1)
    run = full_run(moved, gone, failure=Failure(kind="kill_node", step=7, target=0, go_on="fewer"))
    found = events(run)
    assert (found.detection, found.restart) == (0.25, 20.0 - 14.0)
    assert found.recovery == 23.0 + 3 * 1.25 - 13.75
    ledger = account(run)
    assert ledger.gone == (1,)
    assert closes(ledger)


# -- the same training ---------------------------------------------------------------------------


def resumed(run: FullRun, alone: FullRun | None = None) -> Judgement:
    m = measured(replace(run, precision="fp32"), alone=alone, not_alone="" if alone else "full_run.alone: false")
    return the(judge_full_run(m, []), "resumed_loss")


def with_loss(run: FullRun, changes: dict[int, float], *, rank: int = 1, process: int = 1) -> FullRun:
    """The losses of some steps of one process of a rank changed by a share."""
    theirs = {id(line) for line in run.ranks[rank].processes[process].lines}

    def change(line: Any) -> Any:
        if line.what != "loss" or id(line) not in theirs or line.step not in changes:
            return line
        return replace(line, value=line.value * (1 + changes[line.step]))

    ranks = tuple(edited(one, change) if one.rank == rank else one for one in run.ranks)
    return replace(run, ranks=ranks)


def test_steps_that_are_done_again_have_the_same_loss() -> None:
    found = resumed(killed_run())
    assert (found.verdict, found.value) == (Verdict.MEASURED, 0.0)
    assert found.reason.startswith("the losses of 4 steps after the failure are those that they must be")


@pytest.mark.parametrize(("share", "verdict"), [(1e-7, Verdict.MEASURED), (1e-5, Verdict.ERROR)])
def test_another_loss_is_another_training(share: float, verdict: Verdict) -> None:
    found = resumed(with_loss(killed_run(), {6: share}))
    assert found.verdict is verdict
    if verdict is Verdict.ERROR:
        assert found.reason == (
            "resumed training is not the same training: step 6 had loss 4.94 of 2 ranks, and 4.940049 of 2 when it "
            "came again, 1e-05 of it apart, more than 1e-06"
        )
        assert [finding.suspect for finding in found.findings] == ["checkpoint"]


def test_other_ranks_add_in_another_order() -> None:
    run = killed_run()
    fewer = replace(run, ranks=tuple(
        replace(rank, processes=(rank.processes[0], replace(
            rank.processes[1], start=replace(rank.processes[1].start, world=1)
        ))) for rank in run.ranks
    ))  # fmt: skip
    assert resumed(with_loss(fewer, {6: 1e-5})).verdict is Verdict.MEASURED
    assert resumed(with_loss(fewer, {6: 1e-3})).verdict is Verdict.ERROR


def test_a_gpu_may_round_otherwise_and_a_command_is_told_only() -> None:
    run = with_loss(killed_run(), {6: 1e-5})
    on_gpu = replace(run, conditions=replace(run.conditions, device="cuda"))
    assert resumed(on_gpu).verdict is Verdict.MEASURED
    own = measured(with_loss(killed_run(), {6: 0.1}))
    found = the(judge_full_run(own, []), "resumed_loss")
    assert (found.verdict, len(found.findings)) == (Verdict.MEASURED, 1)


def test_after_the_failure_a_run_is_no_further_from_that_on_one_node_than_before() -> None:
    alone = full_run(quiet(0), nodes=1)
    run = killed_run()
    assert resumed(run, alone).value == 0.0
    before = with_loss(run, dict.fromkeys(range(1, 7), 3e-5), rank=0, process=0)
    drifting = with_loss(before, {5: 3e-5, 6: 3e-5, 9: 2.5e-4}, rank=0)
    assert resumed(drifting, alone).verdict is Verdict.MEASURED, "no more than ten times further"
    found = resumed(with_loss(before, {5: 3e-5, 6: 3e-5, 9: 4e-4}, rank=0), alone)
    assert found.verdict is Verdict.ERROR
    assert "step 9 has loss 4.911964, and 4.91 on one node" in found.reason


def test_a_run_without_a_failure_has_nothing_to_resume() -> None:
    quiet_one = measured(full_run(quiet(0), quiet(1)))
    assert all(judgement.quantity != "resumed_loss" for judgement in judge_full_run(quiet_one, []))
    assert events(quiet_one.run) == Events()
    assert failure_note(quiet_one.run) is None

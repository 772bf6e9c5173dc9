"""A full run that goes on for some time: all ranks end after the same step, and nobody knew it before."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_full_run import lines, losses, plan, trained

SECONDS = 1.5


@pytest.mark.slow
def test_all_ranks_end_after_the_same_step_when_rank_0_says_so(tmp_path: Path) -> None:
    ranks = trained(tmp_path, plan(tmp_path, "minutes", steps=1, seconds=SECONDS))
    done = [[line for _, line in lines(rank, "step")] for rank in ranks]
    assert [line.step for line in done[0]] == [line.step for line in done[1]] == list(range(1, len(done[0]) + 1))
    # Rank 0 looks at its clock within a step, and counts from a moment between `resumed` and the first step.
    ((_, resumed),) = lines(ranks[0], "resumed")
    *before, last = done[0]
    assert last.at + last.seconds - resumed.at >= SECONDS, "it goes on beyond the one step of the plan"
    assert all(step.at - done[0][0].at < SECONDS for step in before), "the one under way when time is over is the last"
    assert losses(ranks[0]) == losses(ranks[1])
    assert list(losses(ranks[0])) == [line.step for line in done[0]]


@pytest.mark.slow
def test_every_step_marks_the_end_of_its_forward_pass(tmp_path: Path) -> None:
    for rank in trained(tmp_path, plan(tmp_path, "marks")):
        marks = [line for _, line in lines(rank, "stage")]
        steps = [line for _, line in lines(rank, "step")]
        assert [(mark.name, mark.step) for mark in marks] == [("forward", step.step) for step in steps]
        assert all(s.at < mark.at < s.at + s.seconds for mark, s in zip(marks, steps, strict=True))

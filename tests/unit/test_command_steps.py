"""From what a command wrote of itself to steps: what counts to a step, what is its work, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from full_run_made import Rank

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.measure.command_steps import Work, training_of, training_of_log, work_of
from pytest_clusterqual.model.command import CommandJob
from pytest_clusterqual.model.log import LoggedStep, Place, Told, TrainingLog
from pytest_clusterqual.model.probe import ProbedProcess

JOB = CommandJob(name="own", words=("train.py",), folder="/job")
WORK = Work(tokens=1000)


def process(rank: Rank) -> ProbedProcess:
    return rank.run().processes[0]


def trained(rank: Rank, **more: Any) -> Any:
    return training_of(0, process(rank), **{"warmup": 0, "work": WORK, "script": "aa", **more})


def test_a_step_lasts_from_the_end_of_the_one_before() -> None:
    rank = Rank().starts().span("compile", 9.0).step(1).passes(0.5).step(2).ends()
    found = trained(rank)
    assert found.step_seconds == (1.25, 1.75), "what lies between two steps is part of the second"
    assert found.data_seconds == (0.25, 0.25)
    assert found.work_seconds == 3.0
    assert found.losses == (4.99, 4.98)
    assert (found.tokens_per_step, found.data_digest, found.unknown) == (1000, "aa", ("inside",))


def test_what_the_script_declares_as_something_else_is_no_part_of_a_step() -> None:
    rank = Rank().starts().step(1).span("save", 4.0, step=1).span("hook", 2.0, name="evaluation").step(2).ends()
    assert trained(rank).step_seconds == (1.25, 1.25)


@pytest.mark.parametrize("step", [1, 2])
def test_nor_is_it_where_it_is_nested_in_the_step(step: int) -> None:
    rank = Rank().starts().steps(1, step - 1) if step > 1 else Rank().starts()
    rank.span("hook", 0.5, name="log", nested=True).passes(0.5)
    rank.now -= 1.0
    rank.span("step", 1.0, own=0.5, step=step)
    assert trained(rank).step_seconds[-1] == 0.5


def test_steps_that_count_anew_are_refused_unless_training_went_back() -> None:
    with pytest.raises(MeasurementError, match=r"rank 0 did step 1 more than once .* number each optimizer step once"):
        trained(Rank().starts().steps(1, 3).steps(1, 3).ends())
    again = Rank().starts().steps(1, 3).mark("resumed", 1).steps(2, 3).ends()
    assert len(trained(again).step_seconds) == 5


def test_the_first_steps_are_apart() -> None:
    found = trained(Rank().starts().steps(1, 5), warmup=2)
    assert len(found.warmup_seconds) == 2
    assert len(found.step_seconds) == len(found.data_seconds) == 3
    with pytest.raises(MeasurementError, match=r"rank 0 did 5 steps, want more than the 5 of scaling\.warmup_steps"):
        trained(Rank().starts().steps(1, 5), warmup=5)


def test_without_a_step_the_lines_are_shown_that_are_missing() -> None:
    with pytest.raises(MeasurementError, match=r"its probe tells of none; write with probe\.step\(tokens=\.\.\.\):"):
        trained(Rank().starts().span("hook", 1.0, name="log"))


def test_what_is_not_told_is_unknown() -> None:
    rank = Rank().starts().span("step", 1.0, step=1).span("step", 1.0, step=2)
    found = trained(rank, work=Work())
    assert found.unknown == ("losses", "data", "work", "inside")
    assert (found.data_seconds, found.losses, found.tokens_per_step) == ((), (), 0)


@pytest.mark.parametrize("told", [(1, 2), (2,)], ids=["of every step", "of some"])
def test_a_loss_that_is_no_number_is_no_unknown_one(told: tuple[int, ...]) -> None:
    """A probe writes null for what JSON does not know."""
    rank = Rank().starts().span("step", 1.0, step=1).mark("loss", 1, value=None)
    rank.span("step", 1.0, step=2)
    if 2 in told[1:]:
        rank.mark("loss", 2, value=4.5)
    with pytest.raises(MeasurementError, match="rank 0: the loss of step 1 is no finite number: the training diverged"):
        trained(rank)


def test_a_step_that_failed_or_ran_in_another_thread_is_none() -> None:
    rank = Rank().starts().step(1).breaks(after=0.5).span("step", 1.0, step=9, background=True)
    assert len(trained(rank).step_seconds) == 1


def test_the_work_is_what_lines_tell_or_the_file() -> None:
    told, silent = process(Rank().starts().steps(1, 3)), process(Rank().starts().span("step", 1.0, step=1))
    assert work_of(JOB, [told, told]) == Work(tokens=1000)
    assert work_of(JOB, [silent]) == Work()
    assert work_of(replace(JOB, sequences_per_step=8), [silent]) == Work(sequences=8)
    assert work_of(replace(JOB, tokens_per_step=1000), [told]) == Work(tokens=1000)
    with pytest.raises(MeasurementError, match=r"its lines tell 1000 tokens a step, workload\.tokens_per_step is 64"):
        work_of(replace(JOB, tokens_per_step=64), [told])


def test_work_that_differs_from_step_to_step_is_not_one_number() -> None:
    packed = Rank().starts().span("step", 1.0, step=1, tokens=900).span("step", 1.0, step=2, tokens=1100)
    assert work_of(JOB, [process(packed)]) == Work()


def log(*steps: tuple[int, int, float], **told: Any) -> TrainingLog:
    lines = tuple(
        LoggedStep(place=Place(file="rank0.log", line=n), step=step, over=over, seconds=seconds)
        for n, (step, over, seconds) in enumerate(steps, 1)
    )
    return TrainingLog(
        family="--pattern", files=("rank0.log",), attempts=(lines,), events=(), told=Told(**told), memory=None,
        lines=len(lines), unread=(),
    )  # fmt: skip


def test_a_log_tells_of_rank_0_only_and_a_line_of_several_steps_their_mean() -> None:
    found = training_of_log(log((2, 2, 1.0), (4, 2, 0.5)), JOB, warmup=1, script="aa")
    assert (found.warmup_seconds, found.step_seconds) == ((1.0,), (1.0, 0.5, 0.5))
    assert found.unknown == ("losses", "data", "work", "ranks", "inside")
    assert (
        training_of_log(log((1, 1, 1.0)), replace(JOB, tokens_per_step=64), warmup=0, script="").tokens_per_step == 64
    )
    assert training_of_log(log((1, 1, 1.0), global_batch=8), JOB, warmup=0, script="").sequences_per_step == 8


def test_a_log_and_a_file_that_tell_other_work_are_refused() -> None:
    (steps,) = log((1, 1, 1.0), (2, 1, 1.0)).attempts
    told = replace(log(global_batch=8), attempts=(tuple(replace(step, tokens=500.0) for step in steps),))
    assert training_of_log(told, replace(JOB, tokens_per_step=500), warmup=0, script="").tokens_per_step == 500
    with pytest.raises(
        MeasurementError, match=r"own: workload\.tokens_per_step is 1000, the log tells 500 tokens a step"
    ):
        training_of_log(told, replace(JOB, tokens_per_step=1000), warmup=0, script="")
    with pytest.raises(MeasurementError, match=r"own: workload\.sequences_per_step is 9, the log tells 8 sequences a"):
        training_of_log(told, replace(JOB, sequences_per_step=9), warmup=0, script="")


@pytest.mark.parametrize(("loss", "skipped", "refused"), [
    (float("nan"), 0, True), (float("inf"), 1, True), (float("nan"), 2, False), (4.5, 0, False),
])  # fmt: skip
def test_a_log_that_diverged_is_no_work_to_be_timed(loss: float, skipped: int, refused: bool) -> None:
    """A line of two steps; those that the trainer has skipped have no loss."""
    made = log((2, 2, 1.0), (4, 2, 0.5))
    first, last = made.attempts[0]
    diverged = replace(made, attempts=((first, replace(last, loss=loss, skipped=skipped)),))
    if refused:
        with pytest.raises(MeasurementError, match=r"own: rank0\.log:2: the loss of step 4 is no finite number"):
            training_of_log(diverged, JOB, warmup=1, script="aa")
    else:
        assert training_of_log(diverged, JOB, warmup=1, script="aa").step_seconds


def test_a_log_with_too_few_steps_is_refused() -> None:
    with pytest.raises(MeasurementError, match="the log tells the time of 2 steps, want more than the 3"):
        training_of_log(log((1, 1, 1.0), (2, 1, 1.0)), JOB, warmup=3, script="")

"""Checkpoints of a run by hand: what each rank saw of them, their figures, and the steps beside them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from full_run_made import Rank, edited, full_run, killed_run, measured, on_two_hosts
from judge_made import require, the

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.full_run.saves import Part, inflation, saves
from pytest_clusterqual.judge.full_run.verdict import judge_full_run
from pytest_clusterqual.model.full_run import Checkpoints, FullRun
from pytest_clusterqual.model.record import Judgement, Verdict

MIB = 2**20


def saving(
    rank: int, *, then: float = 7.25, beside: float = 1.5, size: int = 0, extra: int = 0, noise: Any = lambda step: 0.0
) -> Rank:
    """24 steps of 1 s, 0.25 s of data before each; saves of 0.5 s after steps 8 and 16, complete `then` s later.

    The four steps after a save take `beside` s: with the data before them 7 s.
    """
    log = Rank(rank).ready()
    for step in range(1, 25):
        slow = step in (9, 10, 11, 12, 17, 18, 19, 20)
        log.step(step, seconds=(beside if slow else 1.0) + noise(step))
        if step in (8, 16):
            log.saves(step, then=then, size=size).mark("extra", step, after=then, value=extra)
    return log.finishes()


def saved_run(*ranks: Rank, **under: Any) -> FullRun:
    run = full_run(*(rank.run() for rank in ranks), steps=24, **under)
    return replace(run, checkpoints=Checkpoints(every=8, mode="async", folder="/shared/checkpoints"))


def figure(run: FullRun, quantity: str, *required: str) -> Judgement:
    return the(judge_full_run(measured(run), [require("full_run", quantity, text) for text in required]), quantity)


def test_each_rank_tells_what_it_saw_of_a_save() -> None:
    run = saved_run(saving(0, size=3 * MIB, extra=5), saving(1, then=6.0, size=MIB, extra=7))
    first, _second = saves(run)
    assert (first.attempt, first.step, first.blocking, first.completion) == (0, 8, 0.5, pytest.approx(7.75))
    assert first.parts == (
        Part(rank=0, blocking=0.5, completion=7.75, size=3 * MIB, extra=5),
        Part(rank=1, blocking=0.5, completion=6.5, size=MIB, extra=7),
    )


def test_the_worst_save_counts_and_in_it_the_slowest_rank() -> None:
    slow = edited(
        saving(1).run(), lambda line: replace(line, seconds=0.75) if (line.what, line.step) == ("save", 8) else line
    )
    run = replace(saved_run(saving(0), saving(1)), ranks=(saving(0).run(), slow))
    blocking = figure(run, "checkpoint_blocking")
    assert (blocking.value, blocking.per_rank) == (0.75, {"0": 0.5, "1": 0.75})
    assert "worst of 2, step 8, in /shared/checkpoints" in blocking.reason


def test_a_save_that_a_failure_interrupts_is_no_complete_one() -> None:
    """Rank 1 dies before its part of step 4 is complete; that of step 8 belongs to the attempt after it."""
    run = killed_run()
    torn = edited(run.ranks[1], lambda line: None if (line.what, line.step) == ("saved", 4) else line)
    first, second = saves(replace(run, ranks=(run.ranks[0], torn)))
    assert (first.attempt, first.step, first.blocking, first.completion) == (0, 4, 0.5, None)
    assert (second.attempt, second.step, second.completion) == (1, 8, 2.75)
    worst = figure(replace(run, ranks=(run.ranks[0], torn)), "checkpoint_completion")
    assert worst.value == 2.75
    assert "worst of 1, step 8" in worst.reason
    lost = edited(run.ranks[1], lambda line: None if (line.what, line.step) == ("saved", 8) else line)
    with pytest.raises(MeasurementError, match="of step 8 never became complete: rank 1 has no saved mark"):
        saves(replace(run, ranks=(run.ranks[0], lost)))


def test_where_a_command_marks_no_save_as_complete_each_is_when_it_ends() -> None:
    run = replace(saved_run(saving(0), saving(1)), checkpoints=None)
    unmarked = replace(
        run, ranks=tuple(edited(r, lambda line: None if line.what == "saved" else line) for r in run.ranks)
    )
    assert [(save.blocking, save.completion) for save in saves(unmarked)] == [(0.5, 0.5)] * 2
    assert inflation(unmarked) is None


def test_in_a_command_the_rank_that_writes_knows_when_a_save_is_complete() -> None:
    """All ranks wait in the save, and rank 0 alone marks it."""
    run = replace(saved_run(saving(0), saving(1)), checkpoints=None)
    silent = edited(run.ranks[1], lambda line: None if line.what == "saved" else line)
    first, second = saves(replace(run, ranks=(run.ranks[0], silent)))
    assert [(save.blocking, save.completion) for save in (first, second)] == [(0.5, 7.75)] * 2
    assert [part.completion for part in first.parts] == [7.75, 0.5]


def test_a_command_that_leaves_before_its_last_save_is_complete_is_told_what_to_do() -> None:
    run = replace(saved_run(saving(0), saving(1)), checkpoints=None)
    early = edited(run.ranks[1], lambda line: None if (line.what, line.step) == ("saved", 16) else line)
    with pytest.raises(MeasurementError, match=r"rank 1 has no saved mark, and has marked others: call probe\.saved\("):
        saves(replace(run, ranks=(run.ranks[0], early)))


def test_the_rate_is_that_of_the_rank_with_the_most_to_write() -> None:
    run = saved_run(saving(0, size=231 * MIB), saving(1, size=77 * MIB))
    rate = figure(run, "checkpoint_rate", ">= 40 MB/s")
    assert rate.value == pytest.approx(231 * MIB / 7.75)
    assert rate.per_rank == {"0": pytest.approx(231 * MIB / 7.75), "1": pytest.approx(77 * MIB / 7.75)}
    assert rate.verdict is Verdict.FAIL
    assert "231 MiB of rank 0 on node0, worst of 2, step 8, in /shared/checkpoints" in rate.reason
    assert the(judge_full_run(measured(saved_run(saving(0), saving(1))), []), "goodput")
    missing = figure(saved_run(saving(0), saving(1)), "checkpoint_rate", ">= 40 MB/s")
    assert (missing.verdict, missing.value) == (Verdict.ERROR, None)


def test_the_memory_is_that_of_the_rank_that_took_most() -> None:
    memory = figure(saved_run(saving(0, extra=5 * MIB), saving(1, extra=9 * MIB)), "checkpoint_memory", "<= 8 MiB")
    assert (memory.value, memory.verdict) == (9 * MIB, Verdict.FAIL)
    assert memory.per_rank == {"0": 5 * MIB, "1": 9 * MIB}
    assert "rank 1" in memory.reason


def test_slow_storage_fails_with_the_name_of_its_path() -> None:
    for quantity in ("checkpoint_blocking", "checkpoint_completion"):
        slow = figure(saved_run(saving(0), saving(1)), quantity, "<= 100 ms")
        assert slow.verdict is Verdict.FAIL
        assert "in /shared/checkpoints" in slow.reason


def wobble(step: int) -> float:
    """Up to 20 ms, another for each step, the same in every run."""
    return 0.004 * (step * 7 % 6)


def test_inflation_compares_steps_beside_a_save_with_those_between() -> None:
    """Of 24 steps 8 run beside a save; those of the slower rank count, and 16 are free."""
    run = saved_run(saving(0, noise=wobble), saving(1, beside=1.25, then=6.0, noise=wobble))
    found = inflation(run)
    assert found is not None and found.interval is not None
    assert (found.beside, found.free) == (8, 16)
    assert found.value == pytest.approx(0.5, abs=0.01)
    assert found.interval.low < found.value < found.interval.high
    assert found.interval.high - found.interval.low < 0.05
    judged = figure(run, "checkpoint_inflation", "<= 20 %")
    assert judged.verdict is Verdict.FAIL
    assert "8 steps beside a save against 16 others" in judged.reason
    assert judged.interval is not None and (judged.interval.kind, judged.interval.samples) == ("median", 8)
    assert figure(on_two_hosts(run), "checkpoint_inflation").value == judged.value


def test_a_step_counts_as_beside_a_save_from_half_of_it_on() -> None:
    """The save is complete 1.25 s after it blocked: after 1 s of the step that follows 0.25 s of data."""
    for then, beside, free in ((0.25 + 0.75, 2, 22), (0.25 + 0.7, 0, 22), (0.2, 0, 24)):
        found = inflation(saved_run(saving(0, then=then), saving(1, then=then)))
        assert (found.beside, found.free) == (beside, free) if beside else found is None, then


def test_warm_up_is_neither_beside_nor_between() -> None:
    slow_start = lambda step: {1: 9.0, 2: 4.0}.get(step, 0.0)  # noqa: E731
    found = inflation(saved_run(saving(0, noise=slow_start), saving(1)))
    assert found is not None
    assert (found.value, found.beside, found.free) == (pytest.approx(0.5), 8, 14)


def test_with_too_few_steps_beside_a_save_inflation_cannot_be_known() -> None:
    run = saved_run(saving(0, then=3.5), saving(1, then=3.5))
    found = inflation(run)
    assert found is not None
    assert (found.beside, found.interval) == (4, None)
    open_ = figure(run, "checkpoint_inflation", "<= 20 %")
    assert (open_.verdict, open_.value) == (Verdict.ERROR, None)
    assert "fewer than 6 steps ran beside a save, or without one" in open_.reason


def test_nothing_runs_beside_a_save_for_which_training_waits() -> None:
    run = saved_run(saving(0, then=0.0, beside=1.0), saving(1, then=0.0, beside=1.0))
    sync = replace(run, checkpoints=Checkpoints(every=8, mode="sync"))
    found = figure(sync, "checkpoint_inflation", "<= 1 %")
    assert (found.value, found.verdict) == (0.0, Verdict.PASS)

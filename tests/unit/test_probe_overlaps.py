"""Spans that end in another order than they began, that never end, and steps and marks that contradict themselves."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from full_run_made import Rank, full_run, killed_run
from hypothesis import given
from hypothesis import strategies as st
from probe_made import Run, ledger, steps, written
from test_judge_probe import EXACT, line, start

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.full_run.ledger import account
from pytest_clusterqual.judge.full_run.probe import Accounts
from pytest_clusterqual.model.probe import Line, RankLedger
from pytest_clusterqual.probe import Probe


def spent(rank: RankLedger) -> dict[str, float]:
    """The states that took time."""
    return {state: seconds for state, seconds in rank.seconds.items() if abs(seconds) > EXACT}


def folded(*lines: Line) -> Accounts:
    accounts = Accounts()
    accounts.add(0, [(start(), list(lines))])
    return accounts


# -- spans that overlap, and that never end ------------------------------------------------------


def test_seconds_of_spans_that_overlap_are_those_of_the_one_that_began_last(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with run.process() as process, ExitStack() as first, ExitStack() as second:
        first.enter_context(process.probe.hook("evaluation"))
        process.passes(2.0)
        second.enter_context(process.probe.hook("upload"))
        process.passes(4.0)
        first.close()
        with process.span("step"):
            process.passes(1.0)
        second.close()
        process.passes(0.5)
        with process.span("step"):
            process.passes(1.0)
        process.done()
    one, step, other, after, *_ = written(tmp_path)
    assert [each.nested for each in (one, step, other, after)] == [False, True, False, False]
    assert (one.seconds, one.own, other.seconds, other.own) == pytest.approx((6.0, 2.0, 5.0, 4.0), abs=EXACT)
    assert spent(run.ledger().ranks[0]) == pytest.approx(
        {"hook evaluation": 2.0, "hook upload": 4.0, "kept": 2.0, "residual": 0.5}, abs=EXACT
    )


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3000)), max_size=12))
def test_in_whatever_order_spans_end_each_second_counts_once(events: list[tuple[int, int]]) -> None:
    """Each event opens one of four spans, or ends it if it is open."""
    with tempfile.TemporaryDirectory() as folder:
        run, covered = Run(Path(folder)), 0.0
        with run.process() as process:
            spans, opened = [process.probe.hook(str(each)) for each in range(4)], set[int]()
            for which, milliseconds in [*events, *((each, 0) for each in range(4))]:
                if which in opened:
                    spans[which].__exit__(None, None, None)
                elif milliseconds:
                    spans[which].__enter__()
                opened ^= {which} if which in opened or milliseconds else set()
                process.passes(milliseconds / 1000)
                covered += milliseconds / 1000 if opened else 0.0
        lines = [each for each in written(Path(folder)) if each.what == "hook"]
        assert sum(each.seconds if each.own is None else each.own for each in lines) == pytest.approx(covered, abs=1e-3)
        (rank,) = run.ledger().ranks
        assert rank.seconds["residual"] == pytest.approx(0.0, abs=1e-3)


def test_two_coroutines_do_not_leave_a_span_behind(tmp_path: Path) -> None:
    async def waits(name: str, turns: int) -> None:
        with probe.hook(name):
            for _ in range(turns):
                await asyncio.sleep(0)

    async def both() -> None:
        await asyncio.gather(waits("evaluation", 1), waits("upload", 2))

    probe = Probe(tmp_path)
    asyncio.run(both())
    with probe.step():
        pass
    probe.close()
    assert [(each.what, each.name, each.nested) for each in written(tmp_path)][:3] == [
        ("hook", "evaluation", False), ("hook", "upload", False), ("step", "", False),
    ]  # fmt: skip


def test_a_span_that_is_left_twice_ends_no_training(tmp_path: Path) -> None:
    probe = Probe(tmp_path)
    with (span := probe.hook("evaluation")):
        pass
    span.__exit__(None, None, None)
    with probe.step():
        pass
    assert [each.nested for each in written(tmp_path)] == [False] * 3


def test_idle_time_of_a_process_that_lived_is_no_outage_though_a_span_around_it_never_ended(tmp_path: Path) -> None:
    def batches(probe: Probe) -> Iterator[int]:
        while True:
            with probe.data():
                yield 1

    run = Run(tmp_path)
    with run.process(imports=3.0) as process:
        kept_alive = batches(process.probe)
        next(kept_alive)
        for _ in range(10):
            with process.span("step"):
                process.passes(1.0)
            process.passes(0.25)
        process.die()
    run.clock.now += 4.0
    with run.process() as process:
        process.resumed(10)
        steps(process, 1, data=0.0)
        process.done()
    assert spent(run.ledger().ranks[0]) == pytest.approx(
        {"init": 3.0, "kept": 11.0, "residual": 9 * 0.25, "outage": 4.25}, abs=EXACT
    )
    del kept_alive


# -- marks and steps that contradict what follows ------------------------------------------------


def test_what_lies_between_steps_after_done_was_called_is_no_teardown(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with run.process() as process:
        for number in range(1, 11):
            with process.span("step"):
                process.passes(1.0)
            if number == 3:
                process.probe.done()
                process.passes(0.25)
                with process.span("evaluation"):
                    process.passes(0.5)
            process.passes(1.0)
    told = run.ledger()
    assert spent(told.ranks[0]) == pytest.approx(
        {"kept": 10.0, "hook evaluation": 0.5, "residual": 9.25, "teardown": 1.0}, abs=EXACT
    )
    assert told.ranks[0].ends == ("ended",)


ONCE = "number each optimizer step once"


@pytest.mark.parametrize(
    ("numbers", "told"),
    [([1, 1, 2, 2], True), ([1, 2, 3, 1, 2, 3], True), ([1, 2, 3], False), ([1, 2, "resumed", 2, 3], False)],
)
def test_steps_that_count_anew_without_a_word_are_told(numbers: list[int | str], told: bool) -> None:
    lines = [
        line("resumed", 12 + at, step=1) if number == "resumed" else line("step", 12 + at, 1, step=number)
        for at, number in enumerate(numbers)
    ]
    warnings = folded(*lines, line("done", 12 + len(lines))).ledger().warnings
    assert any(ONCE in text for text in warnings) == told


def test_steps_that_count_anew_in_a_command_are_an_error() -> None:
    rank = Rank().starts().steps(1, 3).steps(1, 3).mark("done")
    with pytest.raises(MeasurementError, match=rf"full run: rank 0: a process did steps of one number .*{ONCE}"):
        account(replace(full_run(rank.run(), steps=3, nodes=1), checkpoints=None))


def test_a_save_that_failed_is_none_and_is_told() -> None:
    saves = [line("save", 20 + at, 1.0, step=at, error="OSError") for at in (1, 3)]
    told = folded(*saves, line("end", 25)).ledger()
    assert (told.saves, told.interval, told.ranks[0].seconds["checkpoint"]) == (None, "", 2.0)
    assert any("a save ended by an exception" in text for text in told.warnings)


def test_what_a_failure_on_purpose_broke_is_no_news() -> None:
    run = killed_run()
    first, again = run.ranks[0].processes
    torn = Line(what="save", at=first.lines[-1].at, error="RuntimeError", step=6, nested=True)
    rank = replace(run.ranks[0], processes=(replace(first, lines=(*first.lines, torn)), again))
    assert account(replace(run, ranks=(rank, run.ranks[1]))).warnings == {}


def test_ranks_that_were_done_after_different_steps_are_told(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for rank, count in enumerate((10, 6, 10)):
        run.clock.now = 1000.0
        with run.process(rank) as process:
            steps(process, count)
            process.done()
    (warning,) = ledger(tmp_path).warnings
    assert warning.startswith("rank 1 was done after step 6, rank 2 after step 10: only steps that every rank has kept")


def test_time_in_two_states_is_not_to_be_put_into_a_hook() -> None:
    """As no probe writes it."""
    both = [line("hook", 12, 5, name=name) for name in ("evaluation", "upload")]
    (warning,) = folded(*both, line("done", 17)).ledger().warnings
    assert "in two states" in warning
    assert "probe.hook" not in warning


def test_a_world_that_cannot_be_takes_no_memory() -> None:
    accounts = Accounts()
    accounts.add(0, [(start(world=10**15), [line("done", 13)])])
    assert accounts.ledger().warnings == (f"of {10**15 - 1} of {10**15} ranks nothing is written, first rank 1",)

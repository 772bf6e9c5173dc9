"""What is said of a logged run: steady steps by weight, rates where work is known, pauses, restarts, drift."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from logs_made import megatron, megatron_line, nemo_line, read, titan, titan_line, trainer

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.full_run.log_times import Sample, middle
from pytest_clusterqual.judge.full_run.logged import logged_run
from pytest_clusterqual.model.log import (
    LogEvent,
    LoggedRun,
    LoggedStep,
    Middle,
    Moment,
    Place,
    Told,
    TrainingLog,
)


def run_of(
    attempts: Iterable[Iterable[LoggedStep]], *, told: Told | None = None, tokens: float | None = None,
    events: tuple[LogEvent, ...] = (),
) -> LoggedRun:  # fmt: skip
    log = TrainingLog(
        family="made", files=("a.log",), attempts=tuple(map(tuple, attempts)), events=events, told=told or Told(),
        memory=None, lines=0, unread=(),
    )  # fmt: skip
    return logged_run(log, tokens_per_step=tokens)


def step(number: int, *, over: int = 1, seconds: float | None = None, now: float | None = None, tick: float = 0.001,
         **more: float) -> LoggedStep:  # fmt: skip
    moment = None if now is None else Moment(clock="date", at=now, tick=tick)
    made = LoggedStep(
        place=Place(file="a.log", line=2 * number), step=number, over=over, seconds=seconds, moment=moment
    )
    return replace(made, **more)


def noisy(count: int, mean: float, *, seed: int = 1, share: float = 0.01) -> list[float]:
    draw = random.Random(seed)
    return [mean * (1 + draw.gauss(0, share)) for _ in range(count)]


def value(of: Middle | None) -> float:
    assert of is not None
    return of.value


def test_warm_up_is_kept_apart() -> None:
    run = run_of([[step(n, seconds=s) for n, s in enumerate([60.0, 9.0, *noisy(30, 2.0)], 1)]])
    assert value(run.seconds) == pytest.approx(2.0, rel=0.01)
    assert (run.attempts[0].warm_up, run.seconds and run.seconds.lines, run.timed_by) == (2, 30, "as the lines tell it")
    assert run.seconds is not None and run.seconds.interval is not None
    assert run.seconds.interval.low < 2.0 < run.seconds.interval.high


def test_a_line_that_is_a_mean_over_k_steps_counts_k_times() -> None:
    few, many = [Sample(step=n, over=1, seconds=1.0) for n in range(3)], [Sample(step=9, over=7, seconds=2.0)]
    assert value(middle([*few, *many])) == 2.0
    assert middle([]) is None


@given(st.lists(st.tuples(st.integers(1, 20), st.floats(0.01, 100)), min_size=1, max_size=30))
def test_the_weighted_median_is_that_of_all_steps(lines: list[tuple[int, float]]) -> None:
    found = middle([Sample(step=0, over=over, seconds=seconds) for over, seconds in lines])
    steps = sorted(seconds for over, seconds in lines for _ in range(over))
    assert found is not None
    assert steps[(len(steps) - 1) // 2] <= found.value <= steps[len(steps) // 2]
    assert (found.steps, found.lines) == (len(steps), len(lines))
    if found.interval is not None:
        assert found.interval.low <= found.value <= found.interval.high
        assert found.interval.samples == len(lines)


def test_without_work_nothing_follows_about_speed() -> None:
    attempts = [[step(n, seconds=2.0) for n in range(1, 11)]]
    silent = run_of(attempts)
    assert (silent.rates, silent.tokens_per_step, value(silent.seconds)) == ({}, None, 2.0)
    assert "the tokens of a step, so nothing follows about speed; give --tokens-per-step" in silent.missing
    given_ = run_of(attempts, tokens=4096)
    assert (value(given_.rates["tokens"]), given_.tokens_from) == (2048, "--tokens-per-step")
    assert not any("tokens" in sentence for sentence in given_.missing)


def test_work_that_the_log_tells() -> None:
    batches = [[step(n, seconds=2.0, samples=8) for n in range(1, 11)]]
    assert {name: each.value for name, each in run_of(batches).rates.items()} == {"samples": 4}
    told = run_of(batches, told=Told(sequence_length=1024))
    assert {name: each.value for name, each in told.rates.items()} == {"tokens": 4096, "samples": 4}
    assert run_of(batches, told=Told(tokens_per_step=100)).tokens_per_step == 100
    rated = [[step(n, seconds=2.0, tokens=999.0 + n % 2) for n in range(1, 11)]]
    assert run_of(rated).tokens_from == "the log's rate and time of a step"


@pytest.mark.parametrize(("tokens", "told"), [
    ([1000.0] * 9, "1000"), ([1000.0 + 50 * n for n in range(9)], "1000 to 1400"), ([0.9e6] * 9, "900000"),
])  # fmt: skip
def test_work_that_is_given_and_told_otherwise_is_refused(tokens: list[float], told: str) -> None:
    attempts = [[step(n, seconds=2.0, tokens=each) for n, each in enumerate(tokens, 1)]]
    middle = tokens[4]
    for same in (0.995 * middle, middle):
        assert run_of(attempts, tokens=same).tokens_per_step == same
    for other in (0.5 * middle, 1.2 * middle):
        with pytest.raises(MeasurementError) as error:
            run_of(attempts, tokens=other)
        assert str(error.value).startswith(f"--tokens-per-step is {other:g}, the log tells {told} tokens a step: one")


def test_work_that_the_whole_log_tells_is_held_against_what_is_given() -> None:
    batches = [[step(n, seconds=2.0, samples=8) for n in range(1, 11)]]
    with pytest.raises(MeasurementError, match="--tokens-per-step is 4096, the log tells 8192 tokens a step"):
        run_of(batches, told=Told(sequence_length=1024), tokens=4096)
    assert run_of(batches, tokens=4096).tokens_per_step == 4096, "how long a sequence is, nobody tells"


def test_a_batch_that_changes_is_another_regime() -> None:
    steps = [step(n, seconds=2.0, samples=8 if n < 5 else 16) for n in range(1, 11)]
    run = run_of([steps], told=Told(sequence_length=9), tokens=4096)
    assert (run.rates, run.tokens_per_step) == ({}, None)
    assert "the global batch changes from 8 to 16" in run.warnings[0]


def test_means_that_grow_beyond_the_time_between_lines_are_not_believed() -> None:
    """A mean over the last five steps, of which the first took long."""
    took = [100.0, *noisy(30, 25.0, share=0.002)]
    now = [sum(took[: n + 1]) for n in range(len(took))]
    window = [sum(took[max(n - 4, 0) : n + 1]) / min(n + 1, 5) for n in range(len(took))]
    run = run_of([[step(n, seconds=window[n], now=now[n]) for n in range(len(took))]])
    assert run.timed_by == "by the clock between the lines"
    assert value(run.seconds) == pytest.approx(25, rel=0.01)
    assert run.attempts[0].warm_up == 0
    assert "it is a mean over several lines" in run.warnings[0]
    own = run_of([[step(n, seconds=took[n], now=now[n]) for n in range(len(took))]])
    assert (own.timed_by, own.attempts[0].warm_up, own.warnings) == ("as the lines tell it", 1, ())


def test_a_clock_of_whole_seconds_is_read_over_ten_of_them() -> None:
    fast = run_of([[step(n, now=float(int(n * 0.3)), tick=1.0) for n in range(200)]])
    assert value(fast.seconds) == pytest.approx(0.3, rel=0.05)
    assert fast.seconds and fast.seconds.lines < 7
    short = run_of([[step(n, now=float(int(n * 0.3)), tick=1.0) for n in range(20)]])
    assert (short.seconds, short.timed_by) == (None, "")
    assert "the time of a step: no line tells it" in short.missing[0]


def test_time_from_work_and_rate(tmp_path: Path) -> None:
    run = logged_run(read(tmp_path, titan([6.0, *noisy(20, 2.0)])))
    assert run.timed_by == "from the work and rate of the lines"
    assert value(run.seconds) == pytest.approx(2.0, rel=0.01)
    assert value(run.rates["tokens"]) == pytest.approx(8192, rel=0.01)
    assert value(run.device_rate) == pytest.approx(1024, rel=0.01)
    assert run.attempts[0].warm_up == 10


def test_pauses_are_shown_and_named_only_by_the_log() -> None:
    took = noisy(40, 2.0)
    now, steps = 0.0, []
    for n, seconds in enumerate(took, 1):
        now += seconds + {15: 30.0, 25: 12.0}.get(n, 0.0)
        steps.append(step(n, seconds=seconds, now=now))
    event = LogEvent(kind="checkpoint", place=Place(file="a.log", line=29))
    run = run_of([steps], events=(event,))
    assert [(pause.after, pause.before, pause.told) for pause in run.pauses] == [
        (14, 15, ("checkpoint",)),
        (24, 25, ()),
    ]
    assert [pause.seconds for pause in run.pauses] == pytest.approx([30, 12], abs=0.01)
    assert value(run.seconds) == pytest.approx(2.0, rel=0.01)


def test_a_slow_step_is_no_pause_where_lines_tell_its_time() -> None:
    took = [30.0 if n == 15 else 2.0 for n in range(40)]
    now = [sum(took[: n + 1]) for n in range(40)]
    assert run_of([[step(n, seconds=took[n], now=now[n]) for n in range(40)]]).pauses == ()
    assert [pause.before for pause in run_of([[step(n, now=now[n]) for n in range(40)]]).pauses] == [15]


def test_a_long_step_of_the_warm_up_is_no_pause() -> None:
    now = [0.0, *(60 + 2.0 * n for n in range(40))]
    run = run_of([[step(n, over=min(n, 1), now=at) for n, at in enumerate(now)]])
    assert (run.attempts[0].warm_up, run.pauses) == (1, ())


def test_pauses_between_lines_that_are_means(tmp_path: Path) -> None:
    text = "".join(
        megatron_line(
            10 * n,
            2000,
            stamp=f"[2026-03-01 10:{(20 * n + 30 * (n > 5)) // 60:02d}:{(20 * n + 30 * (n > 5)) % 60:02d}] ",
        )
        for n in range(1, 11)
    )
    (pause,) = logged_run(read(tmp_path, text)).pauses
    assert (pause.after, pause.before, pause.seconds, pause.told) == (50, 60, 30, ())


def test_steps_lost_by_a_restart(tmp_path: Path) -> None:
    run = logged_run(read(tmp_path, titan([2.0] * 15) + titan([2.0] * 10, first=100, began=400)))
    one, two = run.attempts
    assert (one.first, one.last, one.lost, one.lost_seconds) == (1, 150, 50, pytest.approx(100, rel=0.01))
    assert (two.first, two.last, two.lost, two.lost_seconds) == (101, 200, 0, None)
    assert (one.away, two.away) == (None, pytest.approx(100, abs=1))


def test_a_restart_of_a_restart_is_charged_to_each(tmp_path: Path) -> None:
    text = "".join(titan([2.0] * 5, first=first, began=began) for first, began in [(0, 0), (20, 400), (40, 800)])
    assert [attempt.lost for attempt in logged_run(read(tmp_path, text)).attempts] == [30, 30, 0]


@pytest.mark.parametrize("over", [1, 10])
def test_an_attempt_loses_no_more_than_it_did(over: int) -> None:
    """Steps 1-50, after a restart 21-40, and all from the beginning."""
    spans = [(0, 50), (20, 40), (0, 100)]
    run = run_of([
        [step(n, over=over, seconds=1.0) for n in range(first + over, last + 1, over)] for first, last in spans
    ])  # fmt: skip
    assert [attempt.lost for attempt in run.attempts] == [50, 20, 0]


@pytest.mark.parametrize(("slower", "seen"), [(1.0, "none"), (1.05, "slower"), (0.95, "faster")])
def test_drift(slower: float, seen: str) -> None:
    took = [*noisy(40, 2.0, seed=3), *noisy(40, 2.0 * slower, seed=4)]
    drift = run_of([[step(n, seconds=seconds) for n, seconds in enumerate(took)]]).drift
    assert drift is not None
    assert ("slower" if drift.low > 1 else "faster" if drift.high < 1 else "none") == seen
    assert run_of([[step(n, seconds=2.0) for n in range(11)]]).drift is None


def test_drift_gives_few_false_alarms() -> None:
    alarms = 0
    for seed in range(300):
        drift = run_of([[step(n, seconds=s) for n, s in enumerate(noisy(40, 2.0, seed=seed))]]).drift
        assert drift is not None
        alarms += not drift.low <= 1 <= drift.high
    assert alarms <= 3


def test_long_logs_tell_when_steps_became_slower_and_what_comes_again() -> None:
    took = [*noisy(350, 2.0, seed=3), *noisy(300, 2.2, seed=4)]
    took[49::50] = [2 * seconds for seconds in took[49::50]]
    for over in (1, 10):
        lines = [step(n * over, over=over, seconds=seconds) for n, seconds in enumerate(took, 1)]
        change, stall = run_of([lines]).findings
        assert (change.kind, change.suspect, stall.kind) == ("change", "the run", "periodic stall")
        assert change.evidence.startswith(f"from step {350 * over} on a step takes 1.1 x")  # a long step by itself
        assert stall.evidence.startswith(f"every {50 * over} steps a step takes")
    assert run_of([lines[:200]]).findings == (), "too few to say"
    batches = [replace(line, samples=8.0 if line.step < 3000 else 9.0) for line in lines]
    assert run_of([batches]).findings == (), "the batch changes"


def test_losses_that_are_not_finite_and_skipped_steps(tmp_path: Path) -> None:
    text = megatron([2.7] * 3) + megatron_line(40, 2700, loss="nan", skipped=7) + megatron_line(50, 2700, loss="inf")
    run = logged_run(read(tmp_path, text))
    assert (run.not_finite, run.skipped) == ((40, 50), 7)


def test_steps_that_no_line_tells_of(tmp_path: Path) -> None:
    run = logged_run(read(tmp_path, "".join(nemo_line(n, 2.0) for n in (1, 2, 3, 4, 5, 300, 301, 302))))
    assert run.warnings == ("no line tells of steps 6-299",)
    regular = "".join(nemo_line(n, 2.0) for n in range(0, 500, 50))
    assert logged_run(read(tmp_path, regular)).warnings == ()


def test_what_few_lines_cannot_tell(tmp_path: Path) -> None:
    run = logged_run(read(tmp_path, "".join(f"{task}: {titan_line(10, 0, tps=1786)}" for task in range(4))))
    assert (value(run.device_rate), run.device_rate and run.device_rate.lines, run.seconds) == (1786, 1, None)
    assert [sentence.partition(":")[0].partition(",")[0] for sentence in run.missing] == [
        "the time of a step", "where the warm-up ends", "the tokens of a step",
    ]  # fmt: skip
    assert "about the speed of all devices together" in run.missing[2]


def test_a_bar_is_its_own_clock(tmp_path: Path) -> None:
    run = logged_run(read(tmp_path, trainer(40, 12.0)))
    assert value(run.seconds) == pytest.approx(12)
    assert run.seconds and (run.seconds.lines, run.seconds.steps) == (40, 40)
    assert set(run.rates) == {"samples"}


@pytest.mark.parametrize(
    ("clock", "told"), [(1.3, "of 129 s between steady"), (0.97, "steady lines tell"), (1.004, "")]
)
def test_time_that_neither_steps_nor_pauses_account_for_is_told(clock: float, told: str) -> None:
    """The same bound as in a full run: half a percent, or a second."""
    took = noisy(100, 1.0, share=0.001)
    run = run_of([[step(n, seconds=took[n], now=sum(took[: n + 1]) * clock) for n in range(100)]])
    assert (run.pauses, run.timed_by) == ((), "as the lines tell it")
    assert len(run.warnings) == bool(told)
    assert " ".join(run.warnings).startswith(told)


def test_pauses_and_clocks_leave_nothing_untold() -> None:
    took = noisy(40, 2.0)
    now = [sum(took[: n + 1]) + 30 * (n > 20) for n in range(40)]
    assert run_of([[step(n, seconds=took[n], now=now[n]) for n in range(40)]]).warnings == ()
    assert run_of([[step(n, now=now[n]) for n in range(40)]]).warnings == ()
    few = run_of([[step(10 * n, over=1, seconds=2.0, now=30.0 * n) for n in range(40)]])
    assert few.warnings == (), "of nine steps in ten no line tells the time"


def test_how_many_steps_were_lost_is_not_known_exactly_between_lines() -> None:
    attempts = [[step(n, seconds=2.0) for n in steps] for steps in (range(10, 101, 10), range(100, 151, 10))]
    run = run_of(attempts)
    assert run.attempts[0].lost == 1
    assert "which steps were done again exactly: lines stand 10 steps apart" in run.missing
    assert not any("done again" in sentence for sentence in run_of(attempts[:1]).missing)

"""The steady state of a run: no run can beat it, least of all by slowing down, and noise does not lower it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from full_run_made import Rank, full_run, measured
from judge_made import require, the
from over_time_made import noise

from pytest_clusterqual.judge.full_run.steady import steady_share, steady_step
from pytest_clusterqual.judge.full_run.verdict import judge_full_run
from pytest_clusterqual.judge.statistics import median
from pytest_clusterqual.model.record import Verdict


@pytest.mark.parametrize("fast", [10, 20, 39])
@pytest.mark.parametrize("length", [80, 1200])
def test_a_run_that_slows_down_is_held_against_what_it_was(length: int, fast: int) -> None:
    slow = length - length * fast // 40 // 2
    seconds = np.concatenate([np.ones(length - slow), np.full(slow, 1.5)]) * noise(length, sigma=0.01)
    assert steady_step(seconds.tolist()) == pytest.approx(1.0, rel=0.03)


def test_so_is_one_that_was_faster_amid_or_drifts() -> None:
    amid = [1.5] * 100 + [1.0] * 60 + [1.5] * 100
    assert steady_step(amid) == 1.0
    drifting = [1.0 + step / 400 for step in range(400)]
    assert steady_step(drifting) < 1.13 < median(drifting)


@pytest.mark.parametrize("memory", [0.0, 0.5])
@pytest.mark.parametrize("length", [12, 40, 256, 4000])
def test_a_healthy_run_is_its_own_standard(length: int, memory: float) -> None:
    found = [noise(length, seed, sigma=0.05, memory=memory).tolist() for seed in range(40)]
    ratios = [steady_step(seconds) / median(seconds) for seconds in found]
    assert median(ratios) > 0.99
    assert min(ratios) > 0.93


@pytest.mark.parametrize("kind", ["lognormal", "two levels", "skewed"])
def test_nothing_takes_less_than_as_many_steady_steps(kind: str) -> None:
    numbers = np.random.default_rng(3)
    for length in (1, 2, 11, 12, 100, 1000):
        seconds = {
            "lognormal": numbers.lognormal(0, 1, length), "two levels": numbers.choice([1.0, 1.0, 0.1, 1.0], length),
            "skewed": 1 - numbers.beta(0.5, 3, length),
        }[kind]  # fmt: skip
        assert length * steady_step(seconds.tolist()) <= seconds.sum() * (1 + 1e-12)


def test_steps_of_different_work_are_compared_per_work() -> None:
    """A step takes 0.5 s, and a second for each 1,000 tokens; two thirds of them take half as much again."""
    tokens = np.random.default_rng(5).integers(500, 4000, 1200)
    healthy = (0.5 + tokens / 1000) * noise(1200, sigma=0.01)
    assert steady_share(healthy.tolist(), tokens) == pytest.approx(1.0, abs=0.01)
    assert steady_share(healthy.tolist(), None) > 0.9, "not known to differ: the shorter ones are no steady state"
    slowed = healthy * np.where(np.arange(1200) < 400, 1.0, 1.5)
    assert steady_share(slowed.tolist(), tokens) == pytest.approx(3 / 4, abs=0.01)


def test_where_work_grows_along_with_the_run_nobody_can_tell() -> None:
    """By its first steps, which do less, a healthy run would have lost most of its time."""
    tokens = np.arange(100, 1300)
    seconds = tokens / 1000.0
    assert steady_share(seconds.tolist(), tokens) is None
    rank = Rank().ready()
    for step in range(1, 41):
        rank.span("step", step / 10, step=step, tokens=step).mark("loss", step, value=4.0)
    run = replace(full_run(rank.finishes().run(), steps=40, nodes=1), checkpoints=None)
    judged = the(judge_full_run(measured(run), [require("full_run", "goodput", ">= 10 %")]), "goodput")
    assert (judged.verdict, judged.value) == (Verdict.ERROR, None)
    assert "the work of a step changes along with the run, so nobody can tell" in judged.reason


def test_without_a_step_there_is_none() -> None:
    assert math.isnan(steady_step([]))
    assert steady_share([0.0, 0.0], None) == 0.0


def test_goodput_of_a_run_that_slowed_down_is_no_pass() -> None:
    """17 steps of 1 s, then 23 of 1.5 s: by its median step it would have 60 s of work in 62.4 s."""
    ranks = [
        Rank(rank).ready().steps(1, 17, data=0.0).steps(18, 40, data=0.0, seconds=1.5).finishes().run()
        for rank in (0, 1)
    ]
    judged = the(
        judge_full_run(measured(full_run(*ranks, steps=40)), [require("full_run", "goodput", ">= 80 %")]), "goodput"
    )
    assert judged.verdict is Verdict.FAIL
    assert judged.value == pytest.approx(40 / (17 + 23 * 1.5 + 5.5 + 0.875))
    assert "40 x 1 s of 57.88 s; its median step takes 1.5 s, for a part of it less" in judged.reason


def test_ranks_that_are_slow_by_turns_have_no_more_than_all() -> None:
    """Each step counts as long as on its slowest rank, also where they did not wait for each other."""
    ranks = []
    for slow in (0, 1):
        rank = Rank(slow).starts()
        for step in range(1, 41):
            rank.step(step, data=0.0, seconds=1.5 if step % 2 == slow else 0.5)
        ranks.append(rank.mark("done").run())
    judged = the(judge_full_run(measured(full_run(*ranks, steps=40)), []), "goodput")
    assert (judged.value, set(judged.per_rank.values())) == (1.0, {1.0})
    assert judged.interval is not None and judged.interval.high == 1.0

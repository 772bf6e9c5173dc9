"""How often to save, by hand, by trying all intervals, and against failures that are simulated one by one."""

from __future__ import annotations

import math
import random

import pytest
from full_run_made import Rank, full_run, killed_run, measured
from judge_made import the
from scipy.stats import chi2

from pytest_clusterqual.judge.full_run.interval import (
    Cost,
    assumed,
    availability,
    best_steps,
    daly,
    young,
)
from pytest_clusterqual.judge.full_run.interval import (
    measured as counted,
)
from pytest_clusterqual.judge.full_run.probe import Accounts
from pytest_clusterqual.judge.full_run.verdict import judge_full_run
from pytest_clusterqual.model.full_run import FullRun

HOUR = 3600.0
SYNC = Cost(blocking=5.0, completion=5.0, recovery=60.0)
BACKGROUND = Cost(blocking=0.5, completion=30.0, slowdown=2.0, recovery=120.0)
OFTEN = Cost(blocking=2.0, completion=9.0, slowdown=1.0, recovery=20.0)
SLOW = Cost(blocking=0.1, completion=50.0, slowdown=3.0, recovery=10.0)


def test_young_and_daly_by_hand() -> None:
    assert young(5.0, 24 * HOUR) == pytest.approx(929.516, abs=1e-3)  # sqrt(2 x 5 x 86400)
    # x = 5 / (2 x 86400); 929.516 (1 + sqrt(x) / 3 + x / 9) - 5
    assert daly(5.0, 24 * HOUR) == pytest.approx(926.1857, abs=1e-3)
    assert daly(200.0, 100.0) == daly(5000.0, 100.0) == 100.0, "beyond its validity"


def test_availability_of_saves_that_block_is_dalys_exact_time() -> None:
    """He expects (exp((work + save) / M) - 1) M exp(R / M) seconds for each interval."""
    work, failures = 900.0, 2 * HOUR
    expected = failures * math.exp(60 / failures) * math.expm1((work + 5) / failures)
    assert availability(work, SYNC, failures) == pytest.approx(work / expected, rel=1e-12)


def test_in_the_background_a_failure_loses_half_an_interval_and_the_completion() -> None:
    """To first order in what is rare; blocking and slower steps are paid at every save."""
    work, failures = 500.0, 1e7
    c = BACKGROUND
    lost = c.saving / (work + c.saving) + (c.recovery + c.completion + work / 2 - c.saving / 2) / failures
    assert 1 - availability(work, c, failures) == pytest.approx(lost, rel=1e-2)
    assert 1 - availability(work, c, failures) > 1 - availability(work, Cost(blocking=2.5, completion=2.5), failures)


def test_a_save_that_takes_longer_than_the_interval_holds_up_the_next() -> None:
    alone = Cost(blocking=0.1, completion=50.0)
    assert availability(10.0, alone, 1e9) == pytest.approx(10 / 50, rel=1e-6)
    assert availability(100.0, alone, 1e9) == pytest.approx(100 / 100.1, rel=1e-6)


@pytest.mark.parametrize(
    ("cost", "failures", "step"),
    [(SYNC, 24 * HOUR, 1.0), (BACKGROUND, HOUR, 2.0), (OFTEN, 60.0, 0.5), (SLOW, 40.0, 1.0), (SYNC, 3.0, 1.0),
     (Cost(blocking=10.0, completion=10.0), 15.0, 0.5), (Cost(blocking=0.0, completion=0.0), HOUR, 1.0)],
)  # fmt: skip
def test_the_best_interval_is_the_best_of_all(cost: Cost, failures: float, step: float) -> None:
    found = best_steps(step, cost, failures)
    tried = range(1, math.ceil(2 * failures / step) + 50)
    assert found == max(tried, key=lambda steps: availability(steps * step, cost, failures))


def test_daly_comes_close_to_the_best_where_it_holds() -> None:
    for saving, failures in ((1.0, 1e4), (5.0, 86400.0), (30.0, 3600.0)):
        best = best_steps(0.25, Cost(blocking=saving, completion=saving), failures) * 0.25
        assert daly(saving, failures) == pytest.approx(best, rel=0.01)
        assert young(saving, failures) == pytest.approx(best, rel=0.1)


def simulated(work: float, cost: Cost, failures: float, *, count: int, seed: int) -> float:
    """The share of kept work over so many failures, event by event."""
    chance = random.Random(seed)
    now, kept = 0.0, 0.0
    fails = chance.expovariate(1 / failures)
    for _ in range(count):
        # Saves begin one after the other until the failure comes; each keeps what was done before it began.
        begins, done = now + work, work
        held = 0.0
        while begins + cost.completion <= fails:
            held = done
            # Meanwhile training goes on; the next save waits for the work of an interval, and for this save.
            worked = begins + cost.saving + work
            begins = max(worked, begins + cost.completion)
            done += work
        kept += held
        now = fails
        while True:  # recovering, which another failure begins anew
            fails = now + chance.expovariate(1 / failures)
            if fails >= now + cost.recovery:
                now += cost.recovery
                break
            now = fails
    return kept / now


@pytest.mark.parametrize(
    ("work", "cost", "failures"),
    [(30.0, SYNC, 300.0), (60.0, BACKGROUND, 400.0), (8.0, OFTEN, 60.0), (20.0, SLOW, 90.0), (120.0, SLOW, 90.0)],
)
def test_simulated_failures_leave_the_availability_that_is_expected(work: float, cost: Cost, failures: float) -> None:
    found = simulated(work, cost, failures, count=60_000, seed=7)
    assert found == pytest.approx(availability(work, cost, failures), rel=0.02)


def test_the_best_interval_is_best_against_simulated_failures() -> None:
    best = best_steps(1.0, OFTEN, 60.0)
    at = {work: simulated(work, OFTEN, 60.0, count=60_000, seed=3) for work in (best / 2.5, float(best), best * 2.5)}
    assert max(at, key=at.__getitem__) == best


@pytest.mark.parametrize("failures", [1, 2, 7, 100])
def test_few_failures_have_the_exact_interval_of_a_poisson_count(failures: int) -> None:
    found = counted(failures, 1000.0)
    assert found.mean == 1000.0 / failures
    assert found.low == pytest.approx(2 * 1000.0 / chi2.ppf(0.975, 2 * failures + 2))
    assert found.high == pytest.approx(2 * 1000.0 / chi2.ppf(0.025, 2 * failures))
    assert found.low < found.mean < found.high
    assert not found.assumed


def test_without_a_failure_only_a_least_time_between_them_is_known() -> None:
    found = counted(0, 300.0)
    assert (found.mean, found.high) == (None, math.inf)
    assert found.low == pytest.approx(300.0 / 2.9957, rel=1e-4)  # the rule of three
    assert assumed(7.0).low == assumed(7.0).high == 7.0
    assert assumed(7.0).assumed


# -- the advice in a verdict ---------------------------------------------------------------------


def advised(run: FullRun, time_between_failures: float | None) -> dict[str, object]:
    judged = judge_full_run(measured(run), [], time_between_failures)
    return {quantity: the([j for j in judged if j.quantity == quantity], quantity, label)
            for quantity, label in (("checkpoint_loss", "async-every4"), ("checkpoint_interval", ""))}  # fmt: skip


def test_the_advice_under_an_assumed_rate_says_what_the_files_interval_costs() -> None:
    """Steps of 1 s; blocking 0.625 s and completion 2.375 s in the middle; a recovery took 0.75 + 1.75 + 2.25 + 1 s."""
    found = advised(killed_run(), HOUR)
    cost = Cost(blocking=0.625, completion=2.375, recovery=5.75)
    best = best_steps(1.0, cost, HOUR)
    interval, loss = found["checkpoint_interval"], found["checkpoint_loss"]
    assert interval.value == best
    assert loss.value == pytest.approx(1 - availability(4.0, cost, HOUR))
    assert loss.parts["saving"] == pytest.approx(0.625 / 4.625)
    assert sum(loss.parts.values()) == pytest.approx(loss.value)
    assert f"every {best} steps" in interval.reason
    assert "a failure every 3600 s, assumed" in interval.reason
    assert "every 4 steps loses 13.7 % of the time, every 67 steps 2.06 %" in interval.reason
    assert "Young 67.1 s, Daly 66.7 s" in interval.reason
    (note,) = interval.findings
    assert (note.level, note.check_next) == ("note", f"saving every {best} steps")


def test_the_failure_on_purpose_is_not_counted() -> None:
    """28.125 s without another one."""
    found = advised(killed_run(), None)
    interval = found["checkpoint_interval"]
    assert (interval.value, interval.findings) == (None, ())
    assert "no failure was seen: they are 9.39 s or more apart (95 %), for which every 3 steps" in interval.reason
    assert "the true interval is that or longer" in interval.reason
    assert found["checkpoint_loss"].value == pytest.approx(0.625 / 4.625), "saving alone"


def test_about_the_best_interval_is_no_note_worth_telling() -> None:
    run = full_run(*(Rank(rank).ready().steps(1, 4).saves(4).steps(5, 10).finishes().run() for rank in range(2)))
    assert advised(run, 20.0)["checkpoint_interval"].findings == ()
    assert "what a recovery costs aside" in advised(run, 20.0)["checkpoint_interval"].reason
    unsaved = full_run(*(Rank(rank).ready().steps(1, 10).finishes().run() for rank in range(2)))
    assert not [j for j in judge_full_run(measured(unsaved), [], 20.0) if j.quantity.startswith("checkpoint_")]


def probed(rank: Rank) -> str:
    accounts = Accounts()
    run = rank.run()
    accounts.add(0, [(process.start, process.lines) for process in run.processes])
    return accounts.ledger().interval


def test_a_probed_run_takes_its_restarts_for_failures() -> None:
    """Steps of 1 s; saves of 0.5 s, 2 s until they are complete; two restarts with 4.5 s from one job to the next."""
    rank = Rank(0).ready().steps(1, 4).saves(4).steps(5, 8).saves(8)
    for _ in range(2):
        rank.ends("RuntimeError").passes(2.0).back(after=8, builds=0.5).steps(9, 12).saves(12).steps(13, 16).saves(16)
    told = probed(rank.steps(17, 20).finishes())
    wall = 3.5 + 8 * 1.25 + 1.0 + 2 * (4.5 + 8 * 1.25 + 1.0) + 4 * 1.25 + 0.25 + 0.5
    known = counted(2, wall)
    best = best_steps(1.0, Cost(blocking=0.5, completion=2.0, recovery=4.5), wall / 2)
    assert f"a failure every {wall / 2:.3g} s [{known.low:.3g} s, {known.high:.3g} s], measured: 2 were seen" in told
    assert "every 4 steps loses" in told and f"every {best} steps" in told
    assert "as far as failures are known" in told


def test_a_probed_run_without_two_saves_has_no_interval_between_them() -> None:
    assert probed(Rank(0).ready().steps(1, 4).saves(4).steps(5, 8).finishes()) == ""
    assert "no failure was seen" in probed(Rank(0).ready().steps(1, 4).saves(4).steps(5, 8).saves(8).finishes())

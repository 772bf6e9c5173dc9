"""What is said of a run over time: drift, changes, stalls, slow ranks; and what is left unsaid."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from over_time_made import alone, columns, course, noise, together
from probe_made import Run, ledger, steps

from pytest_clusterqual.judge.full_run.frontier import Course
from pytest_clusterqual.judge.over_time.changes import changes
from pytest_clusterqual.judge.over_time.levels import Levels, levels
from pytest_clusterqual.judge.over_time.slow_ranks import slow_ranks
from pytest_clusterqual.judge.over_time.stalls import stalls
from pytest_clusterqual.judge.over_time.verdict import over_time
from pytest_clusterqual.model.over_time import OverTime
from pytest_clusterqual.model.record import Finding
from pytest_clusterqual.model.telemetry import NodeTelemetry

STEPS = 2000
LINE = np.arange(STEPS) / STEPS


def the_one(seen: OverTime, kind: str) -> Finding:
    (finding,) = seen.findings
    assert finding.kind == kind
    return finding


# Drift.


@pytest.mark.parametrize("memory", [0.0, 0.8])
def test_a_drift_is_enclosed_and_found(memory: float) -> None:
    seen = over_time(alone(noise(STEPS, memory=memory) * (1 + 0.1 * LINE)))
    assert seen.interval is not None
    assert seen.drift is not None
    assert seen.interval.low < 0.1 < seen.interval.high
    assert seen.interval.low < seen.drift < seen.interval.high
    finding = the_one(seen, "drift")
    assert finding.level == "suspect"
    assert finding.interval is not None
    assert finding.interval.low == 1 + seen.interval.low
    assert "has grown by" in finding.evidence


def test_steps_that_remember_widen_the_interval() -> None:
    wide, narrow = (over_time(alone(noise(STEPS, memory=memory))).interval for memory in (0.8, 0.0))
    assert wide is not None
    assert narrow is not None
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)


def test_the_interval_of_no_drift_encloses_none_at_its_level() -> None:
    seen = [over_time(alone(noise(640, seed, memory=0.5))).interval for seed in range(100)]
    said = [interval for interval in seen if interval is not None]
    assert len(said) >= 85
    assert sum(not interval.low <= 0 <= interval.high for interval in said) <= 10


def test_a_run_that_gets_faster_accuses_nobody() -> None:
    assert the_one(over_time(alone(noise(STEPS) * (1 - 0.1 * LINE))), "drift").level == "note"


# Changes.


def changed(factor: float, begin: int, end: int = STEPS, seed: int = 0) -> Course:
    seconds = noise(STEPS, seed)
    seconds[begin:end] *= factor
    return alone(seconds)


def test_a_change_is_found_where_it_happened() -> None:
    finding = the_one(over_time(changed(1.06, 700)), "change")
    (step,) = re.findall(r"^from step (\d+) on", finding.evidence)
    assert int(step) == pytest.approx(701, abs=5)
    assert finding.interval is not None
    assert finding.interval.low < 1.06 < finding.interval.high
    assert finding.level == "suspect"


def test_a_slow_while_has_both_ends() -> None:
    finding = the_one(over_time(changed(1.06, 700, 1200)), "change")
    first, last = map(int, re.findall(r"^from step (\d+) to (\d+)", finding.evidence)[0])
    assert (first, last) == (pytest.approx(701, abs=5), pytest.approx(1200, abs=5))


def test_two_changes_are_told_one_after_the_other() -> None:
    seconds = noise(4000)
    seconds[1000:] *= 1.1
    seconds[3000:] *= 1.2
    findings = over_time(alone(seconds)).findings
    assert [finding.kind for finding in findings] == ["change", "change"]


def test_a_change_to_the_better_is_a_note() -> None:
    assert the_one(over_time(changed(0.9, 700)), "change").level == "note"


def test_two_blocks_full_of_spikes_are_no_change() -> None:
    seconds = noise(1024)
    seconds[480:512] *= 1.3
    assert over_time(alone(seconds)).findings == ()


@pytest.mark.parametrize(("count", "deviations", "found"), [(64, 5, 0), (64, 7, 1), (32, 7, 0), (32, 9, 1)])
def test_few_blocks_must_show_more(count: int, deviations: float, found: int) -> None:
    jump = deviations * 0.05 * np.sqrt(4 / count)
    level = np.where(np.arange(count) < count // 2, 0.0, jump)
    made = Levels(level=level, first=list(range(0, 4 * count, 4)), noise=0.05, wanders=False)
    assert len(changes(np.repeat(level, 4), made)) == found


def test_blocks_full_of_spikes_count_as_noise() -> None:
    logs = np.log(noise(1024))
    calm = levels(logs).noise
    logs.reshape(64, 16)[5::10] += 0.3
    assert levels(logs).noise > 5 * calm


def test_less_than_two_percent_is_not_worth_a_word() -> None:
    assert over_time(alone(noise(STEPS, sigma=0.002) * np.where(LINE < 0.5, 1, 1.01))).findings == ()


def test_a_rank_that_is_slow_since_then_has_the_change() -> None:
    own = np.stack([0.2 * noise(STEPS, seed) for seed in range(4)])
    own[2, 1400:] += 0.1
    seen = over_time(together(own))
    (change,) = [finding for finding in seen.findings if finding.kind == "change"]
    assert change.suspect == "rank 2 on node2"
    assert "most of it in 'data', where this rank is the last in 100 % of them" in change.evidence


def test_who_ends_a_step_some_microseconds_late_is_not_to_blame_for_it() -> None:
    own = np.stack([0.2 * noise(STEPS, seed) for seed in range(2)])
    over = own.max(axis=0) + np.where(LINE < 0.5, 1.0, 1.2)
    ranks = [columns({"data": own[rank], "step": over + rank * 1e-6 - own[rank]}) for rank in range(2)]
    finding = the_one(over_time(course(*ranks)), "change")
    assert finding.suspect == "all ranks"
    assert "most of it in 'step'" in finding.evidence


@pytest.mark.parametrize(("spell", "told"), [((1500.0, 1600.0), True), ((100.0, 200.0), False)])
def test_throttling_is_told_beside_the_steps_it_fell_on(spell: tuple[float, float], told: bool) -> None:
    own = np.stack([0.2 * noise(STEPS, seed) for seed in range(2)])
    own[1, 1000:] += 0.2
    telemetry = NodeTelemetry(
        node="node1", samples=9, throttle={"GPU0": ("HW thermal slowdown",)}, spells={"GPU0": (spell,)}
    )
    (change,) = [found for found in over_time(together(own), [telemetry]).findings if found.kind == "change"]
    assert ("GPU0 of node1 was throttled (HW thermal slowdown)" in change.evidence) == told


# Stalls.


def stalled(every: int, *, excess: float = 0.5, seed: int = 0) -> np.ndarray[Any, Any]:
    seconds = noise(STEPS, seed)
    seconds[every - 1 :: every] += excess
    return seconds


def test_a_stall_every_so_many_steps_has_its_period_and_its_cost() -> None:
    finding = the_one(over_time(alone(stalled(40))), "periodic stall")
    assert re.match(r"every 40 steps a step takes (4[89]\d|50\d) ms longer, 50 times, 1\.2", finding.evidence)
    assert finding.level == "suspect"


def test_a_stall_every_so_many_seconds_is_no_matter_of_steps() -> None:
    random = np.random.default_rng(1)
    seconds = noise(STEPS) * random.uniform(0.9, 1.1, STEPS)
    due = 30.0
    for step in range(STEPS):
        if seconds[:step].sum() >= due:
            seconds[step] += 1.0
            due += 60.0
    finding = the_one(over_time(alone(seconds)), "periodic stall")
    assert re.match(r"every (1 min|60(\.\d+)? s|59\.\d+ s) a step takes", finding.evidence)


@pytest.mark.parametrize(("name", "told"), [("save", "a save"), ("hook evaluation", "the hook evaluation")])
def test_a_stall_that_goes_with_something_declared_is_only_noted(name: str, told: str) -> None:
    met = np.zeros(STEPS, dtype=bool)
    met[38::40] = True  # the steps after it take longer
    finding = the_one(over_time(alone(stalled(40), beside={name: met})), "periodic stall")
    assert (finding.level, finding.suspect) == ("note", "rank 0 on node0")
    assert finding.evidence.endswith(f"; each of them with {told}")


def test_what_is_declared_in_every_step_explains_nothing() -> None:
    finding = the_one(over_time(alone(stalled(40), beside={"hook log": np.ones(STEPS, dtype=bool)})), "periodic stall")
    assert "log" not in finding.evidence


def test_long_steps_at_random_are_no_period() -> None:
    for seed in range(8):
        seconds = noise(STEPS, seed)
        seconds[np.random.default_rng(seed).choice(STEPS, 50, replace=False)] += 0.5
        assert over_time(alone(seconds)).findings == ()


def test_a_stall_that_mostly_stays_away_when_it_is_due_is_no_period() -> None:
    seconds = noise(STEPS)
    due = np.arange(19, STEPS, 20)
    seconds[np.random.default_rng(2).choice(due, 25, replace=False)] += 0.5
    assert over_time(alone(seconds)).findings == ()


def test_a_few_long_steps_seldom_look_like_a_period() -> None:
    random, typical = np.random.default_rng(4), np.zeros(STEPS)
    numbers = np.arange(1, STEPS + 1)
    for _ in range(300):
        logs = 0.02 * random.standard_normal(STEPS)
        logs[random.choice(STEPS, random.integers(6, 12), replace=False)] += 0.5
        assert stalls(logs, typical, numbers, numbers * 1.0) is None


def test_the_rank_that_stalls_is_named() -> None:
    own = np.stack([0.2 * noise(STEPS, seed) for seed in range(4)])
    own[3, 39::40] += 0.5
    finding = the_one(over_time(together(own)), "periodic stall")
    assert finding.suspect == "rank 3 on node3"


# Slow ranks.


def test_the_frontier_by_hand() -> None:
    # Rank 0 waits 3 s for data, rank 1 computes 4 s until both meet; they end together.
    found = course(
        columns({"between": [0.0], "data": [3.0], "forward": [2.0], "step": [2.0]}),
        columns({"between": [0.5], "data": [0.5], "forward": [4.5], "step": [1.5]}),
    )
    assert found.stages == ("between", "data", "forward", "step")
    assert found.reached[:, 0].tolist() == [0.5, 3.0, 5.5, 7.0]
    assert found.increments[:, 0].tolist() == [0.5, 2.5, 2.5, 1.5]
    assert found.carrier[:3, 0].tolist() == [1, 0, 1]
    assert found.seconds.tolist() == [6.5]


def test_increments_sum_to_the_step() -> None:
    found = together(np.random.default_rng(0).exponential(0.1, (5, 300)))
    assert found.increments.sum(axis=0) == pytest.approx(found.reached[-1])
    assert (found.increments >= 0).all()


@pytest.mark.parametrize("part", ["data", "forward", "between"])
def test_a_slow_rank_is_named_with_its_stage(part: str) -> None:
    own = np.stack([0.2 * noise(STEPS, seed, sigma=0.1) for seed in range(4)])
    own[1] += 0.06
    seen = over_time(together(own, part=part))
    (finding,) = [one for one in seen.findings if one.kind == "slow rank"]
    assert finding.suspect == "rank 1 on node1"
    assert re.search(rf"reached the end of '{part}' later than the others in (\d+) of \1 parts", finding.evidence)
    assert finding.interval is not None
    assert finding.interval.low < 1 + 0.06 / 1.27 < finding.interval.high


def test_ranks_of_one_node_that_are_all_slow_are_the_node() -> None:
    own = np.stack([0.2 * noise(STEPS, seed, sigma=0.1) for seed in range(8)])
    own[4:6] += 0.1
    nodes = [f"node{rank // 2}" for rank in range(8)]
    (finding,) = [one for one in over_time(together(own, nodes=nodes)).findings if one.kind.startswith("slow")]
    assert (finding.kind, finding.suspect) == ("slow node", "node2")


def test_who_is_late_by_turns_or_by_little_is_not_named() -> None:
    for seed in range(8):
        own = 0.2 * np.exp(0.3 * np.random.default_rng(seed).standard_normal((4, 500)))
        assert over_time(together(own)).findings == ()
    own = np.stack([0.2 * noise(STEPS, seed, sigma=0.001) for seed in range(4)])
    own[1] += 0.005  # always, and 0.4 % of a step
    assert over_time(together(own)).findings == ()


def test_among_many_ranks_that_are_late_for_a_while_none_is_named() -> None:
    """Each is late in stretches of some dozen steps; of all of them one is so in most parts of a run by chance."""
    for seed in range(12):
        own = np.stack([0.3 * noise(512, 100 * seed + rank, sigma=0.4, memory=0.95) for rank in range(16)])
        assert slow_ranks(together(own)) == ()


@pytest.mark.parametrize(("early", "named"), [(6, False), (3, True)])
def test_how_often_a_rank_must_be_late_grows_with_the_ranks_and_stages(early: int, named: bool) -> None:
    """26 of 32 parts are no chance for one rank and stage, which happens in 1 of 3,700, but for six of them."""
    late = np.full(32, 0.05)
    late[np.linspace(2, 30, early).astype(int)] = -0.05
    own = np.stack([np.full(512, 0.2), 0.2 + np.repeat(late, 16)])
    assert bool(slow_ranks(together(own))) == named


def test_a_rank_that_was_slow_in_one_half_is_not_slow_always() -> None:
    own = np.stack([0.2 * noise(STEPS, seed, sigma=0.1) for seed in range(4)])
    own[1, :1000] += 0.1
    assert not [one for one in over_time(together(own)).findings if one.kind == "slow rank"]


# What is left unsaid.


def test_a_short_run_says_nothing_of_its_step_time() -> None:
    seen = over_time(alone(noise(200) * np.where(np.arange(200) < 100, 1, 2)))
    assert (seen.drift, seen.findings) == (None, ())
    assert seen.untold == ("200 steps are too few, want 256 or more: nothing is said of drift, changes and stalls",)


def test_a_change_in_the_first_half_is_not_taken_for_warm_up(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with run.process() as process:
        steps(process, 300, data=0.0, step=2.0)
        steps(process, 400, data=0.0, step=1.0)
        process.done()
    (change,) = ledger(tmp_path).over_time.findings
    assert (change.kind, change.level) == ("change", "note")
    assert change.evidence.startswith("from step 301 on a step takes 0.5 x")


def test_warm_up_is_not_in_it() -> None:
    warming = np.arange(STEPS) < 300
    seconds = noise(STEPS) * np.where(warming, 3, 1)
    seen = over_time(alone(seconds, warming=warming))
    assert (seen.steps, seen.findings) == (1700, ())


def test_without_work_a_step_that_takes_longer_may_do_more() -> None:
    seen = over_time(alone(noise(STEPS) * (1 + 0.2 * LINE), work=None))
    assert (seen.drift, seen.findings) == (None, ())
    assert "the work of a step is not known" in seen.untold[0]


def shapes(seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(1000, 9000, STEPS)


def test_steps_of_different_work_are_compared_per_work() -> None:
    work = shapes()
    took = noise(STEPS) * (0.1 + work / 5000)
    assert over_time(alone(took, work=work)).findings == ()
    finding = the_one(over_time(alone(took * np.where(LINE < 0.4, 1, 1.06), work=work)), "change")
    assert finding.interval is not None
    assert finding.interval.low < 1.06 < finding.interval.high


@pytest.mark.parametrize(
    ("work", "took", "why"),
    [
        (shapes(), noise(STEPS) * shapes(7) / 5000, "its time does not follow it"),
        (shapes(), noise(STEPS) * (shapes() / 5000) ** 2, "its time does not follow it"),
        (shapes(), noise(STEPS) * np.where(shapes() < 5000, 1.0, 1.3), "its time does not follow it"),
        (np.arange(STEPS) + 5000, noise(STEPS) * (np.arange(STEPS) + 5000) / 5000, "changes along with the run"),
    ],
    ids=["unrelated", "square", "padded", "growing"],
)
def test_where_time_does_not_follow_work_nothing_is_said(work: Any, took: Any, why: str) -> None:
    seen = over_time(alone(took, work=work))
    assert (seen.drift, seen.findings) == (None, ())
    assert why in seen.untold[0]


def test_a_run_that_wanders_says_so() -> None:
    walk = np.cumsum(np.random.default_rng(3).standard_normal(STEPS)) * 0.003
    seen = over_time(alone(np.exp(walk)))
    assert seen.drift is None
    assert "wanders" in seen.untold[0]


def test_no_step_is_no_run() -> None:
    assert over_time(course(columns({"step": np.ones(0)}))).steps == 0


def test_ranks_that_kept_other_steps_share_those_of_all() -> None:
    one, other = columns({"step": np.ones(8)}), columns({"step": np.full(8, 2.0)}, numbers=np.arange(4, 12))
    found = course(one, other)
    assert found.numbers.tolist() == [4, 5, 6, 7, 8]
    assert found.seconds.tolist() == [2.0] * 5

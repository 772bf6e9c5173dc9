"""What waiting costs a step, and its cause: planted in simulated ladders, with jitter from 2 to 60 %."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from judge_made import fabric_plan, require
from ladder_made import STEP, climbed
from made import conditions

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.step.ladder import expected_slowest, reduced
from pytest_clusterqual.judge.step.odd_ranks import odd_ranks
from pytest_clusterqual.judge.step.synchronization import judge_synchronization
from pytest_clusterqual.judge.step.waiting_causes import worth_another_look
from pytest_clusterqual.model.conditions import Load
from pytest_clusterqual.model.fabric import SynchronizationMeasurement
from pytest_clusterqual.model.record import Finding, Judgement, Verdict

SEEDS = range(4)
NOBODY = {"inherent jitter", "waiting"}  # kinds of findings that accuse nobody
SHORT: dict[str, Any] = {"step": 0.008, "steps": 31}  # as many as the ladder does of such steps


def judged(m: SynchronizationMeasurement, *bounds: str) -> Judgement:
    (judgement,) = judge_synchronization(m, fabric_plan([require("fabric", "amplification", text) for text in bounds]))
    return judgement


def findings(seed: int, **planted: Any) -> tuple[Finding, ...]:
    return judged(climbed(seed=seed, **planted)).findings


@pytest.mark.parametrize("noise", [0.02, 0.2, 0.6])
@pytest.mark.parametrize("ranks", [2, 8])
def test_ranks_that_are_alike_are_not_accused_and_their_jitter_is_the_cause(ranks: int, noise: float) -> None:
    for seed in SEEDS:
        assert [(f.kind, f.level) for f in findings(seed, ranks=ranks, noise=noise)] == [("inherent jitter", "note")]


@pytest.mark.parametrize("noise", [0.02, 0.2, 0.6])
@pytest.mark.parametrize("ranks", [2, 8])
def test_a_rank_at_half_speed_is_named_with_how_slow_it_is(ranks: int, noise: float) -> None:
    for seed in SEEDS:
        found = findings(seed, ranks=ranks, noise=noise, slow={1: 2.0})
        assert [(f.suspect, f.kind, f.level) for f in found] == [("rank 1 on node1", "slow rank", "suspect")]
        interval = found[0].interval
        assert interval is not None
        assert interval.low <= 2.0 * (1 + noise / 2)
        assert interval.high >= 2.0 * (1 - noise / 2)


@pytest.mark.parametrize(
    ("noise", "pauses", "lost"),
    [
        pytest.param(0.02, 10.0, 0.5, id="50 of 150 ms"),
        pytest.param(0.3, 10.0, 0.5, id="50 of 150 ms in noise"),
        pytest.param(0.6, 10.0, 0.5, id="50 of 150 ms in much noise"),
        pytest.param(0.02, 4.0, 0.2, id="50 of 300 ms"),
    ],
)
def test_a_rank_that_is_stopped_now_and_then_is_named_with_what_it_loses(
    noise: float, pauses: float, lost: float
) -> None:
    for seed in SEEDS:
        (found,) = findings(seed, **SHORT, noise=noise, stopped={1: pauses})
        assert (found.suspect, found.kind, found.level) == ("rank 1 on node1", "jittering rank", "suspect")
        assert found.interval is not None
        assert 1 < found.interval.low <= 1 + 1.3 * lost
        assert 1 + 0.7 * lost <= found.interval.high


def test_few_pauses_are_found_in_most_runs_and_pauses_of_all_ranks_accuse_nobody() -> None:
    few = [found for seed in range(20) for found in findings(seed, **SHORT, noise=0.02, stopped={1: 3.0})]
    assert {f.suspect for f in few if f.level == "suspect"} == {"rank 1 on node1"}
    assert sum(f.kind == "jittering rank" for f in few) >= 14
    for seed in SEEDS:
        for noise in (0.02, 0.6):
            assert {f.kind for f in findings(seed, **SHORT, noise=noise, pauses=3.0)} == {"inherent jitter"}


def test_a_rank_stopped_for_a_while_or_twice_as_noisy_as_its_like_at_most_is_not_accused() -> None:
    for seed in SEEDS:
        held = {(number, 1): 3.0 for number in range(11, 21)}
        assert set() < {f.kind for f in findings(seed, steps=12, rounds=32, held=held)} <= NOBODY
    often = findings(0, step=0.008, steps=64, rounds=32, pauses=10.0, stopped={1: 6.0})
    assert set() < {f.kind for f in often} <= NOBODY


def held_up(rounds: int) -> SynchronizationMeasurement:
    """Two ranks, of which one is stopped in a step of two rounds in five."""
    m = climbed(ranks=2, rounds=rounds, noise=0.02)
    stopped = [
        (first, replace(second, compute=(second.compute[0] + 2 * STEP * (number % 5 in (1, 3)), *second.compute[1:])))
        for number, (first, second) in enumerate(m.rounds)
    ]
    return replace(m, rounds=tuple(stopped))


def worth_it(m: SynchronizationMeasurement) -> bool:
    return worth_another_look(reduced(m.conditions, m.rounds, "test"))


def test_one_of_two_ranks_that_is_stopped_in_some_rounds_needs_more_of_them() -> None:
    few, many = (reduced(m.conditions, m.rounds, "test") for m in (held_up(16), held_up(32)))
    assert list(odd_ranks(few)) == []
    assert worth_another_look(few)
    assert [finding.suspect for finding in odd_ranks(many)] == ["rank 1 on node1"]


def test_ranks_that_are_alike_are_seldom_worth_another_look() -> None:
    assert sum(worth_it(climbed(ranks=2, noise=0.3, seed=seed)) for seed in range(40)) <= 4
    assert worth_it(climbed(ranks=4, slow={2: 2.0}))


def test_a_slow_rank_that_is_also_stopped_is_named_once() -> None:
    both = {"slow": {1: 2.0}, "stopped": {1: 10.0}}
    assert [(f.suspect, f.kind) for f in findings(0, **SHORT, **both)] == [("rank 1 on node1", "slow rank")]
    two = findings(0, **SHORT, ranks=8, slow={1: 2.0}, stopped={2: 10.0})
    assert [(f.suspect, f.kind) for f in two] == [
        ("rank 1 on node1", "slow rank"), ("rank 2 on node2", "jittering rank"),
    ]  # fmt: skip


def test_a_rank_that_is_faster_in_some_rounds_does_not_make_the_other_one_jitter() -> None:
    faster = {(number, 1): 0.75 for number in range(36) if number % 9 > 4}
    for seed in SEEDS:
        assert "jittering rank" not in {f.kind for f in findings(seed, ranks=2, rounds=36, noise=0.02, held=faster)}


def test_a_rank_that_is_a_little_slower_or_slow_for_a_while_is_not() -> None:
    for seed in SEEDS:
        assert set() < {f.kind for f in findings(seed, noise=0.05, slow={1: 1.15})} <= NOBODY
        held = {(number, 0): 2.5 for number in range(6, 16)}
        assert "slow rank" not in {f.kind for f in findings(seed, ranks=2, held=held)}


def test_rounds_that_wander_accuse_nobody() -> None:
    for seed in SEEDS:
        assert {f.kind for f in findings(seed, ranks=2, wander=0.4)} == {"inherent jitter"}


def test_ranks_that_are_slow_in_the_same_steps_have_a_common_cause() -> None:
    for seed in SEEDS:
        (found,) = findings(seed, common=0.2)
        assert (found.suspect, found.kind, found.level) == ("all ranks", "common cause", "suspect")
        assert "storage" in found.check_next
        (small,) = findings(seed, noise=0.02, common=0.04)
        (shared,) = findings(seed, common=0.2, simulated=True)
        assert (small.kind, small.level) == (shared.kind, shared.level) == ("common cause", "note")
        assert "one machine" in shared.check_next
        assert "one machine" not in found.check_next


def test_where_other_work_is_known_the_common_cause_is_no_suspect() -> None:
    m = climbed(common=0.2)
    loaded = replace(m, conditions=replace(m.conditions, load=Load(other_cpu=0.81, node="node1")))
    (found,) = judged(loaded).findings
    assert (found.kind, found.level) == ("common cause", "note")
    assert found.check_next.startswith("other work took 81 % of the cores of node1, else")


def test_a_first_step_that_is_slow_on_all_ranks_is_no_common_cause() -> None:
    assert {f.kind for f in findings(0, ranks=8, first=3.0)} == {"inherent jitter"}
    # Nor does it make one look larger.
    alike, slower = findings(0, common=0.2), findings(0, common=0.2, first=3.0)
    assert alike[0].kind == "common cause"
    assert slower[0] == alike[0]


def test_a_little_more_waiting_than_jitter_explains_has_no_cause_and_says_so() -> None:
    (found,) = findings(0, ranks=2, noise=0.02, barrier=0.008)
    assert (found.kind, found.level) == ("waiting", "note")
    assert "too little of it to tell its cause" in found.evidence


@pytest.mark.parametrize(
    ("planted", "evidence"), [({"barrier": 0.05}, "empty barriers alone"), ({"hindered": 1.5}, "the real step takes")]
)
def test_what_jitter_and_bytes_do_not_explain_is_communication(planted: dict[str, float], evidence: str) -> None:
    for seed in SEEDS:
        (found,) = findings(seed, **planted)
        assert (found.kind, found.level) == ("communication", "note")
        assert found.evidence.startswith(evidence)


def test_with_few_rounds_the_cause_cannot_be_decided() -> None:
    (found,) = judged(climbed(rounds=8, slow={1: 2.0})).findings
    assert found.level == "note"
    assert found.evidence == "cannot be decided, because 8 rounds are too few to tell a slow rank from chance"
    assert judged(climbed(rounds=9, slow={1: 2.0})).findings[0].kind == "slow rank"


def test_the_amplification_is_judged_by_its_interval() -> None:
    quiet, slow = climbed(noise=0.02), climbed(noise=0.02, slow={1: 2.0})
    assert judged(quiet).verdict is Verdict.MEASURED
    assert judged(quiet, "<= 1.2").verdict is Verdict.PASS
    failed = judged(slow, "<= 1.2")
    assert failed.verdict is Verdict.FAIL
    assert failed.value == pytest.approx(2.0, rel=0.1)
    assert failed.per_rank["1"] == pytest.approx(2 * STEP, rel=0.1)
    assert judged(climbed(rounds=5), "<= 100").verdict is Verdict.UNDECIDED
    at = replace(slow.conditions, load=Load(other_cpu=0.5, node="node1"))
    assert judged(replace(slow, conditions=at), "<= 1.2").verdict is Verdict.UNDECIDED


def test_where_ranks_wait_the_slowest_counts() -> None:
    m = climbed(noise=0.0)
    late = tuple(
        tuple(replace(each, barrier=tuple(2 * s for s in each.barrier)) if each.rank == 2 else each for each in ranks)
        for ranks in m.rounds
    )
    assert judged(replace(m, rounds=late)).value == pytest.approx(2.0)


def test_the_reason_goes_up_the_ladder() -> None:
    told = judged(climbed(noise=0.0)).reason
    assert "compute 100 ms -> barrier 100 ms -> payload 20 ms -> step 120 ms" in told
    assert "jitter leads to expect 1)" in told


@pytest.mark.parametrize("ranks", [2, 16])
def test_the_slowest_of_independent_ranks_is_predicted(ranks: int) -> None:
    draw = np.random.default_rng(1)
    samples = np.exp(0.3 * draw.standard_normal((40, 10, ranks)))
    quantile = 0.5 ** (1 / ranks)  # of one rank, where the slowest of all has its median
    expected = float(np.exp(0.3 * np.quantile(draw.standard_normal(200_000), quantile)))
    assert expected_slowest(samples) == pytest.approx(expected, rel=0.04)


def test_what_slows_the_same_step_of_all_ranks_is_no_jitter() -> None:
    samples = np.exp(0.1 * np.random.default_rng(1).standard_normal((16, 6, 8)))
    slow = samples * np.array([3.0, 1, 1, 1, 1, 1])[:, None]
    assert expected_slowest(slow) / np.median(slow) == pytest.approx(expected_slowest(samples), rel=0.05)


def spoiled(rung: str, seconds: tuple[float, ...]) -> SynchronizationMeasurement:
    m = climbed(rounds=2, steps=2)
    first = m.rounds[0]
    return replace(m, rounds=((first[0], replace(first[1], **{rung: seconds}), *first[2:]), m.rounds[1]))


@pytest.mark.parametrize(
    ("m", "message"),
    [
        (replace(climbed(), rounds=()), "synchronization: no round was measured"),
        (replace(climbed(), conditions=conditions(nodes=1, ranks=1)), "in a world of 1 nobody waits"),
        (replace(climbed(), rounds=(climbed().rounds[0][:3],)), "round 1: no result of rank 3"),
        (spoiled("payload", (0.1,)), "round 1, rank 1, payload: got 1 steps, want 2"),
        (spoiled("barrier", (0.1, math.nan)), "round 1, rank 1, barrier: got a time of nan s, want one above 0"),
        (spoiled("step", (0.1, 0.0)), "round 1, rank 1, step: got a time of 0.0 s, want one above 0"),
    ],
)
def test_what_is_missing_is_an_error_that_names_it(m: SynchronizationMeasurement, message: str) -> None:
    with pytest.raises(MeasurementError, match=message):
        judged(m)

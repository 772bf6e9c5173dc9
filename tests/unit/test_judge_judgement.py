from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judge_made import require
from made import conditions

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.judgement import (
    Case,
    applicable,
    check_ranks,
    decide,
    judge_each,
    judge_missing,
    judge_quantity,
    margin,
    rank_name,
    worst_load,
)
from pytest_clusterqual.model.conditions import Load
from pytest_clusterqual.model.record import Interval, Verdict
from pytest_clusterqual.model.requirement import Requirement

IDLE = (
    "; on an idle machine samples scatter less (--qual-resume RUN --qual-again -k TEST), a larger fabric.budget allows "
    "for more in a new run"
)
BUSBW = require("fabric", "busbw", ">= 0.5 GB/s")
LATENCY = require("fabric", "latency", "<= 100 us")


def enclosed(low: float, high: float, samples: int = 8) -> Interval:
    return Interval(low=low, high=high, kind="median", level=0.95, samples=samples)


@pytest.mark.parametrize(
    ("value", "low", "high", "verdict", "reason"),
    [
        (0.55e9, 0.52e9, 0.58e9, Verdict.PASS, "busbw 550 MB/s [520, 580] meets the required >= 500 MB/s"),
        (0.41e9, 0.39e9, 0.43e9, Verdict.FAIL, "busbw 410 MB/s [390, 430] is below the required >= 500 MB/s"),
        (1.2e9, 0.9e9, 1.3e9, Verdict.PASS, "busbw 1.2 GB/s [900 MB/s, 1.3 GB/s] meets the required >= 500 MB/s"),
        (0.5e9, 0.5e9, 0.5e9, Verdict.PASS, "busbw 500 MB/s meets the required >= 500 MB/s"),
    ],
)
def test_the_whole_interval_decides(value: float, low: float, high: float, verdict: Verdict, reason: str) -> None:
    assert decide(value, enclosed(low, high), BUSBW, timing=True) == (verdict, reason)


def test_an_upper_bound_is_judged_the_other_way_round() -> None:
    assert decide(120e-6, enclosed(110e-6, 130e-6), LATENCY, timing=True) == (
        Verdict.FAIL,
        "latency 120 us [110, 130] is above the required <= 100 us",
    )
    assert decide(80e-6, enclosed(70e-6, LATENCY.value), LATENCY, timing=True)[0] is Verdict.PASS


@pytest.mark.parametrize(
    ("op", "verdict"), [("<=", Verdict.PASS), (">=", Verdict.PASS), ("<", Verdict.FAIL), (">", Verdict.FAIL)]
)
def test_a_value_on_the_bound(op: str, verdict: Verdict) -> None:
    required = require("scaling", "speedup", f"{op} 1.5")
    assert decide(1.5, enclosed(1.5, 1.5), required, timing=False)[0] is verdict


def test_a_straddling_interval_is_undecided_and_says_how_many_more_are_needed() -> None:
    samples = (0.45e9, 0.475e9, 0.5e9, 0.525e9, 0.55e9, 0.53e9)
    verdict, reason = decide(0.5125e9, enclosed(0.45e9, 0.55e9), BUSBW, timing=True, samples=samples, counted="rounds")
    assert verdict is Verdict.UNDECIDED
    # spread 1.4826 x 27.5 MB/s; (1.96 x 1.2533 x 40.77 / 12.5)^2 = 64.2
    assert reason == (
        "busbw 512 MB/s [450, 550] straddles the required >= 500 MB/s: about 59 more rounds are needed, 6 rounds are "
        f"there{IDLE}"
    )


def test_a_median_on_the_bound_is_undecided() -> None:
    reason = decide(0.5e9, enclosed(0.4e9, 0.6e9), BUSBW, timing=True, samples=(0.4e9, 0.5e9, 0.6e9))[1]
    told = "busbw 500 MB/s [400, 600] straddles the required >= 500 MB/s: 3 samples cannot tell them apart"
    assert reason == told + IDLE


def test_one_is_not_many() -> None:
    once = require("full_run", "recovery", "<= 60 s")
    reason = decide(60.0, enclosed(59.9, 60.1), once, timing=True, samples=(60.0,), counted="runs")[1]
    assert reason == "recovery 60 s [59.9, 60.1] straddles the required <= 60 s: 1 run cannot tell them apart"
    speedup = require("scaling", "speedup", ">= 1")
    for counted, one in (("pairs of runs", "pair of runs"), ("passes under each map", "pass under each map")):
        told = decide(1.0, None, speedup, timing=False, samples=(1.0,), counted=counted)[1]
        assert f"1 {one} is there" in told


def test_enough_by_their_scatter_and_yet_open_says_so() -> None:
    samples = (0.60e9, 0.61e9, 0.59e9, 0.60e9, 0.62e9, 0.58e9, 0.60e9)
    reason = decide(0.6e9, enclosed(0.45e9, 0.65e9), BUSBW, timing=True, samples=samples, counted="rounds")[1]
    assert f": 7 rounds are there, and a few more should tell them apart{IDLE}" in reason


def test_a_way_out_is_named_where_there_is_one() -> None:
    def told(criterion: str, quantity: str, bound: str, **how: Any) -> str:
        required = require(criterion, quantity, bound)
        value = required.value
        return decide(value, enclosed(0.9 * value, 1.1 * value), required, **{"timing": True, **how})[1]

    load = Load(other_cpu=0.71, node="node1")
    assert told("scaling", "speedup", ">= 1.1", counted="runs").endswith(IDLE.replace("fabric", "scaling"))
    assert told("fabric", "busbw", ">= 1 GB/s", counted="rounds", load=load).endswith(
        "; the machine was loaded: other work took 71 % of the cores' time on node1; measure again when it is idle "
        "(--qual-resume RUN --qual-again -k TEST), or in a new run with a larger fabric.budget"
    )
    elsewhere = [told("fabric", "busbw", ">= 1 GB/s", counted="runs"), told("scaling", "speedup", ">= 1", timing=False)]
    assert all(text.endswith("cannot tell them apart") for text in elsewhere)


def test_too_few_samples_are_undecided_however_good() -> None:
    assert decide(9e9, None, BUSBW, timing=True, samples=(9e9, 9e9, 9e9), counted="rounds") == (
        Verdict.UNDECIDED,
        "busbw 9 GB/s has no interval to hold against the required >= 500 MB/s: "
        f"3 rounds are there, at least 6 are needed{IDLE}",
    )


@pytest.mark.parametrize(
    ("value", "low", "high", "reason"),
    [
        (math.nan, 1.0, 2.0, "busbw cannot be judged: its value is nan"),
        (math.inf, 1.0, 2.0, "busbw cannot be judged: its value is inf"),
        (9e9, math.nan, 9e9, "busbw cannot be judged: its interval is [nan, 9000000000.0]"),
        (9e9, 8e9, math.inf, "busbw cannot be judged: its interval is [8000000000.0, inf]"),
        (9e9, 7e9, 8e9, "busbw cannot be judged: its interval [7e+09, 8e+09] does not enclose its value 9e+09"),
    ],
)
def test_what_is_no_number_is_an_error(value: float, low: float, high: float, reason: str) -> None:
    assert decide(value, enclosed(low, high), BUSBW, timing=True) == (Verdict.ERROR, reason)


def test_a_bound_that_is_no_number_is_an_error() -> None:
    broken = replace(BUSBW, value=-math.inf)
    assert decide(9e9, enclosed(8e9, 9e9), broken, timing=True) == (
        Verdict.ERROR,
        "busbw cannot be judged: its bound is -inf",
    )


def test_a_relative_requirement_must_be_resolved_first() -> None:
    with pytest.raises(ValueError, match="busbw >= 80 % of expected is relative: resolve it first"):
        decide(9e9, enclosed(8e9, 9e9), require("fabric", "busbw", ">= 80 % of expected"), timing=True)


def test_shares_are_shown_as_the_project_file_writes_them() -> None:
    percent = require("full_run", "goodput", ">= 40 %")
    plain = require("scaling", "efficiency", ">= 0.6")
    reasons = [
        decide(0.46, enclosed(0.45, 0.47), percent, timing=True)[1],
        decide(0.7, enclosed(0.65, 0.75), plain, timing=True)[1],
    ]
    assert reasons == [
        "goodput 46 % [45, 47] meets the required >= 40 %",
        "efficiency 0.7 [0.65, 0.75] meets the required >= 0.6",
    ]


def test_a_loaded_machine_does_not_fail_by_time() -> None:
    load = Load(other_cpu=0.43, node="node1")
    slow = enclosed(0.39e9, 0.43e9)
    assert decide(0.41e9, slow, BUSBW, load=load, timing=True) == (
        Verdict.UNDECIDED,
        "busbw 410 MB/s [390, 430] is below the required >= 500 MB/s, but the machine was loaded: "
        "other work took 43 % of the cores' time on node1; measure again when it is idle "
        "(--qual-resume RUN --qual-again -k TEST)",
    )
    assert decide(0.41e9, slow, BUSBW, load=load, timing=False)[0] is Verdict.FAIL
    assert decide(0.41e9, slow, BUSBW, load=Load(other_cpu=0.1, node="node1"), timing=True)[0] is Verdict.FAIL
    assert decide(0.41e9, slow, BUSBW, load=Load(other_cpu=math.nan, node="node1"), timing=True)[0] is Verdict.UNDECIDED
    assert decide(0.9e9, enclosed(0.8e9, 1e9), BUSBW, load=load, timing=True)[0] is Verdict.PASS


broken_number = st.sampled_from([math.nan, math.inf, -math.inf])
plain_number = st.floats(min_value=-1e6, max_value=1e6)
op = st.sampled_from(["<=", ">=", "<", ">"])


def bound(sign: str, value: float) -> Requirement:
    return replace(require("scaling", "speedup", f"{sign} 1"), value=value)


@given(st.tuples(plain_number, plain_number, plain_number, plain_number), st.integers(0, 3), broken_number, op)
def test_nothing_that_is_not_finite_passes_or_fails(
    numbers: tuple[float, ...], at: int, broken: float, sign: str
) -> None:
    value, low, high, limit = (*numbers[:at], broken, *numbers[at + 1 :])
    assert decide(value, enclosed(low, high), bound(sign, limit), timing=False)[0] is Verdict.ERROR


@given(st.lists(plain_number, min_size=3, max_size=3).map(sorted), plain_number, op)
def test_pass_and_fail_mean_that_every_point_of_the_interval_does(ends: list[float], limit: float, sign: str) -> None:
    low, value, high = ends
    requirement = bound(sign, limit)
    verdict, _reason = decide(value, enclosed(low, high), requirement, timing=False)
    met = {requirement.met_by(low), requirement.met_by(value), requirement.met_by(high)}
    assert verdict is {(True,): Verdict.PASS, (False,): Verdict.FAIL}.get(tuple(met), Verdict.UNDECIDED)


@given(st.lists(plain_number, min_size=3, max_size=3).map(sorted), plain_number, op)
def test_a_requirement_and_its_contrary_never_both_pass(ends: list[float], limit: float, sign: str) -> None:
    contrary = {"<=": ">", ">": "<=", ">=": "<", "<": ">="}[sign]
    low, value, high = ends
    one, other = (decide(value, enclosed(low, high), bound(s, limit), timing=False)[0] for s in (sign, contrary))
    opposite = {Verdict.PASS: Verdict.FAIL, Verdict.FAIL: Verdict.PASS, Verdict.UNDECIDED: Verdict.UNDECIDED}
    assert other is opposite[one]


@given(st.lists(plain_number, min_size=3, max_size=3).map(sorted), plain_number, plain_number, op)
def test_a_stricter_bound_is_never_judged_better(ends: list[float], a: float, b: float, sign: str) -> None:
    rank = {Verdict.FAIL: 0, Verdict.UNDECIDED: 1, Verdict.PASS: 2}
    lax, strict = (max(a, b), min(a, b)) if sign in ("<=", "<") else (min(a, b), max(a, b))
    low, value, high = ends
    judged = [rank[decide(value, enclosed(low, high), bound(sign, x), timing=False)[0]] for x in (lax, strict)]
    assert judged[1] <= judged[0]


@pytest.mark.parametrize(
    ("value", "requirement", "expected"),
    [
        (0.6e9, BUSBW, 0.2),
        (0.4e9, BUSBW, -0.2),
        (80e-6, LATENCY, 0.2),
        (150e-6, LATENCY, -0.5),
        (1.0, bound("<=", 0.0), None),
        (math.nan, BUSBW, None),
        (1.0, bound("<=", math.inf), None),
        (-1.0, bound(">=", -2.0), 0.5),
    ],
)
def test_margin_is_a_signed_share_of_the_bound(value: float, requirement: Requirement, expected: float | None) -> None:
    assert margin(value, requirement) == (None if expected is None else pytest.approx(expected))


CASE = Case(
    quantity="busbw",
    label="1 MiB",
    value=0.55e9,
    unit="B/s",
    interval=enclosed(0.52e9, 0.58e9),
    timing=True,
    samples=(0.5e9, 0.6e9),
    per_rank={"0": 0.55e9},
    note="slowest rank",
)


def test_a_judgement_keeps_its_case_and_its_demand() -> None:
    judged = judge_quantity(CASE, BUSBW, expected_from="1 NIC")
    assert judged.verdict is Verdict.PASS
    assert judged.reason == "busbw 550 MB/s [520, 580] meets the required >= 500 MB/s (slowest rank)"
    assert judged.margin == pytest.approx(0.1)
    assert judged.requirement is not None
    assert (judged.requirement.text, judged.requirement.source) == (">= 0.5 GB/s", "clusterqual.yaml:7")
    assert judged.requirement.expected_from == "1 NIC"
    assert (judged.samples, judged.per_rank, judged.label) == (CASE.samples, CASE.per_rank, "1 MiB")


def test_without_a_requirement_a_number_is_measured_never_passed() -> None:
    (judged,) = judge_each(CASE, ())
    assert judged.verdict is Verdict.MEASURED
    assert judged.reason == "busbw 550 MB/s [520, 580]; nothing is required of it (slowest rank)"
    assert (judged.requirement, judged.margin) == (None, None)
    assert judge_quantity(replace(CASE, value=math.nan)).verdict is Verdict.ERROR


def test_every_requirement_gives_a_judgement() -> None:
    stricter = require("fabric", "busbw", ">= 0.6 GB/s")
    assert [j.verdict for j in judge_each(CASE, (BUSBW, stricter))] == [Verdict.PASS, Verdict.FAIL]


def test_what_is_required_but_missing_is_an_error() -> None:
    missing = judge_missing("recovery", "", "s", "no rank was killed", require("full_run", "recovery", "<= 60 s"))
    assert (missing.verdict, missing.value) == (Verdict.ERROR, None)
    assert missing.reason == "recovery was not measured: no rank was killed"
    assert judge_missing("recovery", "", "s", "no rank was killed").verdict is Verdict.MEASURED


def test_only_requirements_on_this_case_apply() -> None:
    here = conditions(nodes=2, layout="ddp")
    fits = require("memory", "peak", "<= 2 GiB", layout="ddp")
    others = (
        require("memory", "peak", "<= 2 GiB", layout="fsdp"),
        require("memory", "headroom", ">= 10 %"),
        require("memory", "peak", "<= 2 GiB", nodes=4),
        require("full_run", "recovery", "<= 60 s"),
    )
    assert applicable((*others, fits), "memory", "peak", here) == (fits,)
    assert applicable((*others, fits), "memory", "peak", here, nodes=4) == (others[2], fits)
    throughputs = [require(criterion, "throughput", ">= 1 tokens/s") for criterion in ("scaling", "full_run")]
    assert applicable(throughputs, "full_run", "throughput", here) == (throughputs[1],)


def test_ranks_must_all_answer_once() -> None:
    three = conditions(ranks=3)
    check_ranks(three, [2, 0, 1], "memory")
    with pytest.raises(MeasurementError, match="memory: no result of ranks 0, 2, want one of each of 3 ranks"):
        check_ranks(three, [1], "memory")
    with pytest.raises(MeasurementError, match="memory: unknown or repeated result of ranks 1, 7 in 3 ranks"):
        check_ranks(three, [0, 1, 1, 2, 7], "memory")
    with pytest.raises(MeasurementError, match="the world has 0 ranks"):
        check_ranks(conditions(ranks=0), [], "memory")


def test_ranks_are_named_with_their_nodes() -> None:
    four = conditions(nodes=2, nproc_per_node=2, ranks=4, rank_nodes=("a", "a", "b", "b"))
    assert [rank_name(four, rank) for rank in (1, 3)] == ["rank 1 on a", "rank 3 on b"]
    assert rank_name(replace(four, rank_nodes=()), 3) == "rank 3"


def test_the_busiest_node_counts() -> None:
    low, high = Load(other_cpu=0.1, node="a"), Load(other_cpu=0.3, node="b")
    assert worst_load([low, None, high]) == high
    assert worst_load([None]) is None

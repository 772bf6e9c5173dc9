"""The exam of all pairs: the slowest one against what is required, contention, and who would have been seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from judge_made import fabric_plan, require, the
from made import conditions
from pairs_made import RATE, exchanged, names, of_node, with_second_round

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.fabric.pairs import judge_pairs
from pytest_clusterqual.model.codec import from_json, to_json
from pytest_clusterqual.model.conditions import Load
from pytest_clusterqual.model.fabric import PairsMeasurement, PairTiming
from pytest_clusterqual.model.record import Verdict
from pytest_clusterqual.model.topology import Links


def measured(pairs: tuple[PairTiming, ...], **under: Any) -> PairsMeasurement:
    nodes = len({pair.receiver for pair in pairs})
    usual = {"simulated": False, "nodes": nodes, "ranks": nodes, "rank_nodes": tuple(names(nodes)), "device": "cuda"}
    return PairsMeasurement(conditions=conditions(**{**usual, **under}), pairs=pairs, started=0.0, seconds=1.0)


def with_alone(pairs: tuple[PairTiming, ...], faster: float, count: int = 3) -> tuple[PairTiming, ...]:
    """The same with the first turn's pairs alone as well, in both directions, so many times faster."""
    chosen = [pair for pair in pairs if pair.turn == 0][: 2 * count]
    alone = (replace(p, alone=True, seconds=tuple(seconds / faster for seconds in p.seconds)) for p in chosen)
    return (*pairs, *alone)


def test_the_slowest_direction_of_the_slowest_pair_counts() -> None:
    m = measured(exchanged(4, {("node2", "node4")}, factor=0.5))
    judged = the(judge_pairs(m, fabric_plan()), "pair_busbw", "1 MiB")
    assert judged.verdict is Verdict.MEASURED
    assert judged.value == pytest.approx(RATE / 2, rel=0.05)
    assert judged.interval is not None
    assert judged.interval.low <= judged.value <= judged.interval.high < 0.6 * RATE
    assert "(from node2 to node4, the slowest of 12 exchanges at once)" in judged.reason


@pytest.mark.parametrize(
    ("text", "verdict"),
    [(">= 10 MB/s", Verdict.PASS), (">= 15 MB/s", Verdict.FAIL), (">= 40 % of expected", Verdict.PASS),
     (">= 60 % of expected", Verdict.FAIL)],
)  # fmt: skip
def test_it_is_held_against_the_file_and_one_nic(text: str, verdict: Verdict) -> None:
    plan = fabric_plan([require("fabric", "pair_busbw", text)], Links(nic=RATE, nics_per_node=2))
    m = measured(exchanged(4, {("node2", "node4")}, factor=0.5), nproc_per_node=2)
    assert the(judge_pairs(m, plan), "pair_busbw", "1 MiB").verdict is verdict


def test_an_expected_level_that_nobody_gives_is_no_pass() -> None:
    plan = fabric_plan([require("fabric", "pair_busbw", ">= 1 % of expected")])
    assert the(judge_pairs(measured(exchanged(4)), plan), "pair_busbw", "1 MiB").verdict is Verdict.ERROR


def test_too_few_repeats_for_an_interval_are_no_pass() -> None:
    few = tuple(replace(pair, seconds=pair.seconds[:5]) for pair in exchanged(4))
    plan = fabric_plan([require("fabric", "pair_busbw", ">= 1 kB/s")])
    assert the(judge_pairs(measured(few), plan), "pair_busbw", "1 MiB").verdict is Verdict.UNDECIDED


def test_a_requirement_of_a_collective_is_not_about_pairs() -> None:
    plan = fabric_plan([require("fabric", "pair_busbw", ">= 900 GB/s", group="world")])
    assert the(judge_pairs(measured(exchanged(4)), plan), "pair_busbw", "1 MiB").verdict is Verdict.MEASURED


@pytest.mark.parametrize(("faster", "verdict"), [(1.0, Verdict.PASS), (1.05, Verdict.PASS), (1.4, Verdict.FAIL)])
def test_contention_is_time_at_once_over_time_alone(faster: float, verdict: Verdict) -> None:
    plan = fabric_plan([require("fabric", "contention", "<= 10 %")])
    judged = judge_pairs(measured(with_alone(exchanged(8), faster)), plan)
    contention = the(judged, "contention", "1 MiB")
    assert (contention.verdict, contention.value) == (verdict, pytest.approx(faster - 1, abs=1e-6))
    kinds = [(finding.kind, finding.level) for finding in judged[0].findings]
    assert kinds == ([("contention", "note")] if faster > 1.03 else [])


def test_one_pair_with_contention_is_judged_and_is_no_contention_of_all() -> None:
    pairs = exchanged(8)
    odd = next(pair for pair in pairs if pair.turn == 0)
    alone = tuple(
        replace(p, seconds=tuple(s / 2 for s in p.seconds)) if p.alone and p.sender == odd.sender else p
        for p in with_alone(pairs, 1.0)
    )
    judged = judge_pairs(measured(alone), fabric_plan())
    assert the(judged, "contention", "1 MiB").value == pytest.approx(1.0)
    assert judged[0].findings == ()


def test_what_only_a_second_round_tried_alone_is_no_contention() -> None:
    slow = of_node("node3", 8)
    judged = judge_pairs(measured(with_second_round(exchanged(8, slow), slow)), fabric_plan())
    assert [judgement.quantity for judgement in judged] == ["pair_busbw"]
    assert [(finding.suspect, finding.level) for finding in judged[0].findings] == [("node3", "suspect")]


def test_who_would_have_been_seen_is_said() -> None:
    def said(m: PairsMeasurement) -> str:
        return judge_pairs(m, fabric_plan())[0].reason.rpartition("; ")[2]

    assert said(measured(exchanged(8, noise=0.01))).startswith("a node ")
    assert said(measured(exchanged(8, noise=0.01))).endswith(" slower")
    assert said(measured(exchanged(2))) == (
        "cannot be decided who is slow, because 2 nodes have too few partners to compare"
    )
    assert said(measured(exchanged(8), simulated=True)) == "these nodes are simulated: none is accused"


def test_nobody_is_accused_of_two_or_of_simulated_nodes() -> None:
    two = judge_pairs(measured(exchanged(2, {("node1", "node2")})), fabric_plan())
    simulated = judge_pairs(measured(exchanged(8, of_node("node3", 8)), simulated=True), fabric_plan())
    assert two[0].findings == simulated[0].findings == ()


def test_a_finding_on_a_loaded_machine_says_the_load() -> None:
    m = measured(exchanged(4, of_node("node3", 4)), load=Load(other_cpu=0.5, node="node4"))
    (finding,) = judge_pairs(m, fabric_plan())[0].findings
    assert finding.evidence.endswith("; meanwhile other work took 50 % of node4's cores")


def test_no_pairs_are_no_measurement() -> None:
    m = measured(exchanged(4))
    with pytest.raises(MeasurementError, match="none exchanged anything"):
        judge_pairs(replace(m, pairs=()), fabric_plan())
    with pytest.raises(MeasurementError, match="node2, node3, node4 received nothing"):
        judge_pairs(replace(m, pairs=m.pairs[:1]), fabric_plan())


def test_the_measurement_is_kept_as_it_is() -> None:
    m = measured(with_alone(exchanged(4), 1.2))
    assert from_json(PairsMeasurement, to_json(m)) == m

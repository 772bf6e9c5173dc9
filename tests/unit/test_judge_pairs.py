"""Whose link is slow: findings from pairs of nodes, real or simulated with noise."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
from made import conditions, judgement
from pairs_made import MIB, Ends, exchanged, names, of_node, with_second_round

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.fabric.pair_findings import UNDECIDED, suspects
from pytest_clusterqual.judge.fabric.pairs import point_at_links, worth_asking
from pytest_clusterqual.model.codec import from_json, to_json
from pytest_clusterqual.model.conditions import Load
from pytest_clusterqual.model.fabric import FabricMeasurement, PairTiming
from pytest_clusterqual.model.record import Finding, Verdict

NODE, SENDING, RECEIVING = "slow link of a node", "slow link of a node, sending", "slow link of a node, receiving"
BETWEEN = "slow link between two nodes"
LEAST = 0.25


def measured(pairs: tuple[PairTiming, ...], **under: Any) -> FabricMeasurement:
    nodes = len({pair.receiver for pair in pairs})
    usual = {"simulated": False, "group": "world", "nodes": nodes, "ranks": nodes, "rank_nodes": tuple(names(nodes))}
    return FabricMeasurement(
        conditions=conditions(**{**usual, **under}), rounds=(), started=0.0, seconds=1.0, pairs=pairs
    )


def suspects_of(pairs: tuple[PairTiming, ...]) -> tuple[Finding, ...]:
    return suspects(pairs, least=LEAST)


def named(pairs: tuple[PairTiming, ...]) -> list[tuple[str, str]]:
    return [(finding.suspect, finding.kind) for finding in suspects(pairs, least=LEAST) if finding.kind != UNDECIDED]


@pytest.mark.parametrize(
    ("count", "slow", "expected"),
    [
        (3, set(), []),
        (4, set(), []),
        (3, of_node("node2", 3), [("node2", NODE)]),
        (4, of_node("node3", 4), [("node3", NODE)]),
        (16, of_node("node10", 16), [("node10", NODE)]),
        (4, of_node("node3", 4, "sends"), [("node3", SENDING)]),
        (4, of_node("node3", 4, "receives"), [("node3", RECEIVING)]),
        (3, of_node("node1", 3, "receives"), [("node1", RECEIVING)]),
        (4, of_node("node3", 4) - {("node3", "node1"), ("node1", "node3")}, [("node3", NODE)]),
        (5, of_node("node2", 5) | of_node("node4", 5), [("node2", NODE), ("node4", NODE)]),
        (6, of_node("node2", 6) | of_node("node4", 6, "sends"), [("node2", NODE), ("node4", SENDING)]),
        (4, {("node1", "node4"), ("node4", "node1")}, [("node1 - node4", BETWEEN)]),
        (4, {("node1", "node4")}, [("node1 -> node4", BETWEEN)]),
        (4, {("node4", "node1")}, [("node4 -> node1", BETWEEN)]),
        (3, {("node2", "node3")}, [("node2 -> node3", BETWEEN)]),
        (6, {("node1", "node4"), ("node2", "node5")}, []),  # two in 15 pairs
        (8, of_node("node2", 8) | {("node4", "node5")}, [("node2", NODE), ("node4 -> node5", BETWEEN)]),
        (5, of_node("node2", 5) | {("node4", "node5")}, []),  # one in six of the others' pairs: all is uneven here
        (4, of_node("node1", 4) | of_node("node2", 4), []),  # half of them: either half may be the odd one
        (4, {e for e in permutations(names(4), 2) if (e[0] < "node3") != (e[1] < "node3")}, []),  # two and two
    ],
)
def test_who_is_slow_is_named(count: int, slow: set[Ends], expected: list[tuple[str, str]]) -> None:
    assert sorted(named(exchanged(count, slow))) == expected


def test_the_figures_of_a_slow_node_are_told() -> None:
    (finding,) = suspects_of(exchanged(4, of_node("node3", 4), noise=0.0))
    assert finding.evidence == (
        "1 MiB between node3 and each of 3 other nodes: 2.5 MB/s; elsewhere 25 MB/s; not tried alone"
    )
    assert finding.check_next == (
        "its NIC, cable and switch port: negotiated rate, duplex and errors, by `ethtool` or `ibstat` there"
    )
    assert (finding.level, finding.size) == ("note", MIB)
    assert finding.interval is not None
    assert finding.interval.low == pytest.approx(10) == finding.interval.high
    uneven = exchanged(4, of_node("node3", 4) - {("node3", "node1")}, noise=0.0)
    assert suspects_of(uneven)[0].evidence.startswith(
        "1 MiB between node3 and each of 3 other nodes: 2.5 to 25 MB/s; elsewhere 25 MB/s"
    )
    (finding,) = suspects_of(exchanged(4, of_node("node3", 4, "sends"), noise=0.0))
    assert finding.evidence.startswith(
        "1 MiB from node3 to each of 3 other nodes: 2.5 MB/s, the other way 25 MB/s; elsewhere 25 MB/s"
    )
    (finding,) = suspects_of(exchanged(4, of_node("node3", 4, "receives"), noise=0.0))
    assert finding.evidence.startswith("1 MiB from each of 3 other nodes to node3: 2.5 MB/s, the other way 25 MB/s; ")
    (finding,) = suspects_of(exchanged(4, {("node4", "node1")}, noise=0.0, factor=1 / 40))
    assert finding.evidence.startswith("1 MiB from node4 to node1: 625 kB/s, the other way 25 MB/s; elsewhere 25 MB/s")


def test_two_slow_nodes_may_share_a_cause() -> None:
    found = suspects_of(exchanged(6, of_node("node2", 6) | of_node("node5", 6), noise=0.0))
    assert sorted(finding.suspect for finding in found) == ["node2", "node5"]
    assert all("; first what node2, node5 share, such as a switch" in finding.check_next for finding in found)
    assert all("; elsewhere 25 MB/s; " in finding.evidence for finding in found)


@pytest.mark.parametrize(("factor", "expected"), [(0.99, []), (0.85, []), (0.7, ["node3"]), (0.45, ["node3"])])
def test_what_is_slower_by_less_than_matters_is_not_named(factor: float, expected: list[str]) -> None:
    found = suspects_of(exchanged(4, of_node("node3", 4), factor=factor))
    assert [finding.suspect for finding in found] == expected


@pytest.mark.parametrize(("fast", "expected"), [(0, [("node1 -> node4", BETWEEN)]), (1, []), (3, [])])
def test_a_single_pair_must_be_slow_in_every_repeat(fast: int, expected: list[tuple[str, str]]) -> None:
    pairs = [
        replace(pair, seconds=tuple(second * 0.1 for second in pair.seconds[:fast]) + pair.seconds[fast:])
        if (pair.sender, pair.receiver) == ("node1", "node4") else pair
        for pair in exchanged(4, {("node1", "node4")})
    ]  # fmt: skip
    assert named(tuple(pairs)) == expected


@pytest.mark.parametrize("partners", [3, 7])
def test_some_partners_of_many_are_enough(partners: int) -> None:
    count, slow = 21, of_node("node5", 21)
    nodes = {name: number for number, name in enumerate(names(count))}
    met = tuple(
        pair for pair in exchanged(count, slow) if (nodes[pair.sender] + nodes[pair.receiver]) % count < partners
    )
    assert named(met) == [("node5", NODE)]


RUNS = 300


@pytest.mark.parametrize("count", [3, 4, 8])
@pytest.mark.parametrize("noise", [0.3, 0.6])
def test_noise_names_nobody(count: int, noise: float) -> None:
    rounds = [exchanged(count, noise=noise, seed=seed) for seed in range(RUNS)]
    odd = [pairs for pairs in rounds if named(pairs)]
    assert len(odd) < 0.01 * RUNS
    accused = [suspects_of(with_second_round(pairs, noise=noise, seed=seed)) for seed, pairs in enumerate(odd)]
    assert not [finding for findings in accused for finding in findings if finding.level == "suspect"]


@pytest.mark.parametrize("count", [3, 4, 8])
@pytest.mark.parametrize("noise", [0.3, 0.6])
def test_a_link_at_a_tenth_is_named_in_noise(count: int, noise: float) -> None:
    slow = of_node("node2", count)
    rounds = [exchanged(count, slow, noise=noise, seed=seed) for seed in range(RUNS)]
    found = [named(pairs) for pairs in rounds]
    assert sum([suspect for suspect, _ in findings] == ["node2"] for findings in found) > 0.99 * RUNS


@pytest.mark.parametrize("count", [3, 4, 8])
def test_a_link_at_a_tenth_is_confirmed_in_noise(count: int) -> None:
    slow, noise, runs = of_node("node2", count), 0.6, 100
    rounds = [exchanged(count, slow, noise=noise, seed=seed) for seed in range(runs)]
    found = [suspects_of(with_second_round(pairs, slow, noise=noise, seed=seed)) for seed, pairs in enumerate(rounds)]
    assert sum([(f.suspect, f.level) for f in findings] == [("node2", "suspect")] for findings in found) > 0.97 * runs


FAILED = judgement(findings=())


@pytest.mark.parametrize(
    ("under", "change", "expected"),
    [
        ({}, {}, True),
        ({}, {"verdict": Verdict.UNDECIDED}, True),
        ({}, {"quantity": "latency", "unit": "s"}, True),
        ({"load": Load(other_cpu=0.5, node="node1")}, {"verdict": Verdict.UNDECIDED}, True),
        ({"group": "inter_node"}, {}, True),
        ({"group": "intra_node"}, {}, False),
        ({"simulated": True}, {}, False),
        ({"nodes": 2}, {}, False),
        ({}, {"verdict": Verdict.PASS}, False),
        ({}, {"verdict": Verdict.MEASURED}, False),
        ({}, {"verdict": Verdict.ERROR}, False),
        ({}, {"quantity": "wrong_elements", "unit": "1"}, False),
    ],
)
def test_pairs_are_asked_for_where_they_could_tell(
    under: dict[str, Any], change: dict[str, Any], expected: bool
) -> None:
    passed = replace(FAILED, verdict=Verdict.PASS)
    assert worth_asking(measured(exchanged(4), **under), [passed, replace(FAILED, **change)]) is expected


def test_what_was_missed_says_whose_link_and_what_was_not_stays() -> None:
    guess = judgement().findings
    judgements = [
        replace(FAILED, findings=guess),
        replace(FAILED, verdict=Verdict.PASS),
        replace(FAILED, verdict=Verdict.MEASURED),
        replace(FAILED, quantity="wrong_elements", unit="1"),
    ]
    failed, *others = point_at_links(measured(exchanged(4, of_node("node3", 4))), judgements)
    assert [finding.suspect for finding in failed.findings] == ["node3", guess[0].suspect]
    assert replace(failed, findings=guess) == judgements[0]
    assert others == judgements[1:]


def test_where_nobody_stands_out_the_reason_says_so() -> None:
    pairs = exchanged(4, {("node1", "node4")}, factor=0.9, noise=0.0)
    (failed,) = point_at_links(measured(pairs), [FAILED])
    assert failed.findings == ()
    assert failed.reason == (
        f"{FAILED.reason}; pairs of nodes exchange 1 MiB at 22.5 to 25 MB/s: no single node or link stands out"
    )


@pytest.mark.parametrize(("load", "told"), [(0.388, True), (0.1, False)])
def test_a_finding_on_a_loaded_machine_says_the_load(load: float, told: bool) -> None:
    m = measured(exchanged(4, of_node("node3", 4)), load=Load(other_cpu=load, node="node4"))
    ((finding,),) = (judged.findings for judged in point_at_links(m, [FAILED]))
    assert finding.evidence.endswith("; meanwhile other work took 38.8 % of node4's cores") is told


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seconds": (1.0,) * 5 + (math.nan,)}, "from node2 to node3: got a time of nan s, want one above 0"),
        ({"seconds": (1.0,) * 5 + (0.0,)}, "from node2 to node3: got a time of 0.0 s"),
        ({"seconds": (1.0, 1.0)}, "from node2 to node3: got 2 repeats, want 6 as of all"),
        ({"bytes": 4}, "from node2 to node3: got messages of 4 B, want 1048576 B"),
    ],
)
def test_what_is_no_exchange_is_refused(change: dict[str, Any], message: str) -> None:
    pairs = exchanged(3)
    spoiled = (*pairs[:-1], replace(pairs[-1], **change))
    with pytest.raises(MeasurementError, match=message):
        point_at_links(measured(spoiled), [FAILED])


@pytest.mark.parametrize(("sender", "told"), [("node1", "is there twice"), ("node3", "is no"), ("node9", "is no pair")])
def test_what_is_no_pair_or_a_second_one_is_refused(sender: str, told: str) -> None:
    pairs = exchanged(3)
    more = replace(pairs[-1], sender=sender)
    with pytest.raises(MeasurementError, match=f"from {sender} to node3: this (?:pair )?{told}"):
        point_at_links(measured((*pairs, more)), [FAILED])


def test_a_missing_direction_or_node_is_refused() -> None:
    pairs = exchanged(3)
    with pytest.raises(MeasurementError, match="from node3 to node2: the other direction is missing"):
        point_at_links(measured(pairs[:-1]), [FAILED])
    alone = tuple(pair for pair in pairs if "node3" not in (pair.sender, pair.receiver))
    with pytest.raises(MeasurementError, match="pairs of nodes: node3 received nothing"):
        point_at_links(measured(alone, nodes=3, ranks=3, rank_nodes=tuple(names(3))), [FAILED])


def test_measurements_of_before_have_no_pairs() -> None:
    m = measured(exchanged(3))
    kept = to_json(m)
    assert from_json(FabricMeasurement, kept) == m
    assert from_json(FabricMeasurement, {key: kept[key] for key in kept if key != "pairs"}).pairs == ()

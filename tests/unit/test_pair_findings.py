"""The second round: which causes are confirmed, and what is slow only while others are at work."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from pairs_made import Ends, exchanged, names, of_node, turn_of, with_second_round

from pytest_clusterqual.judge.fabric.confirming import to_confirm
from pytest_clusterqual.judge.fabric.pair_findings import UNDECIDED, suspects
from pytest_clusterqual.model.fabric import PairTiming
from pytest_clusterqual.model.record import Finding

LEAST = 0.03
COUNT = 8
Told = list[tuple[str, str, str]]


def told(findings: Iterable[Finding]) -> Told:
    return sorted((finding.suspect, finding.kind, finding.level) for finding in findings)


def both(one: str, other: str) -> set[Ends]:
    return {(one, other), (other, one)}


@pytest.mark.parametrize(
    ("slow", "rails", "slow_rails", "expected"),
    [
        (set(), 1, None, []),
        (set(), 4, None, []),
        (of_node("node3", COUNT), 1, None, [("node3", "slow link of a node", "suspect")]),
        (of_node("node3", COUNT), 4, None, [("node3", "slow node", "suspect")]),
        (of_node("node3", COUNT, "sends"), 4, None, [("node3", "slow node, sending", "suspect")]),
        (of_node("node3", COUNT), 4, [2], [("node3, rail 2", "slow NIC", "suspect")]),
        (of_node("node3", COUNT, "receives"), 2, [1], [("node3, rail 1", "slow NIC, receiving", "suspect")]),
        (both("node3", "node5"), 1, None, [("node3 - node5", "slow link between two nodes", "suspect")]),
        ({("node3", "node5")}, 4, [3], [("node3 -> node5", "slow link between two nodes", "suspect")]),
        ({(a, b) for a in names(COUNT) for b in names(COUNT)}, 4, [1], [("rail 1", "slow rail", "suspect")]),
        ({(a, b) for a in names(COUNT) for b in names(COUNT)}, 2, [0], [("rail 0", "slow rail", "suspect")]),
        (of_node("node2", COUNT) | both("node4", "node6"), 1, None,
         [("node2", "slow link of a node", "suspect"), ("node4 - node6", "slow link between two nodes", "suspect")]),
    ],
)  # fmt: skip
def test_what_is_slow_alone_as_well_is_confirmed(
    slow: set[Ends], rails: int, slow_rails: list[int] | None, expected: Told
) -> None:
    pairs = exchanged(COUNT, slow, factor=0.8, noise=0.03, rails=rails, slow_rails=slow_rails)
    where = range(rails) if slow_rails is None else slow_rails
    tried = with_second_round(pairs, slow, factor=0.8, noise=0.03, least=LEAST, slow_rails=where)
    found = suspects(tried, least=LEAST)
    assert told(found) == expected
    for finding in found:
        assert finding.interval is not None
        assert finding.interval.low < 1.25 < finding.interval.high
        assert finding.interval.low > 1.1
    assert told(suspects(pairs, least=LEAST)) == [(name, kind, "note") for name, kind, _ in expected]


def test_a_node_is_tried_with_good_partners_and_not_with_another_suspect() -> None:
    pairs = exchanged(COUNT, of_node("node1", COUNT) | of_node("node2", COUNT))
    asked = to_confirm(pairs, least=LEAST)
    slow = [pair for pair in asked if {"node1", "node2"} & set(pair)]
    assert len(slow) == 6
    assert not [pair for pair in slow if {"node1", "node2"} <= set(pair)]
    good = [pair for pair in asked if pair not in slow]
    assert len({end for one, other, _ in good for end in (one, other)}) == 2 * len(good) == 6


def test_nothing_is_tried_alone_where_nothing_stands_out() -> None:
    assert to_confirm(exchanged(COUNT), least=LEAST) == []
    assert to_confirm(exchanged(2, of_node("node1", 2)), least=LEAST) == []


def same_turn(count: int) -> list[Ends]:
    """All pairs of the third turn, one way."""
    return [ends for ends in ((a, b) for a in names(count) for b in names(count) if a < b) if turn_of(ends, count) == 2]


@pytest.mark.parametrize("crowd", [2, 3])
def test_pairs_that_are_slow_together_and_fast_alone_have_paths_that_collide(crowd: int) -> None:
    slow = same_turn(16)[:crowd]
    tried = with_second_round(exchanged(16, slow, factor=0.5), least=LEAST)
    (finding,) = suspects(tried, least=LEAST)
    assert (finding.kind, finding.level) == ("colliding paths", "suspect")
    assert sorted(finding.suspect.split(", ")) == sorted(" -> ".join(ends) for ends in slow)
    assert finding.evidence.startswith("1 MiB at 12.")
    assert "when each is alone" in finding.evidence


def test_a_link_that_is_fast_alone_and_has_no_company_accuses_nobody() -> None:
    slow = same_turn(COUNT)[:1]
    found = suspects(with_second_round(exchanged(COUNT, slow, factor=0.5), least=LEAST), least=LEAST)
    assert told(found) == [(" -> ".join(slow[0]), "slow link between two nodes", "note")]
    assert "(fast alone)" in found[0].evidence


def test_a_node_that_is_fast_alone_is_not_confirmed() -> None:
    found = suspects(with_second_round(exchanged(COUNT, of_node("node3", COUNT)), least=LEAST), least=LEAST)
    assert told(found) == [("node3", "slow link of a node", "note")]


def test_a_second_round_that_says_both_confirms_nothing() -> None:
    slow = of_node("node3", COUNT)
    tried = with_second_round(exchanged(COUNT, slow, factor=0.8), slow, factor=0.8, noise=0.6, least=LEAST)
    (finding,) = suspects(tried, least=LEAST)
    assert (finding.suspect, finding.level) == ("node3", "note")
    assert "neither clearly slow alone nor clearly fast" in finding.evidence


def test_many_slow_links_of_no_node_cannot_be_decided_until_they_are_tried() -> None:
    slow = both("node1", "node2") | both("node3", "node4") | both("node1", "node4")
    pairs = exchanged(4, slow)
    (finding,) = suspects(pairs, least=LEAST)
    assert (finding.kind, finding.level) == (UNDECIDED, "note")
    confirmed = suspects(with_second_round(pairs, slow, least=LEAST), least=LEAST)
    assert all(finding.level == "suspect" for finding in confirmed if finding.kind != UNDECIDED)


def test_repeats_of_a_second_round_that_failed_leave_a_note() -> None:
    slow = of_node("node3", COUNT)
    tried = with_second_round(exchanged(COUNT, slow), slow, least=LEAST)
    few: tuple[PairTiming, ...] = tuple(
        replace(pair, seconds=pair.seconds[:4]) if pair.alone else pair for pair in tried
    )
    assert told(suspects(few, least=LEAST)) == [("node3", "slow link of a node", "note")]

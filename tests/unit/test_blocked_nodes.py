"""From who could not connect to whom to the nodes that are named."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations

import pytest

from pytest_clusterqual.recorded.outcomes import _finding
from pytest_clusterqual.session.reach import blocked, no_way_between

FOUR = ("node1", "node2", "node3", "node4")


def lost(nodes: tuple[str, ...], *ways: tuple[str, str]) -> Mapping[str, Mapping[str, str]]:
    """What nodes answer where these ways (from, to) give no connection."""
    return {node: {to: f"at {to}: silence" for source, to in ways if source == node} for node in nodes}


def both(one: str, other: str) -> tuple[tuple[str, str], tuple[str, str]]:
    return (one, other), (other, one)


def all_ways(nodes: tuple[str, ...], node: str) -> list[tuple[str, str]]:
    return [way for way in permutations(nodes, 2) if node in way]


def to(node: str) -> list[tuple[str, str]]:
    return [way for way in permutations(FOUR, 2) if way[1] == node]


@pytest.mark.parametrize(
    ("nodes", "ways", "suspects"),
    [
        (FOUR, [], []),
        (FOUR, both("node4", "node2"), ["node2 - node4"]),
        (FOUR, [("node4", "node2")], ["node4 -> node2"]),
        (FOUR, [("node2", "node4")], ["node2 -> node4"]),
        (FOUR, [*both("node1", "node2"), ("node3", "node1")], ["node1 - node2", "node3 -> node1"]),
        (FOUR, all_ways(FOUR, "node3"), ["node3"]),
        (FOUR, to("node3"), ["node3"]),
        (FOUR, [way[::-1] for way in to("node3")], ["node3"]),
        (FOUR, [*all_ways(FOUR, "node3"), *both("node1", "node2")], ["node3", "node1 - node2"]),
        (FOUR[:3], all_ways(FOUR[:3], "node1"), ["node1"]),
        (FOUR[:3], both("node1", "node2"), ["node1 - node2"]),
        (FOUR[:2], both("node1", "node2"), ["node1 - node2"]),
        (FOUR[:2], [("node1", "node2")], ["node1 -> node2"]),
        (FOUR[:1], [], []),
        # node4 listened and gave no answer of its own: what the others say of it is for other evidence
        (FOUR[:3], to("node4"), []),
    ],
)
def test_a_node_without_any_connection_is_named_else_the_pair(
    nodes: tuple[str, ...], ways: list[tuple[str, str]], suspects: list[str]
) -> None:
    assert list(blocked(lost(nodes, *ways))) == suspects


def test_the_message_tells_both_ways_and_what_to_check() -> None:
    error = no_way_between(lost(FOUR, *both("node2", "node4")))
    assert error is not None and error.culprits == ("node2 - node4",)
    assert str(error).splitlines()[0] == (
        "the ranks cannot form a group: node2 - node4: neither can connect to the other (at node4: silence; at node2: "
        "silence)"
    )
    assert "4 nodes tried a TCP connection to each other" in str(error)
    assert "firewall rules" in str(error)
    assert no_way_between(lost(FOUR)) is None


def test_of_many_pairs_the_first_are_named_and_the_rest_counted() -> None:
    """Two halves of 16 nodes without a way between them are 64 pairs."""
    nodes = tuple(f"node{number}" for number in range(1, 17))
    ways = [way for way in permutations(nodes, 2) if (way[0] in nodes[:8]) != (way[1] in nodes[:8])]
    error = no_way_between(lost(nodes, *ways))
    assert error is not None
    assert error.culprits == tuple(f"node1 - node{number}" for number in range(9, 17))
    assert "; and 56 more such" in str(error)


@pytest.mark.parametrize(
    ("culprit", "kind", "check"),
    [
        ("node2 - node4", "failed pair", "the path between them: firewall rules"),
        ("node2 -> node4", "failed pair", "the path between them: firewall rules"),
        ("gpu-rack-7", "failed node", "the end of its log in ranks"),
        ("rank 1 on node2", "failed rank", "the end of its log in ranks"),
        ("local rank 0 on node2", "failed rank", "the end of its log in ranks"),
    ],
)
def test_a_pair_is_found_as_a_pair(culprit: str, kind: str, check: str) -> None:
    found = _finding(culprit, "why", "log in ranks")
    assert (found.suspect, found.kind, found.evidence) == (culprit, kind, "why")
    assert found.check_next.startswith(check)

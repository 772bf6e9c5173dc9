"""A job that fails and names nobody: who is found by trying parts of the nodes, and in how many runs."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
from pairs_made import names

from pytest_clusterqual.judge.fabric.bisection import Found, Group, conclude, search


def tried(count: int, *guilty: set[str]) -> tuple[Found, list[Group]]:
    """A job that fails wherever all of one of the guilty sets take part; what was tried before the end."""
    asked: list[Group] = []

    def fails(group: Group) -> bool:
        asked.append(group)
        return any(together.issubset(group) for together in guilty)

    return conclude(search(names(count)), fails), asked


@pytest.mark.parametrize("count", [4, 5, 7, 8, 33])
def test_one_bad_node_is_found(count: int) -> None:
    for bad in names(count):
        found, asked = tried(count, {bad})
        assert found.nodes == (bad,)
        assert len(asked) <= math.ceil(math.log2(count)) + 2
        assert all(len(group) >= 2 for group in asked)


@pytest.mark.parametrize("count", [4, 5, 8, 17])
def test_two_nodes_that_fail_together_are_found(count: int) -> None:
    for pair in combinations(names(count), 2):
        found, asked = tried(count, set(pair))
        assert found.nodes == pair
        assert len(asked) <= 2 * math.ceil(math.log2(count)) + 3


def test_a_thousand_nodes_take_a_dozen_runs() -> None:
    found, asked = tried(1024, {"node777"})
    assert found.nodes == ("node777",)
    assert len(asked) == 12


def test_what_fails_no_more_names_nobody() -> None:
    found, _ = tried(8)
    assert found.nodes == ()
    assert "it comes and goes" in found.because


def test_what_takes_three_nodes_names_nobody() -> None:
    found, _ = tried(8, {"node2", "node5", "node7"})
    assert found.nodes == ()


def test_two_bad_nodes_at_the_front_are_not_told_apart() -> None:
    found, _ = tried(8, {"node1"}, {"node2"})
    assert found.nodes == ()
    assert found.because.endswith("there is more than one cause")
    one_of_them, _ = tried(8, {"node3"}, {"node7"})
    assert one_of_them.nodes == ("node3",)

"""Rank groups of a topology and of a layout: who is in which, and what does not fit."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pytest_clusterqual.model.groups import DIMENSIONS, Groups, groups_of, layout_groups, mesh, spread
from pytest_clusterqual.model.workload import Layout

TWO_BY_FOUR = ("a",) * 4 + ("b",) * 4
DEGREES = st.sampled_from([1, 2, 3, 4])
LAYOUTS = st.builds(
    Layout, name=st.just("any"), fsdp=st.sampled_from([None, "full", "grad-op", "hybrid"]), tensor=DEGREES,
    pipeline=DEGREES, context=DEGREES, expert=DEGREES,
)  # fmt: skip


def sets(groups: Groups) -> set[frozenset[int]]:
    return set(map(frozenset, groups))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("world", ((0, 1, 2, 3, 4, 5, 6, 7),)),
        ("intra_node", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("inter_node", ((0, 4),)),
        ("rails", ((0, 4), (1, 5), (2, 6), (3, 7))),
    ],
)
def test_groups_of_the_topology(kind: str, expected: Groups) -> None:
    assert groups_of(kind, TWO_BY_FOUR) == expected


def test_groups_follow_the_places_of_the_ranks() -> None:
    assert groups_of("intra_node", ("a", "b", "a", "b")) == ((0, 2), (1, 3))
    assert groups_of("rails", ("a", "b", "a", "b")) == ((0, 1), (2, 3))
    assert groups_of("inter_node", ("a", "b", "a", "b")) == ((0, 1),)


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ({}, {"replicate": ((0, 1, 2, 3, 4, 5, 6, 7),)}),
        ({"fsdp": "full"}, {"shard": ((0, 1, 2, 3, 4, 5, 6, 7),)}),
        ({"fsdp": "hybrid"}, {"shard": ((0, 1, 2, 3), (4, 5, 6, 7)), "replicate": ((0, 4), (1, 5), (2, 6), (3, 7))}),
        ({"tensor": 2, "pipeline": 2}, {
            "tensor": ((0, 1), (2, 3), (4, 5), (6, 7)), "pipeline": ((0, 4), (1, 5), (2, 6), (3, 7)),
            "replicate": ((0, 2), (1, 3), (4, 6), (5, 7)),
        }),
        # Context ranks hold the same parameters: they sum their gradients with the copies.
        ({"context": 2}, {"context": ((0, 1), (2, 3), (4, 5), (6, 7)), "replicate": ((0, 1, 2, 3, 4, 5, 6, 7),)}),
        ({"expert": 2}, {"replicate": ((0, 1, 2, 3, 4, 5, 6, 7),), "expert": ((0, 1), (2, 3), (4, 5), (6, 7))}),
    ],
)  # fmt: skip
def test_groups_of_a_layout(layout: dict[str, Any], expected: dict[str, Groups]) -> None:
    found = layout_groups(Layout(name="any", **layout), 8, 4)
    assert {name: sets(groups) for name, groups in found.items()} == {n: sets(g) for n, g in expected.items()}
    for name, groups in found.items():
        assert groups_of(f"any.{name}", TWO_BY_FOUR, layouts=[Layout(name="any", **layout)], nproc_per_node=4) == groups


@given(layout=LAYOUTS, data=DEGREES, nproc=st.integers(1, 8))
def test_every_rank_is_once_in_each_dimension_of_the_size_that_was_asked(layout: Layout, data: int, nproc: int) -> None:
    world = layout.tensor * layout.pipeline * layout.context * data
    try:
        m = mesh(layout, world, nproc)
    except ValueError:
        assume(False)
    found = layout_groups(layout, world, nproc)
    for groups in found.values():
        assert sorted(rank for group in groups for rank in group) == list(range(world))
        assert len({len(group) for group in groups}) == 1
    sizes = {name: len(found[name][0]) if name in found else 1 for name in DIMENSIONS}
    assert (sizes["tensor"], sizes["context"], sizes["pipeline"]) == (layout.tensor, layout.context, layout.pipeline)
    assert sizes["shard"] * sizes["replicate"] == data * layout.context, "all that hold the same parameters"
    assert sizes["expert"] == layout.expert
    assert (m.data, m.replicate * m.shard) == (data, data)


@given(layout=LAYOUTS, data=DEGREES, nproc=st.integers(1, 8))
def test_groups_of_two_dimensions_share_one_rank_at_most(layout: Layout, data: int, nproc: int) -> None:
    """But for context and expert ranks, which are among those that hold the same parameters."""
    try:
        found = layout_groups(layout, layout.tensor * layout.pipeline * layout.context * data, nproc)
    except ValueError:
        assume(False)
    for one, other in itertools.combinations(found, 2):
        if {one, other} & {"context", "expert"} and {one, other} & {"shard", "replicate"}:
            continue
        assert all(len(set(a) & set(b)) <= 1 for a in found[one] for b in found[other]), (one, other)


@pytest.mark.parametrize(
    ("layout", "world", "nproc", "message"),
    [
        ({"tensor": 4}, 6, 3, "layout any: 6 ranks are no multiple of pipeline 1 x context 1 x tensor 4 = 4"),
        ({"expert": 4}, 2, 1, "layout any: 2 data ranks are no multiple of expert 4"),
        ({"fsdp": "hybrid", "tensor": 2}, 6, 4, "layout any: 3 data ranks are no multiple of the 2 that share a node"),
    ],
)
def test_degrees_that_do_not_fit(layout: dict[str, Any], world: int, nproc: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layout_groups(Layout(name="any", **layout), world, nproc)


@pytest.mark.parametrize("kind", ["nodes", "tp2.tensors", "tp4.tensor", ".tensor", ""])
def test_an_unknown_kind_is_named_with_those_there_are(kind: str) -> None:
    with pytest.raises(ValueError, match=rf"got group '{kind}', want one such as intra_node, .*, world, tp2\.tensor"):
        groups_of(kind, TWO_BY_FOUR, layouts=[Layout(name="tp2", tensor=2)])


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("world", "1 group of 8 ranks over 2 nodes"),
        ("intra_node", "2 groups of 4 ranks inside a node"),
        ("rails", "4 groups of 2 ranks over 2 nodes"),
    ],
)
def test_groups_in_words(kind: str, words: str) -> None:
    assert spread(groups_of(kind, TWO_BY_FOUR), TWO_BY_FOUR) == words

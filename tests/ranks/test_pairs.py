"""Pairs of nodes: who waits for whose message, on which rail, alone or beside others."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch.distributed as dist
from rank_harness import run_ranks

from pytest_clusterqual.model.codec import from_json
from pytest_clusterqual.model.fabric import PairTiming
from pytest_clusterqual.rank.pairs import exchange

PAUSE = 0.2


def slow_sender(ctx: Any, **given: Any) -> Any:
    """An exchange in which the third rank is late with whatever it sends."""
    genuine: Any = dist.batch_isend_irecv

    def late(operations: list[Any]) -> Any:
        if ctx.rank == 2 and operations[0].op is dist.isend:
            time.sleep(PAUSE)
        return genuine(operations)

    dist.batch_isend_irecv = late
    return exchange(ctx, **given)


def timings(answers: list[Any]) -> dict[tuple[str, str], PairTiming]:
    assert all(isinstance(answer, list) for answer in answers), answers
    found = [timing for answer in answers for timing in from_json(tuple[PairTiming, ...], answer)]
    assert len({(timing.sender, timing.receiver) for timing in found}) == len(found)
    return {(timing.sender, timing.receiver): timing for timing in found}


@pytest.mark.slow
def test_the_receiver_times_what_one_sender_holds_up(tmp_path: Path) -> None:
    answers = run_ranks(slow_sender, tmp_path, nodes=["a", "b", "c", "d"], size=100_000, repeats=3, partners=9)
    found = timings(answers)
    assert set(found) == {(x, y) for x in "abcd" for y in "abcd" if x != y}
    assert {timing.bytes for timing in found.values()} == {100_000}
    assert {len(timing.seconds) for timing in found.values()} == {3}
    taken = {sender: [median(t.seconds) for (s, _), t in found.items() if s == sender] for sender in "abcd"}
    assert min(taken["c"]) > max(taken["a"] + taken["b"] + taken["d"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nodes", "partners", "expected"),
    [
        (["a", "a", "b", "c", "c"], 9, {"ab", "ba", "ac", "ca", "bc", "cb"}),
        (["a", "b", "c", "d"], 1, None),
    ],
)
def test_the_first_ranks_of_nodes_meet_as_many_others_as_asked(
    tmp_path: Path, nodes: list[str], partners: int, expected: set[str] | None
) -> None:
    answers = run_ranks(exchange, tmp_path, nodes=nodes, size=4096, repeats=3, partners=partners)
    met = [sender + receiver for sender, receiver in timings(answers)]
    assert expected is None or set(met) == expected
    assert sorted(receiver for _, receiver in met) == sorted([*set(nodes)] * min(partners, len(set(nodes)) - 1))
    assert all((answers[rank] == []) == (nodes.index(node) != rank) for rank, node in enumerate(nodes))


@pytest.mark.slow
def test_rails_follow_each_other_and_then_pairs_are_alone(tmp_path: Path) -> None:
    nodes, alone = ["a", "a", "b", "b", "c", "c"], [["a", "c", 1], ["b", "c", 0]]
    answers = run_ranks(exchange, tmp_path, nodes=nodes, size=4096, repeats=3, partners=9, rails=True, alone=alone)
    found = [from_json(tuple[PairTiming, ...], answer) for answer in answers]
    every = [timing for timings in found for timing in timings]
    assert {len(timing.seconds) for timing in every} == {3}
    assert {timing.rail for timing in found[1]} == {1}
    assert sorted((t.sender, t.receiver, t.rail) for t in every if t.alone) == [
        ("a", "c", 1), ("b", "c", 0), ("c", "a", 1), ("c", "b", 0)
    ]  # fmt: skip
    at_work = [timing for timing in every if not timing.alone]
    assert sorted((t.sender + t.receiver, t.rail) for t in at_work) == sorted(
        (one + other, rail) for one in "abc" for other in "abc" if one != other for rail in (0, 1)
    )
    assert len({(t.turn, t.rail) for t in at_work}) == 6
    assert all(len({frozenset((t.sender, t.receiver)) for t in at_work if t.turn == turn}) == 1 for turn in range(6))


@pytest.mark.slow
def test_a_pair_of_a_node_that_is_not_there_is_refused(tmp_path: Path) -> None:
    answers = run_ranks(
        exchange, tmp_path, nodes=["a", "b"], size=4096, repeats=3, partners=0, alone=[["a", "b", 0], ["a", "x", 0]]
    )
    assert set(answers) == {"MeasurementError: pairs of nodes: x has no rank on rail 0"}

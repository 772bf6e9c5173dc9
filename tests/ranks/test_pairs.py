"""Pairs of nodes: who meets whom, and who waits for whose message."""

from __future__ import annotations

import time
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch.distributed as dist
from rank_harness import run_ranks

from pytest_clusterqual.model.codec import from_json
from pytest_clusterqual.model.measurement import PairTiming
from pytest_clusterqual.rank.pairs import exchange, opponent, turns_of

PAUSE = 0.2


@pytest.mark.parametrize("players", [2, 3, 4, 5, 6, 7, 8, 31, 32])
def test_everybody_meets_everybody_once_and_nobody_two_at_a_time(players: int) -> None:
    met = []
    for turn in range(turns_of(players)):
        others = [opponent(player, turn, players) for player in range(players)]
        assert all(other != player for player, other in enumerate(others))
        assert all(others[other] == player for player, other in enumerate(others) if other is not None)
        assert others.count(None) == players % 2
        met += [(player, other) for player, other in enumerate(others) if other is not None and player < other]
    assert sorted(met) == list(combinations(range(players), 2))


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
        (["a", "b", "c", "d"], 1, {"ad", "da", "bc", "cb"}),
    ],
)
def test_the_first_ranks_of_nodes_meet_as_many_others_as_asked(
    tmp_path: Path, nodes: list[str], partners: int, expected: set[str]
) -> None:
    answers = run_ranks(exchange, tmp_path, nodes=nodes, size=4096, repeats=3, partners=partners)
    assert {sender + receiver for sender, receiver in timings(answers)} == expected
    assert all((answers[rank] == []) == (nodes.index(node) != rank) for rank, node in enumerate(nodes))

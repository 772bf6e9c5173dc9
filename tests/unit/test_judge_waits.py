from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from sweep_made import calls, group_of

from pytest_clusterqual.judge.fabric.sweeps import GroupTimes
from pytest_clusterqual.judge.fabric.waits import late_nodes, late_ranks, rank_waits, shared_wait, shared_waits


@pytest.mark.parametrize(
    ("call", "share"),
    [
        ((4.0, 4.0, 4.0, 1.0), 0.75),  # the last one is late: the others wait
        ((4.0, 4.0, 4.0, 4.0), 0.0),  # a slow link holds up all of them
        ((1.0, 1.0, 1.0, 4.0), 0.0),  # a slow receiver is slow
        ((4.0, 4.0, 1.0, 1.0), 0.75),  # half of them, such as all ranks of a node, are late
        ((1.0, 1.0, 4.0), 0.0),
        ((1.0, 4.0, 4.0), 0.75),
        ((1.0, 4.0), 0.75),  # of two, the longer one waited
    ],
)
def test_only_what_most_ranks_wait_is_no_property_of_the_fabric(call: tuple[float, ...], share: float) -> None:
    assert shared_wait(call) == pytest.approx(share)


def test_the_wait_of_each_rank_and_round() -> None:
    times = group_of((3, 5, 7), [[(2.0, 1.0, 2.0)] * 3, [(4.0, 1.0, 4.0)] * 3, []])
    assert shared_waits(times) == (0.5, 0.75, 0.0)
    assert rank_waits(times) == {3: pytest.approx(0.625), 5: 0.0, 7: pytest.approx(0.625)}


@pytest.mark.parametrize("ranks", [2, 3, 8, 64])
@pytest.mark.parametrize("delay", [5e-3, 20e-3, 200e-3])
@pytest.mark.parametrize(("noise", "drift"), [(0.01, 0.0), (0.1, 0.0), (0.05, 0.05)])
def test_a_delay_is_recovered_on_the_rank_that_has_it(ranks: int, delay: float, noise: float, drift: float) -> None:
    random = Random(ranks)
    for late in {0, ranks // 2, ranks - 1}:
        rounds = [
            calls(random, range(ranks), 5e-3, noise=noise, drift=drift, late=lambda r, _: delay * (r == late))  # noqa: B023
            for _ in range(6)
        ]
        (found,) = late_ranks(group_of(range(ranks), rounds))
        assert found.ranks == (late,)
        assert found.seconds == pytest.approx(delay, rel=0.05, abs=1e-3)
        assert found.interval.low <= found.seconds <= found.interval.high
        assert found.last > 0.9 * found.calls > 0.9 * 95
        assert found.by_chance == pytest.approx(96 / ranks)


def test_two_late_ranks_are_both_named() -> None:
    delays = {2: 30e-3, 5: 30e-3}
    rounds = [calls(Random(seed), range(8), 5e-3, late=lambda r, _: delays.get(r, 0.0)) for seed in range(6)]
    assert sorted(late.ranks for late in late_ranks(group_of(range(8), rounds))) == [(2,), (5,)]


@pytest.mark.parametrize(("ranks", "runs"), [(2, 200), (4, 200), (16, 40)])
@pytest.mark.parametrize(("noise", "drift"), [(0.02, 0.0), (0.5, 0.0), (0.05, 0.2)])
def test_ranks_that_come_alike_are_not_accused(ranks: int, runs: int, noise: float, drift: float) -> None:
    random = Random(ranks)
    accused = sum(
        bool(late_ranks(group_of(range(ranks), [
            calls(random, range(ranks), 5e-3, noise=noise, drift=drift, count=8) for _ in range(6)
        ])))
        for _ in range(runs)
    )  # fmt: skip
    assert accused <= 0.02 * runs


@pytest.mark.parametrize(
    ("transfer", "delay"),
    [
        (1.0, 0.02),  # 2 % of the transfer
        (1e-4, 15e-6),  # 15 us
    ],
)
def test_lateness_that_does_not_matter_is_not_told(transfer: float, delay: float) -> None:
    def late(delay: float) -> bool:
        rounds = [
            calls(Random(seed), range(4), transfer, noise=0.001, late=lambda r, _: delay * (r == 1))
            for seed in range(6)
        ]
        return bool(late_ranks(group_of(range(4), rounds)))

    assert not late(delay)
    assert late(4 * delay)


def test_five_rounds_are_too_few_and_a_rank_late_in_some_of_them_is_not_steadily_late() -> None:
    def rounds(delays: list[float]) -> list[list[tuple[float, ...]]]:
        return [
            calls(Random(seed), range(4), 5e-3, late=lambda r, _: delay * (r == 1))  # noqa: B023
            for seed, delay in enumerate(delays)
        ]

    assert late_ranks(group_of(range(4), rounds([20e-3] * 5))) == ()
    assert late_ranks(group_of(range(4), rounds([20e-3] * 5 + [4e-3]))) == ()
    assert late_ranks(group_of(range(4), rounds([20e-3] * 6)))


def on_nodes(nodes: int, *, late: Callable[[int], float] = lambda rank: 0.0, **noise: Any) -> GroupTimes:
    """Six rounds of calls on nodes of two ranks; `late` is the delay of a rank."""
    random, ranks = Random(nodes), range(2 * nodes)
    return group_of(ranks, [calls(random, ranks, 5e-3, late=lambda r, _: late(r), **noise) for _ in range(6)])


@pytest.mark.parametrize("nodes", [2, 3, 8])
@pytest.mark.parametrize("delay", [5e-3, 50e-3])
def test_a_node_whose_ranks_come_last_together_is_late(nodes: int, delay: float) -> None:
    times = on_nodes(nodes, late=lambda rank: delay * (rank // 2 == 1))
    (found,) = late_nodes(times, [f"node{rank // 2}" for rank in range(2 * nodes)])
    assert found.ranks == (2, 3)
    assert found.seconds == pytest.approx(delay, rel=0.05, abs=1e-3)
    assert found.interval.low <= found.seconds <= found.interval.high
    assert found.last > 0.9 * found.calls > 0.9 * 95
    assert found.by_chance == pytest.approx(96 / math.comb(2 * nodes, 2))


def test_a_node_of_one_late_rank_is_not_late_nor_is_one_rank_a_node_or_one_node_all_there_is() -> None:
    one = on_nodes(3, late=lambda rank: 20e-3 * (rank == 2))
    assert late_nodes(one, [f"node{rank // 2}" for rank in range(6)]) == ()
    assert late_nodes(one, [f"node{rank}" for rank in range(6)]) == ()
    assert late_nodes(one, ["node0"] * 6) == ()
    assert [late.ranks for late in late_ranks(one)] == [(2,)]


@pytest.mark.parametrize("nodes", [2, 8])
@pytest.mark.parametrize(("noise", "drift"), [(0.02, 0.0), (0.5, 0.0), (0.05, 0.2)])
def test_nodes_that_come_alike_are_not_accused(nodes: int, noise: float, drift: float) -> None:
    random, ranks = Random(nodes), range(2 * nodes)
    made = [
        group_of(ranks, [calls(random, ranks, 5e-3, noise=noise, drift=drift, count=8) for _ in range(6)])
        for _ in range(100)
    ]
    assert sum(bool(late_nodes(times, [f"node{rank // 2}" for rank in ranks])) for times in made) <= 2

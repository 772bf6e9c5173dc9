"""The same collective over ranks: who transferred, who waited, who came last."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from traces_made import activity, trace

from pytest_clusterqual.judge.step.arrivals import arrivals
from pytest_clusterqual.model.trace import Arrivals, Collective, Trace

STEPS = [(1, 0, 1000), (2, 1000, 2000)]
GROUP = Collective(name="allreduce", group="0 [0, 1]")


def rank(
    lengths: Sequence[int], *, steps: Sequence[int] | None = None, collectives: Sequence[Collective] = (GROUP,),
    kinds: Sequence[int] | None = None, sequence: Sequence[int] | None = None,
) -> Trace:  # fmt: skip
    spans = [(100 * place, 100 * place + length) for place, length in enumerate(lengths)]
    return trace(communication=activity(spans, steps, kinds), steps=STEPS, collectives=collectives, sequence=sequence)


def seen(count: int, transfer: float, wait: float, last: int) -> Arrivals:
    return Arrivals(
        collectives=count, transfer=pytest.approx(transfer * 1e-9), wait=pytest.approx(wait * 1e-9), last=last
    )


def test_the_shortest_came_last_and_the_others_waited() -> None:
    assert arrivals([rank([90, 80]), rank([20, 30])]) == (seen(2, 50, 120, 0), seen(2, 50, 0, 2))


def test_nobody_is_last_where_all_take_as_long() -> None:
    assert arrivals([rank([20]), rank([20])]) == (seen(1, 20, 0, 0), seen(1, 20, 0, 0))


def test_order_counts_within_a_step_so_that_another_beginning_shifts_nothing() -> None:
    early, late = rank([70, 50, 40], steps=[0, 1, 1]), rank([30, 60], steps=[1, 1])
    assert arrivals([early, late]) == (seen(2, 70, 20, 1), seen(2, 70, 20, 1))


def test_before_the_first_step_nothing_is_compared() -> None:
    assert arrivals([rank([70, 50], steps=[-1, 0]), rank([30], steps=[0])]) == (seen(1, 30, 20, 0), seen(1, 30, 0, 1))


def test_numbers_of_the_group_find_it_again_where_order_would_not() -> None:
    one, other = rank([70, 50, 40], sequence=[4, 5, 6]), rank([30, 60], sequence=[5, 6])
    assert arrivals([one, other]) == (seen(2, 70, 20, 1), seen(2, 70, 20, 1))


def test_a_step_on_which_ranks_disagree_is_left_out() -> None:
    assert arrivals([rank([70, 50]), rank([30])]) == (None, None)


def test_groups_are_apart() -> None:
    here, there = Collective(name="allreduce", group="1 [0]"), Collective(name="allreduce", group="2 [1]")
    both = (
        rank([90, 40], collectives=[GROUP, here], kinds=[0, 1]),
        rank([20, 10], collectives=[GROUP, there], kinds=[0, 1]),
    )
    assert arrivals(both) == (seen(1, 20, 70, 0), seen(1, 20, 0, 1))


def test_an_unnamed_group_must_be_on_all_traces() -> None:
    unnamed = [Collective(name="all_reduce", group="")]
    assert arrivals([rank([90], collectives=unnamed), rank([20], collectives=unnamed), rank([])]) == (None, None, None)
    assert arrivals([rank([90], collectives=unnamed), rank([20], collectives=unnamed)])[1] == seen(1, 20, 0, 1)


@pytest.mark.parametrize("name", ["send", "recv", "coalesced", "ncclDevKernel_SendRecv"])
def test_sends_and_receives_are_no_collectives(name: str) -> None:
    between = [Collective(name=name, group="0 [0, 1]")]
    assert arrivals([rank([90], collectives=between), rank([20], collectives=between)]) == (None, None)


@pytest.mark.parametrize("name", ["all_to_all", "_allgather_base", "reduce_scatter_tensor", "broadcast", "barrier"])
def test_all_others_are(name: str) -> None:
    of_all = [Collective(name=name, group="0 [0, 1]")]
    assert arrivals([rank([90], collectives=of_all), rank([20], collectives=of_all)])[0] == seen(1, 20, 70, 0)


def test_one_trace_alone_tells_nothing() -> None:
    assert arrivals([rank([90])]) == (None,)

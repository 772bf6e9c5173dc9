"""Collectives: right results, right sizes, a wrong element is seen, and who waits for whom."""

from __future__ import annotations

import time
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from rank_harness import run_ranks

from pytest_clusterqual.model.codec import from_json
from pytest_clusterqual.model.fabric import RankFabric
from pytest_clusterqual.model.project import COLLECTIVES
from pytest_clusterqual.rank import collectives
from pytest_clusterqual.rank.collectives import sweep
from pytest_clusterqual.rank.exchange import uneven_shares

SIZES = [1, 1000, 100_003]
CALLS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather_into_tensor",
    "reduce_scatter": "reduce_scatter_tensor",
    "all_to_all": "all_to_all_single",
    "all_to_all_v": "all_to_all_single",
    "send_recv": "batch_isend_irecv",
    "broadcast": "broadcast",
}
PAUSE = 0.1  # seconds
slow = pytest.mark.slow


@given(st.integers(min_value=2, max_value=40), st.integers(min_value=1, max_value=5000))
def test_uneven_shares_use_every_element_and_keep_as_much_as_even_ones(ranks: int, part: int) -> None:
    shares = uneven_shares(part * ranks, ranks)
    assert len(shares) == ranks
    assert sum(shares) == part * ranks
    assert shares[0] == part
    for place, share in enumerate(shares[1:], 1):
        assert abs(share - 2 * part * place / ranks) < 1


def all_collectives(ctx: Any, **given: Any) -> dict[str, Any]:
    return {name: sweep(ctx, collective=name, **given) for name in COLLECTIVES}


@slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_results_are_right_and_sizes_are_what_was_moved(tmp_path: Path, ranks: int) -> None:
    answers = run_ranks(
        all_collectives, tmp_path, nodes=["a"] * ranks, groups=[[*range(ranks)]], sizes=SIZES, seconds=0.001
    )  # fmt: skip
    unit = ranks * 4
    expected = [unit, 1000 // unit * unit, 100_003 // unit * unit]
    for name in COLLECTIVES:
        results = [from_json(RankFabric, answer[name]) for answer in answers]
        assert [result.rank for result in results] == list(range(ranks))
        for result in results:
            assert result.group_size == ranks
            assert [timing.bytes for timing in result.timings] == expected
            assert [timing.wrong for timing in result.timings] == [0, 0, 0]
            assert all(len(timing.seconds) == 3 and min(timing.seconds) > 0 for timing in result.timings)
            assert all(6 <= len(timing.instances) <= 16 and min(timing.instances) > 0 for timing in result.timings)
        for same in zip(*(result.timings for result in results), strict=True):
            assert len({(timing.iterations, len(timing.instances)) for timing in same}) == 1


def corrupted(ctx: Any) -> dict[str, int]:
    """Wrong elements of every collective with the first, then the last element of rank 1's result off by one."""
    found = {}
    for collective in COLLECTIVES:
        genuine = getattr(dist, CALLS[collective])
        for position in (0, -1):
            if ctx.rank == 1:
                setattr(dist, CALLS[collective], spoiling(genuine, position))
            answer = sweep(ctx, collective=collective, groups=[[0, 1]], sizes=[4000], seconds=0.0001)
            setattr(dist, CALLS[collective], genuine)
            found[f"{collective} at {position}"] = answer["timings"][0]["wrong"]
    return found


def spoiling(genuine: Any, position: int) -> Any:
    def spoiled(*args: Any, **given: Any) -> Any:
        work = genuine(*args, **given)
        send_recv = isinstance(args[0], list)
        for request in work if send_recv else ():
            request.wait()
        target = args[0][1].tensor if send_recv else args[0]
        if target.numel() > 1:  # the meeting of all ranks is a one-element all_reduce
            target[position] += 1
        return [] if send_recv else work

    return spoiled


@slow
def test_one_wrong_element_on_one_rank_is_counted(tmp_path: Path) -> None:
    healthy, spoiled = run_ranks(corrupted, tmp_path, nodes=["a", "a"])
    names = {f"{collective} at {position}" for collective in COLLECTIVES for position in (0, -1)}
    assert healthy == dict.fromkeys(names, 0)
    assert spoiled == dict.fromkeys(names, 2)  # once before timing, once after


def swapped(ctx: Any) -> Any:
    """A reduce-scatter that hands every rank the next rank's part."""
    genuine = dist.reduce_scatter_tensor

    def turned(output: torch.Tensor, given: torch.Tensor, **kwargs: Any) -> Any:
        return genuine(output, given.roll(len(output)), **kwargs)

    dist.reduce_scatter_tensor = turned
    return sweep(ctx, collective="reduce_scatter", groups=[[0, 1]], sizes=[65536], seconds=0.0001)


@slow
def test_parts_at_the_wrong_place_are_seen(tmp_path: Path) -> None:
    for answer in run_ranks(swapped, tmp_path, nodes=["a", "a"]):
        assert from_json(RankFabric, answer).timings[0].wrong > 8000


SHAPES = {  # groups -> how many ranks are in the group of each of the five ranks
    ((0, 1), (2, 3, 4)): [2, 2, 3, 3, 3],
    ((0, 1), (2,), (3, 4)): [2, 2, 1, 2, 2],
    ((1, 4),): [0, 2, 0, 0, 2],
}


def all_shapes(ctx: Any) -> list[dict[str, Any]]:
    return [
        all_collectives(ctx, groups=groups, sizes=[4100], seconds=0, alone=alone)
        for groups in SHAPES
        for alone in (False, True)
    ]


@slow
def test_groups_may_differ_and_ranks_without_one_keep_in_step(tmp_path: Path) -> None:
    answers = run_ranks(all_shapes, tmp_path, nodes=["a"] * 5)
    shapes = [shape for shape in SHAPES.items() for _ in (False, True)]
    for (groups, members), *by_rank in zip(shapes, *answers, strict=True):
        unit = 4 * (6 if len(groups[-1]) == 3 else 2)
        moved = [4100 // unit * unit]
        for name in COLLECTIVES:
            results = [from_json(RankFabric, answer[name]) for answer in by_rank]
            assert [result.group_size for result in results] == members
            for result in results:
                assert [timing.bytes for timing in result.timings] == (moved if result.group_size > 1 else [])
                assert all(timing.wrong == 0 for timing in result.timings)


def watched(ctx: Any, *, alone: bool) -> list[float]:
    """When this rank began and ended its calls of a sweep in pairs, as seen by every rank's common clock."""
    calls = []
    genuine = collectives.Exchange

    def noted(*args: Any) -> Any:
        exchange = genuine(*args)
        call = exchange.call

        def timed() -> Any:
            calls.append(time.monotonic())
            time.sleep(0.005)
            call()
            calls.append(time.monotonic())

        exchange.call = timed
        return exchange

    collectives.Exchange = noted  # type: ignore[assignment, misc]  # in this process, which ends with the test
    sweep(ctx, collective="all_reduce", groups=[[0, 1], [2, 3]], sizes=[4096], seconds=0.0001, alone=alone)
    return [min(calls), max(calls)]


@slow
@pytest.mark.parametrize("alone", [False, True])
def test_groups_work_at_once_or_take_turns(tmp_path: Path, alone: bool) -> None:
    spans = run_ranks(watched, tmp_path, nodes=["a"] * 4, alone=alone)
    first, second = spans[:2], spans[2:]
    at_once = min(end for _, end in first) > max(begin for begin, _ in second)
    in_turns = max(end for _, end in first) < min(begin for begin, _ in second)
    assert (at_once, in_turns) == (not alone, alone)


def late(ctx: Any) -> Any:
    """A sweep in which rank 1 pauses after every single call that is timed."""
    genuine, ends = collectives.moment, cycle((False, True))

    def pausing(given: Any) -> Any:
        moment = genuine(given)
        if next(ends):
            time.sleep(PAUSE)
        return moment

    if ctx.rank == 1:
        collectives.moment = pausing
    return sweep(ctx, collective="all_reduce", groups=[[0, 1, 2]], sizes=[4096], seconds=0)


@slow
def test_a_single_call_holds_the_wait_for_whoever_comes_late(tmp_path: Path) -> None:
    timings = [from_json(RankFabric, answer).timings[0] for answer in run_ranks(late, tmp_path, nodes=["a"] * 3)]
    calls = list(zip(*(timing.instances for timing in timings), strict=True))
    assert len(calls) >= 6
    assert median(min(before, after) - delayed for before, delayed, after in calls) > 0.5 * PAUSE


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"collective": "gather", "groups": [[0, 1]]}, "collective: got 'gather', want one of all_reduce, all_gather"),
        ({"collective": "all_reduce", "groups": [[0, 1], [1]]}, "groups: got [[0, 1], [1]], want no rank in two"),
    ],
)
@slow
def test_what_cannot_be_swept_is_refused(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    for answer in run_ranks(sweep, tmp_path, nodes=["a", "a"], sizes=[64], seconds=0.001, **given):
        assert answer.startswith(f"MeasurementError: {message}")

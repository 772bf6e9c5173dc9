"""Collectives: right results, right sizes, and a wrong element is seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rank_harness import run_ranks

from pytest_clusterqual.model.codec import from_json
from pytest_clusterqual.model.measurement import RankFabric
from pytest_clusterqual.model.project import COLLECTIVES
from pytest_clusterqual.rank.collectives import sweep

pytestmark = pytest.mark.slow

SIZES = [1, 1000, 100_003]
CORRUPTED = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather_into_tensor",
    "reduce_scatter": "reduce_scatter_tensor",
    "all_to_all": "all_to_all_single",
    "send_recv": "batch_isend_irecv",
}


def all_collectives(ctx: Any, *, group: str, sizes: list[int]) -> dict[str, Any]:
    return {name: sweep(ctx, collective=name, group=group, sizes=sizes, seconds=0.001) for name in COLLECTIVES}


@pytest.mark.parametrize("ranks", [2, 3])
def test_results_are_right_and_sizes_are_what_was_moved(tmp_path: Path, ranks: int) -> None:
    answers = run_ranks(all_collectives, tmp_path, nodes=["a"] * ranks, group="world", sizes=SIZES)
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
        for same in zip(*(result.timings for result in results), strict=True):
            assert len({timing.iterations for timing in same}) == 1


def corrupting(ctx: Any, *, collective: str, position: int) -> Any:
    """The sweep with one element of one rank's result off by one, or one rank's message left unsent."""
    name = CORRUPTED[collective]
    genuine: Any = getattr(dist, name)

    def spoiled(*args: Any, **kwargs: Any) -> Any:
        work = genuine(*args, **kwargs)
        target = args[0][1].tensor if collective == "send_recv" else args[0]
        for request in work if collective == "send_recv" else ():
            request.wait()
        if target.numel() > 1:  # the meeting of all ranks is a one-element all_reduce
            target[position] += 1
        return [] if collective == "send_recv" else work

    if ctx.rank == 1:
        setattr(dist, name, spoiled)
    return sweep(ctx, collective=collective, group="world", sizes=[4000], seconds=0.0001)


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("position", [0, -1])
def test_one_wrong_element_on_one_rank_is_counted(tmp_path: Path, collective: str, position: int) -> None:
    answers = run_ranks(corrupting, tmp_path, nodes=["a", "a"], collective=collective, position=position)
    healthy, spoiled = (from_json(RankFabric, answer).timings[0].wrong for answer in answers)
    assert spoiled == 2  # once before timing, once after
    assert healthy == 0


def swapped(ctx: Any) -> Any:
    """A reduce-scatter that hands every rank the next rank's part."""
    genuine = dist.reduce_scatter_tensor

    def turned(output: torch.Tensor, given: torch.Tensor, **kwargs: Any) -> Any:
        return genuine(output, given.roll(len(output)), **kwargs)

    dist.reduce_scatter_tensor = turned
    return sweep(ctx, collective="reduce_scatter", group="world", sizes=[65536], seconds=0.0001)


def test_parts_at_the_wrong_place_are_seen(tmp_path: Path) -> None:
    for answer in run_ranks(swapped, tmp_path, nodes=["a", "a"]):
        assert from_json(RankFabric, answer).timings[0].wrong > 8000


@pytest.mark.parametrize(
    ("group", "sizes"),
    [("intra_node", [2, 2, 1]), ("inter_node", [2, 0, 2]), ("world", [3, 3, 3])],
)
def test_groups_run_together_and_ranks_outside_keep_in_step(tmp_path: Path, group: str, sizes: list[int]) -> None:
    answers = run_ranks(all_collectives, tmp_path, nodes=["a", "a", "b"], group=group, sizes=[64, 4096])
    for name in COLLECTIVES:
        results = [from_json(RankFabric, answer[name]) for answer in answers]
        assert [result.group_size for result in results] == sizes
        assert [len(result.timings) for result in results] == [2 if size > 1 else 0 for size in sizes]
        assert all(timing.wrong == 0 for result in results for timing in result.timings)


def unknown(ctx: Any) -> Any:
    return sweep(ctx, collective="broadcast", group="world", sizes=[64], seconds=0.001)


def test_an_unknown_collective_is_refused(tmp_path: Path) -> None:
    for answer in run_ranks(unknown, tmp_path, nodes=["a", "a"]):
        assert answer.startswith("MeasurementError: collective: got 'broadcast', want one of all_reduce, all_gather")

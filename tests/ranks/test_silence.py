"""A job in silence computes what the real one computes, needs no other rank, and leaves the real one as it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from rank_harness import DDP, FSDP, TINY, run_ranks
from torch.utils.flop_counter import FlopCounterMode

from pytest_clusterqual.model.codec import from_json, to_json
from pytest_clusterqual.model.workload import Layout, Workload
from pytest_clusterqual.rank.data import ByteData
from pytest_clusterqual.rank.ladder import climb
from pytest_clusterqual.rank.layouts import build
from pytest_clusterqual.rank.silence import silent_job
from pytest_clusterqual.rank.training import global_losses

pytestmark = pytest.mark.slow

STEPS = 3
SMALL = replace(TINY, microbatch=1, global_batch=4)
DEEP = replace(SMALL, model=replace(SMALL.model, layers=4))
MIXED = replace(SMALL, model=replace(SMALL.model, ffn=32, experts=4, top_k=2))
SPREAD: dict[str, tuple[int, Workload, dict[str, Any]]] = {
    "hybrid": (4, SMALL, {"fsdp": "hybrid"}),
    "tensor-fsdp": (2, replace(SMALL, microbatch=2), {"tensor": 2, "fsdp": "full"}),
    "pipeline": (2, DEEP, {"pipeline": 2}),
    "pipeline-tensor": (4, replace(DEEP, microbatch=2), {"pipeline": 2, "schedule": "interleaved",
                                                         "stages_per_rank": 2, "tensor": 2}),
    "context": (2, SMALL, {"context": 2}),
    "expert": (2, MIXED, {"expert": 2}),
    "fp16-fsdp": (2, replace(SMALL, precision="fp16"), {"fsdp": "full"}),
}  # fmt: skip


def nodes(ranks: int) -> list[str]:
    return ["a"] * (ranks // 2) + ["b"] * (ranks // 2)


def beside(ctx: Any, *, workload: dict[str, Any], layout: dict[str, Any], silent: bool) -> Any:
    """Losses of real steps; with `silent` one rank after the other does steps alone in between.

    Then also the floating-point operations of a real step and of a silent one.
    """
    work = from_json(Workload, workload)
    data = ByteData.open(ctx, work)
    job = build(ctx, work, from_json(Layout, layout))
    losses, alone = [], None
    operations: list[int] = []
    for step in range(1, STEPS + 1):
        batches = data.batches(step, rank=job.data_rank, world_size=job.data_ranks)
        with FlopCounterMode(display=False) as counted:
            losses.append(job.step(batches))
        operations = [counted.get_total_flops()]
        if silent:
            alone = alone or silent_job(ctx, work, job, batches)
            for turn in range(ctx.world_size):
                if turn == ctx.rank:
                    with FlopCounterMode(display=False) as counted:
                        alone.step(batches)
                    operations.append(counted.get_total_flops())
                dist.barrier()
    return global_losses(ctx, losses), operations


@pytest.mark.parametrize("name", SPREAD)
def test_a_rank_computes_alone_what_it_computes_among_all(name: str, tmp_path: Path) -> None:
    ranks, workload, layout = SPREAD[name]
    given = {"nodes": nodes(ranks), "workload": to_json(workload), "layout": {"name": name, **layout}}
    expected = run_ranks(beside, tmp_path, **given, silent=False)[0][0]
    answers = run_ranks(beside, tmp_path, **given, silent=True)
    assert not [answer for answer in answers if isinstance(answer, str)], answers
    for losses, _ in answers:
        assert list(losses) == pytest.approx(list(expected), rel=1e-6)
    real, alone = zip(*(operations for _, operations in answers), strict=True)
    assert sum(real) == sum(alone) > 0
    if not workload.model.experts:  # in silence each rank has as many tokens as it sends away
        assert real == alone


def test_two_rungs_are_left_where_no_barrier_can_be_put(tmp_path: Path) -> None:
    plan = {"rounds": 2, "least": 2, "seconds": 3.0, "limit": 30.0, "whole": False}
    layout = {"name": "tp", "tensor": 2}
    answers = run_ranks(climb, tmp_path, nodes=["a", "b"], workload=to_json(SMALL), layout=layout, **plan)
    for answer in answers:
        assert not isinstance(answer, str), answer
        assert len(answer) == 2
        for made in answer:
            assert len(made["compute"]) == len(made["step"]) > 0
            assert (made["barrier"], made["payload"]) == ([], [])


@pytest.mark.parametrize("layout", [DDP, FSDP])
def test_all_rungs_are_climbed_where_they_can_be(layout: dict[str, Any], tmp_path: Path) -> None:
    plan = {"rounds": 1, "least": 1, "seconds": 1.0, "limit": 30.0, "whole": False}
    answers = run_ranks(climb, tmp_path, nodes=["a", "b"], workload=to_json(SMALL), layout=layout, **plan)
    assert all(len(made[rung]) > 0 for (made,) in answers for rung in ("compute", "barrier", "payload", "step"))


def cramped(ctx: Any, **given: Any) -> Any:
    """The ladder where there is no room but on the first rank."""
    from pytest_clusterqual.rank import silence

    silence._room = lambda ctx: 1 << 30 if ctx.rank == 0 else 1 << 10
    return climb(ctx, **given)


def test_a_job_that_does_not_fit_twice_says_so_on_every_rank(tmp_path: Path) -> None:
    plan = {"rounds": 1, "least": 1, "seconds": 1.0, "limit": 30.0, "whole": False}
    layout = {"name": "tp", "tensor": 2}
    answers = run_ranks(cramped, tmp_path, nodes=["a", "b"], workload=to_json(SMALL), layout=layout, **plan)
    for answer in answers:
        assert "ClusterQualError: layout tp: to do a step without communication it must be there twice" in answer
        assert "there is no room for another " in answer


def room(ctx: Any) -> int:
    from pytest_clusterqual.rank import silence

    return silence._room(ctx)


def test_the_room_of_ranks_that_share_a_machine_is_its_part(tmp_path: Path) -> None:
    alone, (shared, _) = run_ranks(room, tmp_path, nodes=["a"])[0], run_ranks(room, tmp_path, nodes=["a", "a"])
    assert 0 < shared < 0.8 * alone

"""A step taken apart: nothing waits without communication, and the real step trains as ever."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from rank_harness import DDP, FSDP, FSDP_AC, TINY, run_ranks

from pytest_clusterqual.model.codec import from_json, to_json
from pytest_clusterqual.model.fabric import RankLadder
from pytest_clusterqual.model.workload import Layout, Workload
from pytest_clusterqual.rank.data import ByteData
from pytest_clusterqual.rank.elision import Communication
from pytest_clusterqual.rank.job import Job
from pytest_clusterqual.rank.ladder import RUNGS, affordable, climb
from pytest_clusterqual.rank.layouts import build
from pytest_clusterqual.rank.training import global_losses

STEPS = 3
LATE = 0.2  # seconds
PLAN = {"rounds": 3, "least": 3, "seconds": 1.0, "limit": 30.0}  # three rounds of one step where a rank is late


def one_rank_alone(ctx: Any, *, workload: dict[str, Any], layouts: list[dict[str, Any]]) -> list[Any]:
    """Per layout: the losses of real steps, what a step exchanges; then steps that only the first rank does."""
    work = from_json(Workload, workload)
    data = ByteData.open(ctx, work)
    found = []
    for layout in layouts:
        job = build(ctx, work, from_json(Layout, layout))
        communication = Communication(ctx, job)
        losses = []
        for step in range(1, STEPS + 1):
            communication.exchanged.clear()
            losses.append(job.step(data.batches(step, rank=job.data_rank, world_size=job.data_ranks)))
        exchanged = [(each.collective, each.given, each.received) for each in communication.exchanged]
        if ctx.rank == 0:
            communication.mode = "none"
            for step in range(STEPS):
                job.step(data.batches(step + 1, rank=0, world_size=ctx.world_size))
        dist.barrier()
        found.append([global_losses(ctx, losses), exchanged])
    return found


def trained(ctx: Any, *, workload: dict[str, Any], layouts: list[dict[str, Any]]) -> list[Any]:
    work = from_json(Workload, workload)
    data = ByteData.open(ctx, work)
    found = []
    for layout in layouts:
        job = build(ctx, work, from_json(Layout, layout))
        steps = range(1, STEPS + 1)
        losses = [job.step(data.batches(step, rank=job.data_rank, world_size=job.data_ranks)) for step in steps]
        found.append(global_losses(ctx, losses))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "layouts"), [("fp32", [DDP, FSDP, FSDP_AC]), ("fp16", [DDP])])
def test_real_steps_train_as_ever_and_elided_ones_need_no_other_rank(
    tmp_path: Path, precision: Any, layouts: list[dict[str, Any]]
) -> None:
    given = {"nodes": ["a", "a"], "workload": to_json(replace(TINY, precision=precision)), "layouts": layouts}
    expected = run_ranks(trained, tmp_path, **given)[0]
    answers = run_ranks(one_rank_alone, tmp_path, **given)
    assert answers[0] == answers[1], answers
    for (losses, exchanged), same in zip(answers[0], expected, strict=True):
        assert list(losses) == pytest.approx(list(same), rel=1e-6)
        collectives = [kind for kind, _, _ in exchanged]
        summed = sum(given for kind, given, _ in exchanged if kind != "all_gather")
        assert summed == TINY.model.parameters  # gradients travel once a step, whatever the layout
        for kind, given_, received in exchanged:
            ratio = {"all_reduce": 1, "all_gather": 2, "reduce_scatter": 0.5}[kind]
            assert received == ratio * given_
        sharded = "all_gather" in collectives
        assert set(collectives) == ({"all_gather", "reduce_scatter"} if sharded else {"all_reduce"})
    assert ["all_gather" in {kind for kind, _, _ in exchanged} for _, exchanged in answers[0]] == [
        "fsdp" in layout for layout in layouts
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "layout", "message"),
    [
        ("fp16", FSDP, "precision fp16 with fsdp: the ranks also tell each other"),
        ("fp32", {"name": "cp", "context": 2}, "layout cp: the communication of context cannot be left out of a step"),
    ],
)
def test_what_cannot_be_left_out_is_refused(
    tmp_path: Path, precision: Any, layout: dict[str, Any], message: str
) -> None:
    workload = to_json(replace(TINY, precision=precision))
    (answer, _) = run_ranks(climb, tmp_path, nodes=["a", "a"], workload=workload, layout=layout, **PLAN)
    assert answer.startswith(f"ClusterQualError: {message}")


def late_rank(ctx: Any, **given: Any) -> Any:
    """The ladder where the last rank computes longer in every step."""
    genuine = Job._counted

    def slow(self: Job, *given: Any) -> Any:
        if ctx.rank == ctx.world_size - 1:
            time.sleep(LATE)
        return genuine(self, *given)

    Job._counted = slow  # type: ignore[method-assign]
    return climb(ctx, **given)


@pytest.mark.slow
@pytest.mark.parametrize("layout", [DDP, FSDP])
def test_a_late_rank_is_alone_with_it_until_a_barrier_shares_it(tmp_path: Path, layout: dict[str, Any]) -> None:
    workload = to_json(replace(TINY, global_batch=4))  # one microbatch a step
    answers = run_ranks(late_rank, tmp_path, nodes=["a", "b"], workload=workload, layout=layout, **PLAN)
    ladders = [from_json(tuple[RankLadder, ...], answer) for answer in answers]  # type: ignore[type-abstract]
    assert [[each.rank for each in ladder] for ladder in ladders] == [[rank] * len(ladders[0]) for rank in (0, 1)]
    prompt, late = (
        {rung: [seconds for each in ladder for seconds in getattr(each, rung)] for rung in RUNGS} for ladder in ladders
    )
    assert {len(rank[rung]) for rank in (prompt, late) for rung in RUNGS} == {len(prompt["compute"])}
    assert min(prompt["compute"]) < LATE < min(late["compute"])
    assert min(prompt["payload"]) < LATE
    assert min(max(prompt["barrier"]), max(prompt["step"])) > 0.5 * LATE


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (0.001, (16, 64)),
        (0.01, (16, 25)),
        (0.015, (16, 16)),
        (0.1, (16, 3)),
        (0.4, (12, 1)),
        (1.0, (9, 1)),
        (2.0, (7, 1)),
        (90.0, (1, 1)),
    ],
)
def test_long_steps_get_fewer_rounds_but_the_least_as_long_as_the_limit_allows(
    step: float, expected: tuple[int, int]
) -> None:
    typical = dict.fromkeys(RUNGS, step)
    assert affordable(typical, rounds=16, least=9, seconds=20.0, limit=60.0) == expected


def test_steps_that_mostly_communicate_are_as_many_as_compute_long_enough() -> None:
    typical = {"compute": 0.01, "barrier": 0.02, "payload": 0.1, "step": 0.12}
    assert affordable(typical, rounds=16, least=9, seconds=200.0, limit=300.0) == (16, 25)
    assert affordable(typical, rounds=16, least=9, seconds=40.0, limit=300.0) == (16, 10)

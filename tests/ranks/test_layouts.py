"""Every layout does the same job: its losses are those of one process with the whole batch."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from rank_harness import DDP, FSDP, FSDP_AC, TINY, run_ranks
from torch.distributed.tensor import DTensor

from pytest_clusterqual.model.codec import from_json, to_json
from pytest_clusterqual.model.workload import Layout, Workload
from pytest_clusterqual.rank.data import ByteData, standard_corpus
from pytest_clusterqual.rank.layouts import build
from pytest_clusterqual.rank.training import global_losses
from pytest_clusterqual.rank.transformer import Transformer

pytestmark = pytest.mark.slow

STEPS = 10


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")


def plain(scratch: Path, workload: Workload) -> tuple[list[float], float]:
    """The job without any of this package's wrappers: one process, one batch, one backward.

    Its losses, and the norm of its last gradient.
    """
    data = ByteData(standard_corpus(scratch), workload, torch.device("cpu"))
    model = Transformer(workload.model, workload.sequence_length)
    model.initialize(workload.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=workload.optimizer.lr)
    losses = []
    for step in range(1, STEPS + 1):
        inputs, targets = data.batch(step, first=0, count=workload.global_batch)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, gradient_norm(model)


def gradient_norm(model: torch.nn.Module) -> float:
    """Of the whole model, wherever its parts are: AdamW hides a gradient of the wrong scale."""
    gradients = [parameter.grad for parameter in model.parameters()]
    whole = [gradient.full_tensor() if isinstance(gradient, DTensor) else gradient for gradient in gradients]
    return float(torch.stack([gradient.norm() for gradient in whole if gradient is not None]).norm())


def train(ctx: Any, *, workload: dict[str, Any], layouts: list[dict[str, Any]], steps: int) -> dict[str, Any]:
    work = from_json(Workload, workload)
    data = ByteData.open(ctx, work)
    found = {}
    for layout in layouts:
        job = build(ctx, work, from_json(Layout, layout))
        local = [job.step(data.batches(step, rank=ctx.rank, world_size=ctx.world_size)) for step in range(1, steps + 1)]
        found[layout["name"]] = {
            "losses": global_losses(ctx, local), "parts": job.parts(), "norm": gradient_norm(job.model),
        }  # fmt: skip
    return found


@functools.cache
def trained(scratch: Path, ranks: int) -> list[Any]:
    return run_ranks(
        train, scratch, nodes=["a"] * ranks, workload=to_json(TINY), layouts=[DDP, FSDP, FSDP_AC], steps=STEPS
    )


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("layout", ["ddp", "fsdp", "fsdp-ac"])
def test_losses_equal_those_of_one_plain_process(scratch: Path, ranks: int, layout: str) -> None:
    losses, norm = plain(scratch, TINY)
    assert losses[-1] < losses[0]
    for result in trained(scratch, ranks):
        assert result[layout]["losses"] == pytest.approx(losses, rel=1e-4)
        assert result[layout]["norm"] == pytest.approx(norm, rel=1e-3)


def test_parts_are_what_this_rank_holds(scratch: Path) -> None:
    whole = TINY.model.parameters * 4
    for result in trained(scratch, 2):
        ddp, fsdp = result["ddp"]["parts"], result["fsdp"]["parts"]
        assert (ddp["parameters"], ddp["gradients"]) == (whole, whole)
        assert 2 * whole <= ddp["optimizer"] <= 2 * whole + 1000
        assert (fsdp["parameters"], fsdp["gradients"]) == (whole // 2, whole // 2)
        assert whole <= fsdp["optimizer"] <= whole + 1000


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_low_precision_trains_alike_on_all_ranks(scratch: Path, precision: Any) -> None:
    expected = plain(scratch, TINY)[0][:3]
    workload = replace(TINY, precision=precision)
    results = run_ranks(train, scratch, nodes=["a", "a"], workload=to_json(workload), layouts=[DDP, FSDP], steps=3)
    for layout in ("ddp", "fsdp"):
        losses = [result[layout]["losses"] for result in results]
        assert losses[0] == losses[1]
        assert losses[0] == pytest.approx(expected, rel=0.02)
        assert losses[0] != pytest.approx(expected, rel=1e-7)


def test_a_batch_that_does_not_divide_is_refused(scratch: Path) -> None:
    workload = to_json(replace(TINY, global_batch=6))
    for result in run_ranks(train, scratch, nodes=["a", "a"], workload=workload, layouts=[DDP], steps=1):
        assert result.startswith("ClusterQualError: workload.global_batch 6 is not a multiple of microbatch 2 x 2")


def exchanges(ctx: Any) -> list[list[bool]]:
    """For each microbatch of a step, whether its backward exchanges gradients: DDP's word, then FSDP's."""
    data = ByteData.open(ctx, TINY)
    batches = data.batches(1, rank=ctx.rank, world_size=ctx.world_size)
    replicated = build(ctx, TINY, from_json(Layout, DDP))
    by_ddp: list[bool] = []
    replicated.model.register_forward_pre_hook(
        lambda module, _inputs: by_ddp.append(bool(module.require_backward_grad_sync))
    )
    replicated.step(batches)
    sharded = build(ctx, TINY, from_json(Layout, FSDP))
    by_fsdp: list[bool] = []
    genuine: Any = sharded.model.set_requires_gradient_sync
    sharded.model.set_requires_gradient_sync = lambda wanted: (by_fsdp.append(wanted), genuine(wanted))
    sharded.step(batches)
    return [by_ddp, by_fsdp]


def test_gradients_travel_once_a_step(scratch: Path) -> None:
    (answer,) = run_ranks(exchanges, scratch, nodes=["a"])
    assert answer == [[False, False, False, True]] * 2


def in_parts(ctx: Any) -> dict[str, Any]:
    """Every rank trains alone in a group of its own, beside the others."""
    groups = [dist.new_group([rank]) for rank in range(ctx.world_size)]
    alone = replace(ctx, rank=0, group=groups[ctx.rank], members=(ctx.rank,), nodes=(ctx.node,))
    return train(alone, workload=to_json(TINY), layouts=[DDP, FSDP], steps=2)


def test_a_job_may_have_a_part_of_the_launch(scratch: Path) -> None:
    losses, _norm = plain(scratch, TINY)
    for result in run_ranks(in_parts, scratch, nodes=["a", "b"]):
        for layout in ("ddp", "fsdp"):
            assert result[layout]["losses"] == pytest.approx(losses[:2], rel=1e-4)

"""Every layout does the same job: its losses are those of one process with the whole batch."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from rank_harness import DDP, FSDP, FSDP_AC, TINY, run_ranks
from torch.distributed.tensor import DTensor

from pytest_clusterqual.errors import ClusterQualError
from pytest_clusterqual.model.codec import from_json, to_json
from pytest_clusterqual.model.training import PipelineTimes, Routing
from pytest_clusterqual.model.workload import Layout, Workload
from pytest_clusterqual.rank.data import ByteData, standard_corpus
from pytest_clusterqual.rank.layouts import build
from pytest_clusterqual.rank.training import global_losses
from pytest_clusterqual.rank.transformer import WRAPPED, Transformer

pytestmark = pytest.mark.slow

STEPS = 6


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")


@functools.cache
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


# Four ranks on two nodes. Steps of tensor ranks are slow on CPU, so most of them have one microbatch.
DENSE = replace(TINY, microbatch=1, global_batch=4)
DEEP = replace(DENSE, model=replace(DENSE.model, layers=4))
MIXED = replace(DENSE, model=replace(DENSE.model, ffn=32, experts=4, top_k=2))
FUSED = replace(DENSE, optimizer=replace(DENSE.optimizer, implementation="fused"))
FOREACH = replace(MIXED, optimizer=replace(MIXED.optimizer, implementation="foreach"))
SPREAD: dict[str, tuple[Workload, dict[str, Any]]] = {
    "grad-op": (DENSE, {"fsdp": "grad-op", "activation_checkpointing": "selective"}),
    "hybrid": (FUSED, {"fsdp": "hybrid"}),
    "tensor": (DENSE, {"tensor": 2, "activation_checkpointing": "selective"}),
    "tensor-fsdp": (replace(FUSED, microbatch=2), {"tensor": 2, "fsdp": "full", "activation_checkpointing": "full"}),
    "pipeline": (DEEP, {"pipeline": 4}),
    "pipeline-gpipe-fsdp": (DENSE, {"pipeline": 2, "schedule": "gpipe", "fsdp": "full"}),
    "pipeline-interleaved-tensor": (
        replace(DEEP, microbatch=2),
        {"pipeline": 2, "schedule": "interleaved", "stages_per_rank": 2, "tensor": 2},
    ),
    "pipeline-context": (DENSE, {"pipeline": 2, "context": 2, "activation_checkpointing": "full"}),
    "context": (DENSE, {"context": 4}),
    "context-fsdp": (DENSE, {"context": 2, "fsdp": "full"}),
    "experts-ddp": (MIXED, {}),
    "expert": (FOREACH, {"expert": 4, "activation_checkpointing": "full"}),
    "expert-fsdp": (MIXED, {"expert": 2, "fsdp": "full", "activation_checkpointing": "selective"}),
    "expert-hybrid": (MIXED, {"expert": 2, "fsdp": "hybrid"}),
    "expert-tensor": (replace(MIXED, microbatch=2), {"expert": 2, "tensor": 2}),
    "expert-pipeline": (MIXED, {"expert": 2, "pipeline": 2}),
    "expert-context": (MIXED, {"expert": 2, "context": 2}),
}  # fmt: skip
LOWER: dict[str, tuple[Workload, dict[str, Any]]] = {
    "bf16-pipeline-tensor": (replace(DENSE, precision="bf16"), {"pipeline": 2, "tensor": 2}),
    "fp16-pipeline-fsdp": (
        # So many microbatches that the first scale of the loss is not too large.
        replace(DENSE, precision="fp16", global_batch=16),
        {"pipeline": 2, "fsdp": "full"},
    ),
}

REFUSED: dict[str, tuple[Workload, dict[str, Any], str]] = {
    "thirds": (DENSE, {"tensor": 3}, "4 ranks are no multiple of pipeline 1 x context 1 x tensor 3 = 3"),
    "few-heads": (DENSE, {"tensor": 4}, "tensor: got 4, want a divisor of workload.model.kv_heads 2"),
    "long-context": (replace(DENSE, sequence_length=18), {"context": 4},
                     "context: got 4, want context x tensor = 4 to divide workload.sequence_length 18"),
    "no-experts": (DENSE, {"expert": 2}, "expert: got 2, want 1: workload.model.experts is 0"),
    "few-experts": (MIXED, {"expert": 3}, "4 data ranks are no multiple of expert 3"),
    "odd-experts": (replace(MIXED, model=replace(MIXED.model, experts=3)), {"expert": 2},
                    "expert: got 2, want a divisor of workload.model.experts 3"),
    "flat": (DENSE, {"pipeline": 4}, "pipeline: got 4, want at most workload.model.layers 2"),
    "rounds": (replace(DEEP, global_batch=10), {"pipeline": 2, "schedule": "interleaved", "stages_per_rank": 2},
               "the interleaved schedule cannot be made for 5 microbatches a step: Interleaved 1F1B requires the "
               "number of microbatches to be a multiple of the number of rounds (2), but got 5."),
}  # fmt: skip


def train(ctx: Any, *, workload: dict[str, Any], layouts: list[dict[str, Any]], steps: int) -> dict[str, Any]:
    work = from_json(Workload, workload)
    data = ByteData.open(ctx, work)
    found = {}
    for layout in layouts:
        job = build(ctx, work, from_json(Layout, layout))
        local = [
            job.step(data.batches(step, rank=job.data_rank, world_size=job.data_ranks)) for step in range(1, steps + 1)
        ]
        found[layout["name"]] = {
            "losses": global_losses(ctx, local), "parts": job.parts(), "norm": gradient_norm(job.model),
        }  # fmt: skip
    return found


@functools.cache
def trained(scratch: Path, ranks: int) -> list[Any]:
    return run_ranks(
        train, scratch, nodes=["a"] * ranks, workload=to_json(TINY), layouts=[DDP, FSDP, FSDP_AC], steps=STEPS
    )


def spread(ctx: Any, *, jobs: dict[str, Any]) -> dict[str, Any]:
    ctx = replace(ctx, nproc_per_node=2)
    found: dict[str, Any] = {}
    for name, (workload, layout, steps) in jobs.items():
        work = from_json(Workload, workload)
        data = ByteData.open(ctx, work)
        try:
            job = build(ctx, work, from_json(Layout, {"name": name, **layout}))
        except ClusterQualError as error:
            found[name] = str(error)
            continue
        each = range(1, steps + 1)
        local = [job.step(data.batches(step, rank=job.data_rank, world_size=job.data_ranks)) for step in each]
        found[name] = {
            "losses": global_losses(ctx, local), "squares": squares(job.model), "routing": to_json(job.routing()),
            "pipeline": to_json(job.pipeline_times(steps - 1)), "otherwise": job.otherwise,
        }  # fmt: skip
    return found


def squares(model: torch.nn.Module) -> dict[str, float]:
    """Name -> square of the gradient's norm, of all parameters on this rank; a stage's own number is left out."""
    found = {}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        assert gradient is not None, name
        assert getattr(gradient, "placements", None) == getattr(parameter, "placements", None), name
        whole = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
        own = name.replace(WRAPPED, "").removeprefix("module.").lstrip("0123456789.")
        found[own.removeprefix("module.")] = float(whole.square().sum())
    return found


@functools.cache
def spread_jobs(scratch: Path) -> list[Any]:
    jobs = {name: (to_json(work), layout, STEPS) for name, (work, layout) in SPREAD.items()}
    jobs |= {name: (to_json(work), layout, 3) for name, (work, layout) in LOWER.items()}
    jobs |= {name: (to_json(work), layout, 1) for name, (work, layout, _message) in REFUSED.items()}
    return run_ranks(spread, scratch, nodes=["a", "a", "b", "b"], jobs=jobs)


@pytest.mark.parametrize("name", SPREAD)
def test_every_layout_trains_as_one_plain_process(scratch: Path, name: str) -> None:
    work, layout = SPREAD[name]
    losses, norm = plain(scratch, work)
    answers = [answer[name] for answer in spread_jobs(scratch)]
    for answer in answers:
        assert answer["losses"] == pytest.approx(losses, rel=1e-4)
    gradients = {parameter: square for answer in answers for parameter, square in answer["squares"].items()}
    assert gradients.keys() == work.model.shapes().keys()
    assert math.sqrt(sum(gradients.values())) == pytest.approx(norm, rel=1e-3)
    assert bool(answers[0]["otherwise"]) == ("context" in layout)


@pytest.mark.parametrize("name", [name for name, (work, _layout) in SPREAD.items() if work.model.experts])
def test_every_token_is_counted_once_for_each_of_its_experts(scratch: Path, name: str) -> None:
    work, layout = SPREAD[name]
    for answer in (answer[name] for answer in spread_jobs(scratch)):
        routing = from_json(Routing, answer["routing"])
        assert (routing.degree, routing.top_k) == (layout.get("expert", 1), 2)
        assert [len(tokens) for tokens in routing.tokens] == [4] * work.model.layers
        assert [sum(tokens) for tokens in routing.tokens] == [STEPS * work.tokens_per_step * 2] * work.model.layers
        assert routing == from_json(
            Routing, spread_jobs(scratch)[0]["experts-ddp"]["routing"] | {"degree": routing.degree}
        )


def test_stages_tell_how_long_they_compute(scratch: Path) -> None:
    for name, microbatches in {"pipeline": 4, "pipeline-interleaved-tensor": 2, "expert-pipeline": 2}.items():
        for answer in spread_jobs(scratch):
            times = from_json(PipelineTimes, answer[name]["pipeline"])
            assert (len(times.seconds), len(times.computing), times.microbatches) == (
                STEPS - 1,
                STEPS - 1,
                microbatches,
            )
            assert all(0 < own < whole for own, whole in zip(times.computing, times.seconds, strict=True))
    assert {answer["context"]["pipeline"] for answer in spread_jobs(scratch)} == {None}


@pytest.mark.parametrize("name", LOWER)
def test_low_precision_trains_in_combinations(scratch: Path, name: str) -> None:
    expected = plain(scratch, replace(LOWER[name][0], precision="fp32"))[0][:3]
    losses = [answer[name]["losses"] for answer in spread_jobs(scratch)]
    assert [losses[0]] * 4 == losses
    assert losses[0] == pytest.approx(expected, rel=0.02)
    assert losses[0] != pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_spread_is_refused_on_every_rank(scratch: Path, name: str) -> None:
    assert [answer[name] for answer in spread_jobs(scratch)] == [f"layout {name}: {REFUSED[name][2]}"] * 4


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

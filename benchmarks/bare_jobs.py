"""Bare loops to hold the product's figures against, run as jobs on the same ranks in the same launch."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist


def all_reduce_loop(ctx: Any, *, size: int, iterations: int, samples: int) -> list[float]:
    """Seconds of one all_reduce of `size` bytes, `samples` times: nothing but the loop itself."""
    buffer = torch.zeros(size // 4, device=ctx.device)
    for _ in range(5):
        dist.all_reduce(buffer)
    times = []
    for _ in range(samples):
        dist.barrier()
        start = time.perf_counter()
        for _ in range(iterations):
            dist.all_reduce(buffer)
        ctx.synchronize()
        times.append((time.perf_counter() - start) / iterations)
    return times


def training_loop(ctx: Any, *, workload: dict[str, Any], layout: dict[str, Any], warmup: int) -> list[float]:
    """Seconds of each step of a loop as one would write it by hand around the same model and data."""
    from pytest_clusterqual.model.codec import from_json
    from pytest_clusterqual.model.workload import Layout, Workload
    from pytest_clusterqual.rank.data import ByteData
    from pytest_clusterqual.rank.layouts import build

    work = from_json(Workload, workload)
    data = ByteData.open(ctx, work)
    job = build(ctx, work, from_json(Layout, layout))
    ends = []
    for step in range(1, warmup + work.steps + 1):
        job.step(data.batches(step, rank=ctx.rank, world_size=ctx.world_size))
        ctx.synchronize()
        ends.append(time.perf_counter())
    return [b - a for a, b in zip(ends[warmup - 1 :], ends[warmup:], strict=False)]


def nccl_alone(ctx: Any) -> dict[str, Any]:
    """Every collective on a group of one GPU: it proves that NCCL starts, not that a network works."""
    one = torch.arange(1024, dtype=torch.float32, device=ctx.device)
    out = torch.empty_like(one)
    dist.all_reduce(one, group=ctx.group)
    dist.all_gather_into_tensor(out, one, group=ctx.group)
    dist.reduce_scatter_tensor(out, one, group=ctx.group)
    dist.all_to_all_single(out, one, group=ctx.group)
    ctx.synchronize()
    return {"equal": bool(torch.equal(out, one)), "device": torch.cuda.get_device_name(ctx.device)}

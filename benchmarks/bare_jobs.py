"""Bare loops to hold the product's figures against, run as jobs on the same ranks in the same launch."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
import torch.distributed as dist


def all_reduce_pairs(ctx: Any, *, size: int, pairs: int, seconds: float) -> list[tuple[float, float]]:
    """Seconds of one all_reduce of `size` bytes as the product times it and as a bare loop does, in turn."""
    from pytest_clusterqual.rank.collectives import sweep

    buffer = torch.zeros(size // 4, device=ctx.device)
    found = []
    for _ in range(pairs):
        timing = sweep(ctx, collective="all_reduce", group="world", sizes=[size], seconds=seconds)["timings"][0]
        calls = max(4, timing["iterations"])
        bare = []
        for _ in timing["seconds"]:
            dist.all_reduce(buffer)  # the ranks meet here; a barrier lets them go milliseconds apart
            start = time.perf_counter()
            for _ in range(calls):
                dist.all_reduce(buffer)
            ctx.synchronize()
            bare.append((time.perf_counter() - start) / calls)
        found.append((statistics.median(timing["seconds"]), statistics.median(bare)))
    return found


def step_pairs(ctx: Any, *, workload: dict[str, Any], layout: dict[str, Any], pairs: int) -> list[tuple[float, float]]:
    """Seconds of a step as the product times it and as a bare loop does, in turn on the same model."""
    from pytest_clusterqual.model.codec import from_json
    from pytest_clusterqual.model.workload import Layout, Workload
    from pytest_clusterqual.rank.data import ByteData
    from pytest_clusterqual.rank.layouts import build
    from pytest_clusterqual.rank.training import collector_at_rest, meet, timed_steps

    work = from_json(Workload, workload)
    data = ByteData.open(ctx, work)
    job = build(ctx, work, from_json(Layout, layout))
    timed_steps(ctx, job, data, range(1, 4))
    found = []
    for pair in range(pairs):
        # One step each, in turn, the first one alternating: whatever the machine does meets both alike.
        both = {}
        for name in ("ours", "bare") if pair % 2 else ("bare", "ours"):
            meet(ctx)
            with collector_at_rest():
                if name == "ours":
                    both[name] = timed_steps(ctx, job, data, range(4, 5)).step_seconds[0]
                    continue
                start = time.perf_counter()
                job.step(data.batches(4, rank=ctx.rank, world_size=ctx.world_size))
                ctx.synchronize()
                both[name] = time.perf_counter() - start
        found.append((both["ours"], both["bare"]))
    return found


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


def busy(ctx: Any, *, seconds: float) -> int:
    """Multiply matrices for so long, so that clocks and power have something to show."""
    a = torch.rand(1024, 1024, device=ctx.device)
    calls, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        a = torch.softmax(a @ a, dim=-1)
        ctx.synchronize()
        calls += 1
    return calls

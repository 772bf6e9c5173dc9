"""Bare loops to hold the product's figures against, run as jobs on the same ranks in the same launch."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist


def collective_pairs(
    ctx: Any, *, collective: str, size: int, pairs: int, seconds: float
) -> list[tuple[list[float], list[float]]]:
    """Seconds of one call on `size` bytes as the product and as a bare loop time it, in turn; three samples each."""
    from pytest_clusterqual.rank.collectives import sweep

    everyone = [list(range(ctx.world_size))]
    call = bare_call(ctx, collective, size)
    iterations, found = 4, []
    for pair in range(-1, pairs):  # the first pair warms up
        both: dict[str, list[float]] = {}
        for name in ("ours", "bare") if pair % 2 else ("bare", "ours"):
            if name == "ours":
                (timing,) = sweep(ctx, collective=collective, groups=everyone, sizes=[size], seconds=seconds)["timings"]
                iterations, both[name] = timing["iterations"], list(timing["seconds"])
            else:
                both[name] = [bare_seconds(ctx, call, iterations) for _ in range(3)]
        found.append((both["ours"], both["bare"]))
    return found[1:]


def bare_seconds(ctx: Any, call: Callable[[], object], calls: int) -> float:
    dist.all_reduce(torch.zeros(1, device=ctx.device))  # the ranks meet here; a barrier lets them go milliseconds apart
    ctx.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    ctx.synchronize()
    return (time.perf_counter() - start) / calls


def bare_call(ctx: Any, collective: str, size: int) -> Callable[[], object]:
    """One call among all ranks, as a user would write it."""
    n, me = ctx.world_size, ctx.rank
    part = torch.zeros(size // 4 // n, device=ctx.device)
    whole, other = (torch.zeros(len(part) * n, device=ctx.device) for _ in range(2))

    def send_recv() -> None:
        peers = [dist.P2POp(dist.isend, whole, (me + 1) % n), dist.P2POp(dist.irecv, other, (me - 1) % n)]
        for work in dist.batch_isend_irecv(peers):
            work.wait()

    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
        "all_to_all": lambda: dist.all_to_all_single(other, whole),
        "send_recv": send_recv,
        "broadcast": lambda: dist.broadcast(whole, 0),
    }
    return calls[collective]


def step_pairs(
    ctx: Any, *, workload: dict[str, Any], layout: dict[str, Any], pairs: int
) -> list[tuple[float, float, float]]:
    """Seconds of a step as the product times it, the same step seen from outside, and another one in a bare loop.

    Product and bare loop take turns on the same model.
    """
    from pytest_clusterqual.model.codec import from_json
    from pytest_clusterqual.model.workload import Layout, Workload
    from pytest_clusterqual.rank.data import ByteData
    from pytest_clusterqual.rank.layouts import build
    from pytest_clusterqual.rank.training import collector_at_rest, meet, timed_steps

    work = from_json(Workload, workload)
    data = ByteData.open(ctx, work)
    job = build(ctx, work, from_json(Layout, layout))
    same = (data.batches(4, rank=job.data_rank, world_size=job.data_ranks) for _ in itertools.count())
    timed_steps(ctx, job, same, 3)
    found = []
    for pair in range(pairs):
        # One step each, in turn, the first one alternating: whatever the machine does meets both alike.
        both = {}
        for name in ("ours", "bare") if pair % 2 else ("bare", "ours"):
            meet(ctx)
            with collector_at_rest():
                if name == "ours":
                    start = time.perf_counter()
                    both[name] = timed_steps(ctx, job, same, 1).step_seconds[0]
                    both["outside"] = time.perf_counter() - start
                    continue
                with without_stop_watch(job):
                    start = time.perf_counter()
                    job.step(data.batches(4, rank=job.data_rank, world_size=job.data_ranks))
                    ctx.synchronize()
                    both[name] = time.perf_counter() - start
        found.append((both["ours"], both["outside"], both["bare"]))
    return found


@contextmanager
def without_stop_watch(job: Any) -> Iterator[None]:
    """The stages of a pipeline as torch made them, not timed."""
    stages = job.pipeline._stages if job.pipeline is not None else ()
    timed = [{name: vars(stage).pop(name) for name in ("forward_one_chunk", "backward_one_chunk")} for stage in stages]
    try:
        yield
    finally:
        for stage, calls in zip(stages, timed, strict=True):
            vars(stage).update(calls)


def instrument_seconds(ctx: Any, *, steps: int, rounds: int) -> list[float]:
    """What the product's loop adds to a step that does nothing, over a bare loop of such steps, in turn."""
    from pytest_clusterqual.rank.training import collector_at_rest, timed_steps

    class Nothing:
        data_rank, data_ranks = 0, 1

        def batches(self, _step: int, *, rank: int, world_size: int) -> tuple[()]:
            return ()

        def step(self, _batches: object) -> None:
            return None

    job: Any = Nothing()
    found = []
    with collector_at_rest():
        for _ in range(rounds):
            start = time.perf_counter()
            for step in range(steps):
                job.step(job.batches(step, rank=0, world_size=1))
                ctx.synchronize()
            bare = time.perf_counter() - start
            start = time.perf_counter()
            timed_steps(ctx, job, (job.batches(step, rank=0, world_size=1) for step in range(steps)), steps)
            found.append((time.perf_counter() - start - bare) / steps)
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

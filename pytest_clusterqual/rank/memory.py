"""Memory of one rank over whole optimizer steps of the exact job, in a fresh process."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from pytest_clusterqual.model.codec import from_json, to_json
from pytest_clusterqual.model.memory import RankMemory
from pytest_clusterqual.model.workload import Layout, Workload
from pytest_clusterqual.rank.data import Batch, Data
from pytest_clusterqual.rank.job import Job
from pytest_clusterqual.rank.layouts import build, drawn, filled
from pytest_clusterqual.rank.limits import Limit, cpu_limit, cuda_limit, device_confined, process_confined
from pytest_clusterqual.rank.memory_counters import Counter, CpuCounter, CudaCounter
from pytest_clusterqual.rank.memory_events import Timeline, mark_repeated
from pytest_clusterqual.rank.recipe import recipe_of
from pytest_clusterqual.rank.settling import settle
from pytest_clusterqual.rank.training import global_losses

if TYPE_CHECKING:
    from pytest_clusterqual.rank.jobs import Context


def measure(
    ctx: Context, *, workload: dict[str, Any], layout: dict[str, Any], steps: int, device_memory: int | None = None
) -> Any:
    """Forward, backward and optimizer of `steps` steps; a `RankMemory` as JSON.

    With `device_memory` this rank has that many bytes and no more, and fails where the job needs more. On a
    CPU that is tried before anything is counted: the profiler's own notes would be taken for the job's.

    Raises:
        MeasurementError: a loss is not finite, or the steps left no memory events.
        ClusterQualError: the job cannot be done on these ranks, or its data cannot be read.
    """
    work, spread = from_json(Workload, workload, where="workload"), from_json(Layout, layout, where="layout")
    on_cuda = ctx.device.type == "cuda"
    limit = _limit(ctx, device_memory)
    data = recipe_of(work).data(ctx)
    if device_memory is not None and not on_cuda:
        _try_within(device_memory, ctx, work, spread, data, steps)
    counter: Counter = CudaCounter(ctx.device) if on_cuda else CpuCounter(confined=device_memory is not None)
    losses, held = [], []
    with device_confined(ctx.device, device_memory if on_cuda else None):
        job = build(ctx, work, spread)
        mark_repeated(job.model)
        if not on_cuda:
            settle(job)
        for step in range(1, steps + 1):
            ctx.report(step - 1, steps, "memory steps")
            losses.append(counter.step(job, _batches(data, step, job)).item())
            held.append(_addresses(job))
    counter.finish()
    ctx.report(steps, steps, "memory steps")
    allocated, reserved = counter.peaks()
    return to_json(
        RankMemory(
            rank=ctx.rank,
            step_peaks=allocated,
            reserved_peaks=reserved,
            device_used=counter.device_used(),
            limit=limit.bytes,
            limit_from=limit.origin,
            counted=counter.counted,
            parts=_parts(allocated, counter.timeline(), held),
            losses=global_losses(ctx, [torch.tensor(loss, device=ctx.device) for loss in losses]),
            data_digest=data.digest,
        )
    )


def _try_within(most: int, ctx: Context, work: Workload, layout: Layout, data: Data, steps: int) -> None:
    drawing = drawn(ctx, work, layout)  # makes groups and their threads: they are no part of the job
    with process_confined(most) as only_tensors_count:
        job = filled(ctx, work, drawing)
        settle(job)
        for step in range(1, steps + 1):
            only_tensors_count(sum(job.parts().values()))
            job.step(_batches(data, step, job))
    del job
    gc.collect()  # wrapped models refer to themselves


def _batches(data: Data, step: int, job: Job) -> Sequence[Batch]:
    return data.batches(step, rank=job.data_rank, world_size=job.data_ranks)


def _limit(ctx: Context, device_memory: int | None) -> Limit:
    if device_memory is not None:
        return Limit(bytes=device_memory, origin="memory.device_memory of the project file")
    return cuda_limit(ctx.device) if ctx.device.type == "cuda" else cpu_limit(ctx)


def _addresses(job: Job) -> dict[str, set[int]]:
    """Where what the job holds between its steps lies, by name."""
    return {name: {t.untyped_storage().data_ptr() for t in tensors} for name, tensors in job.held().items()}


def _parts(peaks: Sequence[int], seen: Timeline | None, held: Sequence[dict[str, set[int]]]) -> dict[str, int]:
    """What the peak of the fullest step is made of; all of it is `other` where nothing is known of it."""
    fullest = max(range(len(peaks)), key=peaks.__getitem__)
    if seen is None:
        return {"other": peaks[fullest]}
    return seen.parts(fullest, peaks[fullest], held[fullest])

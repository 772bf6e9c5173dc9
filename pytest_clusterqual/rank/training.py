"""The fixed work, timed step by step."""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.model.codec import from_json, to_json
from pytest_clusterqual.model.training import RankTraining
from pytest_clusterqual.model.workload import Layout, Workload
from pytest_clusterqual.rank.data import Batch
from pytest_clusterqual.rank.feed import feed
from pytest_clusterqual.rank.job import Job
from pytest_clusterqual.rank.layouts import build
from pytest_clusterqual.rank.recipe import recipe_of

if TYPE_CHECKING:
    from pytest_clusterqual.rank.jobs import Context


@dataclass(kw_only=True, slots=True)
class StepTimes:
    """Seconds of each step, the part of it spent on data, and the local losses (not yet reduced)."""

    step_seconds: list[float] = field(default_factory=list)
    data_seconds: list[float] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)
    whole: float = 0.0


def fixed_work(ctx: Context, *, workload: dict[str, Any], layout: dict[str, Any], warmup: int) -> Any:
    """Do `warmup` steps and then the workload's fixed work; a `RankTraining` as JSON.

    Raises:
        MeasurementError: a loss is not finite.
        ClusterQualError: the job cannot be done on these ranks, or its data cannot be read.
    """
    work = from_json(Workload, workload, where="workload")
    data = recipe_of(work).data(ctx)
    job = build(ctx, work, from_json(Layout, layout, where="layout"))
    total = warmup + work.steps
    ctx.report(0, total, "warm-up")
    # Without an end: the fixed work is a piece of a longer run, whose data are read ahead during its last steps, too.
    with feed(data, itertools.count(1), work.loader, rank=job.data_rank, world_size=job.data_ranks) as batches:
        warm = timed_steps(ctx, job, batches, warmup)
        ctx.report(warmup, total, "fixed work")
        meet(ctx)
        with collector_at_rest():
            timed = timed_steps(ctx, job, batches, work.steps)
    ctx.report(total, total, "fixed work")
    return to_json(
        RankTraining(
            rank=ctx.rank,
            warmup_seconds=tuple(warm.step_seconds),
            step_seconds=tuple(timed.step_seconds),
            data_seconds=tuple(timed.data_seconds),
            work_seconds=timed.whole,
            tokens_per_step=work.tokens_per_step,
            sequences_per_step=work.global_batch,
            losses=global_losses(ctx, warm.losses + timed.losses),
            data_digest=data.digest,
            routing=job.routing(),
            pipeline=job.pipeline_times(work.steps),
            otherwise=job.otherwise,
        )
    )


def timed_steps(ctx: Context, job: Job, batches: Iterator[list[Batch]], steps: int) -> StepTimes:
    """Do that many steps; nothing but clock readings is added to the work itself."""
    times = StepTimes()
    begin = start = time.perf_counter()
    for _ in range(steps):
        own = next(batches)
        ready = time.perf_counter()
        loss = job.step(own)
        ctx.synchronize()
        end = time.perf_counter()
        times.data_seconds.append(ready - start)
        times.step_seconds.append(end - start)
        times.losses.append(loss)
        start = end
    times.whole = start - begin
    return times


def meet(ctx: Context, group: dist.ProcessGroup | None = None) -> None:
    """Wait until every rank of `group` (default: the whole job) is here and its device is idle."""
    dist.all_reduce(torch.zeros(1, device=ctx.device), group=group or ctx.group)
    ctx.synchronize()


def slowest(ctx: Context, seconds: float, group: dist.ProcessGroup | None = None) -> float:
    """The most that any rank of `group` (default: the whole job) says; all of them get it."""
    worst = torch.tensor([seconds], dtype=torch.float64, device=ctx.device)
    dist.all_reduce(worst, op=dist.ReduceOp.MAX, group=group or ctx.group)
    return float(worst.item())


def global_losses(ctx: Context, local: Sequence[Tensor]) -> tuple[float, ...]:
    """The loss of each step's global batch, from the ranks' own means: one all-reduce for all steps.

    Raises:
        MeasurementError: a loss is not finite; the message names the step, counted from 1.
    """
    if not local:
        return ()
    stacked = torch.stack(list(local)).double()
    dist.all_reduce(stacked, group=ctx.group)
    losses = tuple((stacked / ctx.world_size).tolist())
    for step, loss in enumerate(losses, start=1):
        check_finite(loss, step)
    return losses


def check_finite(loss: float, step: int) -> None:
    """Raises MeasurementError if the loss of `step` is not a finite number."""
    if not math.isfinite(loss):
        raise MeasurementError(
            f"the loss of step {step} is {loss}: this job does not train; lower optimizer.lr or use precision fp32"
        )


@contextlib.contextmanager
def collector_at_rest() -> Iterator[None]:
    """Keep Python's garbage collector from running inside, and its leftovers from adding up."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

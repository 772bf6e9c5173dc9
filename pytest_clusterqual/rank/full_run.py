"""A training run with everything a real one pays for: checkpoints, a failure on purpose, recovery.

Each process of a rank writes what happens through the probe that users' own scripts have, into a folder that all nodes
see. The files outlive the process, so that the last attempt can report all of them.
"""

from __future__ import annotations

import datetime
import json
import random
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from pytest_clusterqual.errors import ClusterQualError, MeasurementError
from pytest_clusterqual.model.codec import from_json, to_json
from pytest_clusterqual.model.full_run import Checkpoints, Failure, RankRun
from pytest_clusterqual.model.probe import Line, ProbedProcess, ProbeStart
from pytest_clusterqual.model.workload import Layout, Workload
from pytest_clusterqual.probe import Probe
from pytest_clusterqual.rank.checkpoints import Checkpointer, Saved
from pytest_clusterqual.rank.data import Batch, mixed
from pytest_clusterqual.rank.failures import Striker
from pytest_clusterqual.rank.feed import feed
from pytest_clusterqual.rank.forward_mark import ForwardMark
from pytest_clusterqual.rank.job import Job
from pytest_clusterqual.rank.layouts import build
from pytest_clusterqual.rank.notice import Notice
from pytest_clusterqual.rank.recipe import recipe_of
from pytest_clusterqual.rank.training import check_finite
from pytest_clusterqual.rank.until import Until

if TYPE_CHECKING:
    from pytest_clusterqual.rank.jobs import Context

LOGS = "probe"  # below the folder of the checkpoints
_NAME = re.compile(r"rank(\d+)-attempt(\d+)\.jsonl")


def run(
    ctx: Context,
    *,
    workload: dict[str, Any],
    layout: dict[str, Any],
    steps: int,
    seconds: float | None = None,
    checkpoints: dict[str, Any],
    failure: dict[str, Any] | None,
    folder: str,
    hang_timeout: float = 30.0,
    announce: Callable[[], None] = lambda: None,
) -> Any:
    """One attempt: go on after the latest complete checkpoint up to `steps`, or until that many `seconds` have passed
    since the first step; a list of `RankRun` as JSON.

    It holds this rank; that of rank 0 also the ranks which the world has lost. None if this attempt was told to end
    (SIGTERM), which it does with a checkpoint. `folder` is where all ranks find the checkpoints. In the first attempt
    the `failure` strikes when its step begins; `announce` is called before one that ends the whole launch. A rank that
    is silent for `hang_timeout` seconds fails the others.

    Raises:
        MeasurementError: a loss is not finite.
        ClusterQualError: the job, its data or its checkpoints are not usable.
        RuntimeError: a peer was lost, or the failure is to raise one.
    """
    work = from_json(Workload, workload, where="workload")
    saving = from_json(Checkpoints, checkpoints, where="checkpoints")
    if not Path(folder).is_dir():  # the session has made it
        raise ClusterQualError(
            f"{ctx.node} does not see the checkpoint folder {folder}: name one on storage that all nodes share, "
            "with full_run.checkpoint.folder"
        )
    logs = Path(folder) / LOGS
    again = any(logs.glob(f"rank{ctx.global_rank}-attempt*.jsonl")) if logs.is_dir() else False
    probe = Probe(logs, rank=ctx.global_rank)
    planned = from_json(Failure, failure, where="failure") if failure and not again else None
    striker = Striker(ctx, probe, planned, announce)
    until = Until(steps, seconds, logs)
    try:
        data = recipe_of(work).data(ctx)
        job = build(ctx, work, from_json(Layout, layout, where="layout"))
        group = _saving_group(ctx)
        keeper = Checkpointer(
            folder=Path(folder), group=group, mode=saving.mode, on_complete=partial(_complete, probe),
            writer=striker.writer,
        )  # fmt: skip
        with probe.checkpoint("load"):
            done = keeper.load(job)
        probe.resumed(done)
        if saving.mode == "async-process":
            with probe.hook("saving process"):
                keeper.prepare()
        ahead = feed(data, until.after(done), work.loader, rank=job.data_rank, world_size=job.data_ranks)
        _limit_waits(hang_timeout, but=group)
        mark = ForwardMark(ctx, probe)
        job.after_forward = mark
        step = done
        with keeper, ahead as batches, Notice() as notice:
            notice.alive()
            until.begin()
            for step in until.after(done):
                striker.before_step(step)
                _step(ctx, job, batches, probe, step, work, notice, until, mark)
                keeper.poll()
                if step % saving.every == 0 or notice.agreed:
                    striker.before_save(step)
                    with probe.checkpoint():
                        keeper.save(job, step)
                ctx.report(*until.progress(step), "full run")
                if notice.agreed or until.reached(step):
                    break
        with probe.hook("last save"):
            keeper.wait()
        if notice.agreed and not until.reached(step):
            return None
        probe.done()
        dist.destroy_process_group(group)
    finally:
        probe.close()
    times = job.pipeline_times(step - done)
    bubble = 1 - sum(times.computing) / sum(times.seconds) if times else 0.0
    return [to_json(one) for one in _gather(ctx, logs, data.digest, bubble)]


def _step(
    ctx: Context, job: Job, batches: Iterator[list[Batch]], probe: Probe, step: int, work: Workload, notice: Notice,
    until: Until, mark: ForwardMark,
) -> None:  # fmt: skip
    with probe.data():
        own = next(batches)
    if work.factory is not None:  # this package's own model draws nothing
        _seed(ctx, work, step)
    with probe.step(step, tokens=work.tokens_per_step or None, sequences=work.global_batch), mark:
        loss = job.step(own).double()
        # All ranks end after the same step.
        told = torch.stack([loss, *loss.new_tensor([notice.given, until.over and ctx.rank == 0])])
        dist.all_reduce(told, group=ctx.group)
        total, to_end, over = told.tolist()
        ctx.synchronize()
    notice.alive()
    if to_end:
        notice.agree()
    if over:
        until.end()
    mean = total / ctx.world_size
    check_finite(mean, step)
    probe.loss(mean)


def _seed(ctx: Context, work: Workload, step: int) -> None:
    """What a model draws in a step, as dropout does, is the same when the step is done again after a failure."""
    number = mixed(work.seed, step * ctx.world_size + ctx.rank)
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number % 2**32)


def _complete(probe: Probe, saved: Saved) -> None:
    probe.saved(saved.step, size=saved.size)
    probe.extra(saved.extra, step=saved.step)


def _saving_group(ctx: Context) -> dist.ProcessGroup:
    """A group on CPU for the checkpoints alone, as patient as the job's group came up: storage may be slow."""
    patience = ctx.group._get_backend(ctx.device).options._timeout
    return dist.new_group(dist.get_process_group_ranks(ctx.group), backend="gloo", timeout=patience)


def _limit_waits(seconds: float, *, but: dist.ProcessGroup) -> None:
    """From here on no group `but` one waits longer than that for a silent rank.

    Not before: ranks differ by what importing, building and loading take them. torch's own limits are 10 and 30 min.
    """
    dist.barrier(but)
    for group in list(dist.distributed_c10d._world.pg_map):
        if group is not but:
            dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=seconds), group)


def _gather(ctx: Context, logs: Path, digest: str, bubble: float) -> list[RankRun]:
    """This rank's files; on rank 0 also those of ranks that are no more."""
    ranks = sorted({int(match[1]) for path in logs.iterdir() if (match := _NAME.fullmatch(path.name))})
    mine = [rank for rank in ranks if rank == ctx.global_rank or (ctx.global_rank == 0 and rank >= ctx.world_size)]
    return [_rank_run(logs, rank, digest, bubble if rank == ctx.global_rank else 0.0) for rank in mine]


def _rank_run(logs: Path, rank: int, digest: str, bubble: float) -> RankRun:
    processes: list[ProbedProcess] = []
    while (path := logs / f"rank{rank}-attempt{len(processes)}.jsonl").exists():
        processes.append(read_process(path))
    last = processes[-1].lines[-1] if processes[-1].lines else None
    return RankRun(
        rank=rank, began=processes[0].start.began, ended=last.at + last.seconds if last else processes[-1].start.at,
        processes=tuple(processes), data_digest=digest, bubble=bubble,
    )  # fmt: skip


def read_process(path: Path) -> ProbedProcess:
    """A file that a probe wrote; the line that a kill tore is left out.

    Raises:
        MeasurementError: a whole line is none of a probe.
    """
    *whole, _torn = path.read_bytes().split(b"\n")
    try:
        start, *lines = [json.loads(line) for line in whole]
        return ProbedProcess(
            start=from_json(ProbeStart, start, where="start"),
            lines=tuple(from_json(Line, line, where="line") for line in lines),
        )
    except ValueError as error:
        raise MeasurementError(f"{path}: {error}") from error

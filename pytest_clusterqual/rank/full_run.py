"""A training run with everything a real one pays for: checkpoints, a failure on purpose, recovery.

Each process of a rank writes what happens through the probe that users' own scripts have, into a folder that all nodes
see. The files outlive the process, so that the last attempt can report all of them.
"""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from pytest_clusterqual.errors import ClusterQualError, MeasurementError
from pytest_clusterqual.model.codec import from_json, to_json
from pytest_clusterqual.model.full_run import Checkpoints, Failure, RankRun
from pytest_clusterqual.model.probe import Line, ProbedProcess, ProbeStart
from pytest_clusterqual.model.workload import Layout, Workload
from pytest_clusterqual.probe import Probe
from pytest_clusterqual.rank.checkpoints import Checkpointer
from pytest_clusterqual.rank.data import ByteData, Prefetcher
from pytest_clusterqual.rank.job import Job
from pytest_clusterqual.rank.layouts import build
from pytest_clusterqual.rank.training import check_finite

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
    checkpoints: dict[str, Any],
    failure: dict[str, Any] | None,
    folder: str,
) -> Any:
    """One attempt: go on after the latest complete checkpoint up to `steps`; a list of `RankRun` as JSON.

    It holds this rank; that of rank 0 also the ranks which the world has lost. `folder` is where all ranks find the
    checkpoints. In the first attempt the `failure` strikes when its step begins.

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
    fails = from_json(Failure, failure, where="failure") if failure and not again else None
    probe = Probe(logs, rank=ctx.global_rank)
    try:
        data = ByteData.open(ctx, work)
        job = build(ctx, work, from_json(Layout, layout, where="layout"))
        group = _saving_group(ctx)
        keeper = Checkpointer(folder=Path(folder), group=group, mode=saving.mode, on_complete=probe.saved)
        with probe.checkpoint("load"):
            done = keeper.load(job)
        probe.resumed(done)
        feed = Prefetcher(data, range(done + 1, steps + 1), rank=job.data_rank, world_size=job.data_ranks)
        for step in range(done + 1, steps + 1):
            if fails and step == fails.step:
                _strike(ctx, probe, fails)
            _step(ctx, job, feed, probe, step, work.tokens_per_step)
            keeper.poll()
            if step % saving.every == 0:
                with probe.checkpoint():
                    keeper.save(job, step)
            ctx.report(step, steps, "full run")
        with probe.hook("last save"):
            keeper.wait()
        probe.done()
        feed.close()
        dist.destroy_process_group(group)
    finally:
        probe.close()
    times = job.pipeline_times(steps - done)
    bubble = 1 - sum(times.computing) / sum(times.seconds) if times else 0.0
    return [to_json(one) for one in _gather(ctx, logs, data.digest, bubble)]


def _step(ctx: Context, job: Job, feed: Prefetcher, probe: Probe, step: int, tokens: int) -> None:
    with probe.data():
        batches = feed.next()
    with probe.step(step, tokens=tokens):
        loss = job.step(batches).double()
        dist.all_reduce(loss, group=ctx.group)
        mean = float(loss.item()) / ctx.world_size
        ctx.synchronize()
    check_finite(mean, step)
    probe.loss(mean)


def _saving_group(ctx: Context) -> dist.ProcessGroup:
    """A group on CPU for the checkpoints alone, as patient with a silent peer as the training group.

    torch's own default is half an hour, and a process cannot end before its saving thread does.
    """
    patience = ctx.group._get_backend(ctx.device).options._timeout
    return dist.new_group(dist.get_process_group_ranks(ctx.group), backend="gloo", timeout=patience)


def _strike(ctx: Context, probe: Probe, failure: Failure) -> None:
    """Do to this process what the failure wants of it, if it is meant."""
    if failure.kind == "kill_rank" and failure.target == ctx.global_rank:
        probe.fault(failure.kind)
        os.kill(os.getpid(), signal.SIGKILL)


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

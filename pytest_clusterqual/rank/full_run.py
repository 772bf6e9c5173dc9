"""A training run with everything a real one pays for: checkpoints, a killed rank, recovery.

Each rank appends what happens to a file of its own. The file outlives the process, so that the
last attempt can report all of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed.checkpoint import CheckpointException

from pytest_clusterqual.errors import ClusterQualError, MeasurementError
from pytest_clusterqual.model.codec import from_json, to_json
from pytest_clusterqual.model.measurement import Mark, RankRun, Span
from pytest_clusterqual.model.workload import Layout, Workload
from pytest_clusterqual.probe import process_start
from pytest_clusterqual.rank.checkpoints import Checkpointer, Mode
from pytest_clusterqual.rank.data import ByteData, Prefetcher
from pytest_clusterqual.rank.job import Job
from pytest_clusterqual.rank.layouts import build
from pytest_clusterqual.rank.training import check_finite

if TYPE_CHECKING:
    from pytest_clusterqual.rank.jobs import Context


class EventLog:
    """One rank's marks, spans and losses as JSON lines; a process killed at any moment loses none."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        marks, _spans, _losses = read_events(path)
        self.attempt = sum(mark.kind == "started" for mark in marks)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        if path.stat().st_size:
            os.write(self._file, b"\n")  # ends a torn line of the attempt before; empty lines mean nothing

    def mark(self, kind: str, *, step: int = 0, at: float | None = None) -> None:
        """Log a moment, now unless `at` says another (seconds of the monotonic clock)."""
        moment = at if at is not None else time.monotonic()
        self._write("mark", {"kind": kind, "attempt": self.attempt, "at": moment, "step": step})

    def span(self, kind: str, start: float, end: float, *, step: int = 0) -> None:
        self._write("span", {"kind": kind, "attempt": self.attempt, "start": start, "end": end, "step": step})

    @contextlib.contextmanager
    def spanning(self, kind: str, *, step: int = 0) -> Iterator[None]:
        """Log the time spent inside; nothing if it ends with an exception."""
        start = time.monotonic()
        yield
        self.span(kind, start, time.monotonic(), step=step)

    def loss(self, step: int, value: float) -> None:
        self._write("loss", {"step": step, "value": value})

    def close(self) -> None:
        os.close(self._file)

    def _write(self, what: str, value: dict[str, Any]) -> None:
        os.write(self._file, json.dumps({what: to_json(value)}).encode() + b"\n")


def read_events(path: Path) -> tuple[list[Mark], list[Span], dict[str, float]]:
    """Marks, spans and losses by step; lines that a kill tore are left out.

    Raises:
        MeasurementError: a whole line is not an event.
    """
    marks: list[Mark] = []
    spans: list[Span] = []
    losses: dict[str, float] = {}
    lines = path.read_bytes().splitlines() if path.exists() else []
    for number, line in enumerate(lines, start=1):
        try:
            event = json.loads(line) if line else {}
        except ValueError:
            continue
        try:
            if "mark" in event:
                marks.append(from_json(Mark, event["mark"], where="mark"))
            elif "span" in event:
                spans.append(from_json(Span, event["span"], where="span"))
            elif "loss" in event:
                losses[str(event["loss"]["step"])] = from_json(float, event["loss"]["value"], where="loss")
        except (ValueError, KeyError, TypeError) as error:
            raise MeasurementError(f"{path}:{number}: {error}") from error
    return marks, spans, losses


def run(
    ctx: Context,
    *,
    workload: dict[str, Any],
    layout: dict[str, Any],
    steps: int,
    checkpoint_every: int,
    checkpoint_mode: Mode,
    kill_rank: int | None,
    kill_step: int,
    folder: str,
    events: str,
) -> Any:
    """One attempt: go on after the latest complete checkpoint up to `steps`; a `RankRun` as JSON.

    `folder` is where all ranks find the checkpoints, `events` this rank's own file. In the first
    attempt rank `kill_rank` kills itself at the start of `kill_step`.

    Raises:
        MeasurementError: a loss is not finite.
        ClusterQualError: the job, its data or its checkpoints are not usable.
        RuntimeError: a peer was lost; the attempt is logged as failed.
    """
    log = EventLog(Path(events))
    began = process_start()
    log.mark("started", at=began)
    work = from_json(Workload, workload, where="workload")
    kill_at = kill_step if kill_rank == ctx.global_rank and log.attempt == 0 else 0
    try:
        if not Path(folder).is_dir():  # the session has made it
            raise ClusterQualError(
                f"{ctx.node} does not see the checkpoint folder {folder}: name one on storage that all nodes share, "
                "with full_run.checkpoint.folder"
            )
        data = ByteData.open(ctx, work)
        job = build(ctx, work, from_json(Layout, layout, where="layout"))
        group = _saving_group(ctx)
        keeper = Checkpointer(
            folder=Path(folder),
            group=group,
            mode=checkpoint_mode,
            on_complete=lambda step: log.mark("saved", step=step),
        )
        log.span("init", began, time.monotonic())
        with log.spanning("load"):
            done = keeper.load(job)
        log.mark("resumed", step=done)
        feed = Prefetcher(data, range(done + 1, steps + 1), rank=job.data_rank, world_size=job.data_ranks)
        for step in range(done + 1, steps + 1):
            if step == kill_at:
                _die(log, step)
            _step(ctx, job, feed, log, step)
            keeper.poll()
            if checkpoint_every and step % checkpoint_every == 0:
                with log.spanning("checkpoint", step=step):
                    keeper.save(job, step)
            ctx.report(step, steps, "full run")
        with log.spanning("finish"):
            keeper.wait()
        log.mark("done", step=steps)
        with log.spanning("teardown"):
            feed.close()
            dist.destroy_process_group(group)
    except (RuntimeError, CheckpointException):
        log.mark("failed")
        raise
    finally:
        log.close()
    return to_json(_gather(ctx, Path(events), data.digest))


def _step(ctx: Context, job: Job, feed: Prefetcher, log: EventLog, step: int) -> None:
    with log.spanning("data", step=step):
        batches = feed.next()
    with log.spanning("step", step=step):
        loss = job.step(batches).double()
        dist.all_reduce(loss, group=ctx.group)
        mean = float(loss.item()) / ctx.world_size
        ctx.synchronize()
    check_finite(mean, step)
    log.loss(step, mean)


def _saving_group(ctx: Context) -> dist.ProcessGroup:
    """A group on CPU for the checkpoints alone, as patient with a silent peer as the training group.

    torch's own default is half an hour, and a process cannot end before its saving thread does.
    """
    patience = ctx.group._get_backend(ctx.device).options._timeout
    return dist.new_group(dist.get_process_group_ranks(ctx.group), backend="gloo", timeout=patience)


def _die(log: EventLog, step: int) -> None:
    log.mark("killed", step=step)
    os.kill(os.getpid(), signal.SIGKILL)


def _gather(ctx: Context, events: Path, digest: str) -> RankRun:
    marks, spans, losses = read_events(events)
    moments = [mark.at for mark in marks] + [at for span in spans for at in (span.start, span.end)]
    return RankRun(
        rank=ctx.global_rank,
        began=min(moments),
        ended=max(moments),
        spans=tuple(spans),
        marks=tuple(marks),
        losses=losses,
        data_digest=digest,
    )

"""Jobs that behave and misbehave, run on real ranks by the tests beside this file."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import torch
import torch.distributed as dist


def where(ctx: Any) -> dict[str, Any]:
    """Who this rank is, and a sum over its group that proves the group works."""
    total = torch.tensor([float(ctx.global_rank + 1)])
    dist.all_reduce(total, group=ctx.group)
    return {
        "rank": ctx.rank, "global_rank": ctx.global_rank, "world_size": ctx.world_size, "node": ctx.node,
        "sum": total.item(), "pid": os.getpid(), "nproc_per_node": ctx.nproc_per_node,
        "threads": torch.get_num_threads(), "cores": len(os.sched_getaffinity(0)),
    }  # fmt: skip


def echo(ctx: Any, **kwargs: Any) -> dict[str, Any]:
    return kwargs


def misbehave(ctx: Any, *, how: str, rank: int = 1) -> float:  # noqa: PLR0912  # a branch a misdeed
    """One rank does something bad, the others wait for it in a collective."""
    if ctx.global_rank == rank:
        if how == "raise":
            raise ValueError("boom")
        if how == "exit":
            os._exit(3)
        if how == "sys.exit":
            sys.exit(4)
        if how == "leave":
            sys.exit(0)
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if how == "sleep":
            time.sleep(600)
        if how == "kill-supervisor":
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(600)
        if how == "allocate":
            torch.empty(1 << 50)
        if how == "exhaust":
            kept = []
            while True:
                kept.append(bytearray(os.urandom(1 << 20)) * 16)
        if how == "unserializable":
            return object()  # type: ignore[return-value]  # on purpose
    total = torch.ones(1)
    dist.all_reduce(total, group=ctx.group)
    return total.item()


def chatter(ctx: Any, *, megabytes: int) -> int:
    """Print much, on both streams."""
    line = "x" * 1023 + "\n"
    for _ in range(megabytes * 512):
        sys.stdout.write(line)
        sys.stderr.write(line)
    sys.stdout.flush()
    return megabytes


def progress(ctx: Any, *, steps: int, seen: str) -> None:
    """Each step waits until whoever looks has told of it, by a file with its number in the folder `seen`."""
    for step in range(steps):
        ctx.report(step, steps, "counting")
        while not os.path.exists(f"{seen}/{step}"):
            time.sleep(0.005)

"""Real ranks for tests: processes of their own with a gloo group over loopback."""

from __future__ import annotations

import datetime
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pytest_clusterqual.model.workload import ModelShape, Optimizer, Workload
from pytest_clusterqual.rank.jobs import Context

TINY = Workload(
    model=ModelShape(layers=2, hidden=32, heads=4, kv_heads=2, ffn=64, vocab=256),
    optimizer=Optimizer(name="adamw", lr=1e-2),
    precision="fp32",
    sequence_length=16,
    microbatch=2,
    global_batch=8,
    steps=4,
    seed=3,
)
DDP = {"name": "ddp"}
FSDP = {"name": "fsdp", "fsdp": "full"}
PATIENCE = 300.0  # seconds; a machine may have other work to do
FSDP_AC = {"name": "fsdp-ac", "fsdp": "full", "activation_checkpointing": "full"}

# The server imports torch once, before it has any thread, so a rank costs a fork.
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["rank_harness", "pytest_clusterqual.rank.full_run"])


def until(true: Callable[[], bool]) -> bool:
    """True as soon as it is; False if it never is."""
    deadline = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


class Died(Exception):
    """A rank ended without an answer."""


def run_ranks(
    job: Callable[..., Any], scratch: Path, /, *, nodes: Sequence[str], survive_death: bool = False, **arguments: Any
) -> list[Any]:
    """Call `job(ctx, **arguments)` on one rank for each entry of `nodes`; the results in rank order.

    An exception on a rank comes back as ``"ErrorType: text"``. A rank that died gives None if
    `survive_death`, and raises `Died` otherwise.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    store = scratch / f"store-{len(list(scratch.glob('store-*')))}"
    started = []
    for rank in range(len(nodes)):
        receiving, sending = _processes.Pipe(duplex=False)
        process = _processes.Process(
            target=_rank,
            args=(sending, rank, tuple(nodes), store, scratch),
            kwargs={"job": job, "arguments": arguments},
        )
        process.start()
        sending.close()
        started.append((process, receiving))
    try:
        return [_answer(process, receiving, survive_death) for process, receiving in started]
    finally:
        for process, receiving in started:
            process.kill()
            process.join()
            receiving.close()


def _answer(process: Any, receiving: Any, survive_death: bool) -> Any:
    if not receiving.poll(PATIENCE):
        raise Died(f"no answer from process {process.pid} after {PATIENCE} s")
    try:
        return receiving.recv()
    except EOFError:
        if survive_death:
            return None
        process.join()
        raise Died(f"a rank ended with exit code {process.exitcode}") from None


def _rank(
    sending: Any, rank: int, nodes: tuple[str, ...], store: Path, scratch: Path, *, job: Any, arguments: dict[str, Any]
) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(str(store), len(nodes)),
        rank=rank,
        world_size=len(nodes),
        timeout=datetime.timedelta(seconds=60),
    )
    dist.barrier()  # a job may end at once: no rank may be gone before all have found it
    group = dist.group.WORLD
    assert group is not None
    ctx = Context(
        rank=rank, global_rank=rank, local_rank=0, node=nodes[rank], nproc_per_node=1, device=torch.device("cpu"),
        backend="gloo", group=group, members=tuple(range(len(nodes))), nodes=nodes, ranks_on_host=len(nodes),
        scratch=scratch,
    )  # fmt: skip
    try:
        answer = job(ctx, **arguments)
    except BaseException as error:
        traceback.print_exc()
        answer = f"{type(error).__name__}: {error}"
    sending.send(answer)
    sending.close()
    dist.destroy_process_group()

"""A worker: joins the process group of its generation and runs the session's jobs one by one."""

from __future__ import annotations

import datetime
import faulthandler
import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore

from pytest_clusterqual import channel as channel_module
from pytest_clusterqual.channel import Channel
from pytest_clusterqual.rank.jobs import Context, import_from, place, resolve
from pytest_clusterqual.rank.limits import not_allocated
from pytest_clusterqual.rank.load import LoadWatch, of_children
from pytest_clusterqual.rank.settings import Settings

# The session's deadline comes first: it knows the job, and it can tell who hangs.
_GROUP_TIMEOUT = datetime.timedelta(hours=2)


def run(settings: Settings, generation: str, message: dict[str, Any], stacks: Path) -> None:
    """Serve one generation in this freshly forked process; never returns."""
    code = 1
    try:
        from pytest_clusterqual.rank.__main__ import follow_parent

        follow_parent()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        with stacks.open("w") as file:
            faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)
            _serve(settings, generation, message)
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # the supervisor's objects were inherited by the fork: none of them may be finalized here


def _serve(settings: Settings, generation: str, message: dict[str, Any]) -> None:
    import_from(message["path"])
    torch.set_num_threads(max(1, len(settings.cores)))
    device, backend = select_device(settings)
    # Two connections: a worker blocks on the first one between jobs, the group uses the second.
    channel = Channel(channel_module.join(settings.address, settings.port), settings.secret, settings.launch)
    group_store = channel_module.join(settings.address, settings.port)
    dist.init_process_group(
        backend,
        store=PrefixStore(f"group/{settings.launch}/{generation}", group_store),
        rank=settings.rank,
        world_size=settings.world_size,
        timeout=_GROUP_TIMEOUT,
    )
    # A group that is bound to its device (device_id) would make groups of some ranks by splitting its
    # communicator, for which NCCL waits for all ranks; this makes the communicator just as early.
    dist.all_reduce(torch.zeros(1, device=device))
    channel.put(
        f"{generation}/hello/{settings.rank}",
        place(device, backend, rank=settings.rank, local_rank=settings.local_rank, node=settings.node),
    )
    world = _whole(settings, device, backend, tuple(message["nodes"]), message["ranks_on_host"])
    number = 0
    while True:
        job = channel.get(f"{generation}/job/{number}")
        if job["do"] == "leave":
            dist.destroy_process_group()
            return
        result = _run_job(replace(world, tell=_teller(channel, f"{generation}/progress/{number}", world.rank)), job)
        answer = f"{generation}/result/{number}/{settings.rank}"
        try:
            channel.put(answer, result)
        except TypeError as error:
            result = {"error": f"{job['job']} returned what JSON cannot hold: {error}"}
            channel.put(answer, result)
        if "error" in result:
            channel.flag(f"{generation}/trouble")
        if channel.count(f"{generation}/answers/{number}") == settings.world_size:
            channel.flag(f"{generation}/ready/{number}")
        number += 1


def select_device(settings: Settings) -> tuple[torch.device, str]:
    """This rank's device and the backend that serves it."""
    if settings.device == "cuda":
        device = torch.device("cuda", settings.device_index)
        torch.cuda.set_device(device)
        return device, "nccl"
    return torch.device("cpu"), "gloo"


def _whole(
    settings: Settings, device: torch.device, backend: str, nodes: tuple[str, ...], ranks_on_host: int
) -> Context:
    """What a job on all ranks of the world sees."""
    return Context(
        rank=settings.rank,
        global_rank=settings.rank,
        local_rank=settings.local_rank,
        node=settings.node,
        nproc_per_node=max(Counter(nodes).values()),
        device=device,
        backend=backend,
        group=dist.group.WORLD,  # type: ignore[arg-type]  # set by init_process_group
        members=tuple(range(settings.world_size)),
        nodes=nodes,
        ranks_on_host=ranks_on_host,
        scratch=settings.scratch,
    )


def _teller(channel: Channel, key: str, rank: int) -> Callable[[float, float, str], None]:
    return lambda done, total, what: channel.put(key, [rank, done, total, what])


def _run_job(world: Context, job: dict[str, Any]) -> dict[str, Any]:
    """Run one job and return its result, or its error with the traceback; ranks outside the job return at once."""
    members: list[int] = job["ranks"]
    group = None
    try:
        if len(members) < world.world_size or job["new_group"]:
            group = dist.new_group(members, timeout=_GROUP_TIMEOUT)
        if world.rank not in members:
            return {"outside": True}
        nodes = tuple(world.nodes[rank] for rank in members)
        ctx = replace(
            world, rank=members.index(world.rank), nproc_per_node=max(Counter(nodes).values()),
            group=world.group if group is None else group, members=tuple(members), nodes=nodes,
        )  # fmt: skip
        watch = LoadWatch() if job["watch"] else None
        began = time.perf_counter()
        value = resolve(job["job"])(ctx, **job["args"])
        seconds = time.perf_counter() - began
        return {"value": value, "seconds": seconds, "taken": watch.taken() if watch else (0.0, 0.0)}
    except Exception as error:
        return {
            "error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc(), "at": time.time(),
            "out_of_memory": not_allocated(error),
        }  # fmt: skip
    finally:
        if group is not None and world.rank in members:
            dist.destroy_process_group(group)


def train(settings: Settings) -> None:
    """One attempt of a full run; the one that ends the run sends the whole log of this rank to the session."""
    if settings.cores:
        os.sched_setaffinity(0, settings.cores)
    torch.set_num_threads(max(1, len(settings.cores)))
    channel = Channel(channel_module.join(settings.address, settings.port), settings.secret, settings.launch)
    order = channel.get("train")
    import_from(order["path"])
    device, backend = select_device(settings)
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=order["timeout"]))
    channel.put(f"node/{settings.rank}", settings.node)
    where = place(device, backend, rank=settings.rank, local_rank=settings.local_rank, node=settings.node)
    channel.put(f"place/{settings.rank}", where)
    dist.barrier()
    nodes = tuple(channel.get(f"node/{rank}") for rank in range(settings.world_size))
    world = _whole(settings, device, backend, nodes, order["ranks_on_host"])
    ctx = replace(world, tell=_teller(channel, "progress", settings.rank))
    from pytest_clusterqual.rank import full_run

    watch = LoadWatch()
    value = full_run.run(ctx, announce=lambda: channel.flag("struck"), **order["args"])
    if value is None:  # told to end before the work was done
        return
    channel.put(f"result/{settings.rank}", {"value": value, "taken": watch.taken(of_children())})
    if channel.count("answers") == settings.world_size:
        channel.flag("ready")

"""Checkpoints saved by the product and by a bare script, run as jobs on the same ranks in the same launch."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

Times = tuple[float, float]  # seconds: until training could go on, until the checkpoint was complete


def save_pairs(
    ctx: Any, *, workload: dict[str, Any], layout: dict[str, Any], mode: Any, pairs: int, folder: str
) -> dict[str, Any]:
    """The same state saved by the product, as its probe tells it, and by a bare script, in turn."""
    from pytest_clusterqual.model.codec import from_json
    from pytest_clusterqual.model.workload import Layout, Workload
    from pytest_clusterqual.probe import Probe
    from pytest_clusterqual.rank.checkpoints import Checkpointer, Saved
    from pytest_clusterqual.rank.data import ByteData
    from pytest_clusterqual.rank.full_run import read_process
    from pytest_clusterqual.rank.layouts import build
    from pytest_clusterqual.rank.training import meet

    work, place = from_json(Workload, workload), Path(folder) / mode
    job = build(ctx, work, from_json(Layout, layout))
    data = ByteData.open(ctx, work)
    job.step(data.batches(1, rank=job.data_rank, world_size=job.data_ranks))  # now the optimizer has a state, too
    groups = [dist.new_group(list(ctx.members), backend="gloo") for _ in range(2)]
    probe = Probe(place / "probe", rank=ctx.global_rank)
    saved: list[Saved] = []

    def complete(one: Saved) -> None:
        probe.saved(one.step, size=one.size)
        saved.append(one)

    keeper = Checkpointer(folder=place / "product", group=groups[0], mode=mode, on_complete=complete)
    start = time.perf_counter()
    keeper.prepare()
    prepared = time.perf_counter() - start
    keeper.poll()
    bare: list[Times] = []
    for pair in range(1, pairs + 2):  # the first pair warms up
        for name in ("product", "bare") if pair % 2 else ("bare", "product"):
            meet(ctx)
            if name == "product":
                with probe.checkpoint():
                    keeper.save(job, pair)
                keeper.wait()
                probe.resumed(pair)  # so that the next save is that of another step
            else:
                bare.append(bare_save(job, groups[1], mode, place / "bare", pair))
    keeper.wait()
    probe.close()
    lines = read_process(place / "probe" / f"rank{ctx.global_rank}-attempt0.jsonl").lines
    began = [line for line in lines if line.what == "save"]
    ended = [line for line in lines if line.what == "saved"]
    ours = [(span.seconds, mark.at - span.at) for span, mark in zip(began, ended, strict=True)]
    return {"ours": ours[1:], "bare": bare[1:], "prepared": prepared, "size": saved[-1].size}


def bare_save(job: Any, group: Any, mode: str, folder: Path, step: int) -> Times:
    """As the documentation of torch shows it; like the product it keeps two."""
    start = time.perf_counter()
    place = folder / f"{step}"
    state = {
        "model": get_model_state_dict(job.model),
        "optimizer": get_optimizer_state_dict(job.model, job.optimizer)["state"],
    }
    if mode == "sync":
        dcp.save(state, checkpoint_id=place, process_group=group)
        _forget(group, folder / f"{step - 2}")
        blocked = time.perf_counter() - start
    else:
        how = AsyncCheckpointerType.PROCESS if mode == "async-process" else AsyncCheckpointerType.THREAD
        saving: Any = dcp.async_save(state, checkpoint_id=place, process_group=group, async_checkpointer_type=how)
        blocked = time.perf_counter() - start
        saving.result()
    complete = time.perf_counter() - start
    if mode != "sync":
        _forget(group, folder / f"{step - 2}")
    return blocked, complete


def _forget(group: Any, place: Path) -> None:
    if dist.get_rank(group) == 0:
        shutil.rmtree(place, ignore_errors=True)

"""What a training step really sends is what is derived from workload and layout, call by call and byte by byte."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_harness import DDP, FSDP, FSDP_AC, TINY, run_ranks
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_clusterqual.model.codec import from_json, to_json
from pytest_clusterqual.model.traffic import traffic
from pytest_clusterqual.model.workload import Layout, Workload
from pytest_clusterqual.rank.data import ByteData
from pytest_clusterqual.rank.layouts import build

pytestmark = pytest.mark.slow

RANKS = 4
DDP_AC = {"name": "ddp-ac", "activation_checkpointing": "full"}
# Nothing divides by the ranks, so that every parameter is filled up; and several buckets.
ODD = replace(TINY, global_batch=16, model=replace(TINY.model, hidden=24, ffn=66, vocab=257))
LARGE = replace(TINY, model=replace(TINY.model, hidden=512, ffn=2048))
JOBS = [
    *((ODD, layout) for layout in (DDP, FSDP, FSDP_AC)),
    *((LARGE, layout) for layout in (DDP, DDP_AC)),
    (replace(ODD, precision="bf16"), FSDP),
]
# torch's name -> ours, and which of its arrays is the whole one.
CALLS = {
    "allreduce_": ("all_reduce", 0),
    "_allgather_base_": ("all_gather", 0),
    "_reduce_scatter_base_": ("reduce_scatter", 1),
}


class Calls(TorchDispatchMode):
    """Counts collectives with the bytes of their whole array."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[tuple[str, int]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            name, whole = CALLS[func.overloadpacket.__name__]
            arrays = args[whole]
            array = arrays if isinstance(arrays, torch.Tensor) else arrays[0]
            self.found[name, array.numel() * array.element_size()] += 1
        return func(*args, **(kwargs or {}))


def count(ctx: Any, *, jobs: list[Any]) -> list[Counter[tuple[str, int]]]:
    return [of_one_step(ctx, from_json(Workload, workload), from_json(Layout, layout)) for workload, layout in jobs]


def of_one_step(ctx: Any, workload: Workload, layout: Layout) -> Counter[tuple[str, int]]:
    data = ByteData.open(ctx, workload)
    job = build(ctx, workload, layout)
    for step in (1, 2):  # DistributedDataParallel finds its buckets in the first ones
        job.step(data.batches(step, rank=ctx.rank, world_size=ctx.world_size))
    with Calls() as calls:
        job.step(data.batches(3, rank=ctx.rank, world_size=ctx.world_size))
    return calls.found


def test_a_real_step_exchanges_what_is_derived(tmp_path: Path) -> None:
    jobs = [(to_json(workload), layout) for workload, layout in JOBS]
    answers = run_ranks(count, tmp_path, nodes=["a"] * RANKS, jobs=jobs)
    for found in answers:
        assert found == [derived(workload, from_json(Layout, layout)) for workload, layout in JOBS]
    assert len(answers[0][JOBS.index((LARGE, DDP))]) == 3, "several buckets"
    sharded = answers[0][JOBS.index((ODD, FSDP))]
    assert sum(sharded.values()) == 2 * (2 * 2 + 1) + (2 + 1), "two microbatches; two blocks and the rest"


def derived(workload: Workload, layout: Layout) -> Counter[tuple[str, int]]:
    found: Counter[tuple[str, int]] = Counter()
    for each in traffic(workload, layout, world=RANKS, nproc_per_node=2):
        found[each.collective, each.bytes] += each.calls
    return found

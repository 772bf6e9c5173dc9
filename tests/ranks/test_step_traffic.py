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
SPLIT = replace(TINY, model=replace(TINY.model, layers=4, hidden=64))
JOBS = [
    *((ODD, layout) for layout in (DDP, FSDP, FSDP_AC)),
    *((LARGE, layout) for layout in (DDP, DDP_AC)),
    (replace(ODD, precision="bf16"), FSDP),
    *((SPLIT, {"name": "any", **layout}) for layout in (
        {"fsdp": "grad-op"}, {"fsdp": "hybrid"}, {"tensor": 2, "activation_checkpointing": "full"},
        {"tensor": 2, "fsdp": "full", "activation_checkpointing": "selective"}, {"context": 4, "fsdp": "full"},
        {"context": 2, "activation_checkpointing": "full"}, {"pipeline": 2, "fsdp": "full"},
        {"pipeline": 2, "context": 2}, {"pipeline": 2, "fsdp": "grad-op", "schedule": "gpipe"},
        {"pipeline": 2, "tensor": 2, "schedule": "interleaved", "stages_per_rank": 2},
        {"pipeline": 2, "fsdp": "full", "schedule": "interleaved", "stages_per_rank": 2},
    )),
    (replace(SPLIT, model=replace(SPLIT.model, experts=4)), {"name": "any"}),
]  # fmt: skip
# torch's name -> ours, and which of its arrays is the whole one; None: what it answers.
CALLS = {
    "allreduce_": ("all_reduce", 0),
    "_allgather_base_": ("all_gather", 0),
    "_reduce_scatter_base_": ("reduce_scatter", 1),
    "alltoall_base_": ("all_to_all", 0),
    "send": ("send_recv", 0),
    "all_reduce": ("all_reduce", 0),
    "all_gather_into_tensor": ("all_gather", None),
    "reduce_scatter_tensor": ("reduce_scatter", 0),
    "all_to_all_single": ("all_to_all_v", 0),
}
SILENT = {"recv_", "wait_tensor", "_wrap_tensor_autograd"}  # the other end of what is counted


class Calls(TorchDispatchMode):
    """Counts collectives with the bytes of their whole array."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[tuple[str, int]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = func(*args, **(kwargs or {}))
        called = func.overloadpacket.__name__
        if func.namespace in ("c10d", "_c10d_functional") and called not in SILENT:
            name, whole = CALLS[called]
            arrays = answer if whole is None else args[whole]
            array = arrays if isinstance(arrays, torch.Tensor) else arrays[0]
            self.found[name, array.numel() * array.element_size()] += 1
        return answer


def count(ctx: Any, *, jobs: list[Any]) -> list[Counter[tuple[str, int]]]:
    return [of_one_step(ctx, from_json(Workload, workload), from_json(Layout, layout)) for workload, layout in jobs]


def of_one_step(ctx: Any, workload: Workload, layout: Layout) -> Counter[tuple[str, int]]:
    ctx = replace(ctx, nproc_per_node=2)
    data = ByteData.open(ctx, workload)
    job = build(ctx, workload, layout)
    for step in (1,) if layout.fsdp else (1, 2):  # DistributedDataParallel finds its buckets in the first ones
        job.step(data.batches(step, rank=job.data_rank, world_size=job.data_ranks))
    with Calls() as calls:
        job.step(data.batches(3, rank=job.data_rank, world_size=job.data_ranks))
    del calls.found["all_reduce", workload.model.hidden * 4]  # of a norm, which is left out
    return calls.found


def test_a_real_step_exchanges_what_is_derived(tmp_path: Path) -> None:
    jobs = [(to_json(workload), layout) for workload, layout in JOBS]
    answers = run_ranks(count, tmp_path, nodes=["a"] * RANKS, jobs=jobs)
    for number, (workload, layout) in enumerate(JOBS):
        expected = derived(workload, from_json(Layout, layout))
        found = [answer[number] for answer in answers]
        # Stages differ: what is derived is that of the last, which has the head.
        assert found[-1] == expected, layout
        assert found == [expected] * RANKS or "pipeline" in layout, layout
    assert len(answers[0][JOBS.index((LARGE, DDP))]) == 3, "several buckets"
    sharded = answers[0][JOBS.index((ODD, FSDP))]
    assert sum(sharded.values()) == 2 * (2 * 2 + 1) + (2 + 1), "two microbatches; two blocks and the rest"


def derived(workload: Workload, layout: Layout) -> Counter[tuple[str, int]]:
    found: Counter[tuple[str, int]] = Counter()
    for each in traffic(workload, layout, world=RANKS, nproc_per_node=2):
        found[each.collective, each.bytes] += each.calls
    return found

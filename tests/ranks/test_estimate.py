"""Estimated memory against measured memory, layout by layout, and worlds that no machine here could hold."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rank_harness import TINY, run_ranks

from pytest_clusterqual.cli import main
from pytest_clusterqual.commands.estimating import PROGRAM
from pytest_clusterqual.errors import ClusterQualError
from pytest_clusterqual.model.codec import from_json, to_json
from pytest_clusterqual.model.estimate import Estimate, EstimateRequest
from pytest_clusterqual.model.memory import RankMemory, Rung
from pytest_clusterqual.model.workload import Layout, Workload
from pytest_clusterqual.rank import estimate as program
from pytest_clusterqual.rank.estimate import estimate
from pytest_clusterqual.rank.memory import measure

LONG = replace(TINY, global_batch=16)  # more microbatches a step than the estimate does
DEEP = replace(LONG, model=replace(TINY.model, layers=4))
# Where a CPU has units for half precision, oneDNN works in buffers of its own, 50 KB of any model.
HALF = replace(LONG, precision="fp16", model=replace(TINY.model, hidden=128, ffn=256))
MIXED = replace(TINY, model=replace(TINY.model, experts=4, top_k=2))


def rung(ranks: int, per_node: int = 1, *, microbatch: int = TINY.microbatch, **layout: Any) -> Rung:
    return Rung(
        name="rung", kind="shard", nodes=ranks // per_node, per_node=per_node, microbatch=microbatch,
        layout=Layout(name="layout", **layout),
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workload", "ranks", "layout"),
    [
        (LONG, 1, {}),
        (replace(TINY, sequence_length=4, microbatch=1, global_batch=1), 1, {}),
        (LONG, 2, {}),
        (HALF, 1, {"activation_checkpointing": "selective"}),
        (LONG, 2, {"fsdp": "full"}),
        (TINY, 2, {"fsdp": "full", "activation_checkpointing": "full"}),
        (replace(TINY, precision="bf16"), 2, {"fsdp": "grad-op"}),
        (TINY, 2, {"tensor": 2}),
        (TINY, 2, {"context": 2, "fsdp": "full"}),
        (DEEP, 2, {"pipeline": 2, "schedule": "interleaved", "stages_per_rank": 2}),
        (MIXED, 2, {}),
    ],
    ids=[
        "one", "one-microbatch", "ddp", "fp16-selective", "fsdp", "fsdp-full", "bf16-grad-op", "tensor", "context",
        "interleaved", "experts",
    ],
)  # fmt: skip
def test_the_estimate_is_what_is_measured(
    tmp_path: Path, workload: Workload, ranks: int, layout: dict[str, Any]
) -> None:
    wanted = rung(ranks, microbatch=workload.microbatch, **layout)
    answers = run_ranks(
        measure, tmp_path, nodes=[f"n{rank}" for rank in range(ranks)], workload=to_json(workload),
        layout=to_json(wanted.layout), steps=2,
    )  # fmt: skip
    measured = [from_json(RankMemory, answer) for answer in answers]
    fullest = max(measured, key=lambda rank: max(rank.step_peaks))
    found = estimate(workload, wanted, device="cpu")
    assert found.method == "fake tensors"
    assert found.peak == pytest.approx(max(fullest.step_peaks), rel=0.02)
    assert sum(found.parts.values()) == found.peak
    for part in ("parameters", "gradients", "optimizer"):
        assert found.parts[part] == fullest.parts[part]


def test_microbatches_that_are_left_out_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for layout in ({}, {"fsdp": "full"}, {"context": 2}):
        short = estimate(replace(TINY, global_batch=20), rung(2, **layout), device="cpu")
        monkeypatch.setattr(program, "ENOUGH_TURNS", 100)
        assert short == estimate(replace(TINY, global_batch=20), rung(2, **layout), device="cpu")
        monkeypatch.undo()


def test_a_world_of_64_ranks_is_estimated_by_one() -> None:
    even = replace(TINY.model, hidden=128, kv_heads=4, ffn=256)  # all divides by 64
    work = replace(TINY, model=even, global_batch=128)
    alone, many = (estimate(work, rung(n, per_node=min(n, 8), fsdp="full"), device="cpu") for n in (1, 64))
    assert alone.parts["parameters"] == even.parameters * 4
    assert many.parts["parameters"] == even.parameters * 4 / 64
    assert many.peak < alone.peak


@pytest.mark.parametrize(
    "layout",
    [
        {"fsdp": "hybrid"},
        {"tensor": 2, "pipeline": 2, "fsdp": "full"},
        {"pipeline": 2, "schedule": "gpipe"},
        {"context": 2, "tensor": 2},
    ],
    ids=["hybrid", "tensor-pipeline-fsdp", "gpipe", "context-tensor"],
)  # fmt: skip
def test_every_kind_of_layout_has_an_estimate(layout: dict[str, Any]) -> None:
    found = estimate(replace(TINY, global_batch=32), rung(8, per_node=4, **layout), device="cuda")
    assert found.parts["parameters"] > 0
    assert sum(found.parts.values()) == found.peak


def test_experts_on_several_ranks_are_estimated() -> None:
    work = replace(MIXED, global_batch=16)
    whole, split = (
        estimate(work, rung(4, per_node=4, expert=degree, fsdp="full"), device="cpu").parts["parameters"]
        for degree in (1, 4)
    )
    assert whole == split  # sharded over four ranks, or a fourth of the experts on each


def test_the_fullest_stage_of_a_pipeline_counts() -> None:
    tables = replace(TINY, model=replace(TINY.model, vocab=4096))
    layers = replace(TINY, model=replace(TINY.model, layers=8, ffn=512), global_batch=16)
    assert estimate(tables, rung(2, pipeline=2), device="cpu").rank == 1  # the logits are there
    assert estimate(layers, rung(2, pipeline=2), device="cpu").rank == 0  # most microbatches are in flight there


def test_cuda_holds_whole_blocks_and_one_operation_on_all_parameters() -> None:
    deep = replace(TINY, model=replace(TINY.model, layers=16), sequence_length=2, microbatch=1, global_batch=1)
    cpu, cuda = (estimate(deep, rung(1, microbatch=1), device=device) for device in ("cpu", "cuda"))
    assert all(size % 512 == 0 for size in cuda.parts.values())
    # AdamW's foreach has the size of all parameters as temporary tensors; tensor by tensor needs next to nothing.
    assert cuda.peak - sum(cuda.parts[p] for p in ("parameters", "gradients", "optimizer")) >= cpu.parts["parameters"]
    assert cpu.peak - sum(cpu.parts[p] for p in ("parameters", "gradients", "optimizer")) < cpu.parts["parameters"]


def test_nothing_is_left_of_an_estimate() -> None:
    resize = torch.UntypedStorage.resize_
    estimate(TINY, rung(2, fsdp="full"), device="cpu")
    assert torch.UntypedStorage.resize_ is resize
    assert not dist.is_initialized()
    with pytest.raises(ClusterQualError, match="3 ranks are no multiple"):
        estimate(TINY, rung(3, tensor=2), device="cpu")
    assert not dist.is_initialized()


@pytest.mark.slow
def test_the_program_answers_rung_by_rung_and_a_bad_one_costs_only_itself() -> None:
    request = EstimateRequest(workload=TINY, device="cpu", rungs=(rung(1), rung(3, tensor=2), rung(2, fsdp="full")))
    done = subprocess.run(
        PROGRAM, input=json.dumps(to_json(request)) + "\n", capture_output=True, text=True, check=True, timeout=300
    )
    first, bad, last = (json.loads(line) for line in done.stdout.splitlines())
    assert from_json(Estimate, first["estimate"]).peak > from_json(Estimate, last["estimate"]).peak
    assert bad == {"problem": "layout layout: 3 ranks are no multiple of pipeline 1 x context 1 x tensor 2 = 2"}


PLAN = """\
version: 1
project: demo
launcher: {nproc_per_node: 2, device: cpu}
workload:
  model: {layers: 2, hidden: 32, heads: 4, kv_heads: 2, ffn: 64, vocab: 256}
  optimizer: {name: adamw, lr: 0.001}
  precision: fp32
  sequence_length: 16
  microbatch: 4
  global_batch: 16
  steps: 3
  seed: 0
layouts: [{name: ddp}]
memory: {device_memory: 900 KiB, require: [{headroom: ">= 10 %"}]}
"""


@pytest.mark.slow
def test_a_plan_has_the_estimated_ladder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "clusterqual.yaml").write_text(PLAN)
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "--nodes", "2", "--json"]) == 0
    ladder = json.loads(capsys.readouterr().out)["memory_ladder"]
    told = [f"{row['rung']['name']}: {row['fits']}" for row in ladder["rungs"] if row["estimate"]]
    assert {row["estimate"]["method"] for row in ladder["rungs"] if row["estimate"]} == {"fake tensors"}
    assert told[0] == "one device: no"
    assert any(line.endswith("fits") for line in told)

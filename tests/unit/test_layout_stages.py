"""Which layers a stage has, and what makes another job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_clusterqual.model.workload import Layout, ModelShape, Optimizer, Workload

WORK = Workload(
    model=ModelShape(layers=2, hidden=8, heads=2, kv_heads=1, ffn=16, vocab=256, experts=4),
    optimizer=Optimizer(name="adamw", lr=1e-3), precision="fp32", sequence_length=8, microbatch=1, global_batch=2,
    steps=1, seed=1,
)  # fmt: skip


@given(pipeline=st.integers(1, 8), each=st.integers(1, 4), layers=st.integers(1, 64))
def test_stages_share_all_layers_in_order_and_evenly(pipeline: int, each: int, layers: int) -> None:
    layout = Layout(name="any", pipeline=pipeline, stages_per_rank=each)
    parts = [layout.layers_of(stage, layers) for stage in range(layout.stages)]
    assert [layer for part in parts for layer in part] == list(range(layers))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    owned = [layout.stages_of(rank) for rank in range(pipeline)]
    assert sorted(stage for stages in owned for stage in stages) == list(range(layout.stages))
    assert {len(stages) for stages in owned} == {each}


def test_interleaved_stages_go_around_the_ranks() -> None:
    layout = Layout(name="any", pipeline=2, stages_per_rank=2, schedule="interleaved")
    assert [list(layout.stages_of(rank)) for rank in (0, 1)] == [[0, 2], [1, 3]]
    assert [list(layout.layers_of(stage, 6)) for stage in range(4)] == [[0, 1], [2, 3], [4], [5]]


@pytest.mark.parametrize("change", [{"experts": 2}, {"experts": 0}, {"top_k": 2}])
def test_other_experts_are_another_job(change: dict[str, int]) -> None:
    def fingerprint(work: Workload) -> str:
        return work.fingerprint(versions={}, data_digest="x")

    assert fingerprint(WORK) != fingerprint(replace(WORK, model=replace(WORK.model, **change)))


def test_another_implementation_of_the_optimizer_is_another_job() -> None:
    fused = replace(WORK, optimizer=replace(WORK.optimizer, implementation="fused"))
    assert WORK.fingerprint(versions={}, data_digest="x") != fused.fingerprint(versions={}, data_digest="x")


def test_experts_are_counted_with_the_router() -> None:
    block = WORK.model.block()
    assert block["feed_forward.router.weight"] == (4, 8)
    assert sum(name.startswith("feed_forward.experts.") for name in block) == 4 * 3
    dense = replace(WORK.model, experts=0)
    assert WORK.model.parameters - dense.parameters == 2 * (4 * 8 + 3 * 3 * 8 * 16)


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ({}, ""), ({"fsdp": "grad-op"}, ""), ({"fsdp": "hybrid"}, "fsdp: hybrid"),
        ({"tensor": 2, "expert": 2, "fsdp": "full"}, "tensor, expert"),
    ],
)  # fmt: skip
def test_what_cannot_be_left_out_of_a_step(layout: dict[str, Any], expected: str) -> None:
    assert Layout(name="any", **layout).unreplaceable == expected

"""The ladder that follows from a job and the ranks there are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_clusterqual.model.groups import mesh
from pytest_clusterqual.model.memory import Rung
from pytest_clusterqual.model.rungs import rungs
from pytest_clusterqual.model.workload import ModelShape, Optimizer, Workload

SHAPE = ModelShape(layers=4, hidden=64, heads=8, kv_heads=8, ffn=128, vocab=256)
WORK = Workload(
    model=SHAPE, optimizer=Optimizer(name="adamw", lr=1e-3), precision="fp32", sequence_length=64, microbatch=8,
    global_batch=64, steps=4, seed=1,
)  # fmt: skip


def names(nodes: int, per_node: int, **job: Any) -> list[str]:
    return [rung.name for rung in rungs(replace(WORK, **job), nodes=nodes, nproc_per_node=per_node)]


def the(name: str, nodes: int, per_node: int, **shape: Any) -> Rung:
    work = replace(WORK, model=replace(SHAPE, **shape))
    (found,) = [rung for rung in rungs(work, nodes=nodes, nproc_per_node=per_node) if rung.name == name]
    return found


def test_the_order_is_that_of_a_careful_engineer() -> None:
    assert names(4, 4) == [
        "one device", "microbatch 4", "microbatch 1", "recompute selective", "recompute full", "shard",
        "shard, recompute", "tensor 4", "pipeline 4", "context 4", "2 nodes", "4 nodes",
    ]  # fmt: skip


def test_means_that_change_nothing_are_left_out() -> None:
    assert names(1, 1, microbatch=1) == ["one device", "recompute selective", "recompute full"]
    assert names(2, 1, microbatch=2) == [
        "one device", "microbatch 1", "recompute selective", "recompute full", "2 nodes",
    ]  # fmt: skip


def test_nodes_are_doubled_up_to_all_of_them() -> None:
    assert [name for name in names(12, 1) if "nodes" in name] == ["2 nodes", "4 nodes", "8 nodes", "12 nodes"]


def test_every_rung_does_the_exact_job() -> None:
    for rung in rungs(WORK, nodes=4, nproc_per_node=4):
        shape = mesh(rung.layout, rung.ranks, rung.per_node)
        turns = replace(WORK, microbatch=rung.microbatch).accumulation(shape.data)
        assert turns * rung.microbatch * shape.data == WORK.global_batch, rung.name
        assert rung.nodes > 1 or rung.ranks <= 4


def test_a_rung_keeps_the_means_before_it() -> None:
    ladder = rungs(WORK, nodes=4, nproc_per_node=4)
    assert {rung.microbatch for rung in ladder[2:]} == {1}
    assert {rung.layout.activation_checkpointing for rung in ladder if rung.kind in ("split", "nodes")} == {"full"}
    # A context is cut, and what its ranks hold alike is sharded.
    assert {rung.name: rung.layout.fsdp for rung in ladder if rung.kind == "split"} == {
        "tensor 4": None, "pipeline 4": None, "context 4": "full",
    }  # fmt: skip


def test_a_split_is_as_wide_as_the_job_allows_and_the_rest_is_sharded() -> None:
    narrow = the("tensor 2", 1, 8, kv_heads=2)
    assert (narrow.layout.tensor, narrow.layout.fsdp, narrow.per_node, narrow.impossible) == (2, "full", 8, "")
    assert the("pipeline 4", 1, 8).layout.fsdp == "full"


@pytest.mark.parametrize(
    ("name", "per_node", "shape", "why"),
    [
        ("tensor 2", 2, {"heads": 1, "kv_heads": 1}, "tensor: got 2, want a divisor of workload.model.heads 1"),
        ("pipeline 2", 2, {"layers": 1}, "pipeline: got 2, want at most workload.model.layers 1"),
        ("shard", 3, {}, "global_batch 64 is not a multiple of microbatch 1 x 3 data-parallel ranks = 3"),
    ],
)
def test_what_is_impossible_says_why(name: str, per_node: int, shape: dict[str, Any], why: str) -> None:
    assert why in the(name, 1, per_node, **shape).impossible

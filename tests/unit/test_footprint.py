"""What a training step keeps on a rank, by arithmetic, against figures worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_clusterqual.model.footprint import Footprint, footprint
from pytest_clusterqual.model.workload import Layout, ModelShape, Optimizer, Workload

SHAPE = ModelShape(layers=4, hidden=64, heads=4, kv_heads=2, ffn=128, vocab=256)
BLOCK = 2 * 64 + 64 * 192 + 3 * 64 * 128
TABLE = 256 * 64
WORKLOAD = Workload(
    model=SHAPE, optimizer=Optimizer(name="adamw", lr=1e-3), precision="fp32", sequence_length=32, microbatch=2,
    global_batch=64, steps=4, seed=1,
)  # fmt: skip
TOKENS = 2 * 32


def found(world: int = 1, nproc: int = 8, workload: Workload = WORKLOAD, turns: int = 1, **degrees: Any) -> Footprint:
    """With as large a global batch as gives each copy of the model `turns` microbatches a step."""
    layout = Layout(name="any", **degrees)
    copies = world // (layout.tensor * layout.pipeline * layout.context)
    job = replace(workload, global_batch=turns * copies * workload.microbatch)
    return footprint(job, layout, world=world, nproc_per_node=nproc)


def states(of: Footprint) -> float:
    return of.parts["parameters"] + of.parts["gradients"] + of.parts["optimizer"]


def test_states_are_sixteen_bytes_a_parameter_whatever_the_precision() -> None:
    whole = 16 * SHAPE.parameters
    for precision in ("fp32", "bf16"):
        copy = found(workload=replace(WORKLOAD, precision=precision))
        assert states(copy) == whole
        assert copy.parts["parameters"] == copy.parts["gradients"] == copy.parts["optimizer"] / 2
    assert found().parts["other"] == 0
    assert found(workload=replace(WORKLOAD, precision="bf16")).parts["other"] == 2 * SHAPE.parameters


def test_gradients_that_add_up_over_microbatches_are_whole() -> None:
    """FSDP scatters them with the last one; of plain copies they lie outside of their buckets."""
    once, twice = found(8, fsdp="full"), found(8, turns=2, fsdp="full")
    assert (once.parts["gradients"], twice.parts["gradients"]) == (4 * SHAPE.parameters / 8, 4 * SHAPE.parameters)
    assert once.parts["other"] - twice.parts["other"] == 4 * (BLOCK + 2 * TABLE + 64)
    assert "whole while microbatches add up" in twice.words["states"]
    assert found(turns=2).parts["gradients"] == found().parts["gradients"]
    assert found(turns=2).parts["other"] == 4 * SHAPE.parameters


def test_copies_of_the_model_save_nothing_and_shards_do() -> None:
    assert states(found(8)) == states(found())
    assert states(found(8, fsdp="full")) == states(found()) / 8
    assert states(found(8, nproc=4, fsdp="hybrid")) == states(found()) / 4
    assert states(found(8, fsdp="full", context=2)) == states(found()) / 8
    assert found(8, fsdp="grad-op").parts["other"] - found(8, fsdp="full").parts["other"] == 2 * 4 * BLOCK


def test_tensor_ranks_split_matrices_but_no_norms() -> None:
    norms = (2 * 4 + 1) * 64
    assert states(found(2, tensor=2)) == 16 * ((SHAPE.parameters - norms) / 2 + norms)


def test_pipeline_ranks_have_their_layers_and_the_first_and_last_a_table() -> None:
    """The last one is fullest where logits are large, else the first one, which has most microbatches in flight."""
    wordy = replace(WORKLOAD, model=replace(SHAPE, vocab=4096))
    last = found(2, pipeline=2, workload=wordy)
    assert states(last) == 16 * (2 * BLOCK + 4096 * 64 + 64)
    assert last.words["activations"].endswith("numbers x 4 B + logits")
    first = found(4, turns=32, pipeline=4)
    assert "x 4 microbatches in flight" in first.words["activations"]
    assert states(first) == 16 * (BLOCK + TABLE)
    gpipe = found(4, turns=32, pipeline=4, schedule="gpipe")
    assert "x 32 microbatches in flight" in gpipe.words["activations"]
    logits = TOKENS * 256 * (32 * 8 + 8)  # the last rank keeps all of them, with their logarithms
    assert gpipe.parts["activations"] == 4 * TOKENS * 32 * (7 * 64 + 2 * 32 + 4 * 128) + logits
    interleaved = found(2, turns=32, pipeline=2, schedule="interleaved", stages_per_rank=2).words["activations"]
    assert "x 2.5 microbatches in flight" in interleaved  # p + (p - 1) / v


def test_experts_lie_apart() -> None:
    shape = replace(SHAPE, experts=4, top_k=2)
    expert, router = 3 * 64 * 128, 4 * 64
    dense = 4 * (BLOCK - expert + router) + 2 * TABLE + 64
    sparse = replace(WORKLOAD, model=shape)
    assert states(found(workload=sparse)) == 16 * (dense + 4 * 4 * expert)
    assert states(found(4, workload=sparse, expert=4)) == 16 * (dense + 4 * expert)
    assert states(found(4, workload=sparse, expert=2, fsdp="full")) == 16 * (dense / 4 + 4 * 2 * expert / 2)


def test_activations_are_what_each_operation_keeps() -> None:
    """A token keeps 7 x hidden, keys and values of 2 x 32, and 4 x ffn of a layer; logits and three in fp32."""
    numbers = 7 * 64 + 2 * 32 + 4 * 128
    logits = TOKENS * 256 * 16
    assert found().parts["activations"] == 4 * 4 * TOKENS * numbers + logits
    assert f"4 layers x {TOKENS} tokens x {numbers} numbers x 4 B + logits" == found().words["activations"]
    full = found(activation_checkpointing="full").parts["activations"]
    repeated = 4 * TOKENS * (numbers + 3 * 128)  # more than the logits, and later
    assert full == 4 * 4 * TOKENS * 64 + repeated > 4 * 4 * TOKENS * 64 + logits
    some = found(activation_checkpointing="selective").parts["activations"]
    assert full < some < found().parts["activations"]
    twice = found(workload=replace(WORKLOAD, microbatch=4)).parts["activations"]
    assert twice == 2 * found().parts["activations"]


def test_activations_are_split_by_tensor_and_context_ranks() -> None:
    """What enters a matrix is gathered over tensor ranks; keys and values over context ranks."""
    tensor = 4 * 4 * TOKENS * (5 * 64 / 2 + 2 * 64 + 64 / 2 + 4 * 128 / 2) + TOKENS * 256 / 2 * 16
    assert found(2, tensor=2).parts["activations"] == tensor
    context = 4 * 4 * TOKENS / 2 * (7 * 64 + 2 * 64 + 4 * 128) + TOKENS / 2 * 256 * 16
    assert found(2, context=2).parts["activations"] == context


@pytest.mark.parametrize(
    ("layout", "measured"),
    [({}, 35.4), ({"fsdp": "full"}, 31.7), ({"fsdp": "full", "activation_checkpointing": "full"}, 21.2)],
)
def test_it_comes_near_to_what_was_measured(layout: dict[str, Any], measured: float) -> None:
    """The peaks in README.md, in MiB, on two ranks; arithmetic is no measurement, so within an eighth."""
    shape = ModelShape(layers=2, hidden=128, heads=4, kv_heads=2, ffn=384, vocab=256)
    job = replace(WORKLOAD, model=shape, sequence_length=128, microbatch=8)
    estimate = found(2, nproc=1, workload=job, turns=2, **layout)
    assert estimate.total / 2**20 == pytest.approx(measured, rel=0.125)


def test_a_layout_that_does_not_fit_raises() -> None:
    with pytest.raises(ValueError, match="no multiple of"):
        found(3, tensor=2)
    with pytest.raises(ValueError, match="global_batch 64 is not a multiple"):
        footprint(WORKLOAD, Layout(name="any"), world=64, nproc_per_node=8)

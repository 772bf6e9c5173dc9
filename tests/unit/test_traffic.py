"""What a layout asks of the network, against figures worked out by hand."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from captures import capture
from hypothesis import given
from hypothesis import strategies as st

from pytest_clusterqual.model.groups import layout_groups
from pytest_clusterqual.model.traffic import Exchange, traffic
from pytest_clusterqual.model.workload import Layout, ModelShape, Optimizer, Workload

KIB, MIB = 1024, 1024**2
# One block has 2 x 64 numbers in norms, 64 x (64 + 32 + 32 + 64) in attention, 3 x 64 x 128 in feed-forward.
SHAPE = ModelShape(layers=4, hidden=64, heads=4, kv_heads=2, ffn=128, vocab=256)
BLOCK = 2 * 64 + 64 * 192 + 3 * 64 * 128
TABLE = 256 * 64
WORKLOAD = Workload(
    model=SHAPE, optimizer=Optimizer(name="adamw", lr=1e-3), precision="fp32", sequence_length=32, microbatch=2,
    global_batch=64, steps=4, seed=1,
)  # fmt: skip


def found(
    world: int = 8, nproc: int = 4, workload: Workload = WORKLOAD, **layout: Any
) -> dict[tuple[str, str], list[tuple[int, int]]]:
    """(dimension, collective) -> (bytes, calls) of each exchange."""
    sums: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for each in traffic(workload, Layout(name="any", **layout), world=world, nproc_per_node=nproc):
        sums.setdefault((each.dimension, each.collective), []).append((each.bytes, each.calls))
    return sums


def test_the_parameters_of_the_shape() -> None:
    assert SHAPE.parameters == 4 * BLOCK + 2 * TABLE + 64
    assert list(SHAPE.shapes())[:2] == ["embedding.weight", "blocks.0.attention_norm.weight"]
    assert list(SHAPE.shapes())[-2:] == ["norm.weight", "head.weight"]
    assert len(SHAPE.shapes()) == 4 * 9 + 3


def test_gradients_of_copies_are_summed_in_buckets_once_a_step() -> None:
    """Head, norm, the blocks from the last to the first, embedding: 0.69 MiB, which fills no bucket."""
    assert found() == {("replicate", "all_reduce"): [(4 * SHAPE.parameters, 1)]}


def test_a_bucket_is_closed_by_the_gradient_that_fills_it() -> None:
    shape = ModelShape(layers=2, hidden=1024, heads=8, kv_heads=2, ffn=4096, vocab=256)
    norm, narrow, square, wide = (
        4 * KIB,
        1 * MIB,
        4 * MIB,
        16 * MIB,
    )  # keys and tables; queries and outputs; feed-forward
    assert found(workload=replace(WORKLOAD, model=shape)) == {
        ("replicate", "all_reduce"): [
            (narrow, 1),  # the head alone fills the first one of 1 MiB
            (norm + 2 * wide, 2),  # down and up of each block fill 25 MiB
            (wide + norm + 2 * square + 2 * narrow, 2),  # gate to query of each
            (norm + narrow, 1),  # what is left, with the embedding
        ]
    }


def test_sharded_parameters_are_gathered_in_every_microbatch_and_gradients_scattered_once() -> None:
    block, rest = 4 * BLOCK, 4 * (2 * TABLE + 64)
    scattered = {("shard", "reduce_scatter"): [(block, 4), (rest, 1)]}
    assert found(fsdp="full") == {("shard", "all_gather"): [(block, 4 * 4 * 2), (rest, 4)], **scattered}
    assert found(fsdp="grad-op") == {("shard", "all_gather"): [(block, 4 * 4), (rest, 4)], **scattered}
    assert found(fsdp="full", activation_checkpointing="full") == found(fsdp="full")
    assert found(fsdp="hybrid") == {
        **found(fsdp="full"), ("replicate", "all_reduce"): [(block // 4, 4), (rest // 4, 1)],
    }  # fmt: skip
    alone = found(nproc=1, fsdp="hybrid")  # one rank a node: there is nothing to shard over
    assert alone == {("replicate", "all_reduce"): [(block, 4), (rest, 1)]}


def test_low_precision_halves_parameters_and_activations_but_no_gradient() -> None:
    low = replace(WORKLOAD, precision="bf16")
    full, half = found(fsdp="full"), found(fsdp="full", workload=low)
    assert half["shard", "reduce_scatter"] == full["shard", "reduce_scatter"]
    for key, whole, part in (
        (("shard", "all_gather"), full, half),
        (("tensor", "all_gather"), found(tensor=2), found(tensor=2, workload=low)),
    ):
        assert part[key] == [(size // 2, calls) for size, calls in whole[key]]
    assert found(workload=low) == found()


def test_every_parameter_is_filled_up_to_the_same_rows_for_all_ranks() -> None:
    """64 rows on 3 ranks are 3 x 22, 32 are 3 x 11, 128 are 3 x 43, 256 are 3 x 86."""
    by_three = found(world=3, nproc=3, workload=replace(WORKLOAD, global_batch=6), fsdp="full")
    block = 4 * (2 * 66 + 2 * 66 * 64 + 2 * 33 * 64 + 2 * 129 * 64 + 66 * 128)
    assert by_three["shard", "reduce_scatter"] == [(block, 4), (4 * (2 * 258 * 64 + 66), 1)]


def test_rows_are_filled_up_after_tensor_ranks_have_split_them() -> None:
    """On 5 ranks: 64 rows are 65, 32 are 35, 16 are 20, 128 are 130. Output and down are split by columns."""
    work = replace(WORKLOAD, global_batch=10)
    block = 4 * (2 * 65 + 35 * 64 + 2 * 20 * 64 + 65 * 32 + 2 * 65 * 64 + 65 * 64)
    split = found(world=10, nproc=10, workload=work, fsdp="full", tensor=2)
    assert split["shard", "reduce_scatter"] == [(block, 4), (4 * (2 * 130 * 64 + 65), 1)]


def test_tensor_ranks_gather_and_scatter_activations_around_every_part_of_a_layer() -> None:
    activation, microbatches = 4 * 2 * 32 * 64, 8
    block = 4 * (2 * 64 + (BLOCK - 2 * 64) // 2)
    halves = 4 * block + 4 * (2 * TABLE // 2 + 64)
    calls = microbatches * (4 * (2 + 2) + 2)  # forward and backward of four layers, and of embedding and head
    assert found(tensor=2) == {
        ("tensor", "all_gather"): [(activation, calls)], ("tensor", "reduce_scatter"): [(activation, calls)],
        ("replicate", "all_reduce"): [(block, 4), (halves - 4 * block, 1)],
    }  # fmt: skip
    again = found(tensor=2, activation_checkpointing="full")
    assert again["tensor", "all_gather"] == [(activation, calls + microbatches * 4 * 2)]
    # What a repeated forward would end with is not needed again.
    assert again["tensor", "reduce_scatter"] == [(activation, calls + microbatches * 4)]
    assert found(tensor=2, activation_checkpointing="selective") == found(tensor=2)


# What two tensor ranks exchange in the forward pass of a prompt, as an all_reduce a part of a layer.
LAYERS, HIDDEN, TOKENS = 96, 12288, 2048


def forward_of_two_tensor_ranks() -> tuple[int, int]:
    """Calls that stand for an all_reduce each, and their bytes."""
    model = ModelShape(layers=LAYERS, hidden=HIDDEN, heads=96, kv_heads=96, ffn=4 * HIDDEN, vocab=256)
    work = replace(WORKLOAD, model=model, precision="bf16", sequence_length=TOKENS, microbatch=1, global_batch=1)
    gathered, scattered = traffic(work, Layout(name="tp2", tensor=2), world=2, nproc_per_node=2)
    assert (gathered.calls, gathered.bytes) == (scattered.calls, scattered.bytes)
    calls = (gathered.calls - 2) // 2  # without embedding and head; backward is the other half
    return calls, calls * gathered.bytes


def test_two_all_reduces_a_layer() -> None:
    assert forward_of_two_tensor_ranks() == (2 * LAYERS, 2 * LAYERS * TOKENS * HIDDEN * 2)


def test_it_agrees_with_figures_that_others_reckoned() -> None:
    row = next(line for line in capture("diagnosis/llmkube1423_tp_vs_pp_ops.md").splitlines() if "TP=2" in line)
    calls, size = forward_of_two_tensor_ranks()
    assert re.search(r"\*\*(\d+)\*\*", row)[1] == str(calls)  # type: ignore[index]
    assert [float(gigabytes) for gigabytes in re.findall(r"([\d.]+) GB", row)] == [pytest.approx(size / 1e9, rel=1e-3)]


def test_stages_hand_on_activations_and_the_fullest_one_counts() -> None:
    activation = 4 * 2 * 32 * 64
    last = 4 * (2 * BLOCK + 64 + TABLE)
    assert found(pipeline=2) == {
        ("pipeline", "send_recv"): [(activation, 8)], ("replicate", "all_reduce"): [(last, 1)],
    }  # fmt: skip
    assert found(pipeline=4)["pipeline", "send_recv"] == [(activation, 16 * 2)]  # a stage between two others
    first = found(world=6, nproc=3, workload=replace(WORKLOAD, global_batch=4), pipeline=3)
    assert first["replicate", "all_reduce"] == [(4 * (2 * BLOCK + TABLE), 1)]
    assert found(pipeline=2, tensor=2)["pipeline", "send_recv"] == [(activation // 2, 16)]


def test_sharded_stages_stay_gathered_from_a_backward_to_the_next_forward() -> None:
    block, last = 4 * BLOCK, 4 * (TABLE + 64)
    gathered = {"full": [(block, 2 * (8 + 1)), (last, 1)], "grad-op": [(block, 2), (last, 1)]}
    for fsdp, expected in gathered.items():
        assert found(world=4, workload=replace(WORKLOAD, global_batch=32), pipeline=2, fsdp=fsdp) == {
            ("shard", "all_gather"): expected, ("shard", "reduce_scatter"): [(block, 2), (last, 1)],
            ("pipeline", "send_recv"): [(4 * 2 * 32 * 64, 8)],
        }  # fmt: skip


def test_interleaved_stages_hand_on_more_often() -> None:
    interleaved = found(pipeline=2, schedule="interleaved", stages_per_rank=2)
    assert interleaved == {**found(pipeline=2), ("pipeline", "send_recv"): [(4 * 2 * 32 * 64, 8 * 3)]}


def test_context_ranks_gather_keys_and_values() -> None:
    both, microbatches = 2 * 4 * (2 * 32) * 2 * 16, 8
    assert found(context=2) == {
        ("context", "all_gather"): [(both, microbatches * 4)],
        ("context", "reduce_scatter"): [(both, microbatches * 4)],
        ("replicate", "all_reduce"): [(4 * SHAPE.parameters, 1)],
    }  # fmt: skip
    again = found(context=2, activation_checkpointing="full")
    assert again["context", "all_gather"] == [(both, microbatches * 4 * 2)]
    assert again["context", "reduce_scatter"] == [(both, microbatches * 4)]
    assert found(context=8, fsdp="full", workload=replace(WORKLOAD, global_batch=8)).keys() == {
        ("context", "all_gather"), ("context", "reduce_scatter"), ("shard", "all_gather"), ("shard", "reduce_scatter"),
    }  # fmt: skip


def test_experts_get_tokens_unevenly_and_their_numbers_evenly() -> None:
    experts = replace(WORKLOAD, model=replace(SHAPE, experts=8, top_k=2))
    expected = {
        ("expert", "all_to_all"): [(8 * 8, 4 * 4)],
        ("expert", "all_to_all_v"): [(2 * 4 * 2 * 32 * 64, 4 * 4 * (2 + 2))],
        ("replicate", "all_reduce"): [(4 * (2 * 64 + 64 * 192 + 8 * 64), 4), (4 * (2 * TABLE + 64), 1)],
    }
    assert found(workload=experts, expert=4) == expected
    whole = found(workload=experts)["replicate", "all_reduce"]
    assert sum(size * calls for size, calls in whole) == 4 * experts.model.parameters, "all copies have all experts"


def test_one_rank_exchanges_nothing() -> None:
    assert found(world=1, nproc=1) == found(world=1, nproc=1, fsdp="full") == {}


@pytest.mark.parametrize(
    ("world", "layout", "message"),
    [
        (3, {"tensor": 2}, "layout any: 3 ranks are no multiple of pipeline 1 x context 1 x tensor 2 = 2"),
        (3, {}, "global_batch 64 is not a multiple of microbatch 2 x 3 data-parallel ranks = 6"),
        (2, {"expert": 4}, "layout any: 2 data ranks are no multiple of expert 4"),
    ],
)
def test_what_does_not_fit_is_said(world: int, layout: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        found(world=world, nproc=1, **layout)


DEGREES = st.sampled_from([1, 2, 4])


@given(
    tensor=DEGREES, pipeline=DEGREES, context=DEGREES, data=st.sampled_from([1, 2, 4]),
    fsdp=st.sampled_from([None, "full", "grad-op", "hybrid"]), nproc=st.sampled_from([1, 2, 4, 8]),
    kv_heads=st.sampled_from([4, 8]), vocab=st.integers(256, 300),
)  # fmt: skip
def test_whatever_is_exchanged_has_a_group_a_size_and_a_number(
    tensor: int, pipeline: int, context: int, data: int, fsdp: Any, nproc: int, kv_heads: int, vocab: int
) -> None:
    layout = Layout(name="any", tensor=tensor, pipeline=pipeline, context=context, fsdp=fsdp)
    work = replace(WORKLOAD, model=replace(SHAPE, heads=8, kv_heads=kv_heads, vocab=vocab))
    world = tensor * pipeline * context * data
    try:
        groups = layout_groups(layout, world, nproc)
    except ValueError:
        return
    exchanges = traffic(work, layout, world=world, nproc_per_node=nproc)
    assert {each.dimension for each in exchanges} == set(groups)
    for each in exchanges:
        assert isinstance(each, Exchange)
        assert each.bytes > 0
        assert each.calls > 0
        assert each.per_step == each.bytes * each.calls
        assert each.why
    assert len(set(exchanges)) == len(exchanges)

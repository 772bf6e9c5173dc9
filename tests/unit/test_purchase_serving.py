"""Serving before there is hardware: fits, tight or no, against figures worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from purchase_made import GB, SEVENTY, node, plan

from pytest_clusterqual.judge.purchase.crossing import pipeline_across, tensor_across
from pytest_clusterqual.judge.purchase.served_copy import Copy
from pytest_clusterqual.judge.purchase.serving import serving_rows
from pytest_clusterqual.model.purchase import ServedModel, ServingRow, Weights
from pytest_clusterqual.model.topology import Links


def row(model: ServedModel = SEVENTY, weights: Weights = "bf16", share: str = "<= 65 %", **changes: Any) -> ServingRow:
    """That of one model on one node type with `changes`."""
    (found,) = serving_rows(plan(model, nodes=(node(**changes),), weights=(weights,), share=share))
    return found


@pytest.mark.parametrize(
    ("weights", "size", "share", "fit", "means"),
    [
        ("bf16", 140 * GB, 1.75, "no", "cluster"),
        ("fp8", 70 * GB, 0.875, "tight", "one device"),
        ("int4", 35 * GB, 0.4375, "fits", "one device"),
    ],
)
def test_seventy_billion_parameters_on_one_device_of_80_gb(
    weights: Weights, size: float, share: float, fit: str, means: str
) -> None:
    found = row(weights=weights, devices=1)
    assert (found.fit, found.means) == (fit, means)
    one = Copy(model=SEVENTY, weights=weights, node=node(devices=1), allowed=plan().weights_share)
    assert (one.weight_bytes, one.share, one.fit) == (size, pytest.approx(share), fit)
    assert found.arithmetic[0].startswith(f"one device: {fit}: 70e9 parameters x ")


def test_tensor_parallelism_inside_the_node_is_the_least_that_leaves_the_wanted_room() -> None:
    """2 devices hold 70 GB each, 87.5 %; 4 hold 35 GB, 43.75 %."""
    found = row()
    assert (found.fit, found.means, found.tensor, found.weight_bytes) == ("fits", "one node", 4, 35 * GB)
    assert found.weight_share == 0.4375
    assert "140 GB / 4 = 35 GB = 43.8 % of 80 GB" in found.arithmetic[1]
    assert row(share="<= 90 %").tensor == 2
    assert row(devices=2).fit == "tight"
    assert "wanted <= 65 %" in row(devices=2).arithmetic[1]


def test_memory_of_several_devices_is_no_pool() -> None:
    """Three devices have 240 GB together, but 64 heads cannot be cut in three: 140 GB have no place."""
    found = row(devices=3)
    assert (found.fit, found.tensor) == ("no", 1)
    assert "cannot be cut for 3 devices, so that their 240 GB together do not help" in found.arithmetic[1]


def test_the_cache_counts_layers_heads_and_tokens() -> None:
    """80 layers x 2 x 8 heads x 128 x 2 B = 327,680 B a token; 4096 tokens: 1.342 GB. 45 GB hold 33 of them."""
    found = row(replace(SEVENTY, sequences=40), "int4", devices=1, counts=(4,))
    assert found.held == 33
    assert found.cache_bytes == 33 * 327_680 * 4096
    assert "KV cache 80 layers x 2 x 8 heads x 128 x 2 B x 4096 tokens = 1.34 GB a sequence" in found.arithmetic[0]
    assert row(replace(SEVENTY, sequences=40, kv_cache="fp8"), "int4", devices=1).held == 40
    latent = replace(SEVENTY, latent=576, sequences=1000, kv_heads=64)
    assert row(latent, "int4", devices=1).held == 45 * GB // (80 * 576 * 2 * 4096)


def test_a_copy_must_hold_one_whole_sequence() -> None:
    """35 GB of weights fit, a sequence of 200,000 tokens (65.5 GB) does not."""
    found = row(replace(SEVENTY, context=200_000), "int4", devices=1)
    assert found.fit == "no"
    assert row(replace(SEVENTY, context=130_000), "int4", devices=1).fit == "fits"


def test_latent_caches_are_whole_on_every_device_and_heads_beyond_the_kv_heads_are_copies() -> None:
    def copy(**changes: Any) -> Copy:
        return Copy(
            model=replace(SEVENTY, **changes), weights="int4", node=node(), allowed=plan().weights_share, tensor=8
        )

    assert copy().sequence_bytes * 8 == replace(copy(), tensor=1).sequence_bytes
    assert copy(kv_heads=2).sequence_bytes * 2 == replace(copy(kv_heads=2), tensor=1).sequence_bytes
    assert "there are 2 for 8 devices, so heads are copied" in copy(kv_heads=2).sizes()
    assert copy(latent=576).sequence_bytes == replace(copy(latent=576), tensor=1).sequence_bytes


@pytest.mark.parametrize(
    ("kv_heads", "heads", "tensor", "told"),
    [
        (8, 64, 8, ""),
        (2, 64, 8, ""),
        (6, 48, 2, "48 heads and 6 KV heads cannot be cut for 8 devices"),  # 4 does not divide 6, nor 6 divide 4
        (8, 56, 8, ""),
        (1, 71, 1, "71 heads and 1 KV heads cannot be cut for 8 devices"),
    ],
)
def test_kv_heads_divide_the_devices_or_are_divided_by_them(kv_heads: int, heads: int, tensor: int, told: str) -> None:
    model = replace(SEVENTY, kv_heads=kv_heads, heads=heads, parameters=700e9)
    (found,) = serving_rows(plan(model, nodes=(node(device_memory=100 * GB),)))
    assert found.tensor == tensor
    assert (told or "tensor parallel 8 inside it") in found.arithmetic[1]


def test_more_sequences_than_one_copy_holds_are_for_replicas_not_for_a_cluster() -> None:
    """One device holds 33: 100 sequences are 4 copies, on a node of one device 4 nodes."""
    found = row(replace(SEVENTY, sequences=100), "int4", devices=1)
    assert (found.means, found.copies, found.nodes, found.stages) == ("replicas", 4, 4, 1)
    assert "throughput: 4 copies, not a cluster: 100 sequences at a time / 33 a copy" in found.arithmetic
    assert "count: 4 nodes, more than the 1 considered" in found.arithmetic


def test_of_cuts_that_fit_the_one_with_the_fewest_nodes_is_taken() -> None:
    """400 sequences are 13 copies on one device each, 5 on two, and 2 on four devices, which one node has."""
    found = row(replace(SEVENTY, sequences=400), "int4")
    assert (found.means, found.tensor, found.copies, found.nodes) == ("replicas", 4, 2, 1)
    assert found.arithmetic[1].startswith("one node: fits, tensor parallel 4 inside it, for fewer nodes in all: ")
    assert "for fewer nodes" not in row().arithmetic[1]


def test_the_rate_is_bound_by_reading_weights_and_cache() -> None:
    """A token reads 35 GB and, of 10 sequences, 13.4 GB: 14.5 ms at 3.35 TB/s, 692 tokens/s; 800 take two copies."""
    ten = replace(SEVENTY, sequences=10, rate=800.0)
    found = row(ten, "int4", devices=1, memory_rate=3.35e12)
    assert found.copies == 2
    read = (35 * GB + 5 * 327_680 * 4096) / 3.35e12
    assert found.rate == pytest.approx(10 / read)
    assert found.rate >= 800 > 10 / ((35 * GB + 10 * 327_680 * 4096) / 3.35e12)
    assert (
        "throughput: 2 copies, not a cluster: 800 tokens/s wanted, which fewer copies cannot give" in found.arithmetic
    )
    priced = row(ten, "int4", devices=1, memory_rate=3.35e12, price=30000.0)
    assert priced.price == 60000
    assert "price: 2 x 30,000 = 60,000, 74.7 for each token/s at most" in priced.arithmetic
    assert "room: for 8 copies on 1 node, where 2 will do" in row(ten, "int4", memory_rate=3.35e12).arithmetic


def test_active_parameters_are_read_and_all_have_a_place() -> None:
    sparse = replace(SEVENTY, active=7e9)
    assert row(sparse, "int4", devices=1).weight_bytes == 35 * GB
    slow, fast = (row(each, "int4", devices=1, memory_rate=1e12).rate for each in (SEVENTY, sparse))
    assert fast == pytest.approx((35 * GB + 327_680 * 4096) / (3.5 * GB + 327_680 * 4096) * (slow or 0))


def test_computing_bounds_the_rate_where_it_takes_longer_than_reading() -> None:
    many = replace(SEVENTY, sequences=30, context=1)
    rate = row(many, "int4", devices=1, memory_rate=1e15, flops=1e15).rate
    assert rate == pytest.approx(1e15 / (2 * 70e9))


def test_a_rate_that_so_few_sequences_cannot_have_is_told() -> None:
    found = row(replace(SEVENTY, rate=1e6), "int4", devices=1, memory_rate=3.35e12)
    assert found.copies == 1
    assert any("but 1 sequences at a time give at most" in line for line in found.arithmetic)
    unknown = row(replace(SEVENTY, rate=1e6), "int4", devices=1)
    assert unknown.rate is None
    assert any("not told without memory_rate of node eight" in line for line in unknown.arithmetic)


def test_only_what_exceeds_a_node_goes_over_nodes_as_a_pipeline() -> None:
    """405e9 in bf16 are 810 GB, 101 GB on each of 8 devices: two nodes have half the layers each."""
    large = replace(SEVENTY, parameters=405e9, active=405e9, layers=126, hidden=16384, heads=128, context=8192)
    found = row(large)
    assert (found.fit, found.means, found.stages, found.tensor, found.nodes) == ("no", "cluster", 2, 8, 2)
    assert found.weight_bytes == 810 * GB / 16
    assert any("1 message of 32.8 kB" in line and "2 x 126 all-reduces of 32.8 kB" in line for line in found.arithmetic)
    assert row(large, "fp8").means == "one node"
    several = row(replace(large, sequences=1000))
    assert (several.means, several.copies, several.nodes) == ("cluster", 10, 20)  # 29.4 GB for 264 MB each: 111 a copy
    assert any(line.startswith("throughput: 10 copies: 1000 sequences") for line in several.arithmetic)
    piped = row(large, memory_rate=1e12)  # one sequence: its token reads both halves, one after the other
    assert piped.rate == pytest.approx(1e12 / (810 * GB / 8 + 126 * 2 * 128 * 2 * 8192))
    single = row(large, devices=1)
    assert [line.partition(":")[0] for line in single.arithmetic[:2]] == ["one device", "cluster"]
    assert row(large, device_memory=1 * GB, devices=1).means == "no"


def test_tensor_parallelism_over_two_nodes_against_a_pipeline() -> None:
    """LLMKube issue 1423: hidden 12288, 96 layers, bf16, 109 Gbit/s: 192 x 50.3 MB = 9.66 GB, 709 ms of a prefill."""
    model = replace(SEVENTY, layers=96, hidden=12288, heads=96)
    links = Links(nic=13.625 * GB, nics_per_node=1)
    pair = node("pair", devices=1, links=links)
    prefill, batch = (tensor_across(model, pair, nodes=2, tokens=tokens) for tokens in (2048, 32))
    assert prefill.value == pytest.approx(0.709, rel=1e-3)
    assert prefill.why == "2 x 96 all-reduces of 50.3 MB over 2 nodes x 1 device = 9.66 GB / 13.6 GB/s = 709 ms"
    assert batch.value == pytest.approx(11.1e-3, rel=1e-2)
    assert pipeline_across(model, pair, nodes=2, tokens=2048).value == pytest.approx(0.709 / 192, rel=1e-3)
    assert pipeline_across(model, pair, nodes=2, tokens=2048).why.startswith("1 message of 50.3 MB")
    unknown = tensor_across(model, node(links=Links()), nodes=2, tokens=1)
    assert unknown.value is None
    assert "no time: links.nic of node eight is not given" in unknown.why


MODELS = st.builds(
    lambda billions, kv, group, context, sequences: replace(
        SEVENTY, parameters=billions * 1e9, active=billions * 1e9, kv_heads=kv, heads=kv * group, context=context,
        sequences=sequences,
    ),
    st.integers(1, 2000), st.sampled_from([1, 2, 3, 6, 8]), st.sampled_from([1, 2, 8]), st.integers(1, 1 << 20),
    st.integers(1, 500),
)  # fmt: skip


@given(model=MODELS, devices=st.sampled_from([1, 2, 3, 4, 8, 16]), weights=st.sampled_from(["bf16", "fp8", "int4"]))
def test_what_fits_has_room_on_every_device_and_less_precision_never_needs_more(
    model: ServedModel, devices: int, weights: Weights
) -> None:
    found = row(model, weights, devices=devices, memory_rate=1e12)
    assert found.tensor * found.held >= 0
    if found.fit != "no":
        assert found.weight_bytes + found.cache_bytes <= 80 * GB
        assert found.held >= 1
        assert found.copies * found.held >= model.sequences
        assert found.nodes * (devices // found.tensor) >= found.copies
        order = ["fits", "tight", "no"]
        assert order.index(row(model, "int4", devices=devices).fit) <= order.index(found.fit)
    if found.fit == "fits":
        assert found.weight_share <= 0.65

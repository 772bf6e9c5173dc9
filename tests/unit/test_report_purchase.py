"""What a buyer reads: every fits, tight and no is an estimate, and has its arithmetic below."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from purchase_made import GB, SEVENTY, node, plan

from pytest_clusterqual.judge.purchase.verdict import judge_purchase
from pytest_clusterqual.model.codec import from_json, to_json
from pytest_clusterqual.model.project import LauncherOptions, Project
from pytest_clusterqual.model.purchase import Purchase, PurchasePlan
from pytest_clusterqual.model.topology import Links
from pytest_clusterqual.model.workload import Layout, ModelShape, Optimizer, Workload
from pytest_clusterqual.report.purchase_table import purchase_table

WORKLOAD = Workload(
    model=ModelShape(layers=4, hidden=64, heads=4, kv_heads=2, ffn=128, vocab=256),
    optimizer=Optimizer(name="adamw", lr=1e-3), precision="bf16", sequence_length=32, microbatch=1, global_batch=64,
    steps=4, seed=1,
)  # fmt: skip
LAYOUTS = (Layout(name="ddp"), Layout(name="tp2", tensor=2))
SMALL = node("small", devices=1, counts=(1, 2), price=30_000.0, flops=1e12, compute_share=0.5, links=Links(nic=GB))
LARGE = node("large", devices=2, price=70_000.0, flops=1e12, compute_share=0.5)


def found(of: PurchasePlan | None = None) -> Purchase:
    project = Project(
        path=Path("clusterqual.yaml"), name="made", launcher=LauncherOptions(), job=WORKLOAD, layouts=LAYOUTS
    )
    of = of or plan(SEVENTY, nodes=(SMALL, LARGE), weights=("bf16", "fp8", "int4"))
    return judge_purchase(project, of)


def shown(purchase: Purchase, width: int = 140) -> str:
    return purchase_table(purchase, width=width)


def cells(text: str, start: str) -> list[list[str]]:
    return [re.split(r"\s{2,}", line) for line in text.splitlines() if re.match(rf"{start}\s{{2,}}", line)]


def test_a_row_for_each_model_and_precision_and_a_column_for_each_node() -> None:
    assert cells(shown(found()), "(model|seventy)") == [
        ["model", "weights", "small", "large"],
        ["seventy", "bf16", "estimate: no; cluster, 3 nodes a copy", "estimate: tight; 2 devices of a node"],
        ["seventy", "fp8", "estimate: tight; 1 device", "estimate: fits; 2 devices of a node"],
        ["seventy", "int4", "estimate: fits; 1 device", "estimate: fits; 1 device"],
    ]
    busy = plan(replace(SEVENTY, sequences=100), nodes=(SMALL,), weights=("int4",))
    assert cells(shown(found(busy)), "seventy") == [
        ["seventy", "int4", "estimate: fits; 4 replicas of 1 device, 4 nodes"]
    ]
    none = plan(SEVENTY, nodes=(replace(SMALL, device_memory=GB),))
    assert cells(shown(found(none)), "seventy") == [["seventy", "bf16", "estimate: no; nor on several"]]


def test_the_ladder_and_the_layouts_have_a_row_each() -> None:
    text = shown(found())
    assert [row[1:3] for row in cells(text, "(one device|layout ddp)")] == [
        ["1 x 1", "estimate: fits"], ["1 x 1", "estimate: fits"], ["2 x 1", "estimate: fits"],
        ["1 x 1", "estimate: fits"], ["1 x 2", "estimate: fits"],
    ]  # fmt: skip
    assert next(row[1:] for row in cells(text, "layout tp2")) == ["1 x 1", "estimate: no", "-", "-", "-", "-"]


def test_no_word_of_judgement_stands_without_the_word_estimate() -> None:
    text = shown(found())
    assert "estimate" in text.splitlines()[0]
    assert not re.search(r"\b(PASS|FAIL|passed)\b", text)
    parts = re.split(r"\n\n", text)
    judging = [part for part in parts if re.search(r"\b(fits|tight|no)\b[;: ]", part)]
    assert len(judging) > 8
    assert all("estimate" in part for part in judging if not part.startswith(("its arithmetic", "held against")))
    heads = [line for line in text.splitlines() if line.endswith("(estimate)")]
    assert any(head.startswith("serving") for head in heads)
    assert any(head.startswith("a training step") for head in heads)
    assert any(head.startswith("2 x small against 1 x large") for head in heads)


def test_the_arithmetic_and_the_limits_are_shown() -> None:
    text = " ".join(shown(found()).split())
    assert "70e9 parameters x 1 B = 70 GB = 87.5 % of 80 GB, wanted <= 65 %" in text
    assert "serving: weights <= 65 % of a device's memory (clusterqual.yaml:9)" in text
    assert "e9 parameters x 12 B, gradients of " in text
    assert "4 layers x 32 tokens x" in text
    assert "tp2 on 1: " not in text
    assert "impossible: layout tp2: 1 ranks are no multiple of" in text
    assert "tensor 2 spans nodes" in text
    assert "what these estimates do not see" in text
    default = plan(SEVENTY, nodes=(SMALL,))
    unset = replace(default, weights_share=replace(default.weights_share, source=""))
    assert "(default; purchase.weights_share decides)" in shown(found(unset))


def test_only_what_was_asked_for_is_shown() -> None:
    alone = shown(found(plan(nodes=(SMALL,))))
    assert "serving" not in alone
    assert "quantized" not in alone
    served = shown(found(replace(plan(SEVENTY, nodes=(SMALL,)), training=False)))
    assert "training" not in served
    assert "against" not in served.replace("held against", "")


def test_what_is_not_known_is_a_dash() -> None:
    bare = shown(found(plan(nodes=(node("bare", devices=1, counts=(1, 2), links=Links()),))))
    (two,) = [row for row in cells(bare, "ddp") if row[1] == "2 x bare"]
    assert two[2:] == ["-", "-", "-", "-", "estimate: not projected, see the arithmetic"]


@pytest.mark.parametrize("width", [80, 100, 140])
def test_no_line_is_longer_than_the_terminal(width: int) -> None:
    text = shown(found(), width)
    assert max(map(len, text.splitlines())) <= width
    assert all(not line.endswith(" ") for line in text.splitlines())


def test_color_only_on_request() -> None:
    assert "\x1b" not in shown(found())
    assert "\x1b" in purchase_table(found(), width=100, color=True)


@settings(max_examples=60, deadline=None)
@given(
    devices=st.sampled_from([1, 2, 3, 8, 72]), memory=st.floats(1, 1e15), heads=st.integers(1, 200),
    parameters=st.floats(1, 1e15), sequences=st.integers(1, 10**9), rate=st.none() | st.floats(1e-3, 1e12),
    context=st.integers(1, 10**12), width=st.integers(60, 200),
)  # fmt: skip
def test_no_purchase_breaks_the_estimate(
    devices: int, memory: float, heads: int, parameters: float, sequences: int, rate: float | None, context: int,
    width: int,
) -> None:  # fmt: skip
    model = replace(
        SEVENTY, parameters=parameters, active=parameters, heads=heads, kv_heads=heads, sequences=sequences, rate=rate,
        context=context,
    )  # fmt: skip
    of = plan(model, nodes=(replace(LARGE, devices=devices, device_memory=memory, memory_rate=1e12),))
    assert "estimate: " in shown(found(of), width)


def test_all_of_it_survives_json() -> None:
    purchase = found()
    value = to_json(purchase)
    assert value["kind"] == "estimate"
    assert from_json(Purchase, value) == purchase

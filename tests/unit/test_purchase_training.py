"""The training job before there is hardware: the bounds of a step, and what follows for a purchase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from purchase_made import GB, SEVENTY, node, plan

from pytest_clusterqual.judge.purchase.step_bounds import operations, step_bounds
from pytest_clusterqual.judge.purchase.verdict import judge_purchase
from pytest_clusterqual.model.project import LauncherOptions, MemoryPlan, Project, ScalingPlan
from pytest_clusterqual.model.purchase import NodeType, Purchase, StepBounds
from pytest_clusterqual.model.requirement import Requirement
from pytest_clusterqual.model.topology import Links
from pytest_clusterqual.model.traffic import traffic
from pytest_clusterqual.model.workload import Layout, ModelShape, Optimizer, Workload

SHAPE = ModelShape(layers=4, hidden=64, heads=4, kv_heads=2, ffn=128, vocab=256)
MATRICES = 64 * 192 + 3 * 64 * 128  # of a layer
WORKLOAD = Workload(
    model=SHAPE, optimizer=Optimizer(name="adamw", lr=1e-3), precision="fp32", sequence_length=32, microbatch=1,
    global_batch=64, steps=4, seed=1,
)  # fmt: skip
DDP, FSDP = Layout(name="ddp"), Layout(name="fsdp", fsdp="full")
WORK = 64 * 32 * (6 * 4 * MATRICES + 12 * 4 * 64 * 32 + 6 * 256 * 64)
SINGLE = node("single", devices=1, links=Links(nic=1 * GB), flops=1e12, compute_share=0.5, counts=(1, 2, 4))


def floor(text: str, **selectors: Any) -> Requirement:
    return Requirement(
        criterion="scaling", quantity="efficiency", op=">=", value=float(text.split()[1]), unit="1", text=text,
        source="clusterqual.yaml:20", **selectors,
    )  # fmt: skip


def bounds(
    layout: Layout = DDP, on: NodeType = SINGLE, counts: Sequence[int] = (1, 2), floors: Sequence[Requirement] = (),
    workload: Workload = WORKLOAD, **options: Any,
) -> list[StepBounds]:  # fmt: skip
    return list(step_bounds(workload, layout, on, counts, floors, **options))


def judged(
    *nodes: NodeType, layouts: Sequence[Layout] = (DDP,), workload: Workload = WORKLOAD, **plans: Any
) -> Purchase:
    project = Project(
        path=Path("clusterqual.yaml"), name="made", launcher=LauncherOptions(), job=workload,
        layouts=tuple(layouts), **plans,
    )  # fmt: skip
    return judge_purchase(project, plan(nodes=nodes))


def test_operations_are_six_a_parameter_and_token_and_those_of_attention() -> None:
    assert operations(WORKLOAD, DDP) == WORK
    again = operations(WORKLOAD, replace(DDP, activation_checkpointing="full")) - WORK
    assert again == pytest.approx(64 * 32 * (2 * 4 * MATRICES + 4 * 4 * 64 * 32))
    sparse = replace(SHAPE, experts=8, top_k=2)
    more = operations(replace(WORKLOAD, model=sparse), DDP) - WORK
    assert more == 64 * 32 * 6 * 4 * (3 * 64 * 128 + 8 * 64)  # a second expert, and the router


def test_a_step_is_computing_and_gradients_over_the_nic() -> None:
    """Two ranks send the array of 4 B a parameter once each way: 1 GB/s of it."""
    one, two = bounds()
    compute, talk = WORK / 1e12 / 0.5, 4 * SHAPE.parameters / 1e9
    assert (one.compute, one.between, one.inside, one.efficiency) == (pytest.approx(compute), 0, 0, None)
    assert one.step == pytest.approx((compute, compute))
    assert two.crossing == 4 * SHAPE.parameters
    assert two.step == pytest.approx((compute / 2 + talk, max(compute / 2, talk)))
    assert two.efficiency == pytest.approx((compute / (compute + 2 * talk), compute / 2 / max(compute / 2, talk)))
    assert two.rate == pytest.approx(tuple(64 * 32 / each for each in two.step or ()))
    assert two.arithmetic[1].startswith("replicate: all_reduce of ")
    assert "ring all-reduce over 2 nodes x 1 rank: bound by 1 NIC x 8 Gbit/s = 1 GB/s each way" in two.arithmetic[1]


@pytest.mark.parametrize(
    ("required", "said"),
    [
        (">= 0.3", ">= 0.3 even without overlap"),
        (">= 0.8", ">= 0.8 cannot be told"),
        (">= 1.5", "not >= 1.5, even with full overlap"),
    ],
)
def test_the_floor_is_the_files_own(required: str, said: str) -> None:
    """Without overlap the made job has an efficiency of 0.75, with all of it 1."""
    _, two = bounds(floors=[floor(required, nodes=2)])
    low, high = two.efficiency or (0, 0)
    assert (round(low, 2), high) == (0.75, 1)
    assert two.said == said
    assert bounds(floors=[floor(required, nodes=4)])[1].said == "none in scaling.require"
    assert bounds(floors=[floor(required, layout="fsdp")])[1].said == "none in scaling.require"
    assert bounds(floors=[floor(required)], against=2)[1].said == "none, that of scaling.require is against 2 nodes"


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        ({"flops": None, "compute_share": None}, "node single has no flops"),
        ({"compute_share": None}, "node single has no compute_share, and no share of a peak is universal"),
        ({"links": Links()}, "no time: links.nic is not given"),
    ],
)
def test_nothing_is_projected_from_what_the_file_does_not_say(missing: dict[str, Any], told: str) -> None:
    _, two = bounds(on=replace(SINGLE, **missing), floors=[floor(">= 0.1")])
    assert (two.step, two.rate, two.efficiency) == (None, None, None)
    assert two.said == "not projected, see the arithmetic"
    assert any(told in line for line in two.arithmetic)


def test_traffic_inside_nodes_and_between_them_is_told_apart() -> None:
    quad = replace(SINGLE, devices=4, links=Links(intra_node=10 * GB, nic=1 * GB, nics_per_node=4))
    one, two = bounds(FSDP, quad)
    sent = sum(each.per_step for each in traffic(WORKLOAD, FSDP, world=4, nproc_per_node=4))
    assert one.inside == pytest.approx(sent * 3 / 4 / (10 * GB))
    assert (one.between, one.crossing, two.inside) == (0, 0, 0)
    assert two.crossing == sum(each.per_step for each in traffic(WORKLOAD, FSDP, world=8, nproc_per_node=4))
    assert any("over NICs" in line for line in two.arithmetic)


def test_with_full_overlap_the_longer_of_both_is_left() -> None:
    slow = bounds(on=replace(SINGLE, links=Links(nic=1e6)), floors=[floor(">= 0.5")])[1]
    assert slow.step == pytest.approx(((slow.compute or 0) + (slow.between or 0), slow.between))
    assert slow.said == "not >= 0.5, even with full overlap"


def test_a_bubble_makes_computing_longer() -> None:
    plain, piped = bounds(counts=(2,))[0], bounds(Layout(name="pp", pipeline=2), counts=(2,))[0]
    assert piped.compute == pytest.approx((plain.compute or 0) * (64 + 1) / 64)


def test_tensor_parallelism_over_nodes_is_warned_of() -> None:
    over = bounds(Layout(name="tp2", tensor=2), counts=(2,))[0]
    assert over.arithmetic[-1].startswith("tensor 2 spans nodes: activations of every layer cross NICs")
    inside = bounds(Layout(name="tp2", tensor=2), replace(SINGLE, devices=2), counts=(1,))[0]
    assert not any("spans nodes" in line for line in inside.arithmetic)


def test_one_device_without_room_is_no_need_for_nodes() -> None:
    """The states of 151,000 parameters take 2.4 MB, so 3 MB hold what eight ranks share."""
    tiny = node(device_memory=2.9e6, counts=(1, 2))
    found = judged(tiny)
    ladder = [row for row in found.training if row.ladder]
    assert [row.fit for row in ladder] == ["no"] * (len(ladder) - 1) + ["fits"]
    assert ladder[0].name == "one device"
    assert ladder[-1].nodes == 1
    (walk,) = found.walks
    assert walk.startswith("eight: one node has room for the job, by shard")
    assert walk.endswith("memory needs no cluster")


def test_only_a_job_that_exceeds_a_node_needs_a_cluster() -> None:
    """One head, one layer, 31 tokens: nothing can be cut, so a node can only shard, and two nodes shard further."""
    shape = replace(SHAPE, layers=1, heads=1, kv_heads=1, vocab=8192)
    whole = replace(WORKLOAD, model=shape, sequence_length=31)
    free = judged(node(counts=(1, 2)), layouts=(replace(FSDP, activation_checkpointing="full"),), workload=whole)
    one, two = (row.footprint.total for row in free.training if row.footprint and not row.ladder)
    found = judged(node(device_memory=(one + two) / 2, counts=(1, 2)), workload=whole)
    assert [row.name for row in found.training if row.ladder][-1] == "2 nodes"
    (walk,) = found.walks
    assert walk.startswith("eight: the job exceeds a node, and fits by 2 nodes (not by one device; ")
    assert walk.endswith(": a cluster")
    (walk,) = judged(node(device_memory=(one + two) / 2), workload=whole).walks
    assert walk == "eight: no rung fits, up to 1 node with FSDP and full recomputation"


def test_tight_is_what_leaves_less_room_than_the_file_requires() -> None:
    need = next(row.footprint.total for row in judged(node()).training if row.footprint and not row.ladder)
    headroom = Requirement(
        criterion="memory",
        quantity="headroom",
        op=">=",
        value=0.1,
        unit="1",
        text=">= 10 %",
        source="clusterqual.yaml:9",
    )
    required = MemoryPlan(require=(headroom,))

    def fit(device: float, **plans: Any) -> str:
        return next(row.fit for row in judged(node(device_memory=device), **plans).training if not row.ladder)

    assert fit(need / 0.89, memory=required) == "fits"
    assert fit(need / 0.95, memory=required) == "tight"
    assert fit(need / 0.95) == "fits"
    assert fit(need * 0.99, memory=required) == "no"
    limits = judged(node(), memory=required).limits
    assert "training: headroom >= 10 % (clusterqual.yaml:9)" in limits
    assert any("no peak and no headroom" in line for line in judged(node()).limits)


def test_a_layout_that_cannot_be_cut_is_shown_with_its_reason() -> None:
    found = judged(node(devices=3), layouts=(Layout(name="tp2", tensor=2),))
    (row,) = [row for row in found.training if not row.ladder]
    assert (row.fit, row.footprint) == ("no", None)
    assert "3 ranks are no multiple of" in row.impossible
    assert found.steps == ()


def test_the_baseline_is_the_fewest_nodes_with_room() -> None:
    found = judged(SINGLE, scaling=ScalingPlan(points=(1, 2), require=(floor(">= 0.5", nodes=2),)))
    assert [(step.nodes, step.baseline, step.said) for step in found.steps] == [
        (1, 1, "baseline"), (2, 1, ">= 0.5 even without overlap"),
        (4, 1, "none in scaling.require"),
    ]  # fmt: skip
    assert "efficiency: efficiency >= 0.5 (clusterqual.yaml:20)" in found.limits


def test_two_small_nodes_against_one_large_one() -> None:
    links = Links(intra_node=450 * GB, nic=25 * GB)
    small = node("small", devices=4, links=links, counts=(1, 2), price=110_000.0, flops=1e15, compute_share=0.5)
    large = node("large", devices=8, links=links, price=250_000.0, flops=1e15, compute_share=0.5)
    tensor = Layout(name="tp8", tensor=8)
    eight = replace(WORKLOAD, model=replace(SHAPE, heads=8, kv_heads=8))
    project = Project(
        path=Path("clusterqual.yaml"), name="made", launcher=LauncherOptions(), job=eight, layouts=(tensor,)
    )
    (found,) = judge_purchase(
        project, plan(replace(SEVENTY, parameters=220e9), nodes=(small, large), weights=("bf16",), share="<= 70 %")
    ).comparisons
    assert (found.small, found.large) == ("2 x small", "1 x large")
    price, served, trained = found.differences
    assert price == "price: 2 x 110,000 = 220,000 against 1 x 250,000 = 250,000"
    assert served.startswith("seventy in bf16: a copy stays inside one large (tensor parallel 8); of small it takes 2")
    assert trained.startswith("tp8: a rank exchanges ")
    assert "in groups that cross NICs, against 0 B; a step takes" in trained
    assert judged(small, node("large", devices=6)).comparisons == ()


def test_the_largest_purchase_that_a_file_may_name_is_estimated_in_seconds() -> None:
    wide = replace(WORKLOAD, global_batch=4096)
    found = judged(node(counts=(1, 512), flops=1e15, compute_share=0.4), layouts=(FSDP,), workload=wide)
    assert [step.nodes for step in found.steps] == [1, 512]

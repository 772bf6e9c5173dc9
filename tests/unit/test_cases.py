"""Which tests a project file gives, and which message sizes each of Fabric's has."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_clusterqual.judge.gates import Outcome, gate
from pytest_clusterqual.measure.cases import Case, cases
from pytest_clusterqual.measure.needs import MOST_EXTRA, Needs
from pytest_clusterqual.model.full_run import Checkpoints, Failure
from pytest_clusterqual.model.project import (
    FabricPlan,
    FullRunPlan,
    LauncherOptions,
    MemoryPlan,
    Project,
    ScalingPlan,
)
from pytest_clusterqual.model.record import Verdict
from pytest_clusterqual.model.requirement import Requirement
from pytest_clusterqual.model.traffic import Exchange, NetworkMap
from pytest_clusterqual.model.workload import Layout, ModelShape, Optimizer, Workload

SHAPE = ModelShape(layers=4, hidden=64, heads=4, kv_heads=2, ffn=128, vocab=256)
WORKLOAD = Workload(
    model=SHAPE, optimizer=Optimizer(name="adamw", lr=1e-3), precision="fp32", sequence_length=32, microbatch=2,
    global_batch=64, steps=4, seed=1,
)  # fmt: skip
DDP, FSDP, TP = Layout(name="ddp"), Layout(name="fsdp", fsdp="full"), Layout(name="tp2", tensor=2)
GRADIENTS = 4 * SHAPE.parameters
ACTIVATION = 4 * 2 * 32 * 64
SIZES = (4096, 65536)


def project(*layouts: Layout, rank_map: Any = "block", **plan: Any) -> Project:
    return Project(
        path=Path("clusterqual.yaml"), name="demo", launcher=LauncherOptions(rank_map=rank_map), job=WORKLOAD,
        layouts=layouts or (DDP,), fabric=FabricPlan(**{"sizes": SIZES, **plan}),
    )  # fmt: skip


def fabric(*layouts: Layout, nodes: int = 2, nproc: int = 2, **plan: Any) -> list[Case]:
    return cases(project(*layouts, **plan), "fabric", nodes=nodes, nproc_per_node=nproc)


def names(found: list[Case]) -> list[str]:
    """The sweeps of one collective that are not left out."""
    return [str(case) for case in found if not case.inapplicable and not case.part]


def sizes_of(found: list[Case], name: str) -> tuple[int, ...]:
    (case,) = [case for case in found if str(case) == name]
    return case.sizes


def mapped(*layouts: Layout, nodes: int = 2, nproc: int = 2, **plan: Any) -> NetworkMap:
    return Needs(project(*layouts, **plan), nodes=nodes, nproc_per_node=nproc).network_map()


def test_a_silent_file_measures_what_the_layouts_need_and_broadcast() -> None:
    assert names(fabric(DDP, groups=("world",))) == ["all_reduce-world", "broadcast-world"]
    assert names(fabric(FSDP, groups=("world",))) == ["all_gather-world", "reduce_scatter-world", "broadcast-world"]
    everywhere = ["all_reduce", "all_gather", "reduce_scatter", "broadcast"]
    assert names(fabric(DDP, TP, groups=("intra_node", "world"))) == [
        f"{collective}-{group}" for group in ("intra_node", "world") for collective in everywhere
    ]


def test_a_group_of_a_layout_is_measured_with_what_is_needed_there() -> None:
    assert names(fabric(DDP, TP, nproc=4, groups=("world", "layouts"))) == [
        "all_reduce-world", "all_gather-world", "reduce_scatter-world", "broadcast-world",
        "all_gather-tp2.tensor", "reduce_scatter-tp2.tensor", "all_reduce-tp2.replicate",
    ]  # fmt: skip
    some = fabric(TP, nproc=4, groups=("world", "layouts"), collectives=("all_gather", "send_recv"))
    assert names(some) == ["all_gather-world", "send_recv-world", "all_gather-tp2.tensor"]


def test_layouts_share_the_test_of_a_group_that_both_make() -> None:
    sharded = Layout(name="tp2-fsdp", tensor=2, fsdp="full")
    found = names(fabric(TP, sharded, nproc=4, groups=("layouts",)))
    assert found == [
        "all_gather-tp2.tensor", "reduce_scatter-tp2.tensor",
        "all_reduce-tp2.replicate", "all_gather-tp2.replicate", "reduce_scatter-tp2.replicate",
    ]  # fmt: skip


def test_sizes_of_the_step_join_those_of_the_file_where_the_same_ranks_exchange() -> None:
    found = fabric(DDP, TP, groups=("intra_node", "world"))
    assert sizes_of(found, "all_reduce-world") == (*SIZES, GRADIENTS)
    assert sizes_of(found, "all_gather-intra_node") == (SIZES[0], ACTIVATION, SIZES[1])
    assert sizes_of(found, "all_gather-world") == sizes_of(found, "all_reduce-intra_node") == SIZES
    silent = fabric(DDP, TP, groups=("intra_node", "world"), traffic=False)
    assert {case.sizes for case in silent} == {SIZES}


def test_a_size_that_the_file_has_already_is_not_measured_twice() -> None:
    """A sweep cuts sizes to whole elements of every rank: 16 bytes with 4 ranks."""
    found = fabric(DDP, groups=("world",), sizes=(GRADIENTS // 16 * 16 + 15, 5))
    assert sizes_of(found, "all_reduce-world") == (5, GRADIENTS // 16 * 16 + 15)


def test_many_sizes_are_thinned_to_the_ends_and_some_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_clusterqual.measure.needs.traffic", many_sizes)
    found = sizes_of(fabric(DDP, groups=("world",), sizes=(16,)), "all_reduce-world")
    assert found[0] == 16
    extra = found[1:]
    assert (len(extra), extra[0], extra[-1]) == (MOST_EXTRA, 1600, 1600 * 50)
    steps = [after - before for before, after in itertools.pairwise(extra)]
    assert max(steps) - min(steps) <= 1600


def many_sizes(*_: Any, **__: Any) -> Any:
    return tuple(
        Exchange(dimension="replicate", collective="all_reduce", bytes=1600 * n, calls=1, why="") for n in range(1, 51)
    )


def test_the_same_ranks_are_measured_once() -> None:
    found = fabric(DDP, nproc=1)
    assert names(found) == ["all_reduce-world", "broadcast-world"]
    assert {case.group: case.inapplicable for case in found if case.inapplicable} == {
        "intra_node": "intra_node is a group of 1 rank with 2 x 1 ranks: there is no fabric in it",
        "inter_node": "inter_node has the same ranks as world, which is measured",
        "rails": "rails has the same ranks as world, which is measured",
    }
    alone = {case.group: case.inapplicable for case in fabric(DDP, nodes=1) if case.inapplicable}
    assert alone["intra_node"] == "intra_node has the same ranks as world, which is measured"
    assert names(fabric(TP, groups=("intra_node", "layouts"), collectives=("all_gather",))) == ["all_gather-intra_node"]


def test_a_group_that_a_requirement_names_is_measured_whatever_others_have_its_ranks() -> None:
    def demand(group: str) -> Requirement:
        return Requirement(
            criterion="fabric", quantity="busbw", op=">=", value=1.0, unit="B/s", text=">= 1 B/s", source="x:1",
            group=group,
        )  # fmt: skip

    found = names(fabric(DDP, nproc=1, collectives=("all_reduce",), require=(demand("rails"),)))
    assert found == ["all_reduce-rails", "all_reduce-world"]
    named = names(fabric(TP, groups=("intra_node", "layouts"), collectives=("all_gather",),
                         require=(demand("tp2.tensor"),)))  # fmt: skip
    assert named == ["all_gather-intra_node", "all_gather-tp2.tensor"]


def test_ranks_are_the_same_only_if_they_are_under_every_rank_map() -> None:
    """Under cyclic the ranks 0 and 1 of a tensor group sit on two nodes."""
    usual = fabric(TP, groups=("intra_node", "layouts"), collectives=("all_gather",), rank_maps=("block", "nic-near"))
    assert names(usual) == ["all_gather-intra_node-block", "all_gather-intra_node-nic-near"]
    both = fabric(TP, groups=("intra_node", "layouts"), collectives=("all_gather",), rank_maps=("block", "cyclic"))
    assert names(both) == [
        f"all_gather-{group}-{rank_map}" for rank_map in ("block", "cyclic") for group in ("intra_node", "tp2.tensor")
    ]
    assert sizes_of(both, "all_gather-intra_node-block") == sizes_of(both, "all_gather-intra_node-cyclic") == SIZES
    cyclic = fabric(TP, groups=("rails", "layouts"), collectives=("all_gather",), rank_map="cyclic")
    assert names(cyclic) == ["all_gather-rails"]
    assert sizes_of(cyclic, "all_gather-rails") == (SIZES[0], ACTIVATION, SIZES[1])


def test_a_layout_that_does_not_fit_is_left_out_in_sight() -> None:
    found = fabric(DDP, Layout(name="tp4", tensor=4), nodes=1, collectives=("all_reduce",), groups=("world", "layouts"))
    assert [(str(case), case.inapplicable) for case in found] == [
        ("all_reduce-world", ""),
        ("tp4", "layout tp4: 2 ranks are no multiple of pipeline 1 x context 1 x tensor 4 = 4"),
    ]
    assert "tp4" not in map(str, fabric(DDP, Layout(name="tp4", tensor=4), nodes=1, groups=("world",)))


def test_the_map_says_which_test_measures_an_exchange() -> None:
    found = mapped(DDP, TP, nproc=2)
    assert [(flow.layout, flow.exchange.collective, flow.shape, flow.group, flow.covered) for flow in found.flows] == [
        ("ddp", "all_reduce", "1 group of 4 ranks over 2 nodes", "world", True),
        ("tp2", "all_gather", "2 groups of 2 ranks inside a node", "intra_node", True),
        ("tp2", "reduce_scatter", "2 groups of 2 ranks inside a node", "intra_node", True),
        *[("tp2", "all_reduce", "2 groups of 2 ranks over 2 nodes", "rails", True)] * 2,  # of the blocks and the rest
    ]
    assert (found.nodes, found.nproc_per_node, found.untold) == (2, 2, {})
    assert mapped(DDP, nproc=1).flows[0].group == "world", "not one of those that are left out"


@pytest.mark.parametrize(
    ("plan", "uncovered"),
    [
        ({"collectives": ("all_gather",)}, {("ddp", "world", "all_reduce"), ("tp2", "intra_node", "reduce_scatter"),
                                            ("tp2", "rails", "all_reduce")}),
        ({"groups": ("world",)}, {("tp2", "tp2.tensor", "all_gather"), ("tp2", "tp2.tensor", "reduce_scatter"),
                                  ("tp2", "tp2.replicate", "all_reduce")}),
        ({"groups": ("world", "layouts")}, set()),
    ],
)  # fmt: skip
def test_the_map_says_what_no_test_measures(plan: dict[str, Any], uncovered: set[tuple[str, str, str]]) -> None:
    flows = mapped(DDP, TP, **plan).flows
    assert {(f.layout, f.group, f.exchange.collective) for f in flows if not f.covered} == uncovered


def test_a_file_without_fabric_has_a_map_and_no_test() -> None:
    bare = replace(project(DDP), fabric=None)
    assert cases(bare, "fabric", nodes=2, nproc_per_node=2) == []
    assert [flow.covered for flow in Needs(bare, nodes=2, nproc_per_node=2).network_map().flows] == [False]


def test_the_map_says_of_which_layout_nothing_is_known() -> None:
    found = mapped(DDP, Layout(name="tp4", tensor=4), nodes=1)
    assert [flow.layout for flow in found.flows] == ["ddp"]
    assert list(found.untold) == ["tp4"]


def scaling(*layouts: Layout, points: tuple[int, ...] = (1, 2, 4), nodes: int = 4, nproc: int = 1) -> list[Case]:
    plan = replace(project(*layouts), scaling=ScalingPlan(points=points))
    return cases(plan, "scaling", nodes=nodes, nproc_per_node=nproc)


def test_every_point_but_the_first_is_a_test_against_it() -> None:
    found = scaling(DDP, nodes=2)
    assert [(str(case), case.baseline, case.inapplicable) for case in found] == [
        ("ddp-2nodes", 1, ""), ("ddp-4nodes", 1, "the point of 4 nodes needs --nodes 4")
    ]  # fmt: skip


def test_the_baseline_of_a_layout_is_the_smallest_point_that_it_fits() -> None:
    unfit = "layout tp2: 1 ranks are no multiple of pipeline 1 x context 1 x tensor 2 = 2"
    assert [(str(case), case.baseline, case.inapplicable) for case in scaling(TP)] == [
        ("tp2-2nodes", 2, f"no smaller point to compare with: {unfit}"), ("tp2-4nodes", 2, "")
    ]  # fmt: skip
    wide = Layout(name="pp3", pipeline=3)
    assert [case.inapplicable for case in scaling(wide)] == [
        f"layout pp3: {ranks} ranks are no multiple of pipeline 3 x context 1 x tensor 1 = 3" for ranks in (2, 4)
    ]


def full_runs(*layouts: Layout, nodes: int = 2, **plan: Any) -> list[Case]:
    asked = replace(project(*layouts), full_run=FullRunPlan(**plan))
    return cases(asked, "full_run", nodes=nodes, nproc_per_node=1)


def test_a_single_way_to_run_fully_has_no_name_of_its_own() -> None:
    (plain,) = full_runs()
    assert (str(plain), plain.checkpoints, plain.failure) == ("ddp-2nodes", Checkpoints(), None)
    killed = Failure(kind="kill_rank", step=12, target=1)
    (failing,) = full_runs(failures=(killed,))
    assert (str(failing), failing.checkpoints, failing.failure) == ("ddp-2nodes", Checkpoints(), killed)


def test_every_failure_and_every_way_to_save_is_a_test_and_not_all_pairs_of_them() -> None:
    ways = Checkpoints(every=4, mode="sync"), Checkpoints(every=4), Checkpoints(every=8)
    killed = [Failure(kind="kill_rank", step=step) for step in (5, 9)]
    failures = (*killed, Failure(kind="sigterm", step=9))
    found = full_runs(DDP, FSDP, checkpoints=ways, failures=failures)
    assert [str(case) for case in found[:5]] == [
        "ddp-2nodes-kill_rank-1", "ddp-2nodes-kill_rank-2", "ddp-2nodes-sigterm", "ddp-2nodes-async-every4",
        "ddp-2nodes-async-every8",
    ]  # fmt: skip
    assert [(case.checkpoints, case.failure) for case in found[:5]] == [
        *((ways[0], failure) for failure in failures), (ways[1], None), (ways[2], None),
    ]  # fmt: skip
    assert len(found) == 10
    assert {case.layout for case in found[5:]} == {"fsdp"}
    quiet = full_runs(checkpoints=ways)
    assert [str(case) for case in quiet] == [f"ddp-2nodes-{way}" for way in ways]


def test_a_spare_node_is_left_out_of_the_run_and_must_be_there() -> None:
    spare = Failure(kind="kill_node", step=12, target=0, go_on="spare")
    assert [(case.nodes, case.inapplicable) for case in full_runs(failures=(spare,), nodes=3)] == [(2, "")]
    (case,) = full_runs(failures=(spare,), nodes=1)
    assert case.inapplicable == "there is no spare node: it needs --nodes 2 or more"


def test_the_ladder_is_one_test_beside_those_of_the_layouts() -> None:
    plan = replace(project(DDP, FSDP), memory=MemoryPlan(ladder=True))
    found = cases(plan, "memory", nodes=2, nproc_per_node=1)
    assert [str(case) for case in found] == ["ddp-2nodes", "fsdp-2nodes", "ladder"]
    silent = replace(plan, memory=MemoryPlan())
    assert [str(case) for case in cases(silent, "memory", nodes=2, nproc_per_node=1)] == ["ddp-2nodes", "fsdp-2nodes"]


def test_no_gate_asks_for_the_ladder() -> None:
    plan = replace(project(DDP), memory=MemoryPlan(ladder=True))
    ddp, climb = cases(plan, "memory", nodes=2, nproc_per_node=1)
    failed = [Outcome(str(case), "memory", case.params, verdict) for case, verdict in (
        (ddp, Verdict.PASS), (climb, Verdict.ERROR),
    )]  # fmt: skip
    assert gate(["memory"], failed, {"layout": "ddp"}) is None
    assert gate(["memory"], failed[1:], {"layout": "ddp"}) is not None, "and it opens none"

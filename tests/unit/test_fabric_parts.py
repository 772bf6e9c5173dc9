"""Placement and synchronization: what the project file gives, what is refused, what a session is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from made import conditions
from project_files import SMALL

from pytest_clusterqual.errors import ProjectFileError
from pytest_clusterqual.judge.verdict import judge
from pytest_clusterqual.measure.cases import Case, cases
from pytest_clusterqual.measure.criteria import measure
from pytest_clusterqual.measure.fabric import placement
from pytest_clusterqual.model.codec import to_json
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.fabric import (
    CollectiveTiming,
    PlacementMeasurement,
    RankFabric,
    RankLadder,
    SynchronizationMeasurement,
)
from pytest_clusterqual.model.project import Project
from pytest_clusterqual.model.rank_map import arrange
from pytest_clusterqual.read.project import load_project
from pytest_clusterqual.session.session import Session
from pytest_clusterqual.session.world import RankResult

KIB = 1 << 10
LAYOUTS = "layouts: [{name: ddp}, {name: fsdp, fsdp: full}, {name: cp, context: 2}]\n"
FABRIC = """fabric:
  collectives: [all_reduce, all_gather]
  groups: [world, intra_node]
  sizes: {from: 4 KiB, to: 256 KiB, factor: 4}
  traffic: false
  rank_maps: [block, cyclic]
  synchronization: [ddp, fsdp]
"""
NODES, LOCAL = ("node0", "node1"), 2
RANKS = len(NODES) * LOCAL


def load(folder: Path, fabric: str = FABRIC, **changes: str) -> Project:
    text = SMALL.replace("layouts: [{name: ddp}]\n", LAYOUTS)
    for old, new in changes.items():
        text = text.replace(f"{old}: ", f"{old}: {new} # ")
    path = folder / "clusterqual.yaml"
    path.write_text(text + fabric)
    return load_project(path)


def parts(project: Project, part: str, nodes: int = 2, nproc_per_node: int = 2) -> list[Case]:
    return [case for case in cases(project, "fabric", nodes=nodes, nproc_per_node=nproc_per_node) if case.part == part]


def test_two_maps_give_a_comparison_of_each_sweep_at_two_sizes(tmp_path: Path) -> None:
    made = parts(load(tmp_path), "placement")
    assert [str(case) for case in made] == [
        f"{collective}-{group}-placement"
        for group in ("world", "intra_node")
        for collective in ("all_reduce", "all_gather")
    ]
    assert {case.sizes for case in made} == {(16 * KIB, 256 * KIB)}
    assert not any(case.inapplicable or case.rank_map for case in made)
    one_size = load(tmp_path, FABRIC.replace("to: 256 KiB", "to: 4 KiB"))
    assert {case.sizes for case in parts(one_size, "placement")} == {(4 * KIB,)}
    assert parts(load(tmp_path, FABRIC.replace("[block, cyclic]", "[block]")), "placement") == []


@pytest.mark.parametrize(("nodes", "nproc_per_node"), [(1, 2), (2, 1)])
def test_maps_that_are_one_and_the_same_are_not_compared(tmp_path: Path, nodes: int, nproc_per_node: int) -> None:
    made = parts(load(tmp_path), "placement", nodes, nproc_per_node)
    assert all(case.inapplicable for case in made)
    assert {case.inapplicable for case in made if case.group == "world"} == {
        f"block and cyclic are one and the same map of {nodes} x {nproc_per_node} ranks"
    }
    near = load(tmp_path, FABRIC.replace("[block, cyclic]", "[block, nic-near]"))
    assert any(not case.inapplicable for case in parts(near, "placement", nodes, nproc_per_node))


def test_named_layouts_are_taken_apart_where_ranks_can_wait(tmp_path: Path) -> None:
    project = load(tmp_path)
    assert [str(case) for case in parts(project, "synchronization")] == ["ddp-synchronization", "fsdp-synchronization"]
    assert not any(case.inapplicable for case in parts(project, "synchronization"))
    assert {case.inapplicable for case in parts(project, "synchronization", 1, 1)} == {"one rank waits for nobody"}


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("[ddp, fsdp]", "[dpd]", 'fabric.synchronization[0]: got "dpd", did you mean ddp? want one of ddp, fsdp, cp'),
        ("[ddp, fsdp]", "[ddp, cp]", 'fabric.synchronization[1]: got "cp": the communication of context cannot be '
         "left out of a step, want another layout"),
        ("[ddp, fsdp]\n", '[]\n  require: [{amplification: "<= 1.2"}]\n', "fabric.require[0].amplification: no step is "
         "taken apart to measure it, want the names of layouts in fabric.synchronization"),
        ("fsdp]\n", 'fsdp]\n  require: [{group: world, amplification: "<= 1.2"}]\n', "fabric.require[0].group: "
         "amplification is that of a whole training step, which has no collective, group, from or to"),
        ("fsdp]\n", 'fsdp]\n  require: [{from: 4 KiB, amplification: "<= 1.2"}]\n', "fabric.require[0].from: "
         "amplification is that of a whole training step, which has no collective, group, from or to"),
        ("[block, cyclic]\n", '[block]\n  require: [{placement: "<= 10 %"}]\n', "fabric.require[0].placement: there is "
         "no other placement to compare with, want two fabric.rank_maps or more: [block, cyclic]"),
    ],
)  # fmt: skip
def test_what_no_test_would_measure_is_refused(tmp_path: Path, old: str, new: str, problem: str) -> None:
    assert FABRIC.count(old) == 1
    with pytest.raises(ProjectFileError) as caught:
        load(tmp_path, FABRIC.replace(old, new))
    assert [each.split(": ", 1)[1] for each in caught.value.problems] == [problem]


def test_fp16_is_refused_where_the_layout_needs_more_than_gradients(tmp_path: Path) -> None:
    with pytest.raises(ProjectFileError) as caught:
        load(tmp_path, precision="fp16")
    (problem,) = caught.value.problems
    assert problem.endswith(
        'fabric.synchronization[1]: got "fsdp": with precision fp16 its ranks also exchange whether gradients '
        "overflow, want bf16 or fp32"
    )


class Answers:
    """A session whose ranks answer what is written here; under cyclic everything takes twice as long."""

    simulated = False

    def __init__(self, project: Project) -> None:
        self.project = project
        self.nodes, self.nproc_per_node, self.hardware = NODES, LOCAL, {}
        self.places = [SimpleNamespace(rank=rank) for rank in range(RANKS)]
        self.asked: list[tuple[Any, Mapping[str, Any], dict[str, Any]]] = []
        self.slow_climbs = 99

    def run(self, function: str, args: Mapping[str, Any], **how: Any) -> list[RankResult]:
        self.asked.append((how.get("arrangement"), args, how))
        answer = {"collectives:sweep": self._sweep, "ladder:climb": self._climb}[function.rpartition(".")[2]]
        values = [to_json(answer(rank, args, how)) for rank in range(RANKS)]
        return [RankResult(rank=rank, value=value, seconds=1.0, taken=(0, 1)) for rank, value in enumerate(values)]

    def _sweep(self, rank: int, args: Mapping[str, Any], how: Mapping[str, Any]) -> RankFabric:
        size = next(len(group) for group in args["groups"] if rank in group)
        seconds = 0.01 * (1 + (how["arrangement"] == "cyclic")) + 1e-5 * len(self.asked)
        timings = [
            CollectiveTiming(bytes=each, iterations=4, seconds=(seconds,) * 3, wrong=0) for each in args["sizes"]
        ]
        return RankFabric(rank=rank, group_size=size, timings=tuple(timings))

    def _climb(self, rank: int, args: Mapping[str, Any], how: Mapping[str, Any]) -> list[RankLadder]:
        steps = (0.1 * (1 + (rank == 3 and len(self.asked) <= self.slow_climbs)),) * 2
        return [
            RankLadder(rank=rank, compute=steps, barrier=(0.2, 0.2), payload=(0.01, 0.01), step=(0.21, 0.21))
            for _ in range(args["rounds"])
        ]

    def rank_map(self, arrangement: Any) -> Any:
        seats = arrange(arrangement, NODES, LOCAL, {})
        assert self.asked[-1][0] == arrangement
        return SimpleNamespace(
            places=[
                SimpleNamespace(node=seat.node, nic_path="SYS" if arrangement == "cyclic" else "PIX") for seat in seats
            ]
        )

    def forget_samples(self) -> None:
        pass

    def telemetry(self) -> tuple[()]:
        return ()

    def conditions(self, _results: Any, **what: Any) -> Conditions:
        return conditions(nodes=2, nproc_per_node=2, ranks=RANKS, simulated=False, **what)


def test_every_map_is_measured_as_often_in_new_processes_in_random_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_clusterqual.measure.parts.time.time", lambda: 1.0)  # the order is drawn from it
    answers = Answers(load(tmp_path))
    (case,) = [each for each in parts(answers.project, "placement") if str(each) == "all_reduce-intra_node-placement"]
    m = measure(cast(Session, answers), case)
    assert isinstance(m, PlacementMeasurement)
    order = [arrangement for arrangement, _, _ in answers.asked]
    assert sorted(order) == ["block"] * 6 + ["cyclic"] * 6
    assert order not in (["block"] * 6 + ["cyclic"] * 6, ["block", "cyclic"] * 6)
    assert all(how["fresh"] for _, _, how in answers.asked)
    assert all(args["sizes"] == [16 * KIB, 256 * KIB] for _, args, _ in answers.asked)
    assert [each.rank_map for each in m.placements] == order
    for each in m.placements:
        assert each.groups == (((0, 1), (2, 3)) if each.rank_map == "block" else ((0, 2), (1, 3)))
        assert set(each.paths) == {"PIX" if each.rank_map == "block" else "SYS"}
    assert m.conditions.rank_map == "block, cyclic"
    found = [finding for judgement in judge(answers.project, m) for finding in judgement.findings]
    assert {finding.suspect for finding in found} == {"rank map cyclic"}
    assert all("agrees with the topology" in finding.evidence for finding in found)


def test_the_order_of_a_placement_can_be_drawn_again_and_goes_on_differently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_clusterqual.measure.parts.time.time", lambda: 1.5)
    session = cast(Session, Answers(load(tmp_path)))
    made = [
        placement(session, "all_reduce", "world", sizes=[4], rank_maps=["block", "cyclic"], repeats=9) for _ in range(2)
    ]
    first, again = ([each.rank_map for each in m.placements] for m in made)
    more = placement(
        session, "all_reduce", "world", sizes=[4], rank_maps=["block", "cyclic"], repeats=9, before=made[0]
    )
    assert first == again
    assert [each.rank_map for each in more.placements[:18]] == first
    assert [each.rank_map for each in more.placements[18:]] != first
    assert sorted(each.rank_map for each in more.placements[18:]) == sorted(first)


def test_the_step_of_a_layout_is_taken_apart_on_all_ranks(tmp_path: Path) -> None:
    answers = Answers(load(tmp_path))
    m = measure(cast(Session, answers), parts(answers.project, "synchronization")[1])
    assert isinstance(m, SynchronizationMeasurement)
    (_, args, _), again = answers.asked  # for somebody is accused
    assert again[1] == args
    assert args["layout"]["name"] == "fsdp"
    assert (args["seconds"], args["limit"], args["least"]) == (10.0, 60.0, 9)
    assert m.conditions.layout == "fsdp"
    assert [[each.rank for each in ranks] for ranks in m.rounds] == [list(range(RANKS))] * 2 * args["rounds"]
    (judgement,) = judge(answers.project, m)
    assert [(finding.suspect, finding.kind) for finding in judgement.findings] == [("rank 3 on node1", "slow rank")]


@pytest.mark.parametrize(("slow_climbs", "asked"), [(0, 1), (1, 2)])
def test_nobody_is_accused_who_is_slow_for_some_seconds_only(tmp_path: Path, slow_climbs: int, asked: int) -> None:
    answers = Answers(load(tmp_path))
    answers.slow_climbs = slow_climbs
    m = measure(cast(Session, answers), parts(answers.project, "synchronization")[1])
    assert len(answers.asked) == asked
    assert not any(f.level == "suspect" for judgement in judge(answers.project, m) for f in judgement.findings)

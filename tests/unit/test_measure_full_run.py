"""What Full-Run asks of a session: the step taken apart, the run, and the same on one node."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from full_run_made import ladders, quiet
from made import conditions
from project_files import SMALL

from pytest_clusterqual.errors import JobError
from pytest_clusterqual.judge.verdict import judge
from pytest_clusterqual.measure.cases import cases
from pytest_clusterqual.measure.criteria import measure
from pytest_clusterqual.model.codec import to_json
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.full_run import Failure, FullRunMeasurement
from pytest_clusterqual.model.record import Verdict
from pytest_clusterqual.read.project import load_project
from pytest_clusterqual.session.session import Session
from pytest_clusterqual.session.training_launch import Trained
from pytest_clusterqual.session.world import RankResult

FAILED = "full run of ddp on one node failed: rank 0 on node0 was killed\nlast lines of node0:\nTraceback"


class Nodes:
    """A session of two nodes, whose full runs are quiet ones; those on one node take three times as long."""

    def __init__(self, folder: Path, keys: str, *, layout: str = "{name: ddp}", alone_fails: bool = False) -> None:
        path = folder / "clusterqual.yaml"
        text = SMALL.replace("layouts: [{name: ddp}]", f"layouts: [{layout}]")
        path.write_text(f"{text}full_run: {{steps: 10, checkpoint: {{every: 4}}{keys}}}\n")
        self.project = load_project(path)
        self.nodes, self.nproc_per_node = ("node0", "node1"), 1
        self.places = [SimpleNamespace(rank=rank, node=f"node{rank}", versions={}) for rank in (0, 1)]
        self.trained: list[tuple[int, Failure | None]] = []
        self.apart = 0
        self._folder, self._alone_fails = folder, alone_fails

    def run(self, function: str, _args: Any, *, nodes: int, **_: Any) -> list[RankResult]:
        assert (function, nodes) == ("pytest_clusterqual.rank.ladder:climb", 2)
        self.apart += 1
        rounds = ladders({0: 0.5, 1: 0.75}, held=0.75, step=1.0)
        return [_answer(rank, [made[rank] for made in rounds]) for rank in (0, 1)]

    def train(self, args: Mapping[str, Any], *, nodes: int, failure: Failure | None, **_: Any) -> Trained:
        assert Path(args["folder"]).is_dir(), "the ranks find it made"
        self.trained.append((nodes, failure))
        if nodes == 1 and self._alone_fails:
            raise JobError(FAILED)
        runs = tuple(quiet(rank, args["steps"], step=3.0 / nodes) for rank in range(nodes))
        results = [_answer(rank, None) for rank in range(nodes)]
        return Trained(runs=runs, places=cast(Any, self.places[:nodes]), results=results, samples={})

    def checkpoint_folder(self, _wanted: str | None) -> Path:
        return self._folder / f"checkpoints-{len(self.trained)}"

    def forget_samples(self) -> None:
        pass

    def telemetry(self) -> tuple[()]:
        return ()

    def conditions(self, _results: Any, *, nodes: int, places: Any, **what: Any) -> Conditions:
        what.pop("telemetry", None)
        return conditions(nodes=nodes, ranks=len(places), **what)


def _answer(rank: int, value: Any) -> RankResult:
    return RankResult(rank=rank, value=to_json(value), seconds=1.0, taken=(0, 1))


def measured(nodes: Nodes) -> FullRunMeasurement:
    (case,) = cases(nodes.project, "full_run", nodes=2, nproc_per_node=1)
    return cast(FullRunMeasurement, measure(cast(Session, nodes), case))


def test_the_run_is_done_on_all_nodes_and_on_one_and_its_step_is_taken_apart(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, ", require: [{gain: '>= 1.2'}]")
    m = measured(nodes)
    assert (nodes.trained, nodes.apart) == ([(2, None), (1, None)], 1)
    assert (m.not_alone, m.not_apart, len(m.apart)) == ("", "", 12)
    assert m.alone is not None
    assert (m.run.conditions.nodes, m.alone.conditions.nodes, m.alone.steps) == (2, 1, 10)
    assert not list(tmp_path.glob("checkpoints*")), "nothing is left of them"
    (gain,) = [j for j in judge(nodes.project, m) if j.quantity == "gain"]
    assert (gain.value, gain.verdict) == (pytest.approx(38.875 / 23.875), Verdict.PASS)


def test_what_the_file_does_not_want_is_not_done_and_said(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, ", alone: false, apart: false")
    m = measured(nodes)
    assert (nodes.trained, nodes.apart) == ([(2, None)], 0)
    assert (m.alone, m.not_alone) == (None, "full_run.alone: false")
    assert (m.apart, m.not_apart) == ((), "full_run.apart: false")


@pytest.mark.parametrize(
    ("asked", "there", "alone"),
    [
        (
            "{raise_rank: 1, at_step: 5}",
            Failure(kind="raise_rank", step=5, target=1), Failure(kind="raise_rank", step=5),
        ),
        (
            "{kill_node: 1, at_step: 5, go_on: fewer}",
            Failure(kind="kill_node", step=5, target=1, go_on="fewer"), Failure(kind="kill_node", step=5),
        ),
    ],
    ids=["a rank that one node has not", "fewer nodes than one"],
)  # fmt: skip
def test_one_node_pays_for_the_same_failure(tmp_path: Path, asked: str, there: Failure, alone: Failure) -> None:
    nodes = Nodes(tmp_path, f", failure: {asked}")
    measured(nodes)
    assert nodes.trained == [(2, there), (1, alone)]


def test_a_layout_that_one_node_has_no_place_for_is_not_tried_there(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, ", apart: false", layout="{name: cp2, context: 2}")
    m = measured(nodes)
    assert nodes.trained == [(2, None)]
    assert m.not_alone.startswith("one node cannot do it: layout cp2: 1 ranks are no multiple of")


def test_a_run_on_one_node_that_fails_leaves_the_other_one_whole_and_is_told_in_short(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, ", require: [{gain: '>= 1.2'}, {goodput: '>= 1 %'}]", alone_fails=True)
    m = measured(nodes)
    assert (m.alone, m.not_alone) == (None, FAILED.partition("\n")[0])
    judged = {j.quantity: j.verdict for j in judge(nodes.project, m)}
    assert (judged["gain"], judged["goodput"]) == (Verdict.ERROR, Verdict.PASS)

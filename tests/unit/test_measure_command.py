"""What is asked of a command for Training Scaling: its runs in their order, under the conditions of the most nodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_made import JOB, begins, ends, left_behind, made_folder, probes, step

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.launch.plan import NodePlan
from pytest_clusterqual.measure.command import scaling
from pytest_clusterqual.model.project import LauncherOptions, Project, ScalingPlan
from pytest_clusterqual.session.command_launch import CommandRun
from pytest_clusterqual.session.session import Session


class Commanded(Session):
    """A session whose commands have run already, as long as there are steps on each number of nodes."""

    def __init__(self, folder: Path, *, out_of_memory: str = "") -> None:
        project = Project(
            path=Path("clusterqual.yaml"), name="made", launcher=LauncherOptions(device="cpu"), job=JOB, layouts=(),
            scaling=ScalingPlan(points=(1, 2), warmup_steps=1),
        )  # fmt: skip
        launcher: Any = SimpleNamespace(simulated=True, oversubscribed=False, device="cpu")
        nodes = [NodePlan(name=f"node{index}", host="vm") for index in (0, 1)]
        super().__init__(
            project, launcher, nodes, nproc_per_node=1, folder=folder, path=(), tell=lambda _progress: None
        )
        self._made, self._out_of_memory = folder, out_of_memory
        self.asked: list[tuple[int, int | None]] = []

    @contextmanager
    def commanded(self, *, nodes: int, steps: int | None = None, **_: Any) -> Iterator[CommandRun]:
        self.asked.append((nodes, steps))
        folder = made_folder(self._made / str(len(self.asked)))
        for rank in range(nodes):
            begins(folder, rank, world=nodes)
            ends(folder, rank, taken=(0.5 * rank, 8.0))
            probes(folder, rank, *(step(number, tokens=64) for number in range(1, 5)), world=nodes)
        run = left_behind(folder, nodes)
        yield CommandRun(
            folder=folder, processes=run.processes, places=run.places, began={}, ended={}, samples={},
            out_of_memory=self._out_of_memory,
        )  # fmt: skip


def test_runs_are_interleaved_and_each_is_a_launch(tmp_path: Path) -> None:
    session = Commanded(tmp_path)
    first = scaling(session, (1, 2), repeats=2)
    assert [nodes for nodes, _ in session.asked] == [1, 2, 2, 1]
    more = scaling(session, (1, 2), repeats=1, before=first)
    assert [run.conditions.nodes for run in more.runs] == [1, 2, 2, 1, 1, 2]
    assert [run.launch for run in more.runs] == [1, 2, 3, 4, 5, 6]
    assert [len(run.ranks) for run in more.runs] == [1, 2, 2, 1, 1, 2]


def test_the_conditions_are_those_of_the_most_nodes_whichever_came_last(tmp_path: Path) -> None:
    m = scaling(Commanded(tmp_path), (1, 2), repeats=2)
    assert (m.conditions.nodes, m.conditions.rank_nodes) == (2, ("node0", "node1"))
    assert m.conditions.load is not None
    assert m.conditions.load.node == "node1"
    assert len({run.conditions.workload for run in m.runs}) == 1
    assert m.not_apart == "a command's step is seen from outside only"


def test_a_run_out_of_memory_is_no_point(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match="fixed work with own, run 1 ran out of memory: rank 0 was killed"):
        scaling(Commanded(tmp_path, out_of_memory="rank 0 was killed"), (1, 2), repeats=1)

"""Which ranks a job gets: of all nodes or some, and of each all ranks or the first ones."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_clusterqual.launch.plan import NodePlan
from pytest_clusterqual.model.topology import RankMap, RankPlace
from pytest_clusterqual.session.session import Session
from pytest_clusterqual.session.world import Job

NODES = [NodePlan(name=name, host=name) for name in ("node0", "node1")]


class World:
    """Two ranks on each of two nodes, seated in turn; it notes the jobs it gets."""

    usable = True
    jobs: list[Job]

    def __init__(self, *_: Any, **__: Any) -> None:
        World.jobs = []
        self.rank_map = RankMap(places=tuple(
            RankPlace(
                rank=rank, local_rank=rank // 2, node=f"node{rank % 2}", host=f"host{rank % 2}", pid=1, device="cpu",
                device_name="x", backend="gloo", cores=(), versions={},
            )
            for rank in range(4)
        ))  # fmt: skip

    def ready(self, _seats: Any) -> None:
        pass

    def run(self, job: Job) -> list[Any]:
        World.jobs.append(job)
        return []


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Session:
    monkeypatch.setattr("pytest_clusterqual.session.session.World", World)
    monkeypatch.setattr(Session, "hardware", {})
    launcher: Any = SimpleNamespace(device="cpu", simulated=True, oversubscribed=False)
    project: Any = SimpleNamespace(launcher=SimpleNamespace(rank_map="cyclic", start_timeout=1.0, job_timeout=1.0))
    return Session(project, launcher, NODES, nproc_per_node=2, folder=tmp_path, path=(), tell=lambda progress: None)


@pytest.mark.parametrize(
    ("wanted", "ranks", "rank_nodes"),
    [
        ({}, (0, 1, 2, 3), ("node0", "node1", "node0", "node1")),
        ({"nodes": 1}, (0, 2), ("node0", "node0")),
        ({"nodes": 1, "per_node": 1}, (0,), ("node0",)),
        ({"nodes": ["node1"], "per_node": 1}, (1,), ("node1",)),
        ({"per_node": 1}, (0, 1), ("node0", "node1")),
        ({"per_node": 2}, (0, 1, 2, 3), ("node0", "node1", "node0", "node1")),
    ],
)
def test_a_job_and_its_conditions_are_of_the_same_ranks(
    session: Session, wanted: dict[str, Any], ranks: tuple[int, ...], rank_nodes: tuple[str, ...]
) -> None:
    session.run("jobs:any", **wanted)
    assert World.jobs[-1].ranks == ranks
    found = session.conditions(**wanted)
    assert (found.ranks, found.rank_nodes) == (len(ranks), rank_nodes)
    assert (found.nodes, found.nproc_per_node) == (len(set(rank_nodes)), wanted.get("per_node", 2))

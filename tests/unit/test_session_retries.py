"""Ranks that cannot be had: tried twice for the same culprits, then not again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_clusterqual.errors import LaunchError
from pytest_clusterqual.launch.plan import NodePlan
from pytest_clusterqual.session.session import Session

NODES = [NodePlan(name="node1", host="node1"), NodePlan(name="node2", host="node2")]


class Blocked:
    """A world whose supervisors are all there and whose ranks never come together."""

    usable = True
    tried = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        Blocked.tried = 0

    def ready(self, _seats: Any) -> None:
        Blocked.tried += 1
        raise LaunchError("the ranks cannot form a group", culprits=["node1 - node2"])


def test_nodes_that_cannot_connect_are_not_tried_a_third_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("pytest_clusterqual.session.session.World", Blocked)
    monkeypatch.setattr(Session, "hardware", {})
    launcher: Any = SimpleNamespace(device="cpu")
    project: Any = SimpleNamespace(launcher=SimpleNamespace(rank_map="block", start_timeout=1.0, job_timeout=1.0))
    session = Session(
        project, launcher, NODES, nproc_per_node=1, folder=tmp_path, path=(), tell=lambda progress: None
    )  # fmt: skip
    told = []
    for _ in range(3):
        with pytest.raises(LaunchError) as caught:
            session.run("jobs:any")
        assert caught.value.culprits == ("node1 - node2",)
        told.append("not tried again" in str(caught.value))
    assert told == [False, False, True]
    assert Blocked.tried == 2

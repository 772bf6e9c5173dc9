"""What a full run of some minutes is compared with: the same steps on one node, if that takes a sensible time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from full_run_made import quiet, quiet_run

from pytest_clusterqual.measure import full_run
from pytest_clusterqual.model.full_run import Checkpoints
from pytest_clusterqual.model.project import FullRunPlan
from pytest_clusterqual.model.workload import Layout


def alone(monkeypatch: pytest.MonkeyPatch, minutes: float | None) -> tuple[str, list[dict[str, Any]]]:
    """Why there was no run on one node, and what was asked of one."""
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(full_run, "_run", lambda *_, **how: asked.append(how))
    plan = FullRunPlan(minutes=None if minutes is None else minutes * 60)
    project = SimpleNamespace(full_run=plan, unfit=lambda *_, **__: "")
    session: Any = SimpleNamespace(project=project, nproc_per_node=1)
    _, why = full_run._alone(session, Layout(name="ddp"), quiet_run(), Checkpoints(), None)
    return why, asked


@pytest.mark.parametrize("minutes", [None, 15.0])
def test_one_node_does_the_steps_that_were_done(monkeypatch: pytest.MonkeyPatch, minutes: float | None) -> None:
    why, asked = alone(monkeypatch, minutes)
    assert (why, asked) == ("", [{"nodes": 1, "steps": 10}])


def test_what_one_node_would_do_for_too_long_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    why, asked = alone(monkeypatch, 16.0)
    assert asked == []
    assert why == (
        "10 steps would take one node about 32 min; compare in a run of fewer, with full_run.steps or at most 15 "
        "full_run.minutes"
    )


def test_the_last_step_is_the_last_that_was_done() -> None:
    assert full_run._last_step([quiet(0, 7), quiet(1, 9)]) == 9

"""What the criteria share: the clock of a measurement that goes on, whose load counts, the order of its points."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from made import conditions, memory_measurement

from pytest_clusterqual.measure.parts import Clock, begin, heavier, interleaved, step_apart
from pytest_clusterqual.model.conditions import Conditions, Load
from pytest_clusterqual.model.workload import Layout


def loaded(share: float | None) -> Conditions:
    return conditions(load=None if share is None else Load(other_cpu=share, node="node1"))


def test_a_measurement_that_goes_on_keeps_its_start_and_the_seconds_spent_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pytest_clusterqual.measure.parts.time.time", lambda: 1000.0)
    monkeypatch.setattr("pytest_clusterqual.measure.parts.time.monotonic", itertools.count(5.0, 2.0).__next__)
    first = Clock()
    before = replace(memory_measurement(), started=7.0, seconds=first.seconds)
    assert (first.started, before.seconds) == (1000.0, 2.0)
    more = Clock(before)
    assert (more.started, more.seconds) == (7.0, 4.0)


def test_what_nodes_told_before_belongs_to_a_measurement_that_goes_on_and_to_no_new_one() -> None:
    forgotten: list[str] = []
    session: Any = SimpleNamespace(forget_samples=lambda: forgotten.append("samples"))
    begin(session, memory_measurement())
    assert forgotten == []
    begin(session)
    assert forgotten == ["samples"]


def test_points_are_measured_there_and_back_again() -> None:
    assert [interleaved((1, 2, 8), repeat) for repeat in range(3)] == [(1, 2, 8), (8, 2, 1), (1, 2, 8)]


def test_a_step_is_taken_apart_within_its_seconds_and_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []

    def run(_function: str, args: dict[str, Any], **_how: Any) -> list[Any]:
        given.append(args)
        return []

    session: Any = SimpleNamespace(places=(), run=run)
    monkeypatch.setattr("pytest_clusterqual.measure.parts.job_args", lambda session, layout: {})
    for seconds in (3.0, 9.0):
        step_apart(session, Layout(name="ddp"), rounds=16, least=12, seconds=seconds, limit=4.0)
    assert [args["seconds"] for args in given] == [3.0, 4.0]
    assert given[0] == {"rounds": 16, "least": 12, "seconds": 3.0, "limit": 4.0, "whole": True}


@pytest.mark.parametrize(
    ("now", "before", "counts"),
    [(0.1, 0.4, 0.4), (0.4, 0.1, 0.4), (None, 0.1, 0.1), (0.1, None, 0.1), (None, None, None)],
)
def test_of_the_loads_of_a_measurement_the_heavier_one_counts(
    now: float | None, before: float | None, counts: float | None
) -> None:
    assert heavier(loaded(now), loaded(before)) == loaded(counts)

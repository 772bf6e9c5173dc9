"""What a user's own test may hand to `qualify`."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from made import conditions, passed

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.record import Judgement, Record, Verdict
from pytest_clusterqual.qualify import Qualify

TEST = "test_own.py::test_barrier"


def test_what_is_no_measurement_is_refused_by_name() -> None:
    nobody: Any = None
    with pytest.raises(MeasurementError, match=r"^qualify\(measurement\): got NoneType, want what the fixture"):
        Qualify(nobody, nobody)(nobody)


@pytest.mark.parametrize(
    ("unit", "require", "message"),
    [
        ("ms", "<= 5 ms", r"unit: got 'ms', want what the samples are in, one of 's', 'B', 'B/s', .*, '1'; only"),
        ("ms", None, r"unit: got 'ms', want"),
        ("s", "5 ms", r'require: got .5 ms., want "<op> <number> <unit>" with <=, >=, < or > and a time such as 20 s'),
        ("s", "<= 5 GB", r"require: got '5 GB', want a time such as 20 s"),
        ("s", "", r"require: got '', want"),
    ],
)
def test_a_unit_or_a_requirement_that_is_none_is_refused_before_anything_is_judged(
    unit: str, require: str | None, message: str
) -> None:
    nobody: Any = None
    item: Any = SimpleNamespace(nodeid=TEST)
    with pytest.raises(MeasurementError, match=r"^qualify\.samples\('barrier'\): " + message):
        Qualify(nobody, item).samples("barrier", [0.001] * 6, unit=unit, require=require)


@pytest.mark.parametrize("started", [True, False])
def test_figures_have_the_conditions_of_the_ranks_and_none_before_any_was_started(started: bool) -> None:
    there = conditions()
    kept = []

    def add(_item: Any, judgements: Sequence[Judgement], under: Conditions | None, **_when: float) -> list[Record]:
        kept.append(under)
        return [passed(TEST, "own")]

    session = SimpleNamespace(
        places=("rank 0 on node0",) if started else (), telemetry=lambda nodes: (), conditions=lambda **what: there
    )
    run: Any = SimpleNamespace(session=session, nodes_of=lambda item: ("node0",), recorder=SimpleNamespace(add=add))
    item: Any = SimpleNamespace(nodeid=TEST)
    assert Qualify(run, item).samples("barrier", [0.001] * 6, unit="s", require="<= 5 ms").verdict is Verdict.PASS
    assert kept == [there if started else None]

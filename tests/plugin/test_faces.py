"""Every option, fixture, marker and record field that users rely on, in one place."""

from __future__ import annotations

import dataclasses
import re

import pytest

from pytest_clusterqual import fixtures
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.record import Demand, Finding, Interval, Judgement, Record, Verdict


def names(kind: type) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


def test_options(pytestconfig: pytest.Config) -> None:
    ours = [o for group in pytestconfig._parser._groups if group.name == "clusterqual" for o in group.options]
    assert [name for option in ours for name in option.names()] == [
        "--nodes", "--nproc-per-node", "--qual-config", "--qual-launcher", "--qual-hosts", "--qual-resume",
        "--qual-again", "--qual-replay", "--qual-baseline", "--qual-tolerance", "--qual-run-dir", "--qual-report",
        "--qual-keep-going",
    ]  # fmt: skip


def test_markers(pytestconfig: pytest.Config) -> None:
    told = [re.split(r"\W", line)[0] for line in pytestconfig.getini("markers")]
    ours = ["criterion", "nodes", "memory", "fabric", "scaling", "full_run", "decision"]
    assert [name for name in told if name in ours] == ours


def test_fixtures() -> None:
    from _pytest.fixtures import FixtureFunctionDefinition

    assert sorted(n for n, v in vars(fixtures).items() if isinstance(v, FixtureFunctionDefinition)) == [
        "case", "cluster", "decision", "measurement", "node", "qualify", "rank_map", "requirements", "topology",
        "workload",
    ]  # fmt: skip


def test_record_fields() -> None:
    assert names(Record) == [
        "schema", "run", "test", "criterion", "judgement", "conditions", "measurement", "started", "seconds",
        "exception", "attempt", "until", "expired", "earlier", "gates_not_run", "of",
    ]  # fmt: skip
    assert names(Judgement) == [
        "quantity", "label", "value", "unit", "interval", "verdict", "reason", "requirement", "margin", "expected",
        "expected_why", "samples", "per_rank", "parts", "findings",
    ]  # fmt: skip
    assert names(Interval) == ["low", "high", "kind", "level", "samples"]
    assert names(Demand) == ["op", "value", "unit", "text", "source", "expected_from"]
    assert names(Finding) == ["suspect", "kind", "evidence", "check_next", "level", "size", "interval"]
    assert names(Conditions) == [
        "nodes", "nproc_per_node", "ranks", "hosts", "rank_nodes", "simulated", "oversubscribed", "device",
        "device_name", "backend",
        "versions", "layout", "workload", "collective", "bytes", "group", "algorithm", "rank_map",
        "load", "telemetry",
    ]  # fmt: skip
    assert [str(verdict) for verdict in Verdict] == ["PASS", "FAIL", "UNDECIDED", "BLOCKED", "ERROR", "MEASURED"]

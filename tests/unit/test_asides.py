"""Accepted and expired exceptions, repeats and gates that were not run stand in every report."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made import conditions, passed, record

from pytest_clusterqual.model.record import Record, Verdict
from pytest_clusterqual.report.asides import asides
from pytest_clusterqual.report.html import Told, html_report
from pytest_clusterqual.report.junit import write_junit
from pytest_clusterqual.report.markdown import markdown
from pytest_clusterqual.report.terminal import summary

FAILED = record("test_fabric[all_to_all]")
ACCEPTED = replace(FAILED, exception="ticket 4711", until="2027-03-01")
EXPIRED = replace(FAILED, expired="ticket 4711", until="2026-11-01")
REPEATED = replace(passed("test_fabric[all_to_all]", "fabric"), earlier=(Verdict.FAIL, Verdict.UNDECIDED), attempt=3)
UNGATED = replace(passed("test_scaling[ddp-2nodes]", "scaling"), gates_not_run=("memory", "fabric"))


def terminal(records: list[Record], _: Path) -> str:
    return summary(records, run_folder="run", simulated=False, width=200)


def page(records: list[Record], _: Path) -> str:
    return html_report(Told(run="run", simulated=False, environment={}, records=records))


def junit(records: list[Record], folder: Path) -> str:
    write_junit(records, folder / "junit.xml", suite="clusterqual", properties={})
    return (folder / "junit.xml").read_text()


def as_markdown(records: list[Record], _: Path) -> str:
    return markdown(records, run="run", simulated=False, decision=None).replace("\\_", "_")


@pytest.mark.parametrize("report", [terminal, page, junit, as_markdown])
@pytest.mark.parametrize(
    ("told", "words"),
    [
        (ACCEPTED, "FAIL accepted until 2027-03-01: ticket 4711"),
        (EXPIRED, "FAIL, and its exception expired on 2026-11-01: ticket 4711"),
    ],
)
def test_every_report_names_the_exception_and_its_day(
    told: Record, words: str, report: Callable[..., str], tmp_path: Path
) -> None:
    assert words in report([told], tmp_path)
    assert "ticket 4711" not in report([FAILED], tmp_path)
    well = replace(told, judgement=replace(told.judgement, verdict=Verdict.PASS))
    assert words.partition(" ")[2] not in report([well], tmp_path), "a test that passed needs no exception"


@pytest.mark.parametrize("report", [terminal, page, as_markdown])
def test_a_failure_that_was_repeated_until_it_passed_is_seen(report: Callable[..., str], tmp_path: Path) -> None:
    assert "all_to_all: PASS at attempt 3, before: FAIL, UNDECIDED" in report([REPEATED], tmp_path)
    fine = replace(REPEATED, earlier=(Verdict.PASS,), attempt=2)
    assert "all_to_all: PASS at attempt 2, before: PASS" in report([fine], tmp_path), "it was chosen among two"
    number = replace(REPEATED, earlier=(Verdict.MEASURED,))
    number = replace(number, judgement=replace(number.judgement, verdict=Verdict.MEASURED))
    assert "at attempt" not in report([number], tmp_path)


def test_a_repeat_that_was_worse_is_told_before_others() -> None:
    well = [replace(REPEATED, test=f"test_fabric[{number}]", earlier=(Verdict.PASS,)) for number in range(3)]
    lines = [line for _, line in asides([*well, REPEATED])]
    assert lines[0] == "all_to_all: PASS at attempt 3, before: FAIL, UNDECIDED"
    assert lines[-1] == "and 1 more in records.jsonl"


@pytest.mark.parametrize("report", [terminal, page, as_markdown])
def test_a_gate_that_was_not_run_is_told_until_its_record_is_there(report: Callable[..., str], tmp_path: Path) -> None:
    words = "needs memory and fabric first, and nobody asked for them: no full qualification"
    assert words in report([UNGATED], tmp_path)
    with_fabric = report([UNGATED, FAILED], tmp_path)
    assert "needs memory first, and nobody asked for it: no full qualification" in with_fabric


def test_a_gate_of_another_layout_is_none() -> None:
    def about(layout: str, made: Record) -> Record:
        return replace(made, conditions=conditions(layout=layout))

    scaling = about("ddp", replace(UNGATED, gates_not_run=("memory",)))
    memory = passed("test_memory[x]", "memory")
    assert asides([scaling, about("ddp", memory)]) == []
    assert asides([scaling, replace(memory, conditions=None)]) == []
    assert [label for label, _ in asides([scaling, about("fsdp", memory)])] == ["no gate"]


def test_junit_has_all_of_it_as_properties(tmp_path: Path) -> None:
    def properties(told: Record) -> dict[str, str]:
        root = ET.fromstring(junit([told, told], tmp_path))
        found = [(str(e.get("name")), str(e.get("value"))) for e in root.iter("property")]
        assert len(found) == len(dict(found))
        names = ("exception", "until", "expired", "attempts", "earlier", "gates_not_run")
        return {name.partition(".")[2]: value for name, value in found if name.partition(".")[2] in names}

    assert properties(ACCEPTED) == {"exception": "ticket 4711", "until": "2027-03-01"}
    assert properties(EXPIRED) == {"expired": "ticket 4711", "until": "2026-11-01"}
    assert properties(REPEATED) == {"attempts": "3", "earlier": "FAIL, UNDECIDED"}
    assert properties(UNGATED) == {"gates_not_run": "memory, fabric"}
    assert properties(FAILED) == {}


def test_of_many_the_first_are_told_and_the_others_counted() -> None:
    many = [replace(ACCEPTED, test=f"test_fabric[{number}]") for number in range(5)]
    assert [label for label, _ in asides(many)] == ["accepted"] * 4
    assert asides(many)[-1][1] == "and 2 more in records.jsonl"


@pytest.mark.parametrize(
    ("records", "heading"),
    [
        ([ACCEPTED], "passed: fabric, 1 failure accepted by name; no other criterion was asked for"),
        ([EXPIRED], "refused: fabric FAIL"), ([], "no verdict yet: no test made a record"),
        ([ACCEPTED, UNGATED], "no verdict yet: scaling without memory"),
    ],
)  # fmt: skip
def test_the_heading_of_a_comment_promises_no_more_than_there_is(records: list[Any], heading: str) -> None:
    heads = as_markdown(records, Path()).splitlines()
    assert ": ".join(heads[0:3:2]) == f"## Cluster qualification: {heading}."


def test_the_row_of_a_test_names_its_exception_itself() -> None:
    words = "FAIL accepted until 2027-03-01: ticket 4711"
    (row,) = [line for line in as_markdown([ACCEPTED], Path()).splitlines() if line.startswith("| `")]
    assert words in row
    assert f"<strong>{words}.</strong>" in page([ACCEPTED], Path())

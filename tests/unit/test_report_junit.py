"""JUnit: what CI reads back is what the records say, and the file is well-formed whatever they hold."""

from __future__ import annotations

import errno
import os
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from junit_rules import COUNTS, problems
from junitparser import Error, Failure, JUnitXml, Skipped
from made import STARTED, conditions, demand, finding, measured_sizes, passed, record, whole_run, without_value

from pytest_clusterqual.errors import RunFolderError
from pytest_clusterqual.model.record import Record, Verdict
from pytest_clusterqual.report.junit import properties, write_junit


def written(folder: Path, *records: Record, **suite_properties: str) -> ElementTree.Element:
    """What was written, after everybody who reads it was content."""
    write_junit(records, folder / "junit.xml", suite="demo", properties=suite_properties)
    content = (folder / "junit.xml").read_bytes()
    assert [problem for problem in problems(content) if records] == []
    root = ElementTree.fromstring(content)
    for case in root.iter("testcase"):
        keys = [each.attrib["name"] for each in case.findall("properties/property")]
        assert max(Counter(keys).values()) == 1
        assert all(key.startswith("clusterqual.") for key in keys)
    return root


def counts(root: ElementTree.Element) -> list[str]:
    (suite,) = root
    return [suite.attrib[name] for name in COUNTS]


def keys_of(case: ElementTree.Element) -> dict[str, str]:
    return {
        each.attrib["name"].removeprefix("clusterqual."): each.attrib["value"]
        for each in case.findall("properties/property")
    }


def test_the_whole_run_is_read_back_by_junitparser(tmp_path: Path) -> None:
    written(tmp_path, *whole_run(), project="demo")
    (suite,) = JUnitXml.fromfile(str(tmp_path / "junit.xml"))
    assert [suite.tests, suite.failures, suite.errors, suite.skipped] == [5, 1, 0, 1]
    assert suite.time == pytest.approx(4 * 4.25)  # memory, two fabric tests, full run: one measurement each
    assert suite.timestamp == "2026-11-30T01:48:24"
    assert [(each.name, each.value) for each in suite.properties()] == [("project", "demo")]
    cases = {case.name: case for case in suite}
    assert {name: [type(result) for result in case.result] for name, case in cases.items()} == {
        "test_memory[ddp]": [],
        "test_fabric[all_reduce-world]": [Failure],
        "test_fabric[send_recv-inter_node]": [],
        "test_scaling[ddp-2]": [Skipped],
        "test_full_run[ddp-async]": [],
    }
    assert {case.classname for case in suite} == {"qualification.test_qualification"}


@pytest.mark.parametrize(
    ("verdict", "kind", "type_"),
    [
        (Verdict.FAIL, Failure, "fail"),
        (Verdict.UNDECIDED, Failure, "undecided"),
        (Verdict.ERROR, Error, "error"),
        (Verdict.BLOCKED, Skipped, "blocked"),
    ],
)
def test_verdicts_become_results(tmp_path: Path, verdict: Verdict, kind: type, type_: str) -> None:
    written(tmp_path, record(verdict=verdict, reason="because of that"))
    (suite,) = JUnitXml.fromfile(str(tmp_path / "junit.xml"))
    ((result,),) = [case.result for case in suite]
    assert (type(result), result.type, result.message) == (kind, type_, "because of that")
    assert f"{verdict} 1 MiB: because of that (clusterqual.yaml:14: busbw >= 500 MB/s)" in result.text


def test_a_number_without_a_requirement_is_skipped_and_said(tmp_path: Path) -> None:
    skipped = written(tmp_path, *measured_sizes("test_fabric[x]", 4096, 2, 20e6)).find(".//skipped")
    assert skipped is not None
    assert skipped.attrib == {
        "type": "measured",
        "message": "busbw 4 KiB 20 MB/s: no requirement in the project file",
    }
    assert "busbw 16 KiB 40 MB/s" in str(skipped.text)


def test_a_pass_has_no_result_even_beside_bare_numbers(tmp_path: Path) -> None:
    root = written(tmp_path, passed("test_fabric[x]", "fabric"), *measured_sizes("test_fabric[x]", 4096, 2, 20e6))
    assert counts(root) == ["1", "0", "0", "0"]


def test_a_test_is_as_good_as_its_worst_record(tmp_path: Path) -> None:
    both = [
        passed("test_fabric[x]", "fabric"),
        record("test_fabric[x]", reason="slow"),
        record("test_fabric[x]", verdict=Verdict.UNDECIDED, reason="unsure"),
    ]
    root = written(tmp_path, *both)
    failure = root.find(".//failure")
    assert failure is not None
    assert failure.attrib == {"type": "fail", "message": "slow"}
    assert str(failure.text).index("FAIL") < str(failure.text).index("UNDECIDED")


def test_records_of_one_test_are_told_apart_by_a_number(tmp_path: Path) -> None:
    (case,) = written(
        tmp_path,
        record(label="1 MiB", value=1.0, under=conditions(bytes=1024)),
        record(label="4 MiB", value=2.0, under=conditions(bytes=4096)),
    ).iter("testcase")
    keys = keys_of(case)
    assert (keys["label"], keys["value"], keys["bytes"], keys["nodes"]) == ("1 MiB", "1.0", "1024", "2")
    assert (keys["label.2"], keys["value.2"], keys["bytes.2"]) == ("4 MiB", "2.0", "4096")
    assert "nodes.2" not in keys


def test_time_of_one_measurement_counts_once(tmp_path: Path) -> None:
    root = written(
        tmp_path,
        record("a", seconds=2.0, measurement="m0001"),
        record("a", seconds=2.0, measurement="m0001"),
        record("a", seconds=0.5, measurement="m0002"),
        record("b", seconds=float("nan"), measurement="m0003"),
    )
    assert [case.attrib["time"] for case in root.iter("testcase")] == ["2.5", "0.0"]


def test_properties_hold_the_whole_record() -> None:
    full = record(
        requirement=demand(">= 80 % of expected", 0.5e9, "B/s", 15, "1 NIC x 625 MB/s"),
        findings=(finding(), finding(suspect="node0", level="note")),
        under=conditions(layout="ddp", workload="9f2c", collective="all_reduce", bytes=1048576, group="world"),
    )
    pairs = properties(full)
    assert all(type(key) is str and type(value) is str for key, value in pairs)  # pytest fails on anything else
    said = dict(pairs)
    assert len(said) == len(pairs)
    wanted: dict[str, Any] = {
        "criterion": "fabric",
        "quantity": "busbw",
        "label": "1 MiB",
        "value": 0.41e9,
        "unit": "B/s",
        "interval_low": 0.39e9,
        "interval_high": 0.43e9,
        "interval_kind": "median",
        "requirement": ">= 80 % of expected",
        "requirement_value": 0.5e9,
        "requirement_source": "clusterqual.yaml:15",
        "expected_from": "1 NIC x 625 MB/s",
        "verdict": "FAIL",
        "margin": -0.18,
        "reason": full.judgement.reason,
        "measurement": "m0001",
        "nodes": 2,
        "nproc_per_node": 1,
        "ranks": 2,
        "hosts": "node0,node1",
        "simulated": "true",
        "oversubscribed": "false",
        "device": "cpu",
        "device_name": "AMD EPYC 9654",
        "backend": "gloo",
        "layout": "ddp",
        "workload": "9f2c",
        "collective": "all_reduce",
        "bytes": 1048576,
        "group": "world",
        "versions.torch": "2.13.0",
        "versions.python": "3.11.2",
        "finding": "suspect: link of node1 (slow rank): rank 1 arrives last in 11 of 12 rounds, "
        "1.8 x the median of the others; check next: the NIC counters and cable of node1",
        "finding_2": "note: node0 (slow rank): rank 1 arrives last in 11 of 12 rounds, 1.8 x the median of the others; "
        "check next: the NIC counters and cable of node1",
    }
    assert said == {f"clusterqual.{key}": str(value) for key, value in wanted.items()}


def test_zero_is_a_value_and_none_is_not() -> None:
    said = dict(properties(record(value=0.0, margin=0.0, interval=None)))
    assert (said["clusterqual.value"], said["clusterqual.margin"]) == ("0.0", "0.0")
    blocked = dict(properties(without_value("t", "scaling", Verdict.BLOCKED, "fabric did not pass")))
    assert blocked == {
        "clusterqual.criterion": "scaling",
        "clusterqual.unit": "1",
        "clusterqual.verdict": "BLOCKED",
        "clusterqual.reason": "fabric did not pass",
    }


def test_every_character_is_survived(tmp_path: Path) -> None:
    every = "".join(map(chr, [*range(0x300), 0xD800, 0xDFFF, 0xFFFE, 0xFFFF, 0x1F600])) + "</failure>]]>&<!--\"'"
    evil = record(
        f"a.py::test[{every}]",
        every,
        quantity=every,
        label=every,
        reason=every,
        findings=(finding(evidence=every),),
        under=conditions(hosts=(every,), versions={every: every}),
    )
    (case,) = written(tmp_path, evil, **{"k": every}).iter("testcase")
    assert "\\x1b" in case.attrib["name"]
    assert "\\ud800" in case.attrib["name"]
    assert "</failure>]]>&<!--" in keys_of(case)["quantity"]
    JUnitXml.fromfile(str(tmp_path / "junit.xml"))


@pytest.mark.parametrize(
    ("test", "classname", "name"),
    [
        ("qualification/test_q.py::test_a[x-1]", "qualification.test_q", "test_a[x-1]"),
        ("q/test_q.py::TestB::test_a[h::x/y.py[0]]", "q.test_q.TestB", "test_a[h::x/y.py[0]]"),
        ("test_a", "", "test_a"),
    ],
)
def test_names_are_those_of_pytests_own_report(tmp_path: Path, test: str, classname: str, name: str) -> None:
    (case,) = written(tmp_path, replace(record(), test=test)).iter("testcase")
    assert (case.get("classname"), case.get("name")) == (classname, name)


def test_a_time_that_no_calendar_knows_is_the_first_of_all(tmp_path: Path) -> None:
    for started in (float("nan"), float("inf"), 1e300):
        (suite,) = written(tmp_path, record(started=started))
        assert suite.attrib["timestamp"] == "1970-01-01T00:00:00"
    (suite,) = written(tmp_path, record(started=STARTED + 1), record("b", started=float("nan")))
    assert suite.attrib["timestamp"] == "2026-11-30T01:48:25"


def test_no_records_make_an_empty_suite(tmp_path: Path) -> None:
    assert counts(written(tmp_path)) == ["0", "0", "0", "0"]


def test_a_failed_write_leaves_the_old_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, record())
    before = (tmp_path / "junit.xml").read_bytes()

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(RunFolderError) as caught:
            write_junit([], tmp_path / "junit.xml", suite="demo", properties={})
    assert str(caught.value) == (
        f"{tmp_path / 'junit.xml'}: the JUnit report cannot be written: No space left on device; "
        "free some space, or give another place for it"
    )
    assert (tmp_path / "junit.xml").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["junit.xml"]


@pytest.mark.skipif(sys.platform != "linux", reason="the message is the system's own")
def test_a_missing_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"x/junit.xml: the JUnit report cannot be written: No such file.*; its f"):
        write_junit([], tmp_path / "x" / "junit.xml", suite="demo", properties={})

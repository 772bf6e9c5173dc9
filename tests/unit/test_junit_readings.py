"""junit.xml as Ant's schema, Jenkins and GitLab read it: nothing in it is refused, passed over or shown in part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from junit_rules import problems
from made import conditions, finding, measured_sizes, passed, record, whole_run, without_value

from pytest_clusterqual.model.record import Record, Verdict
from pytest_clusterqual.report.junit import write_junit

HOSTILE = "".join(map(chr, [*range(0x20), *range(0x7F, 0xA0), 0xD800, 0x202E, 0xFFFE, 0x1F600])) + "]]></failure>&amp;"


def every_verdict() -> list[Record]:
    """Each verdict with findings, each of those that can be excepted excepted, and BLOCKED without conditions."""
    given = [record(f"test_fabric[{verdict}]", verdict=verdict, findings=(finding(),)) for verdict in Verdict]
    excepted = [replace(each, test=f"{each.test}-known", exception="ticket 4711") for each in given]
    return [*given, *excepted, without_value("test_scaling[ddp]", "scaling", Verdict.BLOCKED, "fabric did not pass")]


def hostile() -> list[Record]:
    evil = record(f"test_fabric[{HOSTILE}]", HOSTILE, quantity=HOSTILE, label=HOSTILE, reason=HOSTILE,
                  findings=(finding(suspect=HOSTILE, evidence=HOSTILE),))  # fmt: skip
    here = conditions(hosts=(HOSTILE,), versions={HOSTILE: HOSTILE})
    return [replace(evil, conditions=here), replace(evil, test=HOSTILE, seconds=-1.0, started=-1e300)]


def own_tests() -> list[Record]:
    """Those of users, some outside a folder or a class, one with two figures, one only measured."""
    own = [passed("test_own[x::y/z.py]", "own"), passed("test_own[x::y/z.py]", "own", value=1e-9)]
    named = [replace(passed("", "own"), test=test) for test in ("test_a", "a.py::test_b", "a.py::TestA::test_b")]
    return [*own, *named, *measured_sizes("test_sizes", 4096, 3, 20e6)]


def alike() -> list[Record]:
    """Tests that differ in their file only, and whose files differ in a slash only."""
    return [replace(record(), test=test, seconds=1e300) for test in ("a/b.py::test_c", "a.b.py::test_c")]


def many() -> list[Record]:
    return [record(f"test_fabric[{number}]", measurement=f"m{number:04}") for number in range(5000)]


def wide() -> list[Record]:
    """200 tests on a thousand nodes, each of which names them all."""
    hosts = tuple(f"gpu{number:04}" for number in range(1024))
    return [record(f"test_fabric[{number}]", under=conditions(hosts=hosts)) for number in range(200)]


def written(folder: Path, records: list[Record]) -> bytes:
    write_junit(records, folder / "junit.xml", suite="clusterqual", properties={"clusterqual.run": "r"})
    return (folder / "junit.xml").read_bytes()


@pytest.mark.parametrize("made", [whole_run, every_verdict, hostile, own_tests, alike, many, wide])
def test_no_reader_has_anything_against_a_report(tmp_path: Path, made: Callable[[], list[Record]]) -> None:
    records = made()
    content = written(tmp_path, records)
    assert problems(content) == []
    assert len(ElementTree.fromstring(content).findall("testsuite/testcase")) == len({each.test for each in records})


def test_a_run_without_tests_is_one_that_jenkins_wants_to_be_told_of(tmp_path: Path) -> None:
    (problem,) = problems(written(tmp_path, []))
    assert problem.startswith("Jenkins: no testcase")
    suite = ElementTree.parse(tmp_path / "junit.xml").getroot().find("testsuite")
    assert suite is not None and (suite.get("hostname"), suite.get("timestamp")) == ("localhost", "1970-01-01T00:00:00")


# What must be noticed: something that stands in the report of two tests, what becomes of it, and who says so.
BROKEN = [
    ("<testsuites>", '<testsuites skipped="0">', "Ant: the root"),
    ("<testsuites>", '<testsuites skipped="0">', "Jenkins: <testsuites> has"),
    ("<testsuites>", "<testsuites>text", "Ant: <testsuites> holds text"),
    (' id="0"', ' id="1"', "Ant: the id of suite 0"),
    (' hostname="localhost"', "", "Ant: <testsuite> lacks"),
    (' hostname="localhost"', ' hostname=" "', "Ant: hostname of a suite is empty"),
    (' hostname="localhost"', ' hostname="localhost" by="us"', "Ant: <testsuite> has"),
    (' hostname="localhost"', ' hostname="localhost" by="us"', "Jenkins: <testsuite> has"),
    ("T01:48:24", "T01:48:24+00:00", "Ant: the timestamp"),
    ("-11-30T", "-11-31T", "Ant: the timestamp"),
    (' tests="2"', ' tests="3"', "Ant: tests is 3, there are 2"),
    (' failures="1"', ' failures="0"', "Ant: failures is 0, there are 1"),
    (' time="4.25"', ' time="4e0"', "Ant: the time '4e0'"),
    (' time="8.5"', ' time="-8.5"', "Jenkins: the time '-8.5'"),
    ("<system-out /><system-err />", "<system-err /><system-out />", "Ant: <testsuite> holds"),
    ("<system-out />", "", "Ant: <testsuite> holds"),
    ("<failure ", '<error type="x">y</error><failure ', "Ant: <testcase> holds"),
    ("<properties><property ", "<properties><system-out /><property ", "Ant: <properties> holds"),
    (' type="fail"', "", "Ant: <failure> lacks"),
    (' type="fail"', ' type="yaml"', "GitLab: <failure> has"),
    ("<property ", '<property by="us" ', "Ant: <property> has"),
    ('name="clusterqual.unit"', 'name=""', "Ant: a property has no name"),
    (' name="test_good"', ' name="test_bad"', "Jenkins: ("),
    (' name="test_good"', ' name="test_bad"', "GitLab: of 2 testcases"),
    (' name="test_good"', ' name=""', "Jenkins: a testcase of"),
    ("{text}", "", "GitLab: <failure> has no text"),
    ("{text}", "x" * 3_000_000, "GitLab: <failure> has a text"),
    ("{text}", "x" * 30_000_000, "GitLab: 30"),
]


@pytest.mark.parametrize(("there", "instead", "said"), BROKEN, ids=range(len(BROKEN)))
def test_each_rule_notices_what_breaks_it(tmp_path: Path, there: str, instead: str, said: str) -> None:
    content = written(tmp_path, [record("test_bad"), passed("test_good", "fabric")]).decode()
    text = content.partition("<failure ")[2].partition(">")[2].partition("</failure>")[0]
    broken = content.replace(text if there == "{text}" else there, instead, 1)
    assert broken != content
    assert any(problem.startswith(said) for problem in problems(broken.encode())), problems(broken.encode())

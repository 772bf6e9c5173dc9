"""What readers of JUnit XML demand of a file: each function yields a sentence for every rule that is broken.

Ant: the schema of its reports (windyroad/JUnit-Schema, JUnit.xsd), the strictest of all. We go beyond it in one thing,
the properties of a testcase, which pytest writes as well.
Jenkins: the schema of its xUnit plugin (junit-10.xsd), and what its JUnit plugin reads (SuiteResult, CaseResult).
GitLab: its parser (lib/gitlab/ci/parsers/test/junit.rb), Rails' Hash.from_xml and libxml2 below it, and the limits that
its page on unit test reports names.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

RESULTS = ("skipped", "error", "failure")
COUNTS = ("tests", "failures", "errors", "skipped")
_DECIMAL = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)")
_ANT_SUITE = {"name", "timestamp", "hostname", "tests", "failures", "errors", "time", "package", "id"}
_JENKINS_SUITE = _ANT_SUITE | {"skipped", "group", "file", "log", "url"}
# What Rails takes for the type of a value, and converts or refuses.
_RAILS_TYPES = {
    "array", "base64Binary", "boolean", "date", "dateTime", "datetime", "decimal", "double", "duration", "file",
    "float", "hash", "hexBinary", "integer", "string", "symbol", "yaml",
}  # fmt: skip
_GITLAB_BYTES, _GITLAB_CASES, _LIBXML2_TEXT = 30_000_000, 500_000, 10_000_000


def problems(content: bytes) -> list[str]:
    """All that any reader has against a file."""
    root = ElementTree.fromstring(content)
    return [*ant(root), *jenkins(root), *gitlab(root, len(content))]


def ant(root: Element) -> Iterator[str]:
    if root.tag != "testsuites" or root.attrib:
        yield f"Ant: the root is <{root.tag}> with {sorted(root.attrib)}, want <testsuites> with nothing"
    yield from (f"Ant: <{each.tag}> holds text beside elements" for each in root.iter() if len(each) and _text(each))
    for number, suite in enumerate(root):
        yield from _attributes(suite, _ANT_SUITE, {"skipped"})
        if suite.get("id") != str(number):
            yield f"Ant: the id of suite {number} is {suite.get('id')}"
        yield from (
            f"Ant: {key} of a suite is empty" for key in ("name", "hostname") if not suite.get(key, "-").strip()
        )
        yield from _date(suite.get("timestamp", ""))
        yield from _order(suite, r"properties (testcase )*system-out system-err ")
        yield from _counts(suite)
        for case in suite.iter("testcase"):
            yield from _attributes(case, {"name", "classname", "time"}, set())
            yield from _order(case, r"(properties )?((skipped|error|failure) )?")
        yield from _elements(suite)


def _text(element: Element) -> str:
    """What stands between the children of an element."""
    return "".join(text or "" for text in (element.text, *(child.tail for child in element))).strip()


def _attributes(element: Element, required: set[str], optional: set[str]) -> Iterator[str]:
    if missing := required - element.attrib.keys():
        yield f"Ant: <{element.tag}> lacks {sorted(missing)}"
    if unknown := element.attrib.keys() - required - optional:
        yield f"Ant: <{element.tag}> has {sorted(unknown)}"
    if "time" in required and not _DECIMAL.fullmatch(element.get("time", "0")):
        yield f"Ant: the time {element.get('time')!r} is no decimal number"


def _date(text: str) -> Iterator[str]:
    try:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", text)
        datetime.fromisoformat(text)
    except (AssertionError, ValueError):
        yield f"Ant: the timestamp {text!r} is no date and time without a zone"


def _order(element: Element, wanted: str) -> Iterator[str]:
    found = "".join(f"{child.tag} " for child in element)
    if not re.fullmatch(wanted, found):
        yield f"Ant: <{element.tag}> holds {found[:100]}"


def _counts(suite: Element) -> Iterator[str]:
    tags = {"tests": "", "failures": "/failure", "errors": "/error", "skipped": "/skipped"}
    for key, tag in tags.items():
        if suite.get(key) != str(there := len(suite.findall(f"testcase{tag}"))):
            yield f"Ant: {key} is {suite.get(key)}, there are {there}"


def _elements(suite: Element) -> Iterator[str]:
    for each in suite.iter():
        if each.tag == "property":
            yield from _attributes(each, {"name", "value"}, set())
            if not each.get("name", "-").strip():
                yield "Ant: a property has no name"
        elif each.tag in ("error", "failure"):
            yield from _attributes(each, {"type"}, {"message"})
        elif each.tag == "properties":
            yield from _order(each, r"(property )*")


def jenkins(root: Element) -> Iterator[str]:
    if unknown := root.attrib.keys() - {"name", "time", "tests", "failures", "errors"}:
        yield f"Jenkins: <testsuites> has {sorted(unknown)}"
    if root.find("testsuite/testcase") is None:
        yield "Jenkins: no testcase, which fails a build unless the step has allowEmptyResults"
    for suite in root.iter("testsuite"):
        if unknown := suite.attrib.keys() - _JENKINS_SUITE:
            yield f"Jenkins: <testsuite> has {sorted(unknown)}"
        if not re.fullmatch(r"[0-9,]*(\.[0-9]*)?", suite.get("time", "")):
            yield f"Jenkins: the time {suite.get('time')!r} of a suite is not as Surefire writes it"
        cases = Counter((case.get("classname"), case.get("name")) for case in suite.iter("testcase"))
        yield from (f"Jenkins: {name} is there {count} times" for name, count in cases.items() if count > 1)
        yield from (f"Jenkins: a testcase of {classname} has no name" for classname, name in cases if not name)


def gitlab(root: Element, size: int) -> Iterator[str]:
    cases = [(suite.get("name"), case) for suite in root.iter("testsuite") for case in suite.iter("testcase")]
    if size >= _GITLAB_BYTES or len(cases) > _GITLAB_CASES:
        yield f"GitLab: {size} bytes and {len(cases)} testcases are more than it reads"
    keys = Counter(f"{suite}_{case.get('classname')}_{case.get('name')}" for suite, case in cases)
    yield from (f"GitLab: of {count} testcases {key} it shows the first" for key, count in keys.items() if count > 1)
    for each in root.iter():
        if each.tag in RESULTS and not (each.text or "").strip():
            yield f"GitLab: <{each.tag}> has no text, and a message is not read"
        if each.get("type") in _RAILS_TYPES or each.get("nil"):
            yield f"GitLab: <{each.tag}> has {each.attrib}, which Rails takes for the type of its value"
        if max(map(len, (each.text or "", *each.attrib.values()))) * 4 > _LIBXML2_TEXT:  # a character has up to 4 bytes
            yield f"GitLab: <{each.tag}> has a text that libxml2 does not read"

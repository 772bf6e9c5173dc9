"""Records as JUnit XML: properties of a testcase, and a whole file from a run folder's records."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from junitparser import Error, Failure, JUnitXml, Properties, Property, Skipped, TestCase, TestSuite

from pytest_clusterqual.errors import RunFolderError
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.record import Judgement, Record, Verdict, worst
from pytest_clusterqual.report import text
from pytest_clusterqual.report.terminal import failure_message
from pytest_clusterqual.report.text import xml_safe

PREFIX = "clusterqual."

_RESULTS = {
    Verdict.FAIL: (Failure, "fail"),
    Verdict.UNDECIDED: (Failure, "undecided"),
    Verdict.ERROR: (Error, "error"),
    Verdict.BLOCKED: (Skipped, "blocked"),
    Verdict.MEASURED: (Skipped, "measured"),
}


def properties(record: Record) -> list[tuple[str, str]]:
    """The record as ``clusterqual.<key>`` properties; a key without a value is left out.

    Numbers are in the canonical unit that ``clusterqual.unit`` names, in full precision.
    """
    return [*_judged(record), *_circumstances(record.conditions)]


def write_junit(records: Sequence[Record], path: Path | str, *, suite: str, properties: Mapping[str, str]) -> None:
    """Write one testcase a test, as good as its worst record; a reader sees the old file or the whole new one.

    The k-th record of a test (k > 1) has ``.k`` at the end of its keys; of its conditions only
    those that differ from the first record's are repeated. `properties` are the suite's own.

    Raises:
        RunFolderError: the file could not be written.
    """
    testsuite = TestSuite(xml_safe(suite))
    started = [record.started for record in records if math.isfinite(record.started)]
    with contextlib.suppress(ValueError, OverflowError, OSError):  # a time no calendar knows is left out
        testsuite.timestamp = datetime.fromtimestamp(min(started), timezone.utc).isoformat(timespec="seconds")
    for name, value in properties.items():
        testsuite.add_property(xml_safe(name), xml_safe(value))
    testsuite.add_testcases([_testcase(group) for group in _by_test(records)])
    root = JUnitXml(xml_safe(suite))
    root.add_testsuite(testsuite)
    root.update_statistics()
    _replace(Path(path), root)


def _by_test(records: Sequence[Record]) -> list[list[Record]]:
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.test, []).append(record)
    return list(groups.values())


def _testcase(group: Sequence[Record]) -> TestCase:
    classname, name = _names(group[0].test)
    case = TestCase(xml_safe(name), xml_safe(classname), round(_seconds(group), 3))
    bag = Properties()
    for key, value in numbered(group):
        bag.add_property(Property(key, value))
    case.append(bag)
    verdict = worst([record.judgement.verdict for record in group])
    if verdict is not Verdict.PASS:
        excepted = group[0].exception and verdict in (Verdict.FAIL, Verdict.UNDECIDED)
        kind, type_ = (Skipped, "excepted") if excepted else _RESULTS[verdict]
        culprit = next(record for record in group if record.judgement.verdict is verdict)
        because = f"excepted: {group[0].exception}; " if excepted else ""
        result = kind(xml_safe(because + _message(culprit.judgement)), type_)
        result.text = xml_safe(failure_message([record.judgement for record in group], culprit.conditions))
        case.append(result)
    return case


def _message(judgement: Judgement) -> str:
    """The reason; with the number where the reason of a skipped test does not say it."""
    reason, number = text.visible(judgement.reason), text.value_of(judgement)
    if judgement.verdict is not Verdict.MEASURED or not number or number in reason:
        return reason
    return f"{text.quantity_of(judgement)} {number}: {reason}"


def _names(test: str) -> tuple[str, str]:
    """Class name and name as pytest's own JUnit report makes them from a node id."""
    path, bracket, case = test.partition("[")
    *parents, name = path.split("::")
    classname = ".".join([parents[0].removesuffix(".py").replace("/", "."), *parents[1:]]) if parents else ""
    return classname, name + bracket + case


def _seconds(group: Sequence[Record]) -> float:
    """Time of the measurements behind the records, each counted once."""
    longest: dict[str | None, float] = {}
    for record in group:
        seconds = record.seconds if math.isfinite(record.seconds) else 0.0
        longest[record.measurement] = max(seconds, longest.get(record.measurement, 0.0))
    return sum(longest.values())


def numbered(group: Sequence[Record]) -> list[tuple[str, str]]:
    """The properties of all records of one test; the keys of the k-th one (k > 1) end in ``.k``."""
    pairs = properties(group[0])
    first = dict(_circumstances(group[0].conditions))
    for number, record in enumerate(group[1:], 2):
        own = [pair for pair in _circumstances(record.conditions) if first.get(pair[0]) != pair[1]]
        pairs += [(f"{key}.{number}", value) for key, value in [*_judged(record), *own]]
    return pairs


def _judged(record: Record) -> list[tuple[str, str]]:
    judgement, interval, demand = record.judgement, record.judgement.interval, record.judgement.requirement
    return _pairs(
        {
            "criterion": record.criterion,
            "quantity": judgement.quantity,
            "label": judgement.label,
            "value": judgement.value,
            "unit": judgement.unit,
            "interval_low": interval and interval.low,
            "interval_high": interval and interval.high,
            "interval_kind": interval and interval.kind,
            "requirement": demand and demand.text,
            "requirement_value": demand and demand.value,
            "requirement_source": demand and demand.source,
            "expected_from": demand and demand.expected_from,
            "verdict": str(judgement.verdict),
            "margin": judgement.margin,
            "reason": judgement.reason,
            "measurement": record.measurement,
            **{
                "finding" if number == 1 else f"finding_{number}": f"{finding.level}: {text.finding_line(finding)}"
                for number, finding in enumerate(judgement.findings, 1)
            },
        }
    )


def _circumstances(conditions: Conditions | None) -> list[tuple[str, str]]:
    if conditions is None:
        return []
    names = (
        "nodes",
        "nproc_per_node",
        "ranks",
        "simulated",
        "oversubscribed",
        "device",
        "device_name",
        "backend",
        "layout",
        "workload",
        "collective",
        "bytes",
        "group",
        "algorithm",
    )
    load = conditions.load
    return _pairs(
        {
            **{name: getattr(conditions, name) for name in names},
            "hosts": ",".join(conditions.hosts),
            "other_cpu": load and load.other_cpu,
            "other_cpu_node": load and load.node,
            **{f"versions.{name}": version for name, version in sorted(conditions.versions.items())},
        }
    )


def _pairs(values: Mapping[str, object]) -> list[tuple[str, str]]:
    return [
        (PREFIX + xml_safe(key), xml_safe(_plain(value))) for key, value in values.items() if value not in (None, "")
    ]


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _replace(path: Path, root: JUnitXml) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            root.write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise RunFolderError(
            f"{path}: the JUnit report cannot be written: {error.strerror}; "
            "free some space, or give another place for it"
        ) from error

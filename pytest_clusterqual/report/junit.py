"""Records as JUnit XML: properties of a testcase, and a whole file from a run folder's records."""

from __future__ import annotations

import contextlib
import errno
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from junitparser import (
    Attr,
    Error,
    Failure,
    JUnitXml,
    Properties,
    Property,
    Skipped,
    SystemErr,
    SystemOut,
    TestCase,
    TestSuite,
)

from pytest_clusterqual.errors import RunFolderError
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.record import Judgement, Record, Verdict, accepted, by_test, worst
from pytest_clusterqual.report import text
from pytest_clusterqual.report.asides import exception_of
from pytest_clusterqual.report.terminal import failure_message
from pytest_clusterqual.report.text import xml_safe

PREFIX = "clusterqual."

_UNKNOWN_TIME, _UNKNOWN_HOST = datetime.fromtimestamp(0, timezone.utc), "localhost"  # what readers take for unknown
_LONGEST = 1e9  # seconds; with more digits a number is no decimal any more
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
    testsuite = _Suite(xml_safe(suite))
    testsuite.id, testsuite.package = "0", ""
    testsuite.hostname, testsuite.timestamp = xml_safe(_host(records)), _begun(records)
    bag = Properties()
    for name, value in properties.items():
        bag.add_property(Property(xml_safe(name), xml_safe(value)))
    testsuite.append(bag)
    testsuite.add_testcases(list(_testcases(records)))
    testsuite.extend([SystemOut(), SystemErr()])
    root = JUnitXml()
    root.append(testsuite)
    _replace(Path(path), root)


class _Suite(TestSuite):  # type: ignore[misc]  # junitparser is read without its types
    """With all that the schema of Ant's reports demands, which is the strictest one."""

    id, package = Attr(), Attr()


def _host(records: Sequence[Record]) -> str:
    """The host, if there was but one."""
    hosts = {host for record in records if record.conditions for host in record.conditions.hosts}
    return (hosts.pop().strip() if len(hosts) == 1 else "") or _UNKNOWN_HOST


def _begun(records: Sequence[Record]) -> str:
    """When the first record's measurement began, in UTC, without a zone: so Ant writes it and its schema demands it."""
    started = [record.started for record in records if math.isfinite(record.started)]
    begun = _UNKNOWN_TIME
    with contextlib.suppress(ValueError, OverflowError, OSError):  # none, or one that no calendar knows
        begun = datetime.fromtimestamp(min(started), timezone.utc)
    return begun.replace(tzinfo=None).isoformat(timespec="seconds")


def _testcases(records: Sequence[Record]) -> Iterator[TestCase]:
    """A case a test; of two with the same name readers would show one only, so the second gets a number."""
    times: Counter[tuple[str, str]] = Counter()
    for group in by_test(records).values():
        case = _testcase(group)
        times[case.classname, case.name] += 1
        if (count := times[case.classname, case.name]) > 1:
            case.name = f"{case.name} ({count})"
        yield case


def _testcase(group: Sequence[Record]) -> TestCase:
    classname, name = _names(group[0].test)
    case = TestCase(xml_safe(name), xml_safe(classname), round(_seconds(group), 3))
    bag = Properties()
    for key, value in numbered(group):
        bag.add_property(Property(key, value))
    case.append(bag)
    verdict = worst([record.judgement.verdict for record in group])
    if verdict is not Verdict.PASS:
        kind, type_ = (Skipped, "excepted") if accepted(group) else _RESULTS[verdict]
        culprit = next(record for record in group if record.judgement.verdict is verdict)
        because = "; ".join(filter(None, (exception_of(group), _message(culprit.judgement))))
        result = kind(xml_safe(because), type_)
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
        seconds = min(max(record.seconds, 0.0), _LONGEST) if math.isfinite(record.seconds) else 0.0
        longest[record.measurement] = max(seconds, longest.get(record.measurement, 0.0))
    return sum(longest.values())


def numbered(group: Sequence[Record]) -> list[tuple[str, str]]:
    """The properties of all records of one test; the keys of the k-th one (k > 1) end in ``.k``."""
    pairs = properties(group[0]) + _standing(group[0])
    first = dict(_circumstances(group[0].conditions))
    for number, record in enumerate(group[1:], 2):
        own = [pair for pair in _circumstances(record.conditions) if first.get(pair[0]) != pair[1]]
        pairs += [(f"{key}.{number}", value) for key, value in [*_judged(record), *own]]
    return pairs


def _standing(record: Record) -> list[tuple[str, str]]:
    """What is said of a test as a whole, once."""
    return _pairs({
        "exception": record.exception,
        "until": record.until,
        "expired": record.expired,
        "attempts": len(record.earlier) + 1 if record.earlier else None,
        "earlier": ", ".join(map(str, record.earlier)),
        "gates_not_run": ", ".join(record.gates_not_run),
    })  # fmt: skip


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
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "free some space, or give another place for it" if full else "its folder must be there and writable"
        raise RunFolderError(f"{path}: the JUnit report cannot be written: {error.strerror}; {remedy}") from error

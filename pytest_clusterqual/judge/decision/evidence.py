"""The records of a run, looked up by what they are about; each knows its line in ``records.jsonl``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from pytest_clusterqual import units
from pytest_clusterqual.judge.judgement import with_interval
from pytest_clusterqual.model.record import Finding, Interval, Judgement, Record, Verdict, accepted, worst
from pytest_clusterqual.model.telemetry import NodeTelemetry

LADDER = "[ladder]"  # how the test of all ways to make the job fit ends
# A test that did not measure has no conditions; its name still says what it is about.
_CASE = re.compile(r"\[(?P<layout>.+)-(?P<nodes>\d+)nodes?(?:-[\w-]+)?\]$")
_NODES = re.compile(r"(\d+) nodes?")
_IN_PERCENT = ("goodput", "ettr", "headroom", "data_stall", "waiting", "exposed_communication")
# What a person calls a criterion.
NAMES = {
    "nodes": "Nodes", "memory": "Memory", "fabric": "Fabric", "scaling": "Training Scaling", "full_run": "Full-Run",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A record and its line."""

    line: int
    record: Record

    @property
    def judgement(self) -> Judgement:
        return self.record.judgement

    @property
    def verdict(self) -> Verdict:
        return self.record.judgement.verdict

    @property
    def accepted(self) -> bool:
        """True of a failure that the project file accepts by name, as the gates do."""
        return accepted((self.record,))

    @property
    def layout(self) -> str:
        """The layout that the record is about; empty if none."""
        at = self.record.conditions
        return (at.layout or "") if at else self._from_name("layout")

    @property
    def nodes(self) -> int:
        """On how many nodes its test ran, or was to run; 0 if that is not known."""
        at = self.record.conditions
        return at.nodes if at else int(self._from_name("nodes") or 0)

    @property
    def point(self) -> int:
        """Of how many nodes it tells, where its label says that; else 0."""
        found = _NODES.fullmatch(self.judgement.label)
        return int(found[1]) if found else 0

    @property
    def case(self) -> str:
        """The bracket part of its test's name, or that name, and the label."""
        name, bracket, case = self.record.test.partition("[")
        test = case.removesuffix("]") if bracket else name.rsplit("::", 1)[-1]
        return " ".join(filter(None, (test, self.judgement.label)))

    @property
    def figure(self) -> str:
        """Its value with the interval, for people."""
        value, interval = self.judgement.value, self.judgement.interval
        if value is None:
            return "no number"
        return with_interval(self._shown(value), interval, self._shown)

    def _shown(self, value: float) -> str:
        percent = self.judgement.quantity in _IN_PERCENT and math.isfinite(value)
        return units.show_share(value) if percent else units.show(value, self.judgement.unit)

    def _from_name(self, part: str) -> str:
        found = _CASE.search(self.record.test)
        return found[part] if found else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """Some records of a run, in the order of their lines."""

    entries: tuple[Entry, ...]

    @classmethod
    def of_run(cls, records: Mapping[int, Record]) -> Evidence:
        """All but the decision itself, which rests on the others."""
        known = sorted(records.items())
        return cls(entries=tuple(Entry(line=line, record=r) for line, r in known if r.criterion != "decision"))

    def __bool__(self) -> bool:
        return bool(self.entries)

    @property
    def lines(self) -> tuple[int, ...]:
        return tuple(entry.line for entry in self.entries)

    @property
    def first(self) -> Entry | None:
        return self.entries[0] if self.entries else None

    @property
    def findings(self) -> tuple[tuple[Entry, Finding], ...]:
        """What is pointed at, each with the record that says so."""
        return tuple((entry, finding) for entry in self.entries for finding in entry.judgement.findings)

    @property
    def telemetry(self) -> Iterator[tuple[Entry, NodeTelemetry]]:
        """What nodes told of themselves, with the first of the records that share it: all of one measurement do."""
        seen: set[int] = set()
        for entry in self.entries:
            at = entry.record.conditions
            if at is not None and id(at) not in seen:
                seen.add(id(at))
                yield from ((entry, node) for node in at.telemetry)

    def having(self, wanted: Callable[[Entry], bool]) -> Evidence:
        return Evidence(entries=tuple(filter(wanted, self.entries)))

    def about(self, criterion: str) -> Evidence:
        """The records of one criterion; of Memory without the ladder, whose rungs are no verdicts."""
        return self.having(lambda e: e.record.criterion == criterion and not e.record.test.endswith(LADDER))

    def ladder(self, quantity: str) -> Evidence:
        """What is said of each rung of the memory ladder."""
        return self.having(lambda e: e.record.test.endswith(LADDER) and e.judgement.quantity == quantity)

    def of(self, *quantities: str) -> Evidence:
        return self.having(lambda e: e.judgement.quantity in quantities)

    def with_verdict(self, *verdicts: Verdict) -> Evidence:
        return self.having(lambda e: e.verdict in verdicts)

    def number(self, *quantities: str) -> Entry | None:
        """The first record that has a value of one of these quantities."""
        return next((e for e in self.of(*quantities).entries if e.judgement.value is not None), None)

    def worst(self) -> Entry:
        """The record with the worst verdict, the one furthest off first."""
        verdict = worst([entry.verdict for entry in self.entries])
        return min(self.with_verdict(verdict).entries, key=lambda e: _margin(e.judgement))

    def by(self, key: Callable[[Entry], str]) -> dict[str, Evidence]:
        """The records in groups, in the order in which each group begins."""
        groups: dict[str, list[Entry]] = {}
        for entry in self.entries:
            groups.setdefault(key(entry), []).append(entry)
        return {name: Evidence(entries=tuple(group)) for name, group in groups.items()}

    def tests(self) -> dict[str, Evidence]:
        return self.by(lambda e: e.record.test)

    def __or__(self, other: Evidence) -> Evidence:
        """Both, each record once."""
        both = {entry.line: entry for entry in (*self.entries, *other.entries)}
        return Evidence(entries=tuple(both[line] for line in sorted(both)))


NOTHING = Evidence(entries=())


def evidence(*entries: Entry | None) -> Evidence:
    """Of single records, those that there are."""
    return Evidence(entries=tuple(entry for entry in entries if entry is not None))


def whole(interval: Interval | None, holds: Callable[[float], bool]) -> bool | None:
    """True if something holds for the whole interval, False if for none of its ends; None if that is not known."""
    if interval is None or not (math.isfinite(interval.low) and math.isfinite(interval.high)):
        return None
    ends = {holds(interval.low), holds(interval.high)}
    return ends.pop() if len(ends) == 1 else None


def _margin(judgement: Judgement) -> float:
    return -math.inf if judgement.margin is None or math.isnan(judgement.margin) else judgement.margin

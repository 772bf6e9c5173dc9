"""The top of the page: verdicts, the decision, what to know of the run, and the few most important findings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from pytest_clusterqual import units
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.decision import TITLES, Decision
from pytest_clusterqual.model.record import Finding, Record, accepted, by_test, worst
from pytest_clusterqual.report import text
from pytest_clusterqual.report.asides import asides
from pytest_clusterqual.report.digest import because, conditions_of, findings, load_lines, severity
from pytest_clusterqual.report.overall import incomplete

NAMES = {
    "nodes": "Nodes", "memory": "Memory", "fabric": "Fabric", "scaling": "Training Scaling", "full_run": "Full-Run",
    "own": "Own tests",
}  # fmt: skip
_ALWAYS = ("memory", "fabric", "scaling", "full_run")
_FOREMOST = 3
_HOSTS, _LAYOUTS = 8, 12


@dataclass(frozen=True, kw_only=True, slots=True)
class Tile:
    """One criterion. Without a `verdict` it was not run; `accepted` counts failures that the project file excepts.

    `incomplete` says how many of its tests the verdict is about, where it is not all of them.
    """

    criterion: str
    name: str
    verdict: str
    why: str
    accepted: int = 0
    incomplete: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    title: str
    why: str
    missing: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Foremost:
    """The most important findings, and how many more there are."""

    findings: Sequence[Finding]
    more: int


def tiles(criteria: Mapping[str, Sequence[Record]], asked: Mapping[str, Sequence[str]]) -> list[Tile]:
    """The four criteria, run or not, and what else has records; the decision has its own place."""
    names = [name for name in NAMES if name in _ALWAYS or name in criteria]
    names += [name for name in criteria if name not in NAMES and name != "decision"]
    return [_tile(name, criteria.get(name, ()), asked) for name in names]


def _tile(name: str, group: Sequence[Record], asked: Mapping[str, Sequence[str]]) -> Tile:
    if not group:
        return Tile(criterion=name, name=name_of(name), verdict="", why="not run")
    verdict = worst([record.judgement.verdict for record in group])
    excepted = [test for test in by_test(group).values() if accepted(test)]
    return Tile(
        criterion=name, name=name_of(name), verdict=str(verdict), why=because(group, verdict), accepted=len(excepted),
        incomplete=incomplete(name, group, asked),
    )  # fmt: skip


def name_of(criterion: str) -> str:
    return NAMES.get(criterion, criterion)


def outcome(decision: Decision | None) -> Outcome:
    if decision is None:
        return Outcome(title="none", why="neither Memory nor Training Scaling has a record to decide on")
    return Outcome(title=TITLES[decision.outcome], why=decision.why, missing=decision.missing)


def foremost(records: Sequence[Record]) -> Foremost:
    """Suspects before notes, those of the worst records first."""
    worst_first = sorted((record.judgement for record in records), key=severity)
    suspects, notes = findings(worst_first)
    every = [*suspects, *notes]
    return Foremost(findings=every[:_FOREMOST], more=max(len(every) - _FOREMOST, 0))


def facts(
    run: str, environment: Mapping[str, Any], records: Sequence[Record], *, simulated: bool
) -> list[tuple[str, str]]:
    """What, where, when: label and words; what is not known is left out."""
    known = conditions_of(records)
    rows = [
        ("nodes", "simulated, all on one machine" if simulated else "real"),
        ("world", _several(text.ranks_of(at) for at in known)),
        ("hosts", _hosts(known)),
        ("job", _job(known)),
        ("hardware", _several(at.device_name for at in known)),
        ("software", _several(f"{name} {version}" for at in known for name, version in sorted(at.versions.items()))),
        ("measured", _when(records)),
        ("run", run + (f", attempt {environment['attempts']}" if environment.get("attempts", 1) != 1 else "")),
    ]
    return [(label, words) for label, words in rows if words]


def warnings(
    environment: Mapping[str, Any], records: Sequence[Record], missing: Sequence[str], note: str
) -> list[str]:  # fmt: skip
    """What the reader must know before believing a number."""
    replayed = environment.get("replay_of")
    return [
        *([f"Judged again from the run {replayed}: nothing was measured."] if replayed else []),
        *(f"{label.capitalize()}: {sentence}." for label, sentence in asides(records)),
        *_of_conditions(conditions_of(records)),
        *([_untested(missing)] if missing else []),
        *([note] if note else []),
    ]


def _of_conditions(known: Sequence[Conditions]) -> Iterator[str]:
    if any(at.oversubscribed for at in known):
        yield "Ranks share cores (oversubscribed)."
    yield from (f"{line}." for line in load_lines(known)[:_HOSTS])
    yield from text.throttled_lines(node for at in known for node in at.telemetry)[:_HOSTS]


def _untested(missing: Sequence[str]) -> str:
    return f"Without a record although asked for: {units.show_some([text.case_of(test) for test in missing], _HOSTS)}."


def _several(words: Iterable[str]) -> str:
    return " · ".join(dict.fromkeys(filter(None, words)))


def _hosts(known: Iterable[Conditions]) -> str:
    return units.show_some(list(dict.fromkeys(host for at in known for host in at.hosts)), _HOSTS)


def _job(known: Sequence[Conditions]) -> str:
    jobs = _several(at.workload or "" for at in known)
    layouts = list(dict.fromkeys(at.layout for at in known if at.layout))
    if not jobs:
        return ""
    return f"workload {jobs}" + (f" as {units.show_some(layouts, _LAYOUTS)}" if layouts else "")


def _when(records: Sequence[Record]) -> str:
    """From the first measurement's begin to the last one's end, in UTC; what was only judged or blocked took no time
    of the nodes, and may be of another day.
    """
    records = [record for record in records if record.measurement] or records
    begun = [record.started for record in records if math.isfinite(record.started) and record.started > 0]
    ended = [record.started + record.seconds for record in records if math.isfinite(record.started + record.seconds)]
    try:
        first, last = (datetime.fromtimestamp(moment, timezone.utc) for moment in (min(begun), max(ended)))
    except (ValueError, OverflowError, OSError):  # none, or a time that no calendar knows
        return ""
    begin, end = f"{first:%Y-%m-%d %H:%M}", f"{last:%Y-%m-%d %H:%M}"
    until = end if last.date() != first.date() else f"{last:%H:%M}"
    return f"{begin} UTC" if begin == end else f"{begin} to {until} UTC"

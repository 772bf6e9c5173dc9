"""Do the verdicts of a recorded run follow from what it measured? Everything that a reader is told is compared."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from pytest_clusterqual import __version__
from pytest_clusterqual.errors import UNFORESEEN, ClusterQualError
from pytest_clusterqual.folder.places import ENVIRONMENT
from pytest_clusterqual.folder.runs import RunFolder
from pytest_clusterqual.judge.decision.verdict import judge_decision
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.decision import TITLES, Decision
from pytest_clusterqual.model.measurement import NodesMeasurement
from pytest_clusterqual.model.project import DecisionPlan, Project
from pytest_clusterqual.model.record import Judgement, Record, Verdict, by_test, verdict_of
from pytest_clusterqual.read.hosts import fold_hosts
from pytest_clusterqual.recorded.deciding import DECISION, decision_of, plan_of
from pytest_clusterqual.recorded.judging import (
    Change,
    alike,
    as_sentence,
    by_figure,
    changes,
    judge_again,
    own_figure,
    own_project,
    unmeasured,
)
from pytest_clusterqual.recorded.outcomes import with_exception

PROJECT = "clusterqual.yaml"  # the project file in a sealed run
Line = tuple[str, str]  # for people: what it is about, and what is told
_NO_FILE = "the run recorded no project file; judge it by one of yours: clusterqual judge RUN --config FILE"
_MET = ("device", "device_name", "backend", "versions")
_CONCLUDED = (Verdict.PASS, Verdict.FAIL, Verdict.UNDECIDED, Verdict.MEASURED)
_TOLD = (
    "unit", "interval", "reason", "margin", "expected", "expected_why", "samples", "per_rank", "parts", "findings"
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Followed:
    """What a recorded run says, as far as it can be held against itself.

    `measured` are lines with the verdicts of tests that rest on measurements or on other records, `unmeasured` of the
    others, with the reason. `unjudged` says why nothing could be judged again. `changed` and `contradictions` are what
    does not follow; `unrecorded` are tests that should have a record and have none. `release` is the other release
    that measured: its sentences were not compared. `where` and `when` are those of the measurements.
    """

    measured: tuple[Line, ...]
    unmeasured: tuple[Line, ...]
    unrecorded: tuple[str, ...]
    changed: tuple[Change, ...]
    contradictions: tuple[str, ...]
    unjudged: str
    release: str
    simulated: bool
    where: str
    when: str
    decision: str

    @property
    def holds(self) -> bool:
        return not (self.changed or self.contradictions or self.unjudged or self.unrecorded)


def follow(folder: RunFolder) -> Followed:
    """Judge a run again by its own project file, and compare.

    Raises:
        ClusterQualError: the run cannot be read.
    """
    records, release = folder.records(), _other_release(folder.records())
    project, again, unjudged = _again(folder)
    judged = [r for r in records if r.measurement is None] if unjudged else records
    found = tuple(changes(judged, again))
    made, plan = _made(folder, records, again), _plan(folder, project)
    decision = decision_of(folder, plan)
    told = [*_measured_so(folder, records, made), *_required_so(records, again, words=not release)]
    if project is not None:
        told += [*_asked_so(folder, project), *_accepted_so(records, project)]
    told += [*_met_so(folder, made), *_selected_so(folder, records), *_repeated_so(folder)]
    told += [*_decided_so(folder, records, decision, plan, words=not release)]
    measured, bare = _verdicts(records)
    return Followed(
        measured=measured, unmeasured=bare, unrecorded=_unrecorded(folder, records), changed=found,
        contradictions=tuple(dict.fromkeys(told)), unjudged=unjudged, release=release, simulated=folder.simulated,
        where=_where(made), when=_when(made),
        decision=f"{TITLES[decision.outcome]}: {decision.why}" if decision else "",
    )  # fmt: skip


def _again(folder: RunFolder) -> tuple[Project | None, list[Record], str]:
    """The project, the records that it gives, and why there are only those that need no project."""
    if not isinstance(folder.environment.get("project_file"), str):
        return None, unmeasured(folder), _NO_FILE
    try:
        project = own_project(folder)
        return project, judge_again(folder, project), ""
    except ClusterQualError as error:
        return None, unmeasured(folder), str(error)
    except UNFORESEEN as error:  # of numbers that nobody can have measured
        return None, unmeasured(folder), f"{type(error).__name__}: {error}"


def _verdicts(records: Iterable[Record]) -> tuple[tuple[Line, ...], tuple[Line, ...]]:
    """Of tests that rest on measurements, and of the others: the verdict and what belongs to it."""
    measured, bare = [], []
    for test, group in by_test(records).items():
        verdict, told = f"  {verdict_of(group)}", f"{test}{_noted(group[0])}"
        alone = [record for record in group if record.measurement is None and not _decides(record)]
        if alone:
            own = own_figure(alone[0])
            why = "an own test, which keeps no measurement" if own else alone[0].judgement.reason
            bare.append((verdict, f"{told}: {why}"))
        else:
            measured.append((verdict, told))
    return tuple(measured), tuple(bare)


def _noted(record: Record) -> str:
    earlier = [f"before: {', '.join(record.earlier)}"] if record.earlier else []
    accepted = [f"accepted until {record.until}: {record.exception}"] if record.exception else []
    return f" ({'; '.join(earlier + accepted)})" if earlier or accepted else ""


def _decides(record: Record) -> bool:
    """True of the decision, unless it was never made."""
    return record.criterion == "decision" and record.judgement.verdict in _CONCLUDED


# -- what a reader is told, against what it should come from -------------------------------------


class _Made(NamedTuple):
    """Of a measurement what a record repeats."""

    test: str
    criterion: str
    conditions: Conditions | None
    started: float
    seconds: float


def _made(folder: RunFolder, records: Iterable[Record], again: Iterable[Record]) -> dict[str, _Made]:
    """The measurements that records rest on, by their names; what was judged again is not read again."""
    made = {r.measurement: _Made(r.test, r.criterion, r.conditions, r.started, r.seconds) for r in again}
    found = folder.measurements()
    for name in dict.fromkeys(record.measurement for record in records):
        if name is not None and name in found and name not in made:
            test, criterion, m = found[name]
            made[name] = _Made(test, criterion, m.conditions, m.started, m.seconds)
    return {name: each for name, each in made.items() if name is not None}


def _measured_so(folder: RunFolder, records: Sequence[Record], made: dict[str, _Made]) -> Iterator[str]:
    """Test, time and conditions of a record are those of its measurement, and the nodes those of the run."""
    compared = set()  # records of one measurement share their conditions, which for a thousand nodes are large
    for record in records:
        if (name := record.measurement) is None:
            continue
        if name not in made:
            yield f"{record.test}: its measurement {name} is missing"
            continue
        of = made[name]
        if (record.test, record.criterion) != (of.test, of.criterion):
            yield f"{record.test}: its measurement {name} is of {of.test}, {of.criterion}"
        if not alike((record.started, record.seconds), (of.started, of.seconds)):
            yield f"{record.test}: its time is not that of its measurement {name}"
        if (name, id(record.conditions)) not in compared and not alike(record.conditions, of.conditions):
            yield f"{record.test}: its conditions are not those of its measurement {name}"
        compared.add((name, id(record.conditions)))
    for of in made.values():
        if of.conditions is not None and of.conditions.simulated != folder.simulated:
            one, other = _nodes(of.conditions.simulated), _nodes(folder.simulated)
            yield f"{of.test}: was measured on {one}, the run says {other}"


def _met_so(folder: RunFolder, made: dict[str, _Made]) -> Iterator[str]:
    """The machine that the run names is one that it measured; a replay names that of the run before it."""
    told = folder.environment
    if "replay_of" in told:
        return
    unmet = _unmet(told, [each.conditions for each in made.values() if each.conditions], ())
    if unmet:  # a measurement without a record, or one that asked the nodes alone, may have met it
        every = [measurement for _, _, measurement in folder.measurements().values()]
        asked = [node.host for each in every if isinstance(each, NodesMeasurement) for node in each.nodes]
        unmet = _unmet(told, [each.conditions for each in every if each.conditions], asked)
    for key in unmet:
        yield f"{ENVIRONMENT}: {key}: got {told[key]!r}, and no measurement was made under that"


def _unmet(told: Mapping[str, Any], met: Sequence[Conditions], asked: Iterable[str]) -> list[str]:
    hosts = {host for each in met for host in each.hosts}.union(asked)
    wrong = [key for key in _MET if key in told and told[key] not in [getattr(each, key) for each in met]]
    return wrong if hosts.issuperset(map(str, _listed(told.get("hosts")))) else [*wrong, "hosts"]


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _nodes(simulated: bool) -> str:
    return "simulated nodes" if simulated else "real nodes"


def _required_so(records: Sequence[Record], again: Sequence[Record], *, words: bool) -> Iterator[str]:
    """Requirements, and with `words` everything else that is said of a figure, are those that follow."""
    after = by_figure(again)
    for figure, record in by_figure(records).items():
        if figure not in after:
            continue
        one, other = _placed(record.judgement), _placed(after[figure].judgement)
        wrong = [
            name for name in ("requirement", *(_TOLD if words else ()))
            if not alike(getattr(one, name), getattr(other, name))
        ]  # fmt: skip
        if wrong:
            name = " ".join(filter(None, (one.quantity, one.label)))
            meant = f": {other.reason}" if "reason" in wrong else ""
            yield f"{record.test}: {name}: another {', '.join(wrong)} than follows{meant}"


def _placed(judgement: Judgement) -> Judgement:
    """With the line that a requirement stands on, but not its file: it may have moved."""
    if judgement.requirement is None:
        return judgement
    line = judgement.requirement.source.rpartition(":")[2]
    return replace(judgement, requirement=replace(judgement.requirement, source=line))


def _asked_so(folder: RunFolder, project: Project) -> Iterator[str]:
    """The project file beside the records, and the plan of the decision, are those that the run recorded."""
    text, beside = folder.environment["project_file"], folder.path / PROJECT
    if beside.is_file() and beside.read_bytes() != text.encode(errors="replace"):
        yield f"{PROJECT}: is not the project file that the run recorded"
    told, asked = plan_of(folder), project.decision
    if told is not None and (asked is None or replace(told, source="") != replace(asked, source="")):
        yield "environment.json: decision: is not what the project file says"


def _accepted_so(records: Sequence[Record], project: Project) -> Iterator[str]:
    """What is said of an exception is what the project file says of the day of the measurement."""
    for record in records:
        known = with_exception(record, project)
        for key in ("exception", "until", "expired"):
            if (told := getattr(record, key)) != (wanted := getattr(known, key)):
                yield f"{record.test}: {key}: got {told!r}, the project file gives {wanted!r}"


def _selected_so(folder: RunFolder, records: Sequence[Record]) -> Iterator[str]:
    """A record is of this run, and of the criterion that its test was selected as."""
    if folder.lost:
        yield folder.lost
    tests = folder.tests
    for record in records:
        if record.run != folder.run:
            yield f"{record.test}: is recorded in the run {record.run}, this is {folder.run}"
        if record.test in tests and tests[record.test].criterion != record.criterion:
            yield f"{record.test}: is recorded as {record.criterion}, was selected as {tests[record.test].criterion}"


def _repeated_so(folder: RunFolder) -> Iterator[str]:
    """What a test was in earlier attempts is told by the record that counts: repeated until it passed is no secret."""
    for test, group in by_test(folder.history()).items():
        attempts = {record.attempt: [r for r in group if r.attempt == record.attempt] for record in group}
        *before, last = (attempts[attempt] for attempt in sorted(attempts))
        was = tuple(verdict for each in before if (verdict := verdict_of(each)) is not Verdict.BLOCKED)
        if was and last[0].criterion != "decision" and last[0].earlier[-len(was) :] != was:
            yield f"{test}: was {', '.join(was)} in earlier attempts, and its record does not say so"


def _plan(folder: RunFolder, project: Project | None) -> DecisionPlan | None:
    """What was asked of the decision: as recorded, which knows where the project file was."""
    return plan_of(folder) or (project.decision if project else None)


def _decided_so(
    folder: RunFolder, records: Sequence[Record], decision: Decision | None, plan: DecisionPlan | None, *, words: bool
) -> Iterator[str]:
    """The decision, in its test's record and in its file, is the one that follows from the records."""
    again = judge_decision(decision, plan or DecisionPlan()) if decision else None
    for record in filter(_decides, records):
        one = record.judgement
        same = again is not None and (one.quantity, one.label, one.verdict) == ("outcome", again.label, again.verdict)
        if not same or (words and again is not None and one.reason != again.reason):
            follows = f"{again.label} {again.verdict}: {again.reason}" if again else "none"
            yield f"{record.test}: decided {one.label} {one.verdict}; what follows from the records: {follows}"
    file = folder.path / DECISION
    if file.is_file() and _outcome_in(file, words) != _outcome(decision, words):
        yield f"{DECISION}: what follows from the records: {': '.join(_outcome(decision, True)) or 'no decision'}"


def _outcome(decision: Decision | None, words: bool) -> tuple[str, ...]:
    return () if decision is None else (decision.outcome, decision.why)[: 2 if words else 1]


def _outcome_in(file: Path, words: bool) -> tuple[object, ...]:
    try:
        told = json.loads(file.read_bytes())
        return (told["outcome"], told["why"])[: 2 if words else 1]
    except (ValueError, LookupError, TypeError, RecursionError):
        return ("malformed",)


def _unrecorded(folder: RunFolder, records: Sequence[Record]) -> tuple[str, ...]:
    """The decision may be told only, and in a run that ended well a test of one's own need not make a record."""
    known, free = {record.test for record in records}, ("decision", "own") if folder.ended else ("decision",)
    return tuple(
        test for test, asked in folder.tests.items()
        if test not in known and not asked.inapplicable and asked.criterion not in free
    )  # fmt: skip


# -- where and when it was measured --------------------------------------------------------------


def _other_release(records: Sequence[Record]) -> str:
    """The release that measured, where it is another one."""
    told = {r.conditions.versions.get("pytest_clusterqual", __version__) for r in records if r.conditions}
    return ", ".join(sorted(told - {__version__}))


def _where(made: dict[str, _Made]) -> str:
    under = [each.conditions for each in made.values() if each.conditions is not None]
    hosts = dict.fromkeys(host for each in under for host in each.hosts)
    devices = dict.fromkeys(f"{each.device_name} ({each.backend})" for each in under)
    return f"{fold_hosts(hosts)}: {', '.join(devices)}" if hosts else "no rank ran"


def _when(made: dict[str, _Made]) -> str:
    if not made:
        return ""
    ends = (min(each.started for each in made.values()), max(each.started + each.seconds for each in made.values()))
    begun, ended = (_utc(end).strftime("%Y-%m-%d %H:%M:%S") for end in ends)
    return f"{begun} to {ended} UTC"


def _utc(seconds: float) -> datetime:
    try:
        return datetime.fromtimestamp(seconds, timezone.utc)
    except (ValueError, OverflowError, OSError):  # no time at all
        return datetime.max


# -- what is told --------------------------------------------------------------------------------


def as_lines(found: Followed) -> list[Line]:
    """Where and when, what does not follow, and every verdict with what it is worth."""
    lines = [("measured", f"on {_nodes(found.simulated)}, {found.when}, {found.where}" if found.when else "nothing")]
    if found.release:
        lines.append(("release", f"{found.release} measured, {__version__} judged again; sentences are not compared"))
    lines += problems(found)
    if found.unjudged:
        lines.append(("recorded", "what the records say, not judged again:"))
    elif not (found.changed or found.contradictions):
        lines.append(("verified", "judged again from what was measured, with the same figures, reasons and findings:"))
    else:
        lines.append(("recorded", "what the records say, contradicted by what is told above:"))
    lines += found.measured
    if found.unmeasured:
        lines.append(("recorded", "without a measurement that it could be judged again from:"))
        lines += found.unmeasured
    return lines + ([("decision", found.decision)] if found.decision else [])


def problems(found: Followed) -> list[Line]:
    """What does not follow from the measurements, or could not be shown to."""
    lines = [("DIFFERENT", told) for told in (*map(as_sentence, found.changed), *found.contradictions)]
    if found.unjudged:
        lines.append(("NOT JUDGED", f"the verdicts cannot be judged again: {found.unjudged}"))
    return lines + [("NO RECORD", test) for test in found.unrecorded]

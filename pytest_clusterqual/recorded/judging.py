"""A recorded run judged again: under another project file, or under its own, to the same verdicts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from pytest_clusterqual.errors import ClusterQualError, MeasurementError, RunFolderError
from pytest_clusterqual.folder.places import ENVIRONMENT
from pytest_clusterqual.folder.runs import RunFolder
from pytest_clusterqual.judge.decision.verdict import judge_decision
from pytest_clusterqual.judge.verdict import judge
from pytest_clusterqual.model.codec import to_json
from pytest_clusterqual.model.decision import Decision
from pytest_clusterqual.model.measurement import Measurement
from pytest_clusterqual.model.project import Project
from pytest_clusterqual.model.record import SCHEMA, Judgement, Record, Verdict
from pytest_clusterqual.model.requirement import QUANTITIES
from pytest_clusterqual.read.project import recorded_project
from pytest_clusterqual.recorded.baseline import recorded_baseline
from pytest_clusterqual.recorded.outcomes import with_exception, without_number
from pytest_clusterqual.report.text import value_of

_OF_CRITERIA = {quantity for quantities in QUANTITIES.values() for quantity in quantities}
_WITHOUT_MEASUREMENT = (Verdict.ERROR, Verdict.BLOCKED)
# Another processor or library rounds otherwise. The second is for sums that are 0 but for their rounding.
_ROUNDING, _NOTHING = 1e-9, 1e-15
# Of a job: where it lies, and how it is read and watched; the fingerprint leaves out the same.
_NOT_ITSELF = ("data_path", "loader", "folder", "time_limit", "log", "pattern")
Figure = tuple[str, str, str, str, int]  # test, quantity, label, requirement, and which of several alike


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A figure of a test with another verdict, or with another value; None where it is not there any more, or yet."""

    test: str
    quantity: str
    label: str
    requirement: str
    before: Judgement | None
    after: Judgement | None


def own_project(folder: RunFolder) -> Project:
    """The project file that the run was judged by, with the baseline that it was held against.

    Raises:
        RunFolderError: the run recorded none, or its baseline is malformed.
        ProjectFileError: this release reads it otherwise.
    """
    told = folder.environment
    text, nodes, ranks = (told.get(key) for key in ("project_file", "nodes", "nproc_per_node"))
    if not isinstance(text, str) or not isinstance(nodes, int) or not isinstance(ranks, int):
        raise RunFolderError(
            f"{folder.path / ENVIRONMENT}: holds no project file with its nodes and ranks, so nothing can be judged "
            "again by it; name one with --config"
        )
    project = recorded_project(text, name=f"{folder.run}/clusterqual.yaml", nodes=nodes, nproc_per_node=ranks)
    return replace(project, baseline=recorded_baseline(folder))


def judge_again(folder: RunFolder, project: Project) -> list[Record]:
    """What `project` says of the raw measurements. What could not be measured keeps its record, as it was.

    A criterion that the project does not have any more leaves no record; the decision is for who wants it.
    """
    before = {record.test: record for record in folder.records()}
    records = [
        _standing(record, before.get(test))
        for name, (test, criterion, measurement) in _last(folder)
        if asked(project, criterion)
        for record in _judged(folder, project, name, test, criterion, measurement)
    ]
    return [with_exception(record, project) for record in (*records, *unmeasured(folder))]


def decided(folder: RunFolder, project: Project, decision: Decision) -> list[Record]:
    """The records of the decision's tests, held against what `project` expects; none where it wants no decision."""
    if project.decision is None:
        return []
    judgement = judge_decision(decision, project.decision)
    told = [record for record in folder.records() if record.criterion == "decision"]
    return [with_exception(replace(record, judgement=judgement), project) for record in told]


def _standing(record: Record, before: Record | None) -> Record:
    """In the attempt in which it was measured, after the same attempts and gates."""
    if before is None:
        return record
    return replace(record, attempt=before.attempt, earlier=before.earlier, gates_not_run=before.gates_not_run)


def unmeasured(folder: RunFolder) -> list[Record]:
    """The records that rest on no measurement; one that says what only a measurement can tell is an ERROR."""
    return [_as_far(r) for r in folder.records() if r.measurement is None and r.criterion != "decision"]


def own_figure(record: Record) -> bool:
    """True of what a user's own test gave to `qualify.samples`, which may count for a criterion.

    It keeps no measurement, and is none of the figures that criteria have.
    """
    told = record.judgement
    if record.criterion == "own":
        return True
    return record.measurement is None and bool(told.samples) and told.quantity not in _OF_CRITERIA


def _as_far(record: Record) -> Record:
    """What a record without a measurement is worth: one of an own test has its samples in itself."""
    told = record.judgement
    if told.verdict in _WITHOUT_MEASUREMENT or own_figure(record):
        return record
    reason = f"there is no measurement that {told.verdict} could follow from"
    return replace(record, judgement=replace(told, verdict=Verdict.ERROR, value=None, interval=None, reason=reason))


def _last(folder: RunFolder) -> Iterator[tuple[str, tuple[str, str, Measurement]]]:
    """The measurements that the records of each test's last attempt rest on, and those without a record; one at a time,
    for each may be large.
    """
    on, recorded = set(), set()
    for record in folder.records():
        recorded.add(record.test)
        on.add(record.measurement)
    found = folder.measurements()
    for name, test in found.tests().items():
        if name in on or test not in recorded:
            yield name, found[name]


def asked(project: Project, criterion: str) -> bool:
    """True if the project file has a section of this criterion."""
    sections = {
        "nodes": project.topology, "memory": project.memory, "fabric": project.fabric, "scaling": project.scaling,
        "full_run": project.full_run,
    }  # fmt: skip
    return sections.get(criterion) is not None


def _judged(
    folder: RunFolder, project: Project, name: str, test: str, criterion: str, measurement: Measurement
) -> Iterator[Record]:
    try:
        judgements = judge(project.of_test(test), measurement)
    except MeasurementError as error:
        judgements = (without_number(criterion, Verdict.ERROR, str(error)),)
    for judgement in judgements:
        yield Record(
            schema=SCHEMA, run=folder.run, test=test, criterion=criterion, judgement=judgement,
            conditions=measurement.conditions, measurement=name, started=measurement.started,
            seconds=measurement.seconds, attempt=folder.attempt,
        )  # fmt: skip


def changes(before: Sequence[Record], after: Sequence[Record]) -> list[Change]:
    """What two judgements of the same run say differently, in the order of the first; the decision is left out."""
    first, second = by_figure(before), by_figure(after)
    found = []
    for key in dict.fromkeys((*first, *second)):
        one, other = (of[key].judgement if key in of else None for of in (first, second))
        if one is None or other is None or _differ(one, other):
            test, quantity, label, requirement, _ = key
            found.append(
                Change(test=test, quantity=quantity, label=label, requirement=requirement, before=one, after=other)
            )
    return found


def as_lines(found: Sequence[Change]) -> Iterator[str]:
    """A line a change; a figure of which another level is demanded is one, where it is clear what belongs together."""
    figures: dict[tuple[str, str, str], list[Change]] = {}
    for change in found:
        figures.setdefault((change.test, change.quantity, change.label), []).append(change)
    for those in figures.values():
        gone, come = ([each for each in those if getattr(each, side) is None] for side in ("after", "before"))
        if len(those) == 2 and len(gone) == len(come) == 1:
            old, new = (each.requirement or "nothing required" for each in (gone[0], come[0]))
            yield as_sentence(replace(gone[0], requirement=f"{old}, now {new}", after=come[0].after))
        else:
            yield from map(as_sentence, those)


def other_job(folder: RunFolder, project: Project) -> list[str]:
    """The keys of the workload in which it is not the job that was measured; none of a run that cannot say its job."""
    try:
        measured = own_project(folder)
    except ClusterQualError:
        return []
    if type(measured.job) is not type(project.job):
        return ["workload"]
    one, other = (to_json(each.job) for each in (measured, project))
    unlike = [key for key in {**one, **other} if one.get(key) != other.get(key) and key not in _NOT_ITSELF]
    return [f"workload.{key}" for key in unlike]


def as_sentence(change: Change) -> str:
    """A change for people: of what, from what, to what."""
    name = " ".join(filter(None, (change.quantity, change.label, change.requirement)))
    return f"{change.test}: {name}: {_said(change.before)} -> {_said(change.after)}"


def _said(judgement: Judgement | None) -> str:
    return "not judged" if judgement is None else " ".join(filter(None, (value_of(judgement), str(judgement.verdict))))


def _differ(one: Judgement, other: Judgement) -> bool:
    bounds, others = ((j.interval.low, j.interval.high) if j.interval else None for j in (one, other))
    return one.verdict != other.verdict or not alike((one.value, bounds), (other.value, others))


def alike(one: Any, other: Any) -> bool:
    """Equal, but for the last digits of numbers."""
    if one == other:
        return True
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        if math.isnan(one) and math.isnan(other):
            return True
        return math.isclose(one, other, rel_tol=_ROUNDING, abs_tol=_NOTHING)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(alike(value, other[key]) for key, value in one.items())
    if type(one) is not type(other):
        return False
    if is_dataclass(one):
        return all(alike(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(alike, one, other))
    return False


def by_figure(records: Sequence[Record]) -> dict[Figure, Record]:
    """The records, but the decision's, by what they are about."""
    found: dict[Figure, Record] = {}
    seen: Counter[tuple[str, str, str, str]] = Counter()
    for record in records:
        j = record.judgement
        if record.criterion != "decision":
            key = (record.test, j.quantity, j.label, j.requirement.text if j.requirement else "")
            figure = (*key, seen[key])
            found[figure] = record
            seen[key] += 1
    return found

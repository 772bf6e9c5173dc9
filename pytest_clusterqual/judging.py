"""A recorded run judged again: under another project file, or under its own, to the same verdicts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_clusterqual import criteria
from pytest_clusterqual.errors import MeasurementError, RunFolderError
from pytest_clusterqual.model.measurement import Measurement
from pytest_clusterqual.model.project import Project
from pytest_clusterqual.model.record import SCHEMA, Judgement, Record, Verdict
from pytest_clusterqual.read.project import recorded_project
from pytest_clusterqual.runs import ENVIRONMENT, RunFolder


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
    """The project file that the run was judged by.

    Raises:
        RunFolderError: the run recorded none.
        ProjectFileError: this release reads it otherwise.
    """
    told = folder.environment
    text, nodes, ranks = (told.get(key) for key in ("project_file", "nodes", "nproc_per_node"))
    if not isinstance(text, str) or not isinstance(nodes, int) or not isinstance(ranks, int):
        raise RunFolderError(
            f"{folder.path / ENVIRONMENT}: holds no project file with its nodes and ranks, so nothing can be judged "
            "again by it; name one with --config"
        )
    return recorded_project(text, name=f"{folder.run}/clusterqual.yaml", nodes=nodes, nproc_per_node=ranks)


def judge_again(folder: RunFolder, project: Project) -> list[Record]:
    """What `project` says of the raw measurements. What failed to be measured keeps its record, as it was.

    A criterion that the project does not have any more leaves no record; the decision is for who wants it.
    """
    records = [
        record
        for name, (test, criterion, measurement) in _last(folder).items()
        if _asked(project, criterion)
        for record in _judged(folder, project, name, test, criterion, measurement)
    ]
    return records + [r for r in folder.records() if r.measurement is None and r.criterion != "decision"]


def _last(folder: RunFolder) -> dict[str, tuple[str, str, Measurement]]:
    """The measurements that the records of each test's last attempt rest on, and those without a record."""
    on, recorded = set(), set()
    for record in folder.records():
        recorded.add(record.test)
        on.add(record.measurement)
    found = folder.measurements()
    return {name: made for name, made in found.items() if name in on or made[0] not in recorded}


def _asked(project: Project, criterion: str) -> bool:
    sections = {
        "nodes": project.topology, "memory": project.memory, "fabric": project.fabric, "scaling": project.scaling,
        "full_run": project.full_run,
    }  # fmt: skip
    return sections.get(criterion) is not None


def _judged(
    folder: RunFolder, project: Project, name: str, test: str, criterion: str, measurement: Measurement
) -> Iterator[Record]:
    try:
        judgements = criteria.judge(project, measurement)
    except MeasurementError as error:
        judgements = (
            Judgement(
                quantity=criterion, label="", value=None, unit="1", interval=None, verdict=Verdict.ERROR,
                reason=str(error),
            ),
        )  # fmt: skip
    for judgement in judgements:
        yield Record(
            schema=SCHEMA, run=folder.run, test=test, criterion=criterion, judgement=judgement,
            conditions=measurement.conditions, measurement=name, started=measurement.started,
            seconds=measurement.seconds, attempt=folder.attempt,
        )  # fmt: skip


def changes(before: Sequence[Record], after: Sequence[Record]) -> list[Change]:
    """What two judgements of the same run say differently, in the order of the first; the decision is left out."""
    first, second = _by_figure(before), _by_figure(after)
    found = []
    for key in dict.fromkeys((*first, *second)):
        one, other = first.get(key), second.get(key)
        if one is None or other is None or _differ(one, other):
            test, quantity, label, requirement = key
            found.append(
                Change(test=test, quantity=quantity, label=label, requirement=requirement, before=one, after=other)
            )
    return found


def _differ(one: Judgement, other: Judgement) -> bool:
    bounds = [(j.interval.low, j.interval.high) if j.interval else None for j in (one, other)]
    return one.verdict != other.verdict or one.value != other.value or bounds[0] != bounds[1]


def _by_figure(records: Sequence[Record]) -> dict[tuple[str, str, str, str], Judgement]:
    return {
        (record.test, j.quantity, j.label, j.requirement.text if j.requirement else ""): j
        for record in records
        if record.criterion != "decision" and (j := record.judgement)
    }

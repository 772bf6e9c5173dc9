"""How the tests of a run have ended: for gates, for what is measured again, for those that failed, for exit codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime, timezone
from pathlib import Path

from pytest_clusterqual import units
from pytest_clusterqual.errors import ClusterQualError
from pytest_clusterqual.folder.runs import RunFolder, Selected
from pytest_clusterqual.judge.gates import Outcome
from pytest_clusterqual.model.measurement import CRITERIA
from pytest_clusterqual.model.project import Project
from pytest_clusterqual.model.record import GOOD, Finding, Judgement, Record, Verdict, accepted, by_test, verdict_of

_CONCLUDED = (Verdict.PASS, Verdict.FAIL, Verdict.UNDECIDED, Verdict.ERROR)
_NAMED = 3  # tests that a sentence lists


def failed(criterion: str, reason: str, error: ClusterQualError | None, *, logs: Path) -> Judgement:
    """The ERROR of a test that reached no verdict, with a finding about each culprit that the `error` names."""
    findings: tuple[Finding, ...] = ()
    if error is not None:
        reason = str(error)
        findings = tuple(_finding(culprit, reason.splitlines()[0], f"log in {logs}") for culprit in error.culprits)
    return without_number(criterion, Verdict.ERROR, reason, findings)


def _finding(culprit: str, evidence: str, log: str) -> Finding:
    """About a rank, a node or two nodes, as `ClusterQualError.culprits` names them."""
    pair = " - " in culprit or " -> " in culprit
    kind = "pair" if pair else "rank" if " on " in culprit else "node"
    check = f"the path between them: firewall rules, routes, VLANs, switch ACLs; then each's {log}"
    return Finding(
        suspect=culprit, kind=f"failed {kind}", evidence=evidence, check_next=check if pair else f"the end of its {log}"
    )


def without_number(quantity: str, verdict: Verdict, reason: str, findings: tuple[Finding, ...] = ()) -> Judgement:
    """A judgement of something that was not measured."""
    return Judgement(
        quantity=quantity, label="", value=None, unit="1", interval=None, verdict=verdict, reason=reason,
        findings=findings,
    )  # fmt: skip


def outcomes(folder: RunFolder) -> list[Outcome]:
    """How each test of the run has ended so far, whoever ran it."""
    tests = folder.tests
    # A failure that is accepted by name must not block everything behind it.
    return [
        Outcome(
            test, group[0].criterion, layout_params(tests.get(test)),
            Verdict.PASS if accepted(group) else verdict_of(group),
        )
        for test, group in by_test(folder.records()).items()
    ]  # fmt: skip


def asked_of(tests: Mapping[str, Selected]) -> dict[str, list[str]]:
    """Criterion -> those of its tests that apply here; of some it may be none."""
    asked: dict[str, list[str]] = {test.criterion: [] for test in tests.values()}
    for name, test in tests.items():
        if not test.inapplicable:
            asked[test.criterion].append(name)
    return asked


def layout_params(selected: Selected | None) -> dict[str, str]:
    """What a gate compares of a test."""
    return {"layout": selected.layout} if selected and selected.layout else {}


def usable(folder: RunFolder) -> dict[str, str]:
    """Test -> its last measurement, where there is one and what came of it was no error."""
    failed = {record.test for record in folder.records() if record.judgement.verdict is Verdict.ERROR}
    return {test: name for name, test in folder.measurements().tests().items() if test not in failed}


def earlier(folder: RunFolder, test: str) -> tuple[Verdict, ...]:
    """The verdicts of a test in the attempts before this one; BLOCKED is none, for nothing was measured."""
    group = [record for record in folder.records() if record.test == test]
    if not group or group[0].attempt == folder.attempt:
        return group[0].earlier if group else ()
    verdict = verdict_of(group)
    return group[0].earlier if verdict is Verdict.BLOCKED else (*group[0].earlier, verdict)


def with_exception(record: Record, project: Project) -> Record:
    """With what the project says of its test: accepted on the day it was measured, expired by then, or nothing.

    Days are those of UTC, so that a record is judged alike wherever that happens.
    """
    named = [known for known in project.exceptions if known.covers(record.test, known.until)]
    if not named:
        return replace(record, exception="", until="", expired="")
    day = _day(record.started)
    if valid := next((known for known in named if known.covers(record.test, day)), None):
        return replace(record, exception=valid.reason, until=valid.until.isoformat(), expired="")
    last = max(named, key=lambda known: known.until)
    return replace(record, exception="", until=last.until.isoformat(), expired=last.reason)


def _day(started: float) -> date:
    try:
        return datetime.fromtimestamp(started, timezone.utc).date()
    except (ValueError, OverflowError, OSError):  # a time that no calendar knows is in no exception
        return date.max


def exit_code(
    tests: Mapping[str, Selected], records: Sequence[Record], *, numbers_do: bool = False, ended: bool = True
) -> int:
    """0 if a run is well, else 1: the one rule at the end of pytest and of each command that shows a run.

    Each test must be PASS, MEASURED, or fail as the project file accepts by name, and nothing may be `unanswered`;
    of evidence without a project file `numbers_do`. `ended` as there.
    """
    if unwell(records):
        return 1
    return 0 if numbers_do or not unanswered(tests, records, ended=ended) else 1


def unwell(records: Sequence[Record]) -> dict[str, Verdict]:
    """The tests that keep a run from being well, by their verdicts."""
    return {
        test: verdict_of(group)
        for test, group in by_test(records).items()
        if verdict_of(group) not in GOOD and not accepted(group)
    }


def unanswered(tests: Mapping[str, Selected], records: Sequence[Record], *, ended: bool = True) -> list[str]:
    """A sentence about each criterion of which no test was concluded, and one about tests without a record.

    The decision may be told only, and a test of one's own need not make a record, unless nobody knows that the run
    `ended` well.
    """
    asked = {test.criterion for test in tests.values()} | {record.criterion for record in records}
    concluded = {
        record.criterion for record in records
        if record.judgement.verdict in _CONCLUDED or record.criterion == "decision"
    }  # fmt: skip
    told = [f"{name}: no verdict was reached" for name in CRITERIA if name in asked - concluded]
    recorded = {record.test for record in records}
    lost = [
        name for name, test in tests.items()
        if name not in recorded and not test.inapplicable
        and (test.criterion in concluded if test.criterion != "own" else not ended)
    ]  # fmt: skip
    if lost:
        told.append(f"asked for and not recorded: {units.show_some(lost, _NAMED)}")
    return told

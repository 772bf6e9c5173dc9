"""How the tests of a run have ended so far: for gates, for what is measured again, and for tests that failed."""

from __future__ import annotations

from pathlib import Path

from pytest_clusterqual.errors import ClusterQualError
from pytest_clusterqual.judge.gates import Outcome
from pytest_clusterqual.model.record import Finding, Judgement, Record, Verdict, worst
from pytest_clusterqual.runs import RunFolder


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
    by_test: dict[str, list[Record]] = {}
    for record in folder.records():
        by_test.setdefault(record.test, []).append(record)
    tests = folder.tests
    found = []
    for test, (first, *others) in by_test.items():
        verdict = worst([record.judgement.verdict for record in (first, *others)])
        # A failure that is accepted by name must not block everything behind it.
        accepted = first.exception and verdict in (Verdict.FAIL, Verdict.UNDECIDED)
        layout = tests[test].layout if test in tests else ""
        params = {"layout": layout} if layout else {}
        found.append(Outcome(test, first.criterion, params, Verdict.PASS if accepted else verdict))
    return found


def usable(folder: RunFolder) -> dict[str, str]:
    """Test -> its last measurement, where there is one and what came of it was no error."""
    failed = {record.test for record in folder.records() if record.judgement.verdict is Verdict.ERROR}
    return {test: name for name, (test, _, _) in folder.measurements().items() if test not in failed}

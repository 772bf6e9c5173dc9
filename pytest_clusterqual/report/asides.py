"""What a reader must know beside a verdict: an exception, earlier attempts, gates that were not run. In all reports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pytest_clusterqual.model.record import GOOD, Record, Verdict, accepted, by_test, verdict_of
from pytest_clusterqual.report import text

_FAILED = (Verdict.FAIL, Verdict.UNDECIDED)
_MOST = 3  # tests of a kind


def asides(records: Sequence[Record]) -> list[tuple[str, str]]:
    """Label and sentence; of many tests of a kind the first ones, and how many more there are."""
    groups = by_test(records)
    said = {
        "accepted": {test: exception_of(group) for test, group in groups.items() if accepted(group)},
        "expired": {test: exception_of(group) for test, group in groups.items() if not accepted(group)},
        "repeated": {test: attempts_of(groups[test]) for test in sorted(groups, key=lambda test: _well(groups[test]))},
    }
    told = [(label, line) for label, sentences in said.items() for line in _few(sentences)]
    return told + [("no gate", sentence) for sentence in _without_gates(records)]


def exception_of(group: Sequence[Record]) -> str:
    """What the project file says of a failure: until when it is accepted and why, or that this is over; or nothing."""
    verdict, first = verdict_of(group), group[0]
    if accepted(group):
        until = f" until {first.until}" if first.until else ""
        return text.visible(f"{verdict} accepted{until}: {first.exception}")
    if verdict in _FAILED and first.expired:
        return text.visible(f"{verdict}, and its exception expired on {first.until}: {first.expired}")
    return ""


def attempts_of(group: Sequence[Record]) -> str:
    """Such as ``PASS at attempt 3, before: FAIL, UNDECIDED``: evidence that was chosen among several.

    Nothing of a test that never had a verdict but MEASURED.
    """
    before, verdict = group[0].earlier, verdict_of(group)
    if not before or {*before, verdict} == {Verdict.MEASURED}:
        return ""
    return f"{verdict} at attempt {len(before) + 1}, before: {', '.join(map(str, before))}"


def _well(group: Sequence[Record]) -> bool:
    """Every time; told after the others."""
    return all(each in GOOD for each in (*group[0].earlier, verdict_of(group)))


def gates_not_run(records: Sequence[Record]) -> dict[str, list[str]]:
    """Criterion -> the gates that were not run before it, nor are there from elsewhere."""
    there = {(record.criterion, _layout(record)) for record in records}
    found: dict[str, list[str]] = {}
    for record in records:
        for gate in record.gates_not_run:
            layouts = {layout for criterion, layout in there if criterion == gate}
            if not layouts & {"", _layout(record)} and gate not in found.setdefault(record.criterion, []):
                found[record.criterion].append(gate)
    return {criterion: gates for criterion, gates in found.items() if gates}


def _layout(record: Record) -> str:
    return (record.conditions.layout or "") if record.conditions else ""


def _few(sentences: Mapping[str, str]) -> Iterator[str]:
    lines = [f"{text.case_of(test)}: {sentence}" for test, sentence in sentences.items() if sentence]
    yield from lines[:_MOST]
    if len(lines) > _MOST:
        yield f"and {len(lines) - _MOST} more in records.jsonl"


def _without_gates(records: Sequence[Record]) -> Iterator[str]:
    for criterion, gates in gates_not_run(records).items():
        needed, them = " and ".join(map(text.visible, gates)), "them" if len(gates) > 1 else "it"
        yield f"{text.visible(criterion)} needs {needed} first, and nobody asked for {them}: no full qualification"

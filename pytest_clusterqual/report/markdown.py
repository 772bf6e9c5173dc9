"""A run as Markdown, for the summary of a CI job and for comments."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence

from pytest_clusterqual.model.decision import Decision
from pytest_clusterqual.model.record import SEVERITY, Record, Verdict, worst
from pytest_clusterqual.report import text
from pytest_clusterqual.report.digest import findings
from pytest_clusterqual.report.table import distance

_MOST = 40  # rows of tests that passed; the others are counted
_FINDINGS = 5
_HTML = {character: html.escape(character) for character in "<>&"}
_WELL = (Verdict.PASS, Verdict.MEASURED)


def markdown(records: Sequence[Record], *, run: str, simulated: bool, decision: Decision | None) -> str:
    """A row a test, the worst first, with the figure that decided it; then who is suspected, and the decision."""
    return "".join(f"{line}\n" for line in _lines(records, run, simulated, decision))


def _lines(records: Sequence[Record], run: str, simulated: bool, decision: Decision | None) -> Iterator[str]:
    tests: dict[str, list[Record]] = {}
    for record in records:
        tests.setdefault(record.test, []).append(record)
    verdicts = {test: worst([record.judgement.verdict for record in group]) for test, group in tests.items()}
    overall = worst(list(verdicts.values()))
    yield f"## Cluster qualification: {overall}"
    yield ""
    if simulated:
        yield "> Simulated nodes on one machine: nothing here is evidence about a network."
        yield ""
    yield "| test | criterion | verdict | decided by |"
    yield "| --- | --- | --- | --- |"
    ordered = sorted(tests, key=lambda test: -SEVERITY.index(verdicts[test]))
    well = [test for test in ordered if verdicts[test] in _WELL]
    for test in [test for test in ordered if verdicts[test] not in _WELL] + well[:_MOST]:
        yield _row(test, tests[test], verdicts[test])
    if len(well) > _MOST:
        yield f"| {len(well) - _MOST} more that passed | | | |"
    yield ""
    yield from _suspects(records)
    if decision is not None:
        yield f"**Decision**: {_cell(str(decision.outcome))}. {_cell(decision.why)}"
        yield ""
    yield f"Run `{_code(run)}`"


def _row(test: str, group: Sequence[Record], verdict: Verdict) -> str:
    decided = min((record.judgement for record in group if record.judgement.verdict is verdict), key=distance)
    number = f"{text.quantity_of(decided)} {text.value_of(decided)} {text.bound_of(decided)}".strip()
    said = _cell(decided.reason) if verdict not in _WELL else _cell(number)
    return f"| `{_code(test)}` | {group[0].criterion} | {verdict} | {said} |"


def _suspects(records: Sequence[Record]) -> Iterator[str]:
    found, _notes = findings(record.judgement for record in records)
    if not found:
        return
    yield "**Suspects**"
    yield ""
    for each in found[:_FINDINGS]:
        said = f"{_cell(each.evidence)}; check next: {_cell(each.check_next)}"
        yield f"- **{_cell(each.suspect)}** ({_cell(each.kind)}): {said}"
    if len(found) > _FINDINGS:
        yield f"- and {len(found) - _FINDINGS} more in the records"
    yield ""


def _cell(told: str) -> str:
    """Outside text that can neither end a cell nor become a link, an image or HTML."""
    return re.sub(r"[\\\\`*_\[\]|#!<>&]", lambda match: _HTML.get(match[0], f"\\{match[0]}"), text.visible(told))


def _code(told: str) -> str:
    return text.visible(told).replace("`", "'").replace("|", "\\|")

"""A run as Markdown, for the summary of a CI job and for comments."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping, Sequence

from pytest_clusterqual.model.decision import Decision
from pytest_clusterqual.model.record import GOOD, SEVERITY, Record, Verdict, by_test, verdicts
from pytest_clusterqual.report import text
from pytest_clusterqual.report.asides import asides, exception_of
from pytest_clusterqual.report.digest import distance, findings
from pytest_clusterqual.report.overall import Overall, overall

# Rows of tests that did not pass, and of those that did; the others are counted. GitHub shows no summary of more than
# 1 MiB.
_BAD, _GOOD = 200, 40
_LONGEST = 500  # characters of one text
_FINDINGS = 5
_HTML = {character: html.escape(character) for character in "<>&"}


def markdown(
    records: Sequence[Record], *, run: str, simulated: bool, decision: Decision | None, unanswered: Sequence[str] = (),
    asked: Mapping[str, Sequence[str]] | None = None,
) -> str:  # fmt: skip
    """Whether the run is accepted, and the decision; a row a test, the worst first, with the figure that decided it;
    then who is suspected.

    `unanswered` are sentences about what was asked for and has no verdict, `asked` the tests of each criterion that
    apply here.
    """
    whole = overall(records, asked or {}, simulated=simulated)
    return "".join(f"{line}\n" for line in (*_top(whole, simulated, decision), *_lines(records, run, unanswered)))


def _top(whole: Overall, simulated: bool, decision: Decision | None) -> Iterator[str]:
    yield f"## Cluster qualification: {whole.outcome}"
    yield ""
    yield f"{_cell(whole.why)}."
    yield ""
    if decision is not None:
        yield f"**Decision**: {_cell(str(decision.outcome))}. {_cell(decision.why)}"
        yield ""
    if simulated:
        yield "> Simulated nodes on one machine: nothing here is evidence about a network."
        yield ""


def _lines(records: Sequence[Record], run: str, unanswered: Sequence[str]) -> Iterator[str]:
    tests, reached = by_test(records), verdicts(records)
    for label, sentence in [*asides(records), *(("no verdict", why) for why in unanswered)]:
        yield f"> **{label.capitalize()}**: {_cell(sentence)}"
        yield ""
    yield "| test | criterion | verdict | decided by |"
    yield "| --- | --- | --- | --- |"
    ordered = sorted(tests, key=lambda test: -SEVERITY.index(reached[test]))
    bad, good = ([test for test in ordered if (reached[test] in GOOD) is well] for well in (False, True))
    for group, most, what in ((bad, _BAD, "that did not pass"), (good, _GOOD, "that passed")):
        yield from (_row(test, tests[test], reached[test]) for test in group[:most])
        if len(group) > most:
            yield f"| {len(group) - most} more {what} | | | |"
    yield ""
    yield from _suspects(records)
    yield f"Run `{_code(run)}`"


def _row(test: str, group: Sequence[Record], verdict: Verdict) -> str:
    decided = min((record.judgement for record in group if record.judgement.verdict is verdict), key=distance)
    number = f"{text.quantity_of(decided)} {text.value_of(decided)} {text.bound_of(decided)}".strip()
    said = _cell(decided.reason) if verdict not in GOOD else _cell(number)
    because = "; ".join(filter(None, (_cell(exception_of(group)), said)))
    return f"| `{_code(test)}` | {group[0].criterion} | {verdict} | {because} |"


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
    return re.sub(r"[\\\\`*_\[\]|#!<>&]", lambda match: _HTML.get(match[0], f"\\{match[0]}"), _short(told))


def _code(told: str) -> str:
    return _short(told).replace("`", "'").replace("|", "\\|")


def _short(told: str) -> str:
    seen = text.visible(told)
    return seen if len(seen) <= _LONGEST else f"{seen[:_LONGEST]} …"

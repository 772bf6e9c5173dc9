"""The section of one criterion: its verdict, its judgements worst first, who is suspected, and its plots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_clusterqual import units
from pytest_clusterqual.model.record import SEVERITY, Finding, Judgement, Record, Verdict, worst
from pytest_clusterqual.report import text
from pytest_clusterqual.report.asides import exception_of
from pytest_clusterqual.report.digest import because, findings, severity
from pytest_clusterqual.report.html_plots import Figure
from pytest_clusterqual.report.html_top import name_of
from pytest_clusterqual.report.overall import incomplete

_OPEN = 30  # rows that are seen at once
_FOLDED = 150  # rows to be unfolded
_FINDINGS = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One judgement, all of it text; `why` where the numbers do not say it, `parts` what the value is made of."""

    case: str
    quantity: str
    value: str
    interval: str
    required: str
    margin: str
    verdict: str
    why: str
    parts: str
    exception: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Of a table: rows that are seen, rows that are folded away, and a sentence about those that are not there."""

    seen: Sequence[Row]
    folded: Sequence[Row]
    rest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """`judged` has the rows with a verdict, `numbers` those of which nothing is required."""

    id: str
    name: str
    verdict: str
    why: str
    judged: Rows
    numbers: Rows
    findings: Sequence[Finding]
    more_findings: int
    figures: Sequence[Figure]
    figures_left_out: int


def section(
    criterion: str, group: Sequence[Record], figures: Sequence[Figure], left_out: int,
    asked: Mapping[str, Sequence[str]],
) -> Section:  # fmt: skip
    """Everything of one criterion; of thousands of records the worst are shown and the rest is counted."""
    verdict = worst([record.judgement.verdict for record in group])
    numbers = [record for record in group if record.judgement.verdict is Verdict.MEASURED]
    judged = sorted(
        (record for record in group if record.judgement.verdict is not Verdict.MEASURED),
        key=lambda record: severity(record.judgement),
    )
    suspects, notes = findings(record.judgement for record in sorted(group, key=lambda r: severity(r.judgement)))
    every = [*suspects, *notes]
    return Section(
        id=criterion, name=name_of(criterion), verdict=str(verdict),
        why="; ".join(filter(None, (incomplete(criterion, group, asked), because(group, verdict)))),
        judged=_rows(judged, _OPEN), numbers=_rows(numbers, 0), findings=every[:_FINDINGS],
        more_findings=max(len(every) - _FINDINGS, 0), figures=figures, figures_left_out=left_out,
    )  # fmt: skip


def _rows(records: Sequence[Record], seen: int) -> Rows:
    rows = [_row(record) for record in records[: seen + _FOLDED]]
    return Rows(seen=rows[:seen], folded=rows[seen:], rest=_counted(records[seen + _FOLDED :]))


def _counted(records: Sequence[Record]) -> str:
    """How many are not on the page, by verdict; empty if all are."""
    counts = Counter(record.judgement.verdict for record in records)
    told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in reversed(SEVERITY) if counts[verdict])
    return f"{told} more in records.jsonl" if told else ""


def _row(record: Record) -> Row:
    judgement = record.judgement
    share = text.share_of_expected(judgement)
    return Row(
        case=text.case_of(record.test),
        quantity=text.quantity_of(judgement),
        value=text.value_of(judgement),
        interval=text.interval_of(judgement),
        required=text.bound_of(judgement) + (f" ({share})" if share else ""),
        margin=text.margin_of(judgement),
        verdict=str(judgement.verdict),
        why=_why(judgement),
        parts=_parts(judgement),
        exception=exception_of([record]),
    )


def _why(judgement: Judgement) -> str:
    """The reason with the line of the project file it rests on; of a PASS and of a number its own row says enough."""
    if judgement.verdict is Verdict.PASS or (judgement.verdict is Verdict.MEASURED and judgement.value is not None):
        return ""
    demand = judgement.requirement
    return judgement.reason + (f" ({demand.source}: {judgement.quantity} {demand.text})" if demand else "")


def _parts(judgement: Judgement) -> str:
    """What the value is made of, largest first; too small ones are left out."""
    most = max(map(abs, judgement.parts.values()), default=0.0)
    told = sorted(judgement.parts.items(), key=lambda part: -abs(part[1]))
    return ", ".join(f"{name} {units.show(part, judgement.unit)}" for name, part in told if abs(part) >= 0.005 * most)

"""The table of verdicts: which records get a row, and how rows are broken into columns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.text import Text

from pytest_clusterqual import units
from pytest_clusterqual.model.record import GOOD, SEVERITY, Record, Verdict
from pytest_clusterqual.report import text
from pytest_clusterqual.report.digest import severity
from pytest_clusterqual.report.ladder_block import ladder_block, ladder_tests

STYLES = {
    Verdict.PASS: "green",
    Verdict.FAIL: "bold red",
    Verdict.ERROR: "bold red",
    Verdict.UNDECIDED: "yellow",
    Verdict.BLOCKED: "magenta",
    Verdict.MEASURED: "cyan",
}
GAP = "  "
_HEADER = ("case", "quantity", "value", "required", "margin", "verdict")
_INDENT = "  "
_TIED = "\u00a0"  # a space at which a cell is not broken


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """One line of the table before it is broken into columns; `others` of its kind are only counted, `rungs` shown."""

    record: Record
    others: tuple[Record, ...] = ()
    rungs: tuple[Record, ...] = ()


def table(criteria: Mapping[str, Sequence[Record]], width: int) -> list[Text]:
    """The lines of the table, criterion by criterion; no line is longer than `width` columns."""
    rows = {criterion: _collapsed(group) for criterion, group in criteria.items()}
    cells = {id(row): _cells(row.record) for group in rows.values() for row in group}
    widths = _fit([_HEADER, *cells.values()], width - len(_INDENT) - len(GAP) * (len(_HEADER) - 1))
    lines = _columns(_HEADER, widths, "dim")
    for criterion, group in rows.items():
        lines.append(Text(criterion, style="bold"))
        previous = None
        for row in group:
            case, *others = cells[id(row)]
            shown = ("" if row.record.test == previous else case, *others)
            lines += _columns(shown, widths, STYLES[row.record.judgement.verdict])
            previous = row.record.test
            lines += _counted(row, f"{_INDENT}{' ' * widths[0]}{GAP}", width)
            lines += ladder_block(row.rungs, width, _INDENT * 2) if row.rungs else []
    return lines


def filled(pieces: Sequence[str], width: int) -> list[str]:
    """`pieces` one after the other, on lines of at most `width` columns."""
    lines = [""]
    for piece in pieces:
        if lines[-1] and cell_len(lines[-1]) + cell_len(piece.rstrip(" ")) > width:
            lines.append("")
        first, *others = chop_cells(piece if lines[-1] else piece.lstrip(" "), width) or [""]
        lines[-1] += first
        lines += others
    return [line.rstrip(" ") for line in lines]


def words(sentence: str) -> list[str]:
    """Where a sentence may be broken."""
    return re.findall(r"[^ ]+|[ ]+", sentence)


def _collapsed(records: Sequence[Record]) -> list[_Row]:
    """A row a record, but for what would drown the verdicts.

    A test of Fabric has one row, its worst. Properties of nodes that passed share a row; so do the
    numbers of a test that has verdicts, if nothing is required of them. A memory ladder has one as well.
    """
    ladders = ladder_tests(records)
    judged = {record.test for record in records if record.judgement.verdict is not Verdict.MEASURED}
    groups: dict[tuple[str, object], list[Record]] = {}
    for number, record in enumerate(records):
        verdict = record.judgement.verdict
        key: object = number
        if record.criterion == "fabric" or record.test in ladders:
            key = None
        elif (verdict is Verdict.MEASURED and record.test in judged) or (
            record.criterion == "nodes" and verdict is Verdict.PASS
        ):
            key = verdict
        groups.setdefault((record.test, key), []).append(record)
    tests = dict.fromkeys(record.test for record in records)
    rows = {test: [_row(group) for (of_test, _), group in groups.items() if of_test == test] for test in tests}
    # What is required comes first: it is what a reader of a test looks for.
    return [row for of_test in rows.values() for row in sorted(of_test, key=_is_bare)]


def _is_bare(row: _Row) -> bool:
    return row.record.judgement.verdict is Verdict.MEASURED


def _row(group: Sequence[Record]) -> _Row:
    if ladder_tests(group):
        whole = next((record for record in group if record.judgement.quantity == "first_fit"), group[0])
        return _Row(record=whole, rungs=tuple(group))
    spokesman = min(group, key=lambda record: severity(record.judgement))
    if spokesman.judgement.margin is None and spokesman.judgement.verdict in GOOD:
        alike = [record for record in group if record.judgement.verdict is spokesman.judgement.verdict]
        known = [record for record in alike if record.judgement.value is not None]
        rates = [record for record in known if record.judgement.unit == units.RATE and record.judgement.label]
        spokesman = (rates or known or alike)[-1]  # the largest size says most of a fabric
    return _Row(record=spokesman, others=tuple(record for record in group if record is not spokesman))


def _counted(row: _Row, indent: str, width: int) -> list[Text]:
    """How many records are left out, and by verdict where these differ from the row's."""
    if not row.others:
        return []
    counts = Counter(record.judgement.verdict for record in row.others)
    line = f"+{len(row.others)} more in records.jsonl"
    if set(counts) != {row.record.judgement.verdict}:
        line += ": " + ", ".join(f"{counts[verdict]} {verdict}" for verdict in reversed(SEVERITY) if counts[verdict])
    return [Text(indent + piece, style="dim") for piece in filled(words(line), width - len(indent))]


def _cells(record: Record) -> tuple[str, ...]:
    judgement = record.judgement
    tied = [
        piece.replace(" ", _TIED)
        for piece in (
            text.visible(judgement.quantity),
            text.label_of(judgement),
            text.value_of(judgement),
            text.interval_of(judgement),
            text.bound_of(judgement),
        )
    ]
    share = text.share_of_expected(judgement)
    return (
        text.case_of(record.test),
        " ".join(filter(None, tied[0:2])) or "-",
        " ".join(filter(None, tied[2:4])) or "-",
        tied[4] + (f" ({share})" if share else "") or "-",
        text.margin_of(judgement),
        str(judgement.verdict),
    )


def _fit(rows: Sequence[Sequence[str]], space: int) -> list[int]:
    """Column widths: what the cells need; too much, and the one where fewest cells break gives way."""
    widths = [max(cell_len(row[column]) for row in rows) for column in range(len(_HEADER))]
    unbroken = [max(cell_len(p) for row in rows for p in _pieces(row[column])) for column in range(len(_HEADER))]
    fixed = (_HEADER.index("margin"), _HEADER.index("verdict"))
    while sum(widths) > space:
        roomy = [c for c in range(len(widths)) if c not in fixed and widths[c] > unbroken[c]]
        roomy = roomy or [c for c in range(len(widths)) if c not in fixed and widths[c] > 6]
        if not roomy:
            break
        broken = {c: sum(cell_len(row[c]) >= widths[c] for row in rows) for c in roomy}
        widths[min(roomy, key=lambda c: (broken[c], -widths[c]))] -= 1
    return widths


def _pieces(cell: str) -> list[str]:
    """Where a cell may be broken: after spaces, and inside names after ``_`` and ``-``."""
    return re.findall(r"[^ _-]*[_-]+(?=[^ _-])|[^ ]*?[^ _-]+[_-]*|[ _-]+", cell) or [cell]


def _broken(cell: str, width: int) -> list[str]:
    """A cell as lines of at most `width` columns; tied words are parted only where they must be."""
    pieces = []
    for piece in _pieces(cell):
        pieces += _pieces(piece.replace(_TIED, " ")) if cell_len(piece) > width else [piece]
    return [line.replace(_TIED, " ") for line in filled(pieces, width)]


def _columns(cells: Sequence[str], widths: Sequence[int], style: str) -> list[Text]:
    """One row of the table; its last column has the verdict's style."""
    broken = [_broken(cell, width) for cell, width in zip(cells, widths, strict=True)]
    lines = []
    for number in range(max(map(len, broken))):
        padded = [set_cell_size(b[number] if number < len(b) else "", w) for b, w in zip(broken, widths, strict=True)]
        line = Text(_INDENT + GAP.join(padded[:-1]) + GAP)
        lines.append(line.append(padded[-1], style=style))
    return lines

"""The memory ladder as a block of the table: one line a rung, where its records would be six rows each."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from pytest_clusterqual.model.record import Judgement, Record
from pytest_clusterqual.report import text

GAP = "  "
_FITS = {1.0: "yes", 0.0: "no", None: "not tried"}
_HEADER = ("rung", "fits", "peak", "headroom", "step time", "price")


def ladder_tests(records: Sequence[Record]) -> set[str]:
    """The tests among these that climbed a ladder."""
    return {record.test for record in records if record.judgement.quantity == "fits"}


def ladder_block(records: Sequence[Record], width: int, indent: str) -> list[Text]:
    """The lines of one ladder; where `width` is short the intervals are left out, and then the step times."""
    rungs: dict[str, dict[str, Judgement]] = {}
    for judgement in (record.judgement for record in records if record.judgement.quantity != "first_fit"):
        rungs.setdefault(judgement.label, {})[judgement.quantity] = judgement
    for intervals, columns in ((True, _HEADER), (False, _HEADER), (False, (*_HEADER[:4], _HEADER[5]))):
        rows = [columns, *(_cells(name, told, columns, intervals) for name, told in rungs.items())]
        widths = [max(cell_len(row[column]) for row in rows) for column in range(len(columns))]
        if len(indent) + sum(widths) + len(GAP) * (len(widths) - 1) <= width:
            break
    lines = [GAP.join(set_cell_size(cell, size) for cell, size in zip(row, widths, strict=True)) for row in rows]
    return [
        Text(f"{indent}{line}".rstrip()[:width], style="" if number else "dim") for number, line in enumerate(lines)
    ]


def _cells(name: str, told: dict[str, Judgement], columns: Sequence[str], intervals: bool) -> tuple[str, ...]:
    def cell(column: str) -> str:
        judgement = told.get(column.replace(" ", "_"))
        if column == "rung":
            return text.visible(name)
        if column == "fits":
            return _FITS.get(judgement.value if judgement else None, "-")
        if judgement is None or judgement.value is None:
            return "-"
        interval = text.interval_of(judgement) if intervals and column == "price" else ""
        return " ".join(filter(None, (text.value_of(judgement), interval)))

    return tuple(map(cell, columns))

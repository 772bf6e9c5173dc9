"""What a person reads in the terminal: the summary, a failing test's message, progress."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.console import Console
from rich.text import Text

from pytest_clusterqual import units
from pytest_clusterqual.model.measurement import CRITERIA, Conditions, Load
from pytest_clusterqual.model.record import SEVERITY, Finding, Judgement, Record, Verdict, worst
from pytest_clusterqual.report import text

_STYLES = {
    Verdict.PASS: "green",
    Verdict.FAIL: "bold red",
    Verdict.ERROR: "bold red",
    Verdict.UNDECIDED: "yellow",
    Verdict.BLOCKED: "magenta",
    Verdict.MEASURED: "cyan",
}
_HEADER = ("case", "quantity", "value", "required", "margin", "verdict")
_INDENT, _GAP = "  ", "  "
_NARROWEST = 60
_TIED = "\u00a0"  # a space at which a cell is not broken


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """One line of the table before it is broken into columns; `more` records like it are left out."""

    record: Record
    more: int = 0


def summary(records: Sequence[Record], *, run_folder: str, simulated: bool, width: int, color: bool = False) -> str:
    """The table of all judgements, one line a criterion, the worst finding and what the reader must know.

    `width` is in terminal columns. Plain text unless `color`; no line is longer than `width` from 60 up.
    """
    width = max(width, _NARROWEST)
    criteria = _by_criterion(records)
    lines = _table(criteria, width) if records else []
    lines += [Text("")] if records else [Text("no qualification test made a record")]
    for label, words, style in _closing(criteria, records, run_folder, simulated):
        lines += _labelled(label, words, style, width, indent=max(map(len, [*criteria, "records"])) + len(_GAP))
    return _render(lines, width, color)


def failure_message(judgements: Sequence[Judgement], conditions: Conditions | None) -> str:
    """Why a test did not pass: a line a judgement, worst first, then conditions, then findings.

    Judgements without a requirement share one line at the end of theirs; a PASS has none.
    """
    order = sorted(judgements, key=lambda j: (-SEVERITY.index(j.verdict), _distance(j)))
    lines = [_reason_line(j) for j in order if j.verdict not in (Verdict.PASS, Verdict.MEASURED)]
    if measured := [j for j in judgements if j.verdict is Verdict.MEASURED]:
        numbers = ", ".join(" ".join(filter(None, (text.quantity_of(j), _value(j)))) for j in measured)
        lines.append(f"MEASURED without a requirement: {numbers}")
    if conditions is not None:
        lines.append(f"measured on {text.conditions_line(conditions)}")
        lines += [f"note {line}" for line in text.throttled_lines(conditions.telemetry)]
    lines += [f"look at {text.finding_line(finding)}" for j in order for finding in j.findings]
    return "\n".join(dict.fromkeys(lines))


def progress_line(what: str, ranks: int, done: float, total: float, left_seconds: float | None) -> str:
    """Such as ``fabric all_reduce-world on 4 ranks: 3 of 8, about 12 s left``.

    `total` 0 means unknown, `ranks` 0 that no rank is there yet.
    """
    line = text.visible(what) + (f" on {ranks} rank{'s' if ranks != 1 else ''}" if ranks else "")
    if total > 0:
        line += f": {done:g} of {total:g}"
    if left_seconds is None or not math.isfinite(left_seconds) or left_seconds <= 0:
        return line
    seconds = math.ceil(left_seconds)
    minutes = math.ceil(seconds / 60)
    left = f"{seconds} s" if seconds <= 90 else f"{minutes} min" if minutes <= 90 else f"{minutes / 60:.1f} h"
    return f"{line}, about {left} left"


def _by_criterion(records: Sequence[Record]) -> dict[str, list[Record]]:
    names = dict.fromkeys([*CRITERIA, *(record.criterion for record in records)])
    grouped = {text.visible(name): [r for r in records if r.criterion == name] for name in names}
    return {name: group for name, group in grouped.items() if group}


def _collapsed(records: Sequence[Record]) -> list[_Row]:
    """A row a record, but for what would drown the verdicts.

    Sizes of one fabric test that passed share a row, which shows the tightest; so do properties of
    nodes that passed. Numbers that nothing is required of share a row, which shows the last, with
    sizes or beside verdicts.
    """
    judged = {record.test for record in records if record.judgement.verdict is not Verdict.MEASURED}
    groups: dict[tuple[str, object], list[Record]] = {}
    for number, record in enumerate(records):
        judgement = record.judgement
        key: object = number
        if judgement.verdict is Verdict.MEASURED and (record.criterion == "fabric" or record.test in judged):
            key = Verdict.MEASURED
        elif record.criterion == "fabric" and judgement.verdict is Verdict.PASS:
            key = judgement.quantity
        elif record.criterion == "nodes" and judgement.verdict is Verdict.PASS:
            key = Verdict.PASS
        groups.setdefault((record.test, key), []).append(record)
    tests = dict.fromkeys(record.test for record in records)
    return [
        _Row(record=_spokesman(group), more=len(group) - 1)
        for test in tests
        for (of_test, _), group in groups.items()
        if of_test == test
    ]


def _spokesman(group: Sequence[Record]) -> Record:
    margins = [record for record in group if record.judgement.margin is not None]
    return min(margins, key=lambda record: _distance(record.judgement)) if margins else group[-1]


def _table(criteria: dict[str, list[Record]], width: int) -> list[Text]:
    rows = {criterion: _collapsed(group) for criterion, group in criteria.items()}
    cells = {id(row): _cells(row) for group in rows.values() for row in group}
    widths = _fit([_HEADER, *cells.values()], width - len(_INDENT) - len(_GAP) * (len(_HEADER) - 1))
    lines = _columns(_HEADER, widths, "dim")
    for criterion, group in rows.items():
        lines.append(Text(criterion, style="bold"))
        previous = None
        for row in group:
            case, *others = cells[id(row)]
            shown = ("" if row.record.test == previous else case, *others)
            lines += _columns(shown, widths, _STYLES[row.record.judgement.verdict])
            previous = row.record.test
            if row.more:
                lines.append(Text(f"{_INDENT}{' ' * widths[0]}{_GAP}+{row.more} more in records.jsonl", style="dim"))
    return lines


def _cells(row: _Row) -> tuple[str, ...]:
    judgement = row.record.judgement
    tied = [
        piece.replace(" ", _TIED)
        for piece in (
            text.visible(judgement.quantity),
            text.visible(judgement.label),
            text.value_of(judgement),
            text.interval_of(judgement),
            text.bound_of(judgement),
        )
    ]
    share = text.share_of_expected(judgement)
    return (
        text.case_of(row.record.test),
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
    return [line.replace(_TIED, " ") for line in _filled(pieces, width)]


def _filled(pieces: Sequence[str], width: int) -> list[str]:
    lines = [""]
    for piece in pieces:
        if lines[-1] and cell_len(lines[-1]) + cell_len(piece.rstrip(" ")) > width:
            lines.append("")
        first, *others = chop_cells(piece if lines[-1] else piece.lstrip(" "), width) or [""]
        lines[-1] += first
        lines += others
    return [line.rstrip(" ") for line in lines]


def _columns(cells: Sequence[str], widths: Sequence[int], style: str) -> list[Text]:
    """One row of the table; its last column has the verdict's style."""
    broken = [_broken(cell, width) for cell, width in zip(cells, widths, strict=True)]
    lines = []
    for number in range(max(map(len, broken))):
        padded = [set_cell_size(b[number] if number < len(b) else "", w) for b, w in zip(broken, widths, strict=True)]
        line = Text(_INDENT + _GAP.join(padded[:-1]) + _GAP)
        lines.append(line.append(padded[-1], style=style))
    return lines


def _closing(
    criteria: dict[str, list[Record]], records: Sequence[Record], run_folder: str, simulated: bool
) -> list[tuple[str, str, str]]:
    """Label, words and style of each line below the table."""
    lines = []
    for criterion, group in criteria.items():
        verdict = worst([record.judgement.verdict for record in group])
        lines.append((criterion, f"{verdict!s:<9} {_because(group, verdict)}".rstrip(), _STYLES[verdict]))
    for test in dict.fromkeys(record.test for record in records if record.judgement.quantity == "time"):
        lines.append(("ledger", f"{text.case_of(test)}: {_ledger(records, test)}", ""))
    if findings := _findings(records):
        more = f" (+{len(findings) - 1} more in records.jsonl)" if len(findings) > 1 else ""
        lines.append(("look at", text.finding_line(findings[0]) + more, ""))
    known = [record.conditions for record in records if record.conditions is not None]
    if places := list(dict.fromkeys(text.ranks_of(conditions) for conditions in known)):
        lines.append(("on", " | ".join(places), ""))
    if simulated:
        words = "simulated nodes: all on one machine; nothing here is evidence about a network"
        lines.append(("note", words, "yellow"))
    if any(conditions.oversubscribed for conditions in known):
        lines.append(("note", "ranks share cores (oversubscribed)", "yellow"))
    for load in _heavy_loads(known):
        share = units.show_share(load.other_cpu)
        lines.append(
            (
                "note",
                f"{text.visible(load.node)} was loaded by other work ({share} of its cores' time): "
                "slow timings may be its neighbours'",
                "yellow",
            )
        )
    seen = [node for conditions in known for node in conditions.telemetry]
    lines += [("note", line, "yellow") for line in text.throttled_lines(seen)]
    return [*lines, ("records", text.visible(run_folder), "")]


def _ledger(records: Sequence[Record], test: str) -> str:
    """Where the wall clock of a full run went; its parts add up, the residual included."""
    parts = [r.judgement for r in records if r.test == test and r.judgement.quantity == "time"]
    seconds = {text.visible(part.label): part.value for part in parts if part.value is not None}
    told = ", ".join(f"{name} {value:.2f}" for name, value in seconds.items() if abs(value) >= 0.005)
    return f"{sum(seconds.values()):.2f} s = {told}"


def _because(group: Sequence[Record], verdict: Verdict) -> str:
    """The one thing to know about a criterion: the reason of its worst record, or its tightest margin."""
    those = [record for record in group if record.judgement.verdict is verdict]
    if verdict is Verdict.MEASURED:
        return "no requirement in the project file: numbers only, never a PASS"
    record = min(those, key=lambda r: _distance(r.judgement))
    place = " ".join(filter(None, (text.case_of(record.test), text.visible(record.judgement.label))))
    if verdict is not Verdict.PASS:
        more = f" (+{len(those) - 1} more {verdict})" if len(those) > 1 else ""
        return f"{place}: {text.visible(record.judgement.reason)}{more}"
    numbers = sum(record.judgement.verdict is Verdict.MEASURED for record in group)
    margin = text.margin_of(record.judgement)
    return "; ".join(
        filter(
            None,
            (
                f"tightest margin: {text.visible(record.judgement.quantity)} of {place} {margin}" if margin else "",
                f"{numbers} number{'s have' if numbers > 1 else ' has'} no requirement" if numbers else "",
            ),
        )
    )


def _findings(records: Sequence[Record]) -> list[Finding]:
    """Each finding once, those of the worst judgements first."""
    order = sorted(records, key=lambda r: (-SEVERITY.index(r.judgement.verdict), _distance(r.judgement)))
    return list(dict.fromkeys(finding for record in order for finding in record.judgement.findings))


def _heavy_loads(known: Sequence[Conditions]) -> list[Load]:
    """The heaviest load of every node that was loaded."""
    loads: dict[str, Load] = {}
    for load in (conditions.load for conditions in known):
        if load is not None and load.heavy and (load.node not in loads or load.other_cpu > loads[load.node].other_cpu):
            loads[load.node] = load
    return list(loads.values())


def _distance(judgement: Judgement) -> float:
    """The margin; a failure without one (a wrong result) is worse than any, a PASS better than any."""
    if judgement.margin is None or math.isnan(judgement.margin):
        return math.inf if judgement.verdict in (Verdict.PASS, Verdict.MEASURED) else -math.inf
    return judgement.margin


def _value(judgement: Judgement) -> str:
    return " ".join(filter(None, (text.value_of(judgement), text.interval_of(judgement))))


def _reason_line(judgement: Judgement) -> str:
    line = " ".join(filter(None, (str(judgement.verdict), text.visible(judgement.label))))
    line += f": {text.visible(judgement.reason)}"
    demand = judgement.requirement
    if demand is None:
        return line
    origin = f", expected from {demand.expected_from}" if demand.expected_from else ""
    return f"{line} ({text.visible(f'{demand.source}: {judgement.quantity} {demand.text}{origin}')})"


def _labelled(label: str, words: str, style: str, width: int, indent: int) -> list[Text]:
    """A label and its words, broken between words with a hanging indent; the words have the style."""
    first, *others = _filled(re.findall(r"[^ ]+|[ ]+", words), width - indent)
    lines = [Text().append(label.ljust(indent), style="bold").append(first, style=style)]
    return lines + [Text(" " * indent).append(line, style=style) for line in others]


def console(width: int, color: bool) -> Console:
    """What reports are printed on: `width` columns, plain text unless `color`."""
    # All is decided here, nothing left to find out: the caller's TERM, COLUMNS and NO_COLOR have no say.
    return Console(
        file=io.StringIO(),
        width=width,
        force_terminal=color,
        no_color=not color,
        color_system="standard" if color else None,
        highlight=False,
        legacy_windows=False,
    )


def _render(lines: Sequence[Text], width: int, color: bool) -> str:
    printer = console(width, color)
    with printer.capture() as capture:
        for line in lines:
            line.rstrip()
            printer.print(line, no_wrap=True, overflow="ignore", crop=False)
    return capture.get().rstrip("\n")

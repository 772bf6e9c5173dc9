"""The decision as a page: for the terminal, as Markdown, and as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.text import Text

from pytest_clusterqual.model.codec import to_json
from pytest_clusterqual.model.decision import TITLES, Decision, Line
from pytest_clusterqual.report import text
from pytest_clusterqual.report.table import GAP, filled, words
from pytest_clusterqual.report.terminal import render

NARROWEST = 60
_WIDEST_LABEL = 26
_DIRECTIONS = "seen in the records, and what to check first: directions, no proofs"
# What Markdown would take for something else than itself.
_MARKUP = re.compile(r"([\\`*_{}\[\]<>|#~])")


def worksheet(decision: Decision, *, run: str, width: int, color: bool = False) -> str:
    """The page for a terminal of `width` columns; plain text unless `color`.

    Each line ends with the lines of ``records.jsonl`` that it rests on.
    """
    width = max(width, NARROWEST)
    lines = [
        *_broken("decision", TITLES[decision.outcome], width, style="bold", records=()),
        *_broken("run", run, width, records=()),
    ]
    for section, group in groupby(decision.lines, key=lambda line: line.section):
        lines += [Text(""), Text(section, style="bold")]
        for line in group:
            lines += _broken(f"  {line.label}", line.text, width, records=line.records)
    if decision.symptoms:
        lines += [Text(""), *_broken("symptoms", _DIRECTIONS, width, style="bold", records=())]
    for symptom in decision.symptoms:
        lines += _broken("  seen", symptom.seen, width, records=symptom.records)
        lines += _broken("  check first", symptom.check_first, width, records=())
    return render(lines, width, color)


def markdown(decision: Decision, *, run: str) -> str:
    """The page as Markdown: a table a section."""
    return "\n".join(_markdown(decision, run)) + "\n"


def as_json(decision: Decision, *, run: str) -> str:
    """The page as one JSON object: the fields of `model.decision.Decision`, the outcome's title and the run."""
    return json.dumps({"run": run, "title": TITLES[decision.outcome], **to_json(decision)}) + "\n"


def _broken(label: str, sentence: str, width: int, *, records: Sequence[int], style: str = "") -> Iterator[Text]:
    """A label and its words with a hanging indent, the records at the end; a long label has a line of its own."""
    indent = _WIDEST_LABEL + len(GAP)
    label = text.visible(label) if label.strip() == label else "  " + text.visible(label)
    told = f" (record{'s' if len(records) > 1 else ''} {text.ranges(records)})" if records else ""
    pieces = words(text.visible(sentence) + told)
    first, *others = filled(pieces, width - indent)
    if len(label) > _WIDEST_LABEL:
        yield Text(label[:width], style=style)
        label = ""
    yield Text(label.ljust(indent)).append(first, style=style)
    yield from (Text(" " * indent).append(line, style=style) for line in others)


def _markdown(decision: Decision, run: str) -> Iterator[str]:
    yield f"# {TITLES[decision.outcome].capitalize()}"
    yield ""
    yield f"Run {_plain(run)}: {_plain(decision.why)}. The numbers are lines of `records.jsonl`."
    for section, group in groupby(decision.lines, key=lambda line: line.section):
        yield from _table(section, ("", "", "records"), [_cells(line) for line in group])
    if decision.symptoms:
        rows = [(_plain(s.seen), _plain(s.check_first), text.ranges(s.records)) for s in decision.symptoms]
        yield from _table("symptoms", ("seen", "check first; a direction, no proof", "records"), rows)


def _cells(line: Line) -> tuple[str, ...]:
    return _plain(line.label), _plain(line.text), text.ranges(line.records)


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield from ("", f"## {title.capitalize()}", "")
    for row in (head, ["---"] * len(head), *rows):
        yield f"| {' | '.join(row)} |"


def _plain(sentence: str) -> str:
    return _MARKUP.sub(r"\\\1", text.visible(sentence))

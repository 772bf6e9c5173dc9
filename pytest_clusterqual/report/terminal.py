"""What a person reads in the terminal: the summary, a failing test's message, progress."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console, RenderableType
from rich.text import Text

from pytest_clusterqual import units
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.decision import TITLES, Decision
from pytest_clusterqual.model.record import GOOD, Finding, Judgement, Record, Verdict, worst
from pytest_clusterqual.report import text
from pytest_clusterqual.report.asides import asides
from pytest_clusterqual.report.digest import (
    because,
    by_criterion,
    conditions_of,
    findings,
    load_lines,
    severity,
    states,
)
from pytest_clusterqual.report.overall import incomplete, overall
from pytest_clusterqual.report.saving import saving_lines
from pytest_clusterqual.report.table import GAP, STYLES, filled, table, words

_NARROWEST = 60
_HELD = "\N{NO-BREAK SPACE}"  # where a line is not to be broken; printed as any other
_MOST_NOTES = 3
_Labelled = tuple[str, str, str]  # label, words, style


def summary(
    records: Sequence[Record],
    *,
    run_folder: str,
    simulated: bool,
    width: int,
    color: bool = False,
    plots: int = 0,
    decision: Decision | None = None,
    page: str = "",
    asked: Mapping[str, Sequence[str]] | None = None,
    replay_of: str = "",
) -> str:
    """The table of all judgements, whether all of it is accepted, one line a criterion, the worst suspect and what the
    reader must know.

    `width` is in terminal columns; no line is longer from 60 up. `plots` is the number of plots in the
    run folder, `decision` what follows from the records, `page` where all of it is to be read. `asked` has the tests
    of each criterion that apply here, `replay_of` the run that was judged again. Plain text unless `color`.
    """
    width = max(width, _NARROWEST)
    criteria = by_criterion(records)
    lines = table(criteria, width) if records else []
    lines += [Text("")] if records else [Text("no qualification test made a record")]
    closing = list(_verdicts(criteria, records, asked or {}, simulated, decision))
    closing += [*_of_tests(records), *_of_findings(records), *_of_conditions(records, simulated)]
    if replay_of:
        closing.append(("note", f"judged again from the run {text.visible(replay_of)}: nothing was measured", "yellow"))
    closing.append(("records", text.visible(run_folder), ""))
    if plots:
        closing.append(("plots", f"{units.show_count(plots, 'SVG file')} in {text.visible(run_folder)}/plots", ""))
    if page:
        closing.append(("page", text.visible(page), ""))
    for label, sentence, style in closing:
        lines += _labelled(label, sentence, style, width, indent=max(len(each[0]) for each in closing) + len(GAP))
    return render(lines, width, color)


def failure_message(judgements: Sequence[Judgement], conditions: Conditions | None) -> str:
    """Why a test did not pass: a line a judgement, worst first, then conditions, suspects and notes.

    Judgements without a requirement share one line at the end of theirs; a PASS has none.
    """
    order = sorted(judgements, key=severity)
    lines = [_reason_line(j) for j in order if j.verdict not in GOOD]
    measured = [j for j in judgements if j.verdict is Verdict.MEASURED]
    # Of a ladder the table shows all rungs.
    measured = [j for j in measured if j.quantity == "first_fit"] or measured
    if with_value := [j for j in measured if j.value is not None] or (measured if not lines else []):
        numbers = ", ".join(" ".join(filter(None, (text.quantity_of(j), _value(j)))) for j in with_value)
        lines.append(f"MEASURED without a requirement: {numbers}")
    if conditions is not None:
        lines.append(f"measured on {text.conditions_line(conditions)}")
        lines += [f"note {line}" for line in text.throttled_lines(conditions.telemetry)]
    suspects, notes = findings(order)
    lines += [f"look at {text.finding_line(finding)}" for finding in suspects]
    lines += [f"note {line}" for line in _note_lines(notes)]
    return "\n".join(dict.fromkeys(lines))


def progress_line(what: str, ranks: int, done: float, total: float, left_seconds: float | None) -> str:
    """Such as ``fabric all_reduce-world on 4 ranks: 3 of 8, about 12 s left``.

    `total` 0 means unknown, `ranks` 0 that no rank is there yet.
    """
    line = text.visible(what) + (f" on {units.show_count(ranks, 'rank')}" if ranks else "")
    if total > 0:
        line += f": {done:g} of {total:g}"
    if left_seconds is None or not math.isfinite(left_seconds) or left_seconds <= 0:
        return line
    seconds = math.ceil(left_seconds)
    minutes = math.ceil(seconds / 60)
    left = f"{seconds} s" if seconds <= 90 else f"{minutes} min" if minutes <= 90 else f"{minutes / 60:.1f} h"
    return f"{line}, about {left} left"


def _verdicts(
    criteria: Mapping[str, Sequence[Record]],
    records: Sequence[Record],
    asked: Mapping[str, Sequence[str]],
    simulated: bool,
    decision: Decision | None,
) -> Iterator[_Labelled]:
    """Of the whole, then the decision, then a line a criterion."""
    whole = overall(records, asked, simulated=simulated)
    yield "overall", str(whole), STYLES[whole.verdict]
    if decision is not None:
        yield _decision(decision, criteria.get("decision", []))
    for criterion, group in criteria.items():
        verdict = worst([record.judgement.verdict for record in group])
        if criterion != "decision" or decision is None:
            why = "; ".join(filter(None, (incomplete(criterion, group, asked), because(group, verdict))))
            yield criterion, f"{verdict!s:<9} {why}".rstrip(), STYLES[verdict]


def _of_tests(records: Sequence[Record]) -> Iterator[_Labelled]:
    for test in dict.fromkeys(record.test for record in records if record.judgement.quantity == "time"):
        yield "ledger", f"{text.case_of(test)}: {_ledger(records, test)}", ""
    yield from ((label, line, "yellow") for label, line in asides(records))
    yield from (("saving", line, "") for line in saving_lines(records))
    for record in records:
        if record.judgement.quantity == "lost_time" and record.judgement.parts:
            yield "lost time", f"{text.case_of(record.test)}: {text.parts_of(record.judgement)}", ""


def _of_findings(records: Sequence[Record]) -> Iterator[_Labelled]:
    suspects, notes = findings(sorted((record.judgement for record in records), key=severity))
    if suspects:
        yield "look at", text.finding_line(suspects[0]) + _more(len(suspects) - 1), ""
    yield from (("note", line, "") for line in _note_lines(notes))


def _of_conditions(records: Sequence[Record], simulated: bool) -> Iterator[_Labelled]:
    known = conditions_of(records)
    if places := list(dict.fromkeys(map(text.ranks_of, known))):
        yield "on", " | ".join(places), ""
    if simulated:
        yield "note", "simulated nodes: all on one machine; nothing here is evidence about a network", "yellow"
    if any(conditions.oversubscribed for conditions in known):
        yield "note", "ranks share cores (oversubscribed)", "yellow"
    throttled = text.throttled_lines(node for conditions in known for node in conditions.telemetry)
    yield from (("note", line, "yellow") for line in (*load_lines(known), *throttled))


def _decision(decision: Decision, tests: Sequence[Record]) -> _Labelled:
    """The outcome and why; where the file expects one, the verdict of its test."""
    told, verdict = f"{TITLES[decision.outcome]}: {decision.why}", Verdict.MEASURED
    for judgement in (record.judgement for record in tests):
        if judgement.verdict is not Verdict.MEASURED:
            told, verdict = f"{judgement.verdict!s:<9} {text.visible(judgement.reason)}", judgement.verdict
    return "decision", told, STYLES[verdict]


def _ledger(records: Sequence[Record], test: str) -> str:
    """Where the wall clock of a full run went; its parts add up, the residual included. Then the gain that is left."""
    seconds = {name: part.value or 0.0 for name, part in states(records, test).items()}
    parts = [f"{name} {value:.2f}" for name, value in seconds.items() if abs(value) >= 0.005]
    told = ", ".join(part.replace(" ", _HELD) for part in parts)
    gain = next((r.judgement.value for r in records if r.test == test and r.judgement.quantity == "gain"), None)
    left = "" if gain is None else f"; gain {gain:.3g} over one node"
    return f"{sum(seconds.values()):.2f} s = {told}{left}"


def _note_lines(notes: Sequence[Finding]) -> list[str]:
    lines = [text.finding_line(finding) for finding in notes[:_MOST_NOTES]]
    return lines and [*lines[:-1], lines[-1] + _more(len(notes) - len(lines))]


def _more(count: int) -> str:
    return f" (+{count} more in records.jsonl)" if count else ""


def _value(judgement: Judgement) -> str:
    return " ".join(filter(None, (text.value_of(judgement), text.interval_of(judgement))))


def _reason_line(judgement: Judgement) -> str:
    line = " ".join(filter(None, (str(judgement.verdict), text.label_of(judgement))))
    line += f": {text.visible(judgement.reason)}"
    demand = judgement.requirement
    if demand is None:
        return line
    origin = f", expected from {demand.expected_from}" if demand.expected_from else ""
    return f"{line} ({text.visible(f'{demand.source}: {judgement.quantity} {demand.text}{origin}')})"


def _labelled(label: str, sentence: str, style: str, width: int, indent: int) -> list[Text]:
    """A label and its words, broken between words with a hanging indent; the words have the style."""
    first, *others = [line.replace(_HELD, " ") for line in filled(words(sentence), width - indent)]
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


def printed(parts: Sequence[RenderableType], width: int, color: bool) -> str:
    """What a terminal of `width` columns shows of `parts`, one below the other; no line ends in blanks."""
    printer = console(width, color)
    with printer.capture() as capture:
        for part in parts:
            printer.print(part)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def render(lines: Sequence[Text], width: int, color: bool) -> str:
    """Lines that are broken already, as they go to a terminal; plain text unless `color`."""
    printer = console(width, color)
    with printer.capture() as capture:
        for line in lines:
            line.rstrip()
            printer.print(line, no_wrap=True, overflow="ignore", crop=False)
    return capture.get().rstrip("\n")

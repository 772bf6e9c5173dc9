"""What a training log tells, as a person reads it: a row an attempt, then figures, pauses and what is missing."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from pytest_clusterqual import units
from pytest_clusterqual.model.log import LoggedAttempt, LoggedRun, Middle
from pytest_clusterqual.report import text
from pytest_clusterqual.report.over_time import finding_lines
from pytest_clusterqual.report.terminal import printed

_HEADINGS = ("attempt", "steps", "lines", "warm-up", "a step", "lost", "away")
_MOST_PAUSES, _MOST_UNREAD, _MOST_STEPS = 5, 3, 12
_LONGEST_EXAMPLE = 50
_NONE = "-"


def log_report(run: LoggedRun, *, width: int, color: bool = False) -> str:
    """The table of attempts, the figures of their steady steps, what was no step, and what cannot be known.

    `width` is in terminal columns. Plain text unless `color`.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in _HEADINGS:
        table.add_column(heading, justify="left" if heading == "attempt" else "right", overflow="fold")
    for number, attempt in enumerate(run.attempts, 1):
        table.add_row(*map(Text, _row(number, attempt)))
    lines = Table.grid(padding=(0, 2, 0, 0))
    lines.add_column(no_wrap=True)
    lines.add_column(overflow="fold")
    for label, sentence in _lines(run):
        lines.add_row(
            Text(label, style="yellow" if label in ("warning", "missing") else ""), Text(text.visible(sentence))
        )
    return printed([table, "", lines], width, color)


def _row(number: int, attempt: LoggedAttempt) -> tuple[str, ...]:
    return (
        f"{number}",
        f"{attempt.first}-{attempt.last}",
        f"{attempt.lines}",
        f"{attempt.warm_up}",
        _time(attempt.seconds.value) if attempt.seconds else _NONE,
        f"{attempt.lost}" if attempt.lost else _NONE,
        _time(attempt.away) if attempt.away is not None else _NONE,
    )


def _lines(run: LoggedRun) -> Iterator[tuple[str, str]]:
    """Label and sentence of each line below the table."""
    log = run.log
    yield "log", f"{log.family}: {', '.join(log.files)}"
    yield from _figures(run)
    if log.told.took and log.told.done:
        each = _time(log.told.took / log.told.done)
        yield "whole", f"{log.told.done} steps took {_time(log.told.took)} by the log's own account, {each} a step"
    if log.memory is not None:
        yield "memory", f"at most {units.show(log.memory, units.BYTES)}, as lines tell it"
    yield from _pauses(run)
    if lost := sum(attempt.lost for attempt in run.attempts):
        known = [attempt.lost_seconds for attempt in run.attempts if attempt.lost_seconds is not None]
        took = f", some {_time(sum(known))} of work" if known else ""
        yield "lost", f"{lost} steps were done again after a restart{took}, counted to the last line before it"
    for warning in _warnings(run):
        yield "warning", warning
    for sentence in run.missing:
        yield "missing", sentence
    yield from _unread(run)


def _warnings(run: LoggedRun) -> Iterator[str]:
    if run.skipped:
        yield f"{run.skipped} steps were skipped by the loss scale: they took their time and changed no weight"
    if run.not_finite:
        yield f"the loss is not finite at step {units.show_some(run.not_finite, _MOST_STEPS)}"
    yield from run.warnings


def _figures(run: LoggedRun) -> Iterator[tuple[str, str]]:
    if run.seconds is not None:
        yield "step time", f"{_shown(run.seconds, units.SECONDS)} ({_counted(run.seconds)}, {run.timed_by})"
    for name, middle in run.rates.items():
        work = f"; {run.tokens_per_step:,.0f} a step, from {run.tokens_from}" if name == "tokens" else ""
        yield f"{name}/s", f"{_shown(middle, f'{name}/s')}{work}"
    if run.device_rate is not None:
        yield (
            "a device",
            f"{_shown(run.device_rate, units.TOKEN_RATE)} as the lines tell it ({_counted(run.device_rate)})",
        )
    if run.drift is not None:
        low, high = ((bound - 1) * 100 for bound in (run.drift.low, run.drift.high))
        seen = "slower" if low > 0 else "faster" if high < 0 else "no drift seen"
        yield "drift", f"second half against first: {text.signed(low)} to {text.signed(high)} % time a step, {seen}"
    yield from finding_lines(run.findings)


def _counted(middle: Middle) -> str:
    lines = units.show_count(middle.lines, "line")
    return lines if middle.lines == middle.steps else f"{lines} of {middle.steps} steps"


def _shown(middle: Middle, unit: str) -> str:
    value = units.show(middle.value, unit)
    if middle.interval is None:
        return value
    low, high = (units.show(bound, unit) for bound in (middle.interval.low, middle.interval.high))
    return f"{value} {units.show_interval(value, low, high)}"


def _pauses(run: LoggedRun) -> Iterator[tuple[str, str]]:
    if not run.pauses:
        return
    kinds: dict[str, float] = {}
    for pause in run.pauses:
        kind = f"beside lines about {' and '.join(pause.told)}" if pause.told else "of which the log says nothing"
        kinds[kind] = kinds.get(kind, 0.0) + pause.seconds
    parts = ", ".join(f"{_time(seconds)} {kind}" for kind, seconds in kinds.items())
    yield "pauses", f"{len(run.pauses)} between steps: {parts}"
    for pause in sorted(run.pauses, key=lambda each: -each.seconds)[:_MOST_PAUSES]:
        yield "", f"{_time(pause.seconds)} between steps {pause.after} and {pause.before} (line {pause.place.line})"


def _unread(run: LoggedRun) -> Iterator[tuple[str, str]]:
    count = sum(each.count for each in run.log.unread)
    if not count:
        return
    yield "not read", f"{count} of {run.log.lines} lines tell nothing that is known here, such as"
    for each in run.log.unread[:_MOST_UNREAD]:
        yield "", f"{each.count} x line {each.place.line}: {each.example[:_LONGEST_EXAMPLE]}"


def _time(seconds: float) -> str:
    return units.show(seconds, units.SECONDS)

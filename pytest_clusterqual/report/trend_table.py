"""Several runs as a person reads them: what has changed first, and from which run on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from pytest_clusterqual import units
from pytest_clusterqual.model.comparison import Trend, Trends
from pytest_clusterqual.report import text
from pytest_clusterqual.report.comparison_table import MOST_ALIKE, STYLES, named, some_of
from pytest_clusterqual.report.terminal import printed

_WHY = {
    True: "with a figure that changed on the way",
    False: "flaky: none of its figures changed",
    None: "why cannot be told: figures of too few runs, or other hosts",
}


def trend_report(found: Trends, *, width: int, color: bool = False) -> str:
    """First and last value of every figure, the range over all runs, and the runs from which on it was another one.

    `width` is in terminal columns. Plain text unless `color`.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for heading in ("case", "quantity", "first", "last", "lowest - highest", "trend"):
        table.add_column(heading, overflow="fold", justify="right" if heading in ("first", "last") else "left")
    still = [each for each in found.trends if not moved(each)]
    for each in [each for each in found.trends if moved(each)] + still[:MOST_ALIKE]:
        values = [units.show(value, each.unit) for value in (each.values[0], each.values[-1])]
        table.add_row(
            text.visible(text.case_of(each.test)), text.visible(f"{each.quantity} {each.label}".strip()), *values,
            f"{units.show(min(each.values), each.unit)} - {units.show(max(each.values), each.unit)}",
            Text(text.visible(f"{outcome(each)}: {said(each)}" if moved(each) else each.change),
                 style=STYLES[each.change]),
        )  # fmt: skip
    lines = Table.grid(padding=(0, 2, 0, 0))
    lines.add_column(no_wrap=True)
    for label, sentence in _lines(found, hidden=max(len(still) - MOST_ALIKE, 0)):
        lines.add_row(Text(label), Text(text.visible(sentence)))
    heading = f"{len(found.runs)} runs, {found.runs[0]} to {found.runs[-1]}"
    return printed([text.visible(heading), "", table, "", lines], width, color)


def moved(trend: Trend) -> bool:
    """It was another figure in some of the runs."""
    return bool(trend.points) or trend.drift is not None


def outcome(trend: Trend) -> str:
    """The last run beside the first, of a figure that has moved."""
    return "back again" if trend.change == "alike" else trend.change


def said(trend: Trend) -> str:
    """From which run on it was how many times what it was; empty where it was one level."""
    if trend.drift is not None:
        return f"steadily to {trend.drift:.3g} x over {len(trend.values)} runs"
    return "; ".join(
        f"{point.ratio:.3g} x [{point.interval.low:.3g}, {point.interval.high:.3g}] from {point.run} on"
        for point in trend.points
    )


def _lines(found: Trends, *, hidden: int) -> Iterator[tuple[str, str]]:
    counts = Counter(each.change for each in found.trends)
    told = [f"{counts[change]} {change}" for change in ("worse", "better", "alike", "open") if counts[change]]
    yield "figures", ", ".join(told) + (f"; {hidden} more without a change are not shown" if hidden else "")
    yield (
        "chance",
        (
            "a change is told where one level, or a straight line, does not describe the runs: of runs without one in "
            "at most 5 % of reports, all figures together, if they scatter normally"
        ),
    )
    if counts["open"]:
        yield "open", "fewer than 5 runs have the figure, or it was zero: a change is not told from chance"
    for history in found.histories:
        verdicts = ", ".join(str(verdict or "-") for verdict in history.verdicts)
        yield "turned", f"{named(history.test)}: {verdicts}; {_WHY[history.explained]}"
    for label, tests in (("gone", found.gone), ("come", found.come)):
        if tests:
            yield label, some_of(tests)
    for refused in found.refused:
        yield "refused", f"{refused.test}: {refused.what} was {refused.old}, then {refused.new}: not the same thing"

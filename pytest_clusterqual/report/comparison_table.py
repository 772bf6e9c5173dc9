"""Two runs side by side as a person reads them: a row a figure, what is worse first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from pytest_clusterqual import units
from pytest_clusterqual.model.comparison import Compared, RunsCompared
from pytest_clusterqual.model.conditions import Load
from pytest_clusterqual.report import text
from pytest_clusterqual.report.terminal import printed

STYLES = {"worse": "red", "better": "green", "alike": "", "open": "yellow"}
MOST_ALIKE = 10  # rows of figures without a difference; the others are counted
_MOST_NAMED = 3  # tests of a kind
_NONE = "-"
_WHY = {
    True: "with a figure that changed by more than chance",
    False: "flaky: none of its figures did",
    None: "why cannot be told: figures with too few samples, or other hosts",
}
_OPEN = "too few samples to tell a change from chance, among so many figures; more runs would"


def comparison_report(found: RunsCompared, *, width: int, color: bool = False) -> str:
    """Old and new value of every figure, their ratio with its interval, and what is more than chance.

    `width` is in terminal columns. Plain text unless `color`.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for heading in ("case", "quantity", "old", "new", "new / old", "change"):
        table.add_column(heading, overflow="fold", justify="right" if heading in ("old", "new") else "left")
    alike = [each for each in found.figures if each.change == "alike"]
    shown = [each for each in found.figures if each.change != "alike"] + alike[:MOST_ALIKE]
    for each in shown:
        cells = (text.case_of(each.test), f"{each.quantity} {each.label}".strip(), *_numbers(each))
        change = f"{each.change}{_under_load(each, found)}"
        table.add_row(*(Text(text.visible(cell)) for cell in cells), Text(change, style=STYLES[each.change]))
    lines = Table.grid(padding=(0, 2, 0, 0))
    lines.add_column(no_wrap=True)
    for label, sentence in _lines(found, hidden=max(len(alike) - MOST_ALIKE, 0)):
        lines.add_row(Text(label), Text(text.visible(sentence)))
    return printed([f"{text.visible(found.old)} -> {text.visible(found.new)}", "", table, "", lines], width, color)


def named(test: str) -> str:
    """Function and case of a test, such as ``memory ddp-2nodes``: one layout is a case of several criteria."""
    function, case = test.rpartition("::")[2].partition("[")[0], text.case_of(test)
    return case if case == text.visible(function) else f"{text.visible(function.removeprefix('test_'))} {case}"


def some_of(tests: Sequence[str]) -> str:
    """The first of them by name, and how many more there are."""
    return units.show_some([named(test) for test in tests], _MOST_NAMED)


def _under_load(each: Compared, found: RunsCompared) -> str:
    """Beside what changed as load changes it: slower in the new run, or slower in the old one."""
    loads = next(((those.old, those.new) for those in found.loaded if those.test == each.test), (None, None))
    blamed = {"worse": loads[1], "better": loads[0]}.get(each.change)
    return f", {_busy(blamed)}" if blamed else ""


def _busy(load: Load) -> str:
    return f"{text.visible(load.node)} was {units.show_share(load.other_cpu)} loaded by other work"


def _load_lines(found: RunsCompared) -> Iterator[str]:
    for those in found.loaded[:_MOST_NAMED]:
        told = [f"{when} {_busy(load)}" for when, load in (("then", those.old), ("now", those.new)) if load]
        yield f"{named(those.test)}: {', '.join(told)}; its timings may say more about that than about the machine"
    if (more := len(found.loaded) - _MOST_NAMED) > 0:
        yield f"and {more} more {'test' if more == 1 else 'tests'}"


def _numbers(each: Compared) -> tuple[str, str, str]:
    ratio = _NONE if each.ratio is None else f"{each.ratio:.3g}"
    if each.interval is not None:
        ratio += f" [{each.interval.low:.3g}, {each.interval.high:.3g}]"
    return units.show(each.old, each.unit), units.show(each.new, each.unit), ratio


def _lines(found: RunsCompared, *, hidden: int) -> Iterator[tuple[str, str]]:
    counts = Counter(each.change for each in found.figures)
    told = [f"{counts[change]} {change}" for change in ("worse", "better", "alike", "open") if counts[change]]
    yield "figures", f"{', '.join(told)}" + (f"; {hidden} more that are alike are not shown" if hidden else "")
    yield (
        "chance",
        (
            "worse and better would be said of runs that are alike in 5 % of comparisons, all figures together; what "
            "only another launch changes is in a difference, too: compare several runs before you blame a machine"
        ),
    )
    if counts["open"]:
        yield "open", _OPEN
    yield from (("loaded", line) for line in _load_lines(found))
    for test in found.turned:
        yield "turned", f"{named(test.test)}: {test.old} -> {test.new}, {_WHY[test.explained]}"
    for each in found.refused:
        yield "refused", f"{each.test}: {each.what} was {each.old}, now {each.new}: not the same thing"
    for name, tests in (("old", found.only_old), ("new", found.only_new)):
        if tests:
            yield f"only {name}", some_of(tests)

"""What a person reads of `clusterqual doctor`: a table with a row a host, and below it what is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from rich.table import Table
from rich.text import Text

from pytest_clusterqual import units
from pytest_clusterqual.model.hardware import NodeHardware
from pytest_clusterqual.model.host_check import Fact, HostCheck, HostProblem, Space
from pytest_clusterqual.report import text
from pytest_clusterqual.report.terminal import console

_ERROR, _WARNING = "bold red", "yellow"
_UNKNOWN = "?"


def doctor_report(
    asked: Sequence[str],
    checks: Mapping[str, HostCheck],
    hardware: Mapping[str, NodeHardware],
    problems: Sequence[HostProblem],
    *,
    fold: Callable[[Sequence[str]], str],
    width: int,
    color: bool = False,
) -> str:
    """The table of all `asked` hosts, a line a problem, and how many hosts can run ranks.

    What is wrong or odd is coloured, or marked with ``!`` without `color`. `fold` makes one short
    text of several host names. `width` is in terminal columns.
    """
    styles = {(node, p.fact): _WARNING if p.warning else _ERROR for p in reversed(problems) for node in p.nodes}
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("host", *(heading for _fact, heading, _show in _COLUMNS)):
        table.add_column(heading, overflow="fold", no_wrap=heading == "host")
    for node in asked:
        cells: list[tuple[Fact, str]] = [("host", text.visible(node))]
        cells += [
            (fact, text.visible(show(checks[node], hardware[node])) if node in checks else "-")
            for fact, _heading, show in _COLUMNS
        ]
        table.add_row(*(_marked(shown, styles.get((node, fact), ""), color) for fact, shown in cells))
    lines = Table.grid(padding=(0, 2, 0, 0))
    for problem in problems:
        style = _WARNING if problem.warning else _ERROR
        what = text.visible(": ".join(filter(None, (problem.what, problem.remedy))))
        lines.add_row(
            Text(text.visible(fold(problem.nodes)), style=style, overflow="fold"),
            Text(f"warning: {what}" if problem.warning else what),
        )
    printer = console(width, color)
    with printer.capture() as capture:
        printer.print(table)
        if problems:
            printer.print()
            printer.print(lines)
        printer.print()
        printer.print(Text(_conclusion(asked, problems)))
    return "\n".join(line.rstrip() for line in capture.get().rstrip().split("\n"))


def _marked(shown: str, style: str, color: bool) -> Text:
    return Text(shown if color or not style else f"!{shown}", style=style)


def _conclusion(asked: Sequence[str], problems: Sequence[HostProblem]) -> str:
    bad = {node for problem in problems if not problem.warning for node in problem.nodes}
    return f"{len(asked) - len(bad)} of {len(asked)} hosts can run ranks"


def _seconds_away(check: HostCheck) -> str:
    return _UNKNOWN if check.clock_offset is None else f"{round(check.clock_offset, 2) + 0.0:+.2f} s"


def _version(version: str | None, check: HostCheck) -> str:
    """Missing only where versions could be told."""
    return version or (_UNKNOWN if check.python is None else "missing")


def _lookup(check: HostCheck) -> str:
    return _UNKNOWN if check.reverse_dns is None else f"{check.reverse_dns:.2f} s"


def _free(*spaces: Space | None) -> str:
    free = [space.free for space in spaces if space is not None]
    return units.show(min(free), units.BYTES) if free else _UNKNOWN


def _count(number: float | None) -> str:
    return _UNKNOWN if number is None else "unlimited" if math.isinf(number) else f"{number:.0f}"


_COLUMNS: tuple[tuple[Fact, str, Callable[[HostCheck, NodeHardware], str]], ...] = (
    ("python", "python", lambda check, _: check.python or _UNKNOWN),
    ("torch", "torch", lambda check, _: _version(check.torch, check)),
    ("package", "package", lambda check, _: _version(check.package, check)),
    ("clock", "clock", lambda check, _: _seconds_away(check)),
    ("shm", "shm free", lambda check, _: _free(check.shm)),
    ("files", "files", lambda check, _: _count(check.open_files)),
    ("disk", "disk free", lambda check, _: _free(check.temp, check.cwd)),
    ("dns", "DNS", lambda check, _: _lookup(check)),
    ("cpus", "cpus", lambda check, _: _count(check.cpus)),
    ("gpus", "gpus", lambda _, node: _count(len(node.gpus))),
    ("driver", "driver", lambda _, node: node.driver or "-"),
)  # fmt: skip

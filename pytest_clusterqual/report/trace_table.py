"""What profiler traces tell, as a person reads it: a row a rank, then what stands out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from pytest_clusterqual import units
from pytest_clusterqual.model.trace import RankTimes, TraceTimes
from pytest_clusterqual.report import text
from pytest_clusterqual.report.terminal import printed

_HEADINGS = (
    "", "time", "compute", "overlapped", "exposed", "memory", "idle", "hidden", "slower", "transfer", "wait", "last",
)  # fmt: skip
_GAP = 2


def trace_report(times: TraceTimes, *, width: int, color: bool = False) -> str:
    """The table of all ranks, what their steps cost together, whom to look at, and warnings.

    `width` is in terminal columns. Plain text unless `color`.
    """
    rows = [tuple(text.visible(cell) for cell in _row(rank)) for rank in times.ranks]
    lines = Table.grid(padding=(0, 2, 0, 0))
    for label, sentence in _lines(times):
        lines.add_row(Text(label, style="yellow" if label == "warning" else ""), Text(text.visible(sentence)))
    tables = [part for columns in _blocks([_HEADINGS, *rows], width) for part in (_table(rows, columns), "")]
    return printed([*tables, lines], width, color)


def _blocks(rows: Sequence[Sequence[str]], width: int) -> list[list[int]]:
    """The columns of each table: one table where `width` allows, else several, each with the ranks' names."""
    widths = [max(cell_len(row[column]) for row in rows) + _GAP for column in range(len(_HEADINGS))]
    room = width + _GAP - min(widths[0], width // 3)  # a long name is folded
    blocks: list[list[int]] = [[]]
    for column in range(1, len(widths)):
        if blocks[-1] and sum(widths[each] for each in blocks[-1]) + widths[column] > room:
            blocks.append([])
        blocks[-1].append(column)
    return [[0, *block] for block in blocks]


def _table(rows: Sequence[Sequence[str]], columns: Sequence[int]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
    for column in columns:
        table.add_column(
            _HEADINGS[column], justify="right" if column else "left", no_wrap=bool(column), overflow="fold"
        )
    for row in rows:
        table.add_row(*(Text(row[column]) for column in columns))
    return table


def _row(rank: RankTimes) -> Iterator[str]:
    parts = rank.parts
    talked = parts.overlap is not None
    yield rank.name
    yield units.show(parts.total, units.SECONDS)
    yield _share(parts.compute, parts.total)
    yield _share(parts.overlapped, parts.total) if talked else "-"
    yield _share(parts.exposed, parts.total) if talked else "-"
    yield _share(parts.memory, parts.total)
    yield _share(parts.idle, parts.total)
    yield "-" if parts.overlap is None else units.show_share(parts.overlap)
    yield f"x {rank.inflation.ratio:.2f}" if rank.inflation else "-"
    if rank.arrivals is None:
        yield from ("-", "-", "-")
    else:
        yield units.show(rank.arrivals.transfer, units.SECONDS)
        yield units.show(rank.arrivals.wait, units.SECONDS)
        yield f"{rank.arrivals.last} of {rank.arrivals.collectives}"


def _share(part: float, whole: float) -> str:
    return units.show_share(part / whole) if whole else "-"


def _lines(times: TraceTimes) -> Iterator[tuple[str, str]]:
    """Label and sentence of each line below the table."""
    all_of_them = times.together
    named = [
        f"{what} {units.show(seconds, units.SECONDS)} ({_share(seconds, all_of_them.total)})"
        for what, seconds in (
            ("compute", all_of_them.compute), ("exposed communication", all_of_them.exposed),
            ("memory", all_of_them.memory), ("idle", all_of_them.idle),
        )
    ]  # fmt: skip
    steps = "the whole trace" if times.steps == (None,) else units.show_count(len(times.steps), "step")
    yield "together", f"{steps}: {units.show(all_of_them.total, units.SECONDS)}, of it {', '.join(named)}"
    if len(times.ranks) > 1:
        most = max(times.ranks, key=lambda rank: rank.parts.exposed)
        if most.parts.exposed:
            yield "exposed", f"{most.name} the most: {units.show(most.parts.exposed, units.SECONDS)}"
        late = max(times.ranks, key=lambda rank: rank.arrivals.last if rank.arrivals else 0)
        if late.arrivals and late.arrivals.last:
            often = f"{late.arrivals.last} of {late.arrivals.collectives} collectives"
            yield "waited for", f"{late.name} the most: it came last to {often}, the others waited for it there"
    for warning in times.warnings:
        yield "warning", warning

"""The ledger of a probed run as a person reads it: a row a state, then goodput and what is to be looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from pytest_clusterqual import units
from pytest_clusterqual.model.probe import ProbeLedger, RankLedger
from pytest_clusterqual.report import text
from pytest_clusterqual.report.over_time import over_time_lines
from pytest_clusterqual.report.terminal import printed

_NAMED = 3  # ranks of one line; the others are in the JSON


def probe_report(ledger: ProbeLedger, *, width: int, color: bool = False) -> str:
    """Seconds by state, of the rank that was there longest and over all; then goodput, steps, stalls, what is unknown.

    `width` is in terminal columns. Plain text unless `color`.
    """
    longest = max(ledger.ranks, key=lambda rank: (rank.wall, -rank.rank))
    several = len(ledger.ranks) > 1
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("")
    for heading in (f"rank {longest.rank}", "share", *(("least", "most", "on") if several else ())):
        table.add_column(heading, justify="left" if heading == "on" else "right", no_wrap=True)
    for cells in _rows(ledger, longest):
        table.add_row(*(Text(text.visible(cell)) for cell in cells[: None if several else 3]))
    lines = Table.grid(padding=(0, 2, 0, 0))
    lines.add_column(no_wrap=True)
    for label, sentence in _lines(ledger):
        lines.add_row(Text(label, style="yellow" if label == "warning" else ""), Text(text.visible(sentence)))
    return printed([table, "", lines], width, color)


def _rows(ledger: ProbeLedger, longest: RankLedger) -> Iterator[tuple[str, ...]]:
    states = dict.fromkeys(state for rank in (longest, *ledger.ranks) for state in rank.seconds if state != "residual")
    for state in (*states, "residual"):
        seconds = {rank.rank: rank.seconds.get(state, 0.0) for rank in ledger.ranks}
        if any(seconds.values()):
            yield _row(state, seconds, longest)
    yield _row("wall clock", {rank.rank: rank.wall for rank in ledger.ranks}, longest)


def _row(name: str, seconds: dict[int, float], longest: RankLedger) -> tuple[str, ...]:
    own, most = seconds[longest.rank], max(seconds, key=seconds.__getitem__)
    return (
        name, _seconds(own), units.show_share(own / longest.wall) if longest.wall else "-",
        _seconds(min(seconds.values())), _seconds(seconds[most]), f"rank {most}",
    )  # fmt: skip


def _lines(ledger: ProbeLedger) -> Iterator[tuple[str, str]]:
    """Label and sentence of each line below the table."""
    yield "goodput", _goodput(ledger)
    if ledger.step is not None:
        interval = ledger.step_interval
        within = f" [{_seconds(interval.low)}, {_seconds(interval.high)}]" if interval else ""
        yield "step", f"{_seconds(ledger.step)}{within}, the median of kept steps on their slowest rank, once warm"
    steps = f"{ledger.kept} kept by all {len(ledger.ranks)} ranks" if len(ledger.ranks) > 1 else f"{ledger.kept} kept"
    yield "steps", f"{steps}, {ledger.lost} done again after {units.show_count(ledger.restarts, 'restart')}"
    if stalls := sorted(((rank.data_stall or 0.0, -rank.rank) for rank in ledger.ranks), reverse=True):
        told = ", ".join(f"{units.show_share(share)} on rank {-rank}" for share, rank in stalls[:_NAMED])
        yield "data stall", f"{told} of its data and step time"
    if ledger.saves:
        saves = ledger.saves
        yield (
            "checkpoints",
            (
                f"{saves.count} saves blocked {_seconds(saves.total)} on their slowest rank: median "
                f"{_seconds(saves.median)}, worst {_seconds(saves.worst)} after step {saves.worst_step}"
            ),
        )
    if ledger.interval:
        yield "interval", ledger.interval
    yield from over_time_lines(ledger.over_time)
    for what in dict.fromkeys(name for rank in ledger.ranks for name in rank.background):
        most = max(ledger.ranks, key=lambda rank: rank.background.get(what, 0.0))
        yield "background", f"{what}: {_seconds(most.background[what])} on rank {most.rank}, beside the states above"
    for attempt in range(ledger.restarts + 1):
        ends = Counter(_end(rank, attempt) for rank in ledger.ranks if attempt < len(rank.ends))
        if set(ends) != {"done"}:
            told = ", ".join(f"{end} on {units.show_count(count, 'rank')}" for end, count in ends.most_common())
            yield "ended", f"attempt {attempt}: {told}"
    for sentence in (*ledger.over_time.untold, *ledger.unknown):
        yield "not known", sentence
    for sentence in ledger.warnings:
        yield "warning", sentence


def _end(rank: RankLedger, attempt: int) -> str:
    return rank.ends[attempt] or ("killed" if attempt + 1 < len(rank.ends) else "no end")


def _goodput(ledger: ProbeLedger) -> str:
    share = "" if ledger.steady is None else f"{units.show_share(ledger.steady)} of the steady state"
    if ledger.goodput is None:
        return share or "no step was kept"
    rate = f"{units.show_number(float(f'{ledger.goodput:.3g}'))} {ledger.unit}/s of wall clock"
    return f"{rate}, {share}"


def _seconds(value: float) -> str:
    return units.show(value, units.SECONDS)

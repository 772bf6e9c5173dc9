"""The course of a full run: what every rank did when, from the start of the first agent on."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_clusterqual import units
from pytest_clusterqual.model.full_run import FullRunMeasurement, RankRun
from pytest_clusterqual.model.measurement import Measurement
from pytest_clusterqual.model.probe import ProbedProcess
from pytest_clusterqual.model.record import Record
from pytest_clusterqual.report import text
from pytest_clusterqual.report.plot_ranks import rank_names
from pytest_clusterqual.report.plot_style import (
    BLACK,
    DARK,
    LIGHT,
    Picture,
    circumstances,
    legend_below,
    legend_room,
    scale_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST = 24  # ranks
_APART = 0.002  # of the whole: spans of one kind that are closer are drawn as one
_SLIT = 0.001  # of the whole: a shorter span would not be seen, and is drawn as long as that, or not at all
_SHOWN = {"step": "steps", "save": "checkpoint", "load": "load", "data": "data", "compile": "compile"}
_LOST, _FAULT, _ALIVE = "steps done again", "failure on purpose", "process"
_WHERE_SEEN = ("data",)  # of every step, and mostly next to nothing
_FILLS: dict[str, dict[str, Any]] = {
    "steps": {"facecolor": LIGHT, "edgecolor": "none"},
    _LOST: {"facecolor": "white", "edgecolor": DARK, "hatch": "//////", "linewidth": 0.0},
    "checkpoint": {"facecolor": BLACK, "edgecolor": "none"},
    "load": {"facecolor": DARK, "edgecolor": "none"},
    "data": {"facecolor": "0.6", "edgecolor": "none"},
    "compile": {"facecolor": "white", "edgecolor": DARK, "hatch": "xxxxxx", "linewidth": 0.0},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Span:
    """`begin` and `end` are seconds since the first agent was started; `what` is a key of `_FILLS`, or none of them."""

    rank: int
    what: str
    begin: float
    end: float


def timeline(records: Sequence[Record], measured: Measurement | None) -> Picture | None:
    """The run on all nodes of one test; None without what its ranks wrote down."""
    if not isinstance(measured, FullRunMeasurement) or not any(rank.processes for rank in measured.run.ranks):
        return None
    ranks = [rank for rank in measured.run.ranks if rank.processes]
    zero = min(_wall(rank.processes[0], rank.began) for rank in ranks)
    spans = [span for rank in _shown(ranks) for span in _of_rank(rank, zero)]
    whole = max(span.end for span in spans)
    drawn = list(_joined([s for s in spans if s.what not in _WHERE_SEEN or s.end - s.begin >= _SLIT * whole], whole))
    kinds = [kind for kind in (*_FILLS, _FAULT) if any(span.what == kind for span in drawn)]
    rows = list(dict.fromkeys(span.rank for span in spans))
    names = rank_names(rows, measured.conditions)
    case, run = text.case_of(records[0].test), measured.run
    story = f"{run.steps} steps, {run.saving}"
    story += f", {run.failure.told}" if run.failure else ""
    return Picture(
        title=f"{case}: course of the full run",
        panels=(max(0.45, 0.22 * len(rows)),), below=0.55 + legend_room(len(kinds) + 1),
        draw=lambda axes: _draw(axes[0], drawn, kinds, list(names.values()), whole),
        caption=[
            f"{story}. Framed: a process of the rank, from its start to its last sign of life; empty in it: start-up, "
            "waiting, ending.",
            *([f"{_MOST} of {len(ranks)} ranks: who failed, and the first."] if len(ranks) > _MOST else []),
            circumstances(measured.conditions, measured.started),
        ],
        words=f"{case}, {story}: " + "; ".join(f"rank {names[row]} {_told(drawn, row)}" for row in rows[:8]) + ".",
    )  # fmt: skip


def _wall(process: ProbedProcess, at: float) -> float:
    """A time of the process's clock in seconds since the epoch, which all hosts count alike."""
    return process.start.wall + at - process.start.at


def _shown(ranks: Sequence[RankRun]) -> list[RankRun]:
    def failed(rank: RankRun) -> bool:
        return any(line.what == "fault" for process in rank.processes for line in process.lines)

    first = sorted(ranks, key=lambda rank: (not failed(rank), rank.rank))[:_MOST]
    return sorted(first, key=lambda rank: rank.rank)


def _of_rank(rank: RankRun, zero: float) -> Iterator[_Span]:
    again = set(_done_again(rank))
    for number, process in enumerate(rank.processes):
        shift = _wall(process, 0.0) - zero
        ends = [line.at + line.seconds for line in process.lines]
        yield _Span(
            rank=rank.rank, what=_ALIVE, begin=process.start.began + shift,
            end=max([process.start.at, *ends]) + shift,
        )  # fmt: skip
        for place, line in enumerate(process.lines):
            what = _FAULT if line.what == "fault" else _SHOWN.get(line.what, "")
            if what and not line.background and math.isfinite(line.at + line.seconds):
                what = _LOST if (number, place) in again else what
                yield _Span(
                    rank=rank.rank, what=what, begin=line.at + shift, end=line.at + line.seconds + shift
                )  # fmt: skip


def _done_again(rank: RankRun) -> Iterator[tuple[int, int]]:
    """Process and place of each step that a later one replaced, or that failed."""
    steps = [
        (number, place, line)
        for number, process in enumerate(rank.processes)
        for place, line in enumerate(process.lines)
        if line.what == "step" and not line.background
    ]
    least = math.inf
    for number, place, line in reversed(steps):
        if line.error or line.step >= least:
            yield number, place
        least = min(least, line.step) if not line.error else least


def _joined(spans: Sequence[_Span], whole: float) -> Iterator[_Span]:
    """What is so close that no eye could tell it apart, as one: thousands of steps are few bars."""
    ordered = sorted(spans, key=lambda span: (span.rank, span.what, span.begin))
    for (rank, what), those in itertools.groupby(ordered, key=lambda span: (span.rank, span.what)):
        begin, *others = those
        reached = begin
        for span in others:
            if what not in (_ALIVE, _FAULT) and span.begin - reached.end <= _APART * whole:
                reached = _Span(rank=rank, what=what, begin=reached.begin, end=max(reached.end, span.end))
            else:
                yield reached
                reached = span
        yield reached


def _told(spans: Sequence[_Span], rank: int) -> str:
    shown = sorted((s for s in spans if s.rank == rank and s.what in (*_FILLS, _FAULT)), key=lambda s: s.begin)
    return units.show_some([f"{s.what} at {units.show(s.begin, units.SECONDS)}" for s in shown], 12)


def _draw(ax: Axes, spans: Sequence[_Span], kinds: Sequence[str], names: Sequence[str], whole: float) -> None:
    from matplotlib.ticker import MaxNLocator

    scale, unit = scale_of([whole], units.SECONDS)
    rows = {rank: row for row, rank in enumerate(dict.fromkeys(span.rank for span in spans))}
    for what in (*kinds, _ALIVE):
        those = [span for span in spans if span.what == what]
        if what == _FAULT:
            ax.plot(
                [span.begin / scale for span in those], [rows[span.rank] for span in those], linestyle="none",
                marker="X", markersize=7, markerfacecolor="white", markeredgecolor=BLACK, label=what,
            )  # fmt: skip
            continue
        fill = _FILLS.get(what, {"facecolor": "none", "edgecolor": BLACK, "linewidth": 0.6})
        for number, (rank, row) in enumerate(rows.items()):
            bars = [
                (span.begin / scale, max(span.end - span.begin, _SLIT * whole) / scale)
                for span in those if span.rank == rank
            ]  # fmt: skip
            ax.broken_barh(bars, (row - 0.36, 0.72), label=what if number == 0 else None, **fill)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_yticks(range(len(rows)), names)
    ax.set_xlim(0, 1.01 * whole / scale)
    ax.xaxis.set_major_locator(MaxNLocator(8))
    ax.set_xlabel(f"since the first agent was started ({unit})")
    ax.grid(True, axis="x")
    legend_below(ax, 0.5)

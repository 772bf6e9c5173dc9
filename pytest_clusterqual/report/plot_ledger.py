"""Where the wall clock of a full run went on each rank: state upon state."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_clusterqual import units
from pytest_clusterqual.model.record import Record
from pytest_clusterqual.report import text
from pytest_clusterqual.report.digest import states
from pytest_clusterqual.report.plot_ranks import bar_width, cut, foremost, rank_axis, rank_labels, rank_names
from pytest_clusterqual.report.plot_style import (
    BLACK,
    FILLS,
    Picture,
    circumstances,
    legend_below,
    legend_room,
    room_for,
    scale_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LEAST = 0.005  # of the longest wall clock: states below that on every rank are one
_REST = "all others"
_WORK = "kept"
Ledger = Mapping[str, Mapping[int, float]]  # state -> rank -> seconds


def ledger(records: Sequence[Record]) -> Picture | None:
    """The states of one test's full run; None where there are none by rank."""
    told = next((record for record in records if record.judgement.quantity == "time" and record.conditions), None)
    if told is None or told.conditions is None:
        return None
    found = {name: _by_rank(part.per_rank) for name, part in states(records, told.test).items()}
    ranks = sorted({rank for seconds in found.values() for rank in seconds})
    if not ranks:
        return None
    kept = found.get(_WORK, {})
    shown = foremost({rank: -kept.get(rank, 0.0) for rank in ranks})
    parts = _gathered(found, shown)
    names = rank_names(shown, told.conditions)
    labels = rank_labels(names)
    case, room = text.case_of(told.test), room_for(labels) + 0.15
    return Picture(
        title=f"{case}: where the time of the full run went",
        panels=(2.2,), below=room + legend_room(len(parts)),
        draw=lambda axes: _draw(axes[0], parts, labels, room),
        caption=[
            "Every second of a rank from the start of its first agent to the end of the last one is in one state; kept "
            "are steps that count.",
            *cut(len(ranks), "those with the least in kept steps"),
            circumstances(told.conditions, told.started),
        ],
        words=f"{case}: " + "; ".join(_said(name, seconds, names, shown) for name, seconds in parts.items()) + ".",
    )  # fmt: skip


def _by_rank(figures: Mapping[str, float]) -> dict[int, float]:
    return {int(rank): seconds for rank, seconds in figures.items() if rank.isdecimal() and math.isfinite(seconds)}


def _gathered(found: Ledger, ranks: Sequence[int]) -> dict[str, list[float]]:
    """State -> its seconds on each rank, a negative residual as none; what is small everywhere is one."""
    lists = {state: [max(seconds.get(rank, 0.0), 0.0) for rank in ranks] for state, seconds in found.items()}
    wall = max((math.fsum(column) for column in zip(*lists.values(), strict=True)), default=0.0)
    by_size = sorted(lists, key=lambda state: -max(lists[state]))[: len(FILLS) - 1]  # no two may look alike
    large = {state: lists[state] for state in lists if state in by_size and max(lists[state]) >= _LEAST * wall}
    small = [seconds for state, seconds in lists.items() if state not in large]
    rest = [math.fsum(column) for column in zip(*small, strict=True)]
    return {**large, _REST: rest} if any(rest) else large


def _said(name: str, seconds: Sequence[float], names: Mapping[int, str], shown: Sequence[int]) -> str:
    least, most = (seconds.index(end(seconds)) for end in (min, max))
    if len(shown) == 1 or seconds[least] == seconds[most]:
        return f"{name} {units.show(seconds[most], units.SECONDS)}"
    low, high = (units.show(seconds[place], units.SECONDS) for place in (least, most))
    return f"{name} {low} (rank {names[shown[least]]}) to {high} (rank {names[shown[most]]})"


def _draw(ax: Axes, parts: Mapping[str, Sequence[float]], labels: Sequence[str], room: float) -> None:
    from matplotlib.ticker import MaxNLocator

    walls = [math.fsum(column) for column in zip(*parts.values(), strict=True)]
    scale, unit = scale_of(walls, units.SECONDS)
    reached = [0.0] * len(labels)
    for name, fill in zip(parts, FILLS, strict=False):
        heights = [seconds / scale for seconds in parts[name]]
        ax.bar(range(len(labels)), heights, bottom=reached, width=bar_width(len(labels)), label=name, **fill)
        reached = [below + height for below, height in zip(reached, heights, strict=True)]
    ax.axhline(0.0, color=BLACK, linewidth=0.6)
    ax.set_ylabel(f"wall clock ({unit})")
    ax.yaxis.set_major_locator(MaxNLocator(5))
    ax.grid(True, axis="y")
    rank_axis(ax, labels)
    legend_below(ax, room)

"""Figures over several runs: a panel each, what has changed first."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import datetime, timezone
from functools import partial
from statistics import geometric_mean
from typing import TYPE_CHECKING

from pytest_clusterqual import units
from pytest_clusterqual.model.comparison import Trend, Trends
from pytest_clusterqual.report import text
from pytest_clusterqual.report.plot_style import BLACK, DARK, LIGHT, Picture, room_for, scale_of
from pytest_clusterqual.report.trend_table import moved, outcome, said

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST = 8  # panels
_LABELS = 24  # runs with a name below the axis


def trend_picture(found: Trends) -> Picture:
    """The figures that have changed, and as many of the others as there is room for."""
    shown = found.trends[:_MOST]
    names = [text.visible(name) for name in found.runs]
    every = -(-len(names) // _LABELS)
    labels = [name if place % every == 0 else "" for place, name in enumerate(names)]
    left = len(found.trends) - len(shown)
    first, last = (
        datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
        for at in (found.started[0], found.started[-1])
    )
    return Picture(
        title=f"{len(names)} runs, {names[0]} to {names[-1]}",
        panels=(0.8,) * len(shown), above=0.3, below=room_for(labels),
        draw=partial(_draw, shown, labels),
        caption=[
            "A point a run, its value with the interval inside that run, which does not hold what another launch "
            "changes. Line: one level, or those between which the figure has changed.",
            *([f"{left} more figures are not drawn: none of them changed more."] if left else []),
            f"From {first} to {last}.",
        ],
        words="; ".join(
            f"{_name(each)}: {units.show(each.values[0], each.unit)} to {units.show(each.values[-1], each.unit)}, "
            + (said(each) if moved(each) else each.change)
            for each in shown
        ) + ".",
    )  # fmt: skip


def _name(each: Trend) -> str:
    return text.visible(" ".join(filter(None, (text.case_of(each.test), each.quantity, each.label))))


def _draw(shown: Sequence[Trend], labels: Sequence[str], axes: Sequence[Axes]) -> None:
    for ax, each in zip(axes, shown, strict=True):
        _panel(ax, each, len(labels))
        last = ax is axes[-1]
        ax.set_xticks(range(len(labels)), labels if last else [""] * len(labels), rotation=90)


def _panel(ax: Axes, each: Trend, runs: int) -> None:
    from matplotlib.ticker import MaxNLocator

    scale, unit = scale_of(each.highs, each.unit)
    values, lows, highs = ([number / scale for number in row] for row in (each.values, each.lows, each.highs))
    reach = ([v - low for v, low in zip(values, lows, strict=True)],
             [high - v for v, high in zip(values, highs, strict=True)])  # fmt: skip
    ax.errorbar(
        each.at, values, yerr=reach, linestyle="none", marker="o", markersize=3, color=BLACK, elinewidth=0.8, capsize=2
    )
    if each.drift is not None:
        half = each.drift**0.5
        middle = geometric_mean(values)
        ax.plot((each.at[0], each.at[-1]), (middle / half, middle * half), color=DARK, linewidth=0.9)
    elif min(values) > 0:
        edges = [0, *(point.since for point in each.points), len(values)]
        for a, b in itertools.pairwise(edges):
            level = geometric_mean(values[a:b])
            ax.plot((each.at[a] - 0.3, each.at[b - 1] + 0.3), (level, level), color=DARK, linewidth=0.9)
        for point in each.points:
            ax.axvline(each.at[point.since] - 0.5, color=LIGHT, linewidth=4, zorder=0)
    ax.set_title(f"{_name(each)}" + (f": {outcome(each)}" if moved(each) else ""), loc="left", size=7.5, pad=3)
    ax.set_xlim(-0.6, runs - 0.4)
    ax.set_ylabel(unit or "ratio")
    ax.yaxis.set_major_locator(MaxNLocator(3))
    ax.grid(True, axis="y")

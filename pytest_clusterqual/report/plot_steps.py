"""How long the steps of each rank took: their spread, of the largest number of nodes that the work was done on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import TYPE_CHECKING

from pytest_clusterqual import units
from pytest_clusterqual.model.measurement import Measurement
from pytest_clusterqual.model.record import Record
from pytest_clusterqual.model.training import ScalingMeasurement
from pytest_clusterqual.report import text
from pytest_clusterqual.report.plot_ranks import cut, foremost, rank_axis, rank_labels, rank_names
from pytest_clusterqual.report.plot_style import BLACK, LIGHT, Picture, circumstances, room_for, scale_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TOLD = 16  # ranks whose figures are said in words


@dataclass(frozen=True, kw_only=True, slots=True)
class _Spread:
    """Of the steps of one rank, in seconds: 5, 25, 50, 75 and 95 of 100 are shorter."""

    five: float
    quarter: float
    middle: float
    three_quarters: float
    ninety_five: float
    longest: float


def steps(records: Sequence[Record], measured: Measurement | None) -> Picture | None:
    """The steps behind one test; None without the samples of its measurement."""
    if not isinstance(measured, ScalingMeasurement) or not measured.runs:
        return None
    nodes = max(run.conditions.nodes for run in measured.runs)
    runs = [run for run in measured.runs if run.conditions.nodes == nodes]
    at = runs[0].conditions
    seconds: dict[int, list[float]] = {}
    for rank in (rank for run in runs for rank in run.ranks):
        seconds.setdefault(rank.rank, []).extend(s for s in rank.step_seconds if math.isfinite(s) and s > 0)
    seconds = {rank: found for rank, found in seconds.items() if found}
    if not seconds:
        return None
    typical = {rank: median(found) for rank, found in seconds.items()}
    shown = foremost(typical)
    spreads = {rank: _spread(seconds[rank]) for rank in shown}
    slowest = max(typical, key=typical.__getitem__)
    names = rank_names(shown, at)
    labels = rank_labels(names)
    case, count = text.case_of(records[0].test), sum(map(len, seconds.values())) // len(seconds)
    where = units.show_count(nodes, "node")
    return Picture(
        title=f"{case}: step time by rank on {where}",
        panels=(1.9,), below=room_for(labels),
        draw=lambda axes: _draw(axes[0], spreads, labels),
        caption=[
            f"{count} steps of each rank in {len(runs)} runs, warm-up left out. Line: 5 to 95 % of them; bar: the "
            "middle half; tick: median; dot: the longest.",
            "Ranks that meet in every step take equally long, whoever is slow: see wait and lost time for that.",
            *cut(len(seconds), "those with the longest median"),
            circumstances(measured.conditions, measured.started),
        ],
        words=f"{case}, {where}: longest median on rank {names[slowest]}, "
        + "; ".join(f"rank {names[rank]} {_told(spreads[rank])}" for rank in shown[:_TOLD]) + ".",
    )  # fmt: skip


def _spread(seconds: Sequence[float]) -> _Spread:
    cuts = quantiles(seconds, n=20, method="inclusive") if len(seconds) > 1 else list(seconds) * 19
    return _Spread(
        five=cuts[0], quarter=cuts[4], middle=cuts[9], three_quarters=cuts[14], ninety_five=cuts[18],
        longest=max(seconds),
    )  # fmt: skip


def _told(spread: _Spread) -> str:
    low, middle, high = (units.show(s, units.SECONDS) for s in (spread.five, spread.middle, spread.ninety_five))
    return f"{middle} [{low}, {high}]"


def _draw(ax: Axes, spreads: Mapping[int, _Spread], labels: Sequence[str]) -> None:
    from matplotlib.ticker import MaxNLocator

    all_of_them = list(spreads.values())
    scale, unit = scale_of([spread.longest for spread in all_of_them], units.SECONDS)
    places = range(len(all_of_them))
    width = min(0.5, len(all_of_them) / 10)
    ax.vlines(
        places, [s.five / scale for s in all_of_them], [s.ninety_five / scale for s in all_of_them], color=BLACK,
        linewidth=0.8,
    )  # fmt: skip
    ax.bar(
        places, [(s.three_quarters - s.quarter) / scale for s in all_of_them], width=width, color=LIGHT,
        bottom=[s.quarter / scale for s in all_of_them], edgecolor=BLACK, linewidth=0.5, zorder=2,
    )  # fmt: skip
    ax.hlines(
        [s.middle / scale for s in all_of_them], [place - width / 2 for place in places],
        [place + width / 2 for place in places], color=BLACK, linewidth=1.4, zorder=3,
    )  # fmt: skip
    ax.plot(places, [s.longest / scale for s in all_of_them], linestyle="none", marker=".", markersize=3, color=BLACK)
    ax.set_ylim(0, 1.08 * max(s.longest for s in all_of_them) / scale)
    ax.set_ylabel(f"step time ({unit})")
    ax.yaxis.set_major_locator(MaxNLocator(5))
    ax.grid(True, axis="y")
    rank_axis(ax, labels)

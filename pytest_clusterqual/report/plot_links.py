"""What pairs of nodes exchanged, as a map: a row a sender, a column a receiver, dark where it is slow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from pytest_clusterqual import units
from pytest_clusterqual.model.fabric import FabricMeasurement, PairsMeasurement, PairTiming
from pytest_clusterqual.report import text
from pytest_clusterqual.report.plot_style import BLACK, LIGHT, Picture, circumstances, room_for, scale_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST = 64  # rows of the map; beyond, several nodes share one
_NUMBERED = 16  # rows up to which cells have room for a number
Rates = dict[tuple[str, str], float]


def links(test: str, measurement: FabricMeasurement | PairsMeasurement) -> Picture | None:
    """The median rate of every pair of nodes, each direction; None where no pair was asked."""
    rates = _rates(measurement.pairs)
    if not rates:
        return None
    at = measurement.conditions
    nodes = list(dict.fromkeys([*at.rank_nodes, *(node for ends in rates for node in ends)]))
    share = math.ceil(len(nodes) / _MOST)
    rows = [nodes[first : first + share] for first in range(0, len(nodes), share)]
    cells = _cells(rates, rows)
    slowest = min(rates, key=rates.__getitem__)
    told = (
        f"Slowest: {slowest[0]} to {slowest[1]}, {units.show(rates[slowest], units.RATE)} (in the frame); "
        f"median of {len(rates)} directed pairs {units.show(median(rates.values()), units.RATE)}."
    )
    size = units.show(max(pair.bytes for pair in measurement.pairs), units.BYTES)
    case = text.case_of(test)
    return Picture(
        title=f"{case}: {size} from node to node",
        panels=(min(4.6, 1.6 + 0.2 * len(rows)),), below=room_for([_short(node) for node in nodes]),
        draw=lambda axes: _map(axes[0], cells, rows),
        caption=[
            "Median rate of the repeats, the slowest rail of a node; hatched: not measured.",
            *([f"{len(nodes)} nodes: a cell is the slowest of the pairs between {share} x {share} nodes."]
              if share > 1 else []),
            told,
            circumstances(at, measurement.started),
        ],
        words=f"{case}: rate of {size} between nodes. " + _slow_nodes(rates, nodes),
    )  # fmt: skip


def _rates(pairs: Sequence[PairTiming]) -> Rates:
    """B/s of each directed pair at the largest size: the slowest rail, with others at work where that was measured."""
    largest = max((pair.bytes for pair in pairs), default=0)
    sized = [pair for pair in pairs if pair.bytes == largest and pair.seconds and min(pair.seconds) > 0]
    rates: Rates = {}
    for pair in [pair for pair in sized if not pair.alone] or sized:
        ends, rate = (pair.sender, pair.receiver), pair.bytes / median(pair.seconds)
        rates[ends] = min(rate, rates.get(ends, math.inf))
    return rates


def _cells(rates: Rates, rows: Sequence[Sequence[str]]) -> list[list[float]]:
    """The slowest pair of each cell, NaN where there is none."""
    row_of = {node: number for number, nodes in enumerate(rows) for node in nodes}
    cells = [[math.nan] * len(rows) for _ in rows]
    for (sender, receiver), rate in rates.items():
        row, column = row_of[sender], row_of[receiver]
        cells[row][column] = rate if math.isnan(cells[row][column]) else min(rate, cells[row][column])
    return cells


def _map(ax: Axes, cells: Sequence[Sequence[float]], rows: Sequence[Sequence[str]]) -> None:
    from matplotlib.patches import Rectangle

    known = [rate for row in cells for rate in row if not math.isnan(rate)]
    scale, name = scale_of(known, units.RATE)
    ax.patch.set(hatch="////", edgecolor=LIGHT)
    image = ax.imshow(
        [[rate / scale for rate in row] for row in cells], cmap="Greys_r", vmin=0, interpolation="nearest"
    )
    ax.set_anchor("W")
    ax.figure.colorbar(image, cax=ax.inset_axes((1.03, 0, 0.03, 1)), label=f"rate ({name})")
    row, column = next((r, c) for r, each in enumerate(cells) for c, rate in enumerate(each) if rate == min(known))
    ax.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="white", linewidth=2.4))
    ax.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor=BLACK, linewidth=1.2))
    if len(rows) <= _NUMBERED:
        _numbers(ax, cells, scale, max(known))
    step = math.ceil(len(rows) / _NUMBERED)
    ticks = range(0, len(rows), step)
    labels = [_short(rows[tick][0]) for tick in ticks]
    ax.set_xticks(ticks, labels, rotation=90)
    ax.set_yticks(ticks, labels)
    ax.set_xlabel("receiver")
    ax.set_ylabel("sender")


def _numbers(ax: Axes, cells: Sequence[Sequence[float]], scale: float, fastest: float) -> None:
    for row, each in enumerate(cells):
        for column, rate in enumerate(each):
            if not math.isnan(rate):
                color = "white" if rate < fastest / 2 else BLACK
                ax.text(column, row, f"{rate / scale:.3g}", ha="center", va="center", size=6, color=color)


def _slow_nodes(rates: Rates, nodes: Sequence[str]) -> str:
    """The nodes whose pairs are slowest, in words."""
    found: dict[str, list[float]] = {node: [] for node in nodes}
    for ends, rate in rates.items():
        for node in ends:
            found[node].append(rate)
    of = {node: median(of_node) for node, of_node in found.items() if of_node}
    slowest = sorted(of, key=of.__getitem__)[:3]
    return "Median of a node's pairs, slowest first: " + ", ".join(
        f"{node} {units.show(of[node], units.RATE)}" for node in slowest
    ) + "."  # fmt: skip


def _short(name: str) -> str:
    shown = text.visible(name)
    return shown if len(shown) <= 14 else f"{shown[:5]}...{shown[-6:]}"

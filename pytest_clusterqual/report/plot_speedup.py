"""How much sooner the same work is done on more nodes: beside the ideal line, and what is required."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_clusterqual import units
from pytest_clusterqual.model.record import Judgement, Record, Verdict, worst
from pytest_clusterqual.report import text
from pytest_clusterqual.report.plot_style import BLACK, DARK, MARKERS, Picture, circumstances

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NODES = re.compile(r"(\d+) nodes?")
_WIDE = 8  # times the baseline's nodes, from which on both axes are logarithmic


@dataclass(frozen=True, kw_only=True, slots=True)
class _Point:
    """The speedup on so many nodes; `low` to `high` is its interval, `required` are the least speedups asked for."""

    nodes: int
    value: float
    low: float
    high: float
    verdict: Verdict
    required: tuple[float, ...]
    said: str


def speedup(records: Sequence[Record]) -> Picture | None:
    """All points of one layout, of one test or several with the same baseline; None where no speedup was measured."""
    points = sorted(_points(records), key=lambda point: point.nodes)
    base = min(_counts(records), default=0)
    if not points or not base or points[0].nodes <= base:
        return None
    told = next(record for record in records if record.judgement.quantity == "speedup" and record.conditions)
    assert told.conditions is not None
    layout = text.visible(" ".join(filter(None, (told.conditions.layout, told.conditions.rank_map))) or "the job")
    return Picture(
        title=f"{layout}: speedup over the number of nodes",
        panels=(2.4,), above=0.3, below=0.5,
        draw=lambda axes: _draw(axes[0], points, base),
        caption=[
            f"Time to the same fixed work on {units.show_count(base, 'node')} over that on more: ratio of medians with "
            "its interval. Grey: ideal, as many times sooner as there are more nodes.",
            "What lies between two points was not measured.",
            circumstances(told.conditions, told.started),
        ],
        words=f"{layout}, against {units.show_count(base, 'node')}: " + "; ".join(point.said for point in points) + ".",
    )  # fmt: skip


def _counts(records: Sequence[Record]) -> Iterator[int]:
    """Numbers of nodes that the work was done on."""
    for judgement in (record.judgement for record in records if record.judgement.quantity == "time_to_fixed_work"):
        if (match := _NODES.fullmatch(judgement.label)) and judgement.value is not None:
            yield int(match[1])


def _points(records: Sequence[Record]) -> Iterator[_Point]:
    found: dict[int, dict[str, list[Judgement]]] = {}
    for judgement in (record.judgement for record in records):
        match = _NODES.fullmatch(judgement.label)
        if match and judgement.quantity in ("speedup", "efficiency"):
            found.setdefault(int(match[1]), {}).setdefault(judgement.quantity, []).append(judgement)
    for nodes, told in found.items():
        first = next(iter(told.get("speedup", [])), None)
        if first is None or first.value is None or not 0 < first.value < math.inf:
            continue
        # Both are one figure in two units: what is asked of the efficiency is asked of the speedup.
        share = next((e.value for e in told.get("efficiency", []) if e.value), None)
        asked = [(j, 1.0) for j in told["speedup"]]
        asked += [(j, first.value / share) for j in told.get("efficiency", [])] if share else []
        demands = [(j.requirement, times) for j, times in asked if j.requirement]
        bounds = [demand.value * times for demand, times in demands if demand.op in (">=", ">")]
        yield _Point(
            nodes=nodes, value=first.value,
            low=first.interval.low if first.interval else first.value,
            high=first.interval.high if first.interval else first.value,
            verdict=worst([judgement.verdict for judgement, _ in asked]),
            required=tuple(bounds),
            said="; ".join(text.whole_of(judgement) for judgement, _ in asked),
        )  # fmt: skip


def _draw(ax: Axes, points: Sequence[_Point], base: int) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

    counts = [base, *(point.nodes for point in points)]
    most = counts[-1]
    if wide := most / base > _WIDE:
        ax.set_xscale("log")
        ax.set_yscale("log")
    ax.plot((base, most), (1.0, most / base), color="0.6", linewidth=1.1, label="ideal")
    ax.plot(counts, [1.0, *(point.value for point in points)], color=DARK, linewidth=0.8)
    ax.plot([base], [1.0], linestyle="none", color=BLACK, marker="|", markersize=8, label="baseline")
    for verdict, style in MARKERS.items():
        if those := [point for point in points if point.verdict is verdict]:
            ax.errorbar(
                [point.nodes for point in those], [point.value for point in those],
                yerr=([p.value - p.low for p in those], [p.high - p.value for p in those]), linestyle="none",
                color=BLACK, elinewidth=0.8, capsize=2, markeredgecolor=BLACK, markeredgewidth=0.8,
                label=str(verdict), **style,
            )  # fmt: skip
    bounds = [(point.nodes, bound) for point in points for bound in point.required]
    if bounds:
        ax.plot(
            [nodes for nodes, _ in bounds], [bound for _, bound in bounds], linestyle="none", color=BLACK, marker="_",
            markersize=16, markeredgewidth=1.1, label="required at least",
        )  # fmt: skip
    ax.xaxis.set_major_locator(FixedLocator(counts))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    if wide:
        ax.yaxis.set_major_locator(FixedLocator([2.0**power for power in range(math.ceil(math.log2(most / base)) + 1)]))
        ax.yaxis.set_minor_locator(NullLocator())
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        ax.set_ylim(bottom=0)
        ax.yaxis.set_major_locator(MaxNLocator(5))
    ax.grid(True, axis="y")
    ax.set_xlabel("nodes")
    ax.set_ylabel("speedup (times sooner)")
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=5)

"""What each rank holds at its peak, part upon part, with what is required and the limit of its device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_clusterqual import units
from pytest_clusterqual.model.measurement import Measurement
from pytest_clusterqual.model.memory import MemoryMeasurement
from pytest_clusterqual.model.record import Record
from pytest_clusterqual.report import text
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

_IN_SIGHT = 4.0  # times the highest peak: a limit beyond that would press the bars together


@dataclass(frozen=True, kw_only=True, slots=True)
class _Level:
    """A line across the panel at `size` bytes."""

    label: str
    size: float
    line: str


def memory(records: Sequence[Record], measured: Measurement | None) -> Picture | None:
    """The ranks of one test; None where no peak was told by rank. Without samples the bars have no parts."""
    told = next((r for r in records if r.judgement.quantity == "peak" and _peaks(r)), None)
    if told is None or told.conditions is None:
        return None
    at, peaks = told.conditions, _peaks(told)
    shown = foremost(peaks)
    parts = _parts(measured, {rank: peaks[rank] for rank in shown})
    levels = _levels(records, measured)
    seen = [level for level in levels if level.size <= _IN_SIGHT * max(peaks.values())]
    names = rank_names(shown, at)
    labels = rank_labels(names)
    fullest = max(peaks, key=peaks.__getitem__)
    case, room = text.case_of(told.test), room_for(labels) + 0.15
    return Picture(
        title=f"{case}: memory of each rank at its peak",
        panels=(2.0,), above=0.1, below=room + legend_room(len(parts) + len(seen)),
        draw=lambda axes: _draw(axes[0], parts, labels, seen, room),
        caption=[
            "The highest peak of all steps, and what it is made of.",
            *(f"Beyond the axis: {each.label}." for each in levels if each not in seen),
            *cut(len(peaks), "those that hold most"),
            circumstances(at, told.started),
        ],
        words=f"{case}: rank {names[fullest]} holds most, {units.show(peaks[fullest], units.BYTES)}"
        + "".join(f", {name} {units.show(sizes[shown.index(fullest)], units.BYTES)}" for name, sizes in parts.items())
        + "".join(f"; {level.label}" for level in levels) + ".",
    )  # fmt: skip


def _peaks(record: Record) -> dict[int, float]:
    figures = record.judgement.per_rank.items()
    return {int(rank): size for rank, size in figures if rank.isdecimal() and math.isfinite(size) and size > 0}


def _parts(measured: Measurement | None, peaks: Mapping[int, float]) -> dict[str, list[float]]:
    """Part -> its bytes on each rank; the whole peak where it was not taken apart."""
    ranks = {rank.rank: rank.parts for rank in measured.ranks} if isinstance(measured, MemoryMeasurement) else {}
    # Older measurements split what was at rest, not the peak.
    if not all(sum(ranks.get(rank, {}).values()) == peak for rank, peak in peaks.items()):
        return {"peak": list(peaks.values())}
    names = dict.fromkeys(name for rank in peaks for name in ranks[rank])
    return {text.visible(name): [float(ranks[rank].get(name, 0)) for rank in peaks] for name in names}


def _levels(records: Sequence[Record], measured: Measurement | None) -> list[_Level]:
    required = [r.judgement.requirement for r in records if r.judgement.quantity == "peak" and r.judgement.requirement]
    levels = [_Level(label=f"required {demand.text}", size=demand.value, line="--") for demand in required]
    if isinstance(measured, MemoryMeasurement) and measured.ranks:
        least = min(measured.ranks, key=lambda rank: rank.limit)
        label = f"limit {units.show(least.limit, units.BYTES)} ({least.limit_from})"
        levels.append(_Level(label=label, size=float(least.limit), line="-"))
    return levels


def _draw(
    ax: Axes, parts: Mapping[str, Sequence[float]], labels: Sequence[str], levels: Sequence[_Level], room: float
) -> None:
    from matplotlib.ticker import MaxNLocator

    tops = [math.fsum(sizes) for sizes in zip(*parts.values(), strict=True)]
    scale, unit = scale_of([*tops, *(level.size for level in levels)], units.BYTES)
    reached = [0.0] * len(labels)
    for number, (name, sizes) in enumerate(parts.items()):
        heights = [size / scale for size in sizes]
        ax.bar(
            range(len(labels)), heights, bottom=reached, width=bar_width(len(labels)), label=name,
            **FILLS[number % len(FILLS)],
        )  # fmt: skip
        reached = [below + height for below, height in zip(reached, heights, strict=True)]
    for level in levels:
        label = text.visible(level.label)
        ax.axhline(level.size / scale, color=BLACK, linestyle=level.line, linewidth=1.1, label=label)
    ax.set_ylim(0, 1.08 * max([*tops, *(level.size for level in levels)]) / scale)
    ax.set_ylabel(f"memory ({unit})")
    ax.yaxis.set_major_locator(MaxNLocator(5))
    ax.grid(True, axis="y")
    rank_axis(ax, labels)
    legend_below(ax, room)

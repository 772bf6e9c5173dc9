"""Bus bandwidth and latency of one collective in one kind of group, over the message size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_clusterqual import units
from pytest_clusterqual.model.busbw import busbw_factor
from pytest_clusterqual.model.record import Judgement, Record, Verdict, worst
from pytest_clusterqual.report import text
from pytest_clusterqual.report.digest import severity
from pytest_clusterqual.report.plot_style import BLACK, DARK, MARKERS, Picture, circumstances, scale_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SWEPT = ("busbw", "algbw", "latency")
_FITTED = ("alpha", "plateau")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Point:
    """A figure at a message size in bytes, with its interval; `own` is what is said of just this figure."""

    size: float
    value: float
    low: float
    high: float
    own: Sequence[Judgement]

    @property
    def verdict(self) -> Verdict:
        return worst([judgement.verdict for judgement in self.own]) if self.own else Verdict.MEASURED


def sweep(records: Sequence[Record], members: int | None) -> Picture | None:
    """The records of one test, which ran in groups of `members` ranks; None if they are of no sweep.

    With an unknown number of `members` nothing is derived: each panel has what was judged itself.
    """
    first = records[0]
    at = first.conditions
    judgements = [record.judgement for record in records]
    sized = _by_size(judgements)
    if at is None or at.collective is None or not sized:
        return None
    factor = busbw_factor(at.collective, members) if members else None
    busbw, latency = _points(sized, "busbw", factor), _points(sized, "latency", factor)

    def draw(axes: Sequence[Axes]) -> None:
        _panel(axes[0], busbw, list(sized), "bus bandwidth", units.RATE)
        _panel(axes[1], latency, list(sized), "time of one call", units.SECONDS)
        _size_axis(axes[1], list(sized))

    expected = dict.fromkeys(j.expected_why for j in judgements if j.quantity == "busbw")
    fitted = "; ".join(text.whole_of(j) for j in judgements if j.quantity in _FITTED and j.value is not None)
    case = text.case_of(first.test)
    return Picture(
        title=f"{case}: {at.collective} in {at.group}, over the message size",
        panels=(1.9, 1.5), above=0.4, below=0.5, draw=draw,
        caption=[
            "The slowest rank of all groups: median over rounds with its interval.",
            *(f"Expected: {why}." for why in expected if why),
            *([f"Fitted: {fitted}."] if fitted else []),
            circumstances(at, first.started),
        ],
        words=f"{case}: " + "; ".join(text.whole_of(j) for each in sized.values() for j in each) + ".",
    )  # fmt: skip


def _by_size(judgements: Iterable[Judgement]) -> dict[float, list[Judgement]]:
    sized: dict[float, list[Judgement]] = {}
    for judgement in judgements:
        if judgement.quantity in _SWEPT:
            try:
                sized.setdefault(units.parse(judgement.label, units.BYTES), []).append(judgement)
            except ValueError:
                continue  # a label that is no size belongs to a test of the user's own
    return dict(sorted(sized.items()))


def _points(sized: dict[float, list[Judgement]], quantity: str, factor: float | None) -> list[_Point]:
    """One a size: what was judged as `quantity`, else what follows from another figure of the same calls."""
    points = []
    for size, judgements in sized.items():
        own = [judgement for judgement in judgements if judgement.quantity == quantity]
        told = min(own or judgements, key=severity)
        if told.value is None or not 0 < told.value < math.inf or (not own and factor is None):
            continue
        ends = (told.interval.low, told.interval.high) if told.interval else (told.value, told.value)
        value, *limits = (
            _converted(end if end > 0 else told.value, told.quantity, quantity, size, factor or 1.0)
            for end in (told.value, *ends)
        )
        points.append(_Point(size=size, value=value, low=min(limits), high=max(limits), own=own))
    return points


def _converted(value: float, have: str, want: str, size: float, factor: float) -> float:
    """The same calls of `size` bytes in another of the quantities of a sweep, by way of their seconds."""
    if have == want:
        return value
    volume = {"busbw": size * factor, "algbw": size}
    seconds = value if have == "latency" else volume[have] / value
    return seconds if want == "latency" else volume[want] / seconds


def _panel(ax: Axes, points: Sequence[_Point], sizes: Sequence[float], what: str, unit: str) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    ax.set_xscale("log")
    ax.set_xlim(sizes[0] / 1.5, sizes[-1] * 1.5)
    ax.xaxis.set_major_locator(NullLocator())
    ax.xaxis.set_minor_locator(NullLocator())
    if not points:
        ax.text(0.5, 0.5, f"{what}: not measured", transform=ax.transAxes, ha="center")
        ax.yaxis.set_major_locator(NullLocator())
        return
    scale, name = scale_of([point.high for point in points], unit)
    ax.set_ylabel(f"{what} ({name})")
    ax.plot([point.size for point in points], [point.value / scale for point in points], color=DARK, linewidth=0.8)
    for verdict, style in MARKERS.items():
        if those := [point for point in points if point.verdict is verdict]:
            _marks(ax, those, scale, label=str(verdict), **style)
    _levels(ax, points, scale, unit)
    if unit == units.SECONDS:
        ax.set_yscale("log")
        low, high = ax.get_ylim()
        ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high / low < 50 else (1.0,)))
        ax.yaxis.set_minor_locator(NullLocator())
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        ax.set_ylim(bottom=0)
        ax.yaxis.set_major_locator(MaxNLocator(5))
    ax.grid(True, axis="y")
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3)


def _size_axis(ax: Axes, sizes: Sequence[float]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter

    ax.xaxis.set_major_locator(FixedLocator(_apart(sizes)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda size, _: units.show(size, units.BYTES)))
    ax.set_xlabel("message size (whole array)")


def _marks(ax: Axes, points: Sequence[_Point], scale: float, **style: Any) -> None:
    values = [point.value / scale for point in points]
    below = [(point.value - point.low) / scale for point in points]
    above = [(point.high - point.value) / scale for point in points]
    ax.errorbar(
        [point.size for point in points], values, yerr=(below, above), linestyle="none", color=BLACK,
        elinewidth=0.8, capsize=2, **{"markeredgecolor": BLACK, "markeredgewidth": 0.8, **style},
    )  # fmt: skip


def _levels(ax: Axes, points: Sequence[_Point], scale: float, unit: str) -> None:
    """The expected level as a whole line, every bound as a dashed one."""
    levels: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for size, judgement in [(point.size, judgement) for point in points for judgement in point.own]:
        if judgement.expected is not None:
            levels.setdefault(("-", "expected"), []).append((size, judgement.expected))
        if demand := judgement.requirement:
            levels.setdefault(("--", f"required {demand.text}"), []).append((size, demand.value))
    for (line, label), places in levels.items():
        sizes, values = zip(*places, strict=True)
        shown = units.show(values[-1], unit)
        ax.plot(
            sizes, [value / scale for value in values], line, color=BLACK, linewidth=1.1, marker="_", markersize=12,
            label=text.visible(label if shown in label else f"{label}: {shown}"),
        )  # fmt: skip


def _apart(sizes: Sequence[float]) -> list[float]:
    """The sizes that can be labelled without touching each other."""
    room = math.log(sizes[-1] / sizes[0]) / 11
    kept = sizes[-1:]
    for size in reversed(sizes[:-1]):
        if math.log(kept[-1] / size) >= room:
            kept = [*kept, size]
    return list(reversed(kept))

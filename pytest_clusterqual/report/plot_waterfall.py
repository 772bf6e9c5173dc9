"""Where the time of a step goes that more nodes should have saved: part upon part, from nothing lost to all of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_clusterqual import units
from pytest_clusterqual.model.record import Record
from pytest_clusterqual.report import text
from pytest_clusterqual.report.plot_style import BLACK, DARK, LIGHT, Picture, circumstances, scale_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def waterfall(records: Sequence[Record]) -> Picture | None:
    """The parts of the lost time of one test of scaling; None where it was not taken apart."""
    lost = next((record for record in records if record.judgement.quantity == "lost_time"), None)
    if lost is None or lost.conditions is None or not lost.judgement.parts:
        return None
    judged = lost.judgement
    figures = [judged.value or 0.0, *judged.parts.values()]
    if not all(map(math.isfinite, figures)):
        return None
    scale, unit = scale_of([abs(figure) for figure in figures], judged.unit)
    parts = {text.visible(name): part / scale for name, part in judged.parts.items()}
    case, label = text.case_of(lost.test), text.visible(judged.label)
    steps = [r for r in records if r.judgement.quantity == "step_time" and r.judgement.label == judged.label]
    whole = f"The step there takes {text.value_of(steps[0].judgement)}." if steps else ""
    return Picture(
        title=f"{case}: time lost in a step on {label}",
        panels=(2.2,), below=0.45,
        draw=lambda axes: _draw(axes[0], parts, unit),
        caption=[
            f"Zero: the step of the baseline divided by how many times the nodes there are. {whole}",
            f"Lost {text.value_of(judged)} {text.interval_of(judged)}".strip() + ". Grey adds, hatched takes away.",
            "Told by the difference of steps: parts below 5 % of the step are within what that resolves.",
            circumstances(lost.conditions, lost.started),
        ],
        words=f"{case}, {label}: {text.parts_of(judged)}.",
    )  # fmt: skip


def _draw(ax: Axes, parts: Mapping[str, float], unit: str) -> None:
    from matplotlib.ticker import MaxNLocator

    reached, levels = 0.0, [0.0]
    for place, part in enumerate(parts.values()):
        (bar,) = ax.bar(place, part, bottom=reached, width=0.7, color=LIGHT, edgecolor=BLACK, linewidth=0.5)
        if part < 0:
            bar.set(facecolor="white", hatch="////")
        reached += part
        ax.plot((place - 0.35, place + 1.35), (reached, reached), color=BLACK, linewidth=0.5)
        levels.append(reached)
    ax.bar(len(parts), reached, width=0.7, color=DARK, edgecolor=BLACK, linewidth=0.5)
    tops = [*map(max, itertools.pairwise(levels)), max(reached, 0.0)]
    for place, (top, figure) in enumerate(zip(tops, [*parts.values(), reached], strict=True)):
        shown = units.show(figure, units.RATIO)
        ax.annotate(shown, (place, top), (0, 2), textcoords="offset points", ha="center", size=7)
    low, high = min(levels), max(levels)
    room = (high - low) or 1.0
    ax.set_ylim(low - 0.05 * room, high + 0.12 * room)
    ax.axhline(0.0, color=BLACK, linewidth=0.6)
    ax.set_ylabel(f"lost in a step ({unit})")
    ax.yaxis.set_major_locator(MaxNLocator(5))
    ax.grid(True, axis="y")
    names = [*(name.replace(" ", "\n", 1) for name in parts), "lost"]
    ax.set_xticks(range(len(names)), names)

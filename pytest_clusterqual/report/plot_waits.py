"""How long each rank waited for the others in a collective, as a share of the call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_clusterqual import units
from pytest_clusterqual.model.record import Record
from pytest_clusterqual.report import text
from pytest_clusterqual.report.plot_ranks import bar_width, cut, foremost, rank_axis, rank_labels, rank_names
from pytest_clusterqual.report.plot_style import BLACK, LIGHT, Picture, circumstances, room_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def waits(records: Sequence[Record]) -> Picture | None:
    """The wait of each rank at the message size with the largest share of it; None where no wait was measured."""
    told = [record for record in records if record.judgement.quantity == "wait" and _shares(record)]
    if not told or told[0].conditions is None:
        return None
    worst = max(told, key=lambda record: record.judgement.value or 0.0)
    at = worst.conditions or told[0].conditions
    shares = _shares(worst)
    least = min(shares, key=shares.__getitem__)
    bars = foremost({rank: -share for rank, share in shares.items()})
    names = rank_names(bars, at)
    labels = rank_labels(names)
    case, size = text.case_of(worst.test), text.label_of(worst.judgement)
    shared = f"{text.value_of(worst.judgement)} {text.interval_of(worst.judgement)}".strip()
    shown = ", ".join(f"rank {names[rank]} {units.show_share(shares[rank])}" for rank in bars)
    return Picture(
        title=f"{case}: wait by rank at {size}",
        panels=(1.9,), below=room_for(labels),
        draw=lambda axes: _bars(
            axes[0], [shares[rank] for rank in bars], labels, bars.index(least)
        ),
        caption=[
            "Bars: share of a call that a rank waits for others, median of its calls. Of the time of all calls most "
            f"ranks waited {shared}, where rare long waits count as well; shown is the size where that is largest.",
            f"Who comes last waits least: here rank {names[least]}, {units.show_share(shares[least])}.",
            *cut(len(shares), "those that wait least"),
            circumstances(at, worst.started),
        ],
        words=f"{case}, {size}: wait of {shown}.",
    )  # fmt: skip


def _shares(record: Record) -> dict[int, float]:
    """Rank -> its share, of ranks that have one."""
    figures = record.judgement.per_rank.items()
    return {int(rank): share for rank, share in figures if rank.isdecimal() and math.isfinite(share)}


def _bars(ax: Axes, shares: Sequence[float], labels: Sequence[str], least: int) -> None:
    from matplotlib.ticker import MaxNLocator

    places = range(len(shares))
    bars = ax.bar(
        places,
        [share * 100 for share in shares],
        width=bar_width(len(shares)),
        color=LIGHT,
        edgecolor=BLACK,
        linewidth=0.5,
    )
    bars[least].set(hatch="xxxx", facecolor="white")
    ax.annotate(
        "waits least", (least, shares[least] * 100), (0, 3), textcoords="offset points",
        rotation=90, ha="center", va="bottom", size=6.5,
    )  # fmt: skip
    ax.set_ylabel("wait (% of the call)")
    ax.set_ylim(0, 105 * max(*shares, 0.01))
    ax.yaxis.set_major_locator(MaxNLocator(5))
    ax.grid(True, axis="y")
    rank_axis(ax, labels)

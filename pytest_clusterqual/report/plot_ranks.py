"""Ranks side by side along an axis: which are shown of many, and how they are called."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.report import text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST = 64  # ranks of a plot
_NAMED = 16  # ranks up to which nodes are named


def foremost(figures: Mapping[int, float]) -> list[int]:
    """The ranks with the largest figures, by their numbers."""
    return sorted(sorted(figures, key=lambda rank: -figures[rank])[:MOST])


def rank_names(ranks: Iterable[int], at: Conditions) -> dict[int, str]:
    """Rank -> such as ``3 node1``, or ``3`` where its node is not known."""
    return {r: text.visible(f"{r} {at.rank_nodes[r]}") if r < len(at.rank_nodes) else str(r) for r in ranks}


def rank_labels(names: Mapping[int, str]) -> list[str]:
    """What stands at the axis: names of few ranks, numbers of many."""
    return list(names.values() if len(names) <= _NAMED else map(str, names))


def cut(ranks: int, which: str) -> list[str]:
    """For the caption, that there are more ranks than are shown; nothing if there are not."""
    return [f"{MOST} of {ranks} ranks: {which}."] if ranks > MOST else []


def rank_axis(ax: Axes, labels: Sequence[str]) -> None:
    step = math.ceil(len(labels) / 2 / _NAMED)
    ax.set_xlim(-0.6, len(labels) - 0.4)
    ax.set_xticks(range(0, len(labels), step), labels[::step], rotation=90)
    ax.set_xlabel("rank and node" if len(labels) <= _NAMED else "rank")


def bar_width(ranks: int) -> float:
    """So that a single bar is no wall."""
    return min(0.8, ranks / 10)

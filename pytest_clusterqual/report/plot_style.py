"""How every plot looks, and how it becomes SVG: greys, a caption with the conditions, and the same in words."""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from pytest_clusterqual import units
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.record import Verdict
from pytest_clusterqual.report import text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLACK, DARK, LIGHT = "0.0", "0.35", "0.85"
_WIDTH, _LEFT, _RIGHT, _TOP, _LINE = 6.4, 0.85, 0.2, 0.35, 0.15  # inches
_COLUMNS = 104  # characters of a line of the caption
_LEGEND = 3  # entries side by side
TITLE, CAPTION = "title", "caption"  # the groups of a file that hold them
MARKERS: dict[Verdict, dict[str, Any]] = {
    Verdict.PASS: {"marker": "o", "markerfacecolor": BLACK, "markersize": 4},
    Verdict.FAIL: {"marker": "X", "markerfacecolor": "white", "markersize": 8},
    Verdict.UNDECIDED: {"marker": "D", "markerfacecolor": "white", "markersize": 5},
    Verdict.ERROR: {"marker": "*", "markerfacecolor": "white", "markersize": 8},
    Verdict.MEASURED: {"marker": "o", "markerfacecolor": "white", "markersize": 4},
}
# What fills the parts of a bar, so that neighbours differ without colour: face and hatch.
FILLS: tuple[dict[str, Any], ...] = tuple(
    {"facecolor": face, "hatch": hatch, "edgecolor": BLACK, "linewidth": 0.5}
    for face, hatch in (
        (LIGHT, ""), (DARK, ""), ("white", "////"), ("0.6", ""), ("white", "----"), (LIGHT, "xxxx"), ("white", ""),
        ("0.6", "////"), ("white", "||||"), (LIGHT, "----"), ("white", "xxxx"), ("0.6", "||||"),
    )
)  # fmt: skip
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "clusterqual",
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "font.size": 8.5,
    "axes.labelsize": 8.5,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": LIGHT,
    "grid.linewidth": 0.5,
    "hatch.linewidth": 0.5,
    "legend.frameon": False,
    "legend.borderpad": 0.0,
    "legend.handlelength": 1.8,
    "legend.fontsize": 7.5,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """A plot before it is drawn: panels one below the other, all as wide as the page.

    `panels` are their heights, `above` the room over each and `below` that under the last one, in
    inches. `draw` fills them. `caption` has a line a fact, `words` says what is to be seen, for
    those who do not see it.
    """

    title: str
    panels: tuple[float, ...]
    below: float
    above: float = 0.1
    draw: Callable[[Sequence[Axes]], None]
    caption: Sequence[str]
    words: str


def svg(picture: Picture) -> str:
    """The whole file, the same for the same picture."""
    import matplotlib
    from matplotlib.figure import Figure

    caption = [line for fact in picture.caption for line in textwrap.wrap(text.visible(fact), _COLUMNS)]
    height = _TOP + sum(picture.above + panel for panel in picture.panels)
    height += picture.below + _LINE * (len(caption) + 1)
    with warnings.catch_warnings(), matplotlib.rc_context():
        warnings.simplefilter("ignore")  # a character that the font lacks is no reason to have no plot
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        figure = Figure(figsize=(_WIDTH, height))
        figure.text(
            0.1 / _WIDTH, 1 - 0.1 / height, text.visible(picture.title), va="top", weight="bold", size=9, gid=TITLE
        )
        figure.text(0.1 / _WIDTH, 0.1 / height, "\n".join(caption), va="bottom", size=7.5, linespacing=1.3, gid=CAPTION)
        axes, top = [], height - _TOP
        for panel in picture.panels:
            top -= picture.above + panel
            box = (_LEFT / _WIDTH, top / height, 1 - (_LEFT + _RIGHT) / _WIDTH, panel / height)
            axes.append(figure.add_axes(box))
        picture.draw(axes)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    before, defs, after = file.getvalue().partition("<defs>")
    spoken = [f"<{tag}>{escape(text.visible(said))}</{tag}>\n" for tag, said in
              (("title", picture.title), ("desc", " ".join((picture.words, *picture.caption))))]  # fmt: skip
    return text.xml_safe("".join([before, *spoken, defs, after]))


def drawn_part(height: float, lines: int) -> tuple[float, float]:
    """Where the panels of a file begin, and how high they are, between title and a caption of so many `lines`; points.

    `height` is that of the whole file.
    """
    top = 72 * _TOP
    return top, height - top - 72 * _LINE * (lines + 1)


def circumstances(conditions: Conditions, started: float) -> str:
    """Where, on what and when it was measured."""
    parts = [text.ranks_of(conditions), conditions.device_name]
    parts.append("simulated nodes, all on one machine: no evidence about a network" if conditions.simulated else
                 f"real nodes {units.show_some(conditions.hosts, 3)}")  # fmt: skip
    parts += ["ranks share cores"] if conditions.oversubscribed else []
    parts += [f"algorithm {conditions.algorithm}"] if conditions.algorithm else []
    parts += [f"{name} {version}" for name, version in sorted(conditions.versions.items())]
    load = conditions.load
    parts.append("other load not known" if load is None else
                 f"other work took {units.show_share(load.other_cpu)} of {load.node}'s cores")  # fmt: skip
    parts.append(datetime.fromtimestamp(started, timezone.utc).strftime("%Y-%m-%d %H:%M UTC"))
    return "; ".join(parts)


def legend_room(entries: int) -> float:
    """Inches that a legend of so many entries takes under a panel."""
    return 0.2 * math.ceil(entries / _LEGEND)


def legend_below(ax: Axes, room: float) -> None:
    """The legend under a panel whose ticks and label take `room` inches."""
    height = ax.bbox.height / ax.figure.dpi
    ax.legend(loc="upper left", bbox_to_anchor=(0, -room / height), ncols=_LEGEND, borderaxespad=0.0)


def room_for(labels: Sequence[str]) -> float:
    """Inches below an axis whose tick labels stand upright."""
    return 0.4 + 0.065 * max(map(len, labels))


def scale_of(values: Sequence[float], unit: str) -> tuple[float, str]:
    """The unit that the largest of `values` is shown in, and what a canonical value is divided by."""
    name = units.show(max(values), unit).partition(" ")[2]
    return units.parse(f"1 {name}", unit), name

"""Plots inside the page: their SVG without title and caption, which the page sets itself, made small and by itself.

What matplotlib writes as style goes into attributes, which need no permission of a content security policy; names that
elements refer to each other by get a prefix, so that those of one plot never mean those of another.
"""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_clusterqual.report import text
from pytest_clusterqual.report.plot_style import CAPTION, TITLE, drawn_part
from pytest_clusterqual.report.plots import Plot

_MOST_BYTES = 1_100_000  # of all plots: the page has to open on a telephone
_BACKGROUND = "patch_1"
_REFERENCE = re.compile(r"(?<=url\(#)[^)]+")
_LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_NUMBERS = ("d", "x", "y", "x1", "y1", "x2", "y2", "width", "height", "transform", "points")
_INHERITED = (
    "fill", "fill-opacity", "stroke", "stroke-width", "stroke-linejoin", "stroke-linecap", "stroke-dasharray",
    "stroke-dashoffset", "stroke-opacity", "font-size", "font-weight", "text-anchor",
)  # fmt: skip
_FONT = re.compile(r"(bold )?(?:\S+ )*?([\d.]+)px")
_NOT_NEEDED = ("font-family", "font-stretch", "font-variant")
_USUAL = {"stroke-linecap": "butt", "stroke-linejoin": "round", "stroke-dasharray": "none", "fill-rule": "nonzero"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A plot of the page: `svg` is markup, its title and description are `title` and the picture's words."""

    title: str
    caption: Sequence[str]
    svg: Markup


class Markup(str):
    """Markup that is safe as it stands."""

    __slots__ = ()

    def __html__(self) -> str:
        return self


def chosen(plots: Sequence[Plot]) -> tuple[dict[str, list[Figure]], dict[str, int]]:
    """Criterion -> its figures, worst tests first, as many as the page has room for; and how many it has none for.

    Every criterion's first come before any criterion's second.
    """
    figures: dict[str, list[Figure]] = {}
    left_out: dict[str, int] = {}
    room = _MOST_BYTES
    for number, plot in _in_turn(plots):
        figure = _figure(plot, f"p{number}") if room > 0 else None
        room -= len(figure.svg.encode()) if figure else 0
        if figure is None or room < 0:
            left_out[plot.criterion] = left_out.get(plot.criterion, 0) + 1
        else:
            figures.setdefault(plot.criterion, []).append(figure)
    return figures, left_out


def _in_turn(plots: Sequence[Plot]) -> Iterator[tuple[int, Plot]]:
    seen: dict[str, int] = {}
    ranked = []
    for number, plot in enumerate(plots):
        seen[plot.criterion] = seen.get(plot.criterion, 0) + 1
        ranked.append((seen[plot.criterion], number, plot))
    yield from ((number, plot) for _, number, plot in sorted(ranked, key=lambda each: each[:2]))


def _figure(plot: Plot, prefix: str) -> Figure:
    picture = plot.picture
    return Figure(
        title=text.visible(picture.title), caption=[text.visible(line) for line in picture.caption],
        svg=Markup(inlined(plot.svg, prefix, title=picture.title, words=picture.words)),
    )  # fmt: skip


def inlined(svg: str, prefix: str, *, title: str, words: str) -> str:
    """The drawing of a plot's file as an element of a page, with its title and the same in words for who sees none."""
    root = ET.fromstring(svg)
    _without_namespaces(root)
    caption = root.find(f".//g[@id='{CAPTION}']")
    lines = 0 if caption is None else len(caption.findall(".//text"))
    width, height = map(float, root.attrib["viewBox"].split()[2:])
    top, drawn = drawn_part(height, lines)
    _prune(root)
    _rename(root, prefix)
    root.attrib = {
        "viewBox": f"0 {top:g} {width:g} {drawn:g}", "role": "img", "stroke-linejoin": "round",
        "aria-labelledby": f"{prefix}-title", "aria-describedby": f"{prefix}-desc",
    }  # fmt: skip
    for place, (tag, said) in enumerate((("title", title), ("desc", words))):
        element = ET.Element(tag, id=f"{prefix}-{tag}")
        element.text = text.visible(said)
        root.insert(place, element)
    return ET.tostring(root, encoding="unicode")


def _without_namespaces(root: ET.Element) -> None:
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.attrib = {name.rpartition("}")[2]: value for name, value in element.attrib.items()}


def _prune(element: ET.Element) -> None:
    """Take out what the page says or paints itself, and groups that only hold others."""
    children: list[ET.Element] = []
    for child in element:
        if child.tag in ("title", "desc", "style", "metadata") or child.get("id") in (TITLE, CAPTION, _BACKGROUND):
            continue
        _prune(child)
        child.tail = None
        _plain(child)
        alone = child.tag == "g" and not child.attrib.keys() - {"id"}
        children += list(child) if alone else [child]
    element[:] = _gathered([child for child in children if len(child) or child.attrib or child.text])
    if element.tag not in ("text", "tspan"):
        element.text = None


def _gathered(children: Sequence[ET.Element]) -> Iterator[ET.Element]:
    """Neighbours that look alike as a group, which says once how."""
    for look, those in itertools.groupby(children, key=_look):
        alike = list(those)
        if len(alike) < 2 or not look:
            yield from alike
            continue
        group = ET.Element("g", dict(look))
        for child in alike:
            child.attrib = {name: value for name, value in child.attrib.items() if name not in group.attrib}
            group.append(child)
        yield group


def _look(element: ET.Element) -> tuple[tuple[str, str], ...]:
    """What an element could have from its group; a clip is meant in the element's own, moved coordinates."""
    names = _INHERITED if element.get("transform") or element.tag == "use" else (*_INHERITED, "clip-path")
    return tuple((name, value) for name, value in element.attrib.items() if name in names)


def _plain(element: ET.Element) -> None:
    """Style as attributes, numbers no finer than a screen."""
    style = element.attrib.pop("style", "")
    element.attrib.pop("space", None)
    for name, _, value in (each.strip().partition(":") for each in style.split(";")):
        element.attrib.update(_attributes(name.strip(), value.strip()))
    for name in _NUMBERS:
        if name in element.attrib:
            shorter = _LONG_NUMBER.sub(lambda number: f"{float(number[0]):.2f}", element.attrib[name])
            element.attrib[name] = " ".join(shorter.split())


def _attributes(name: str, value: str) -> Mapping[str, str]:
    if name == "font":
        match = _FONT.match(value)
        weight = {"font-weight": "bold"} if match and match[1] else {}
        return {**weight, "font-size": match[2]} if match else {}
    if not name or name in _NOT_NEEDED or _USUAL.get(name) == value:
        return {}
    return {name: value.removesuffix("px") if name == "font-size" else value}


def _rename(root: ET.Element, prefix: str) -> None:
    """Keep the ids that something refers to, each with the prefix."""
    meant = {name for element in root.iter() for name in _meant(element)}
    for element in root.iter():
        identity = element.attrib.pop("id", "")
        for name, value in element.attrib.items():
            if name == "href" and value.startswith("#"):
                element.attrib[name] = f"#{prefix}-{value[1:]}"
            else:
                element.attrib[name] = _REFERENCE.sub(lambda match: f"{prefix}-{match[0]}", value)
        if identity in meant:
            element.attrib["id"] = f"{prefix}-{identity}"


def _meant(element: ET.Element) -> Iterator[str]:
    for name, value in element.attrib.items():
        if name == "href":
            yield value.removeprefix("#")
        yield from _REFERENCE.findall(value)

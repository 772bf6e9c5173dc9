"""The page in a real browser: it fits every width, asks for nothing, runs nothing, and can be used by keyboard alone.

Skipped where there is no Chromium; `make browser` installs it and runs this.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import Browser, browser, found
from run_made import hostile, whole_cluster
from test_report_html import HOSTILE, drawn, told

from pytest_clusterqual.judge.decision.verdict import decide
from pytest_clusterqual.model.record import Record
from pytest_clusterqual.report.html import html_report
from pytest_clusterqual.report.plots import Measurements

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        found() is None and os.environ.get("CLUSTERQUAL_BROWSER") != "required", reason="no Chromium: make browser"
    ),
]
WIDTHS = (400, 900, 1600)
SHOTS = os.environ.get("CLUSTERQUAL_SHOTS")  # a folder to keep pictures in, for a person to look at


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Addresses: of a run of 8 nodes, and of one whose every name is hostile."""
    folder, addresses = tmp_path_factory.mktemp("pages"), {}
    for name, (records, measurements) in {"usual": whole_cluster(8, 4, 30), "hostile": hostile(HOSTILE)}.items():
        (folder / f"{name}.html").write_text(_page(records, measurements, folder / name))
        addresses[name] = (folder / f"{name}.html").as_uri()
    return addresses


def _page(records: list[Record], measurements: Measurements, folder: Path) -> str:
    decision = decide(dict(enumerate(records, 1)), None)
    return html_report(told(records, drawn(records, measurements, folder), decision=decision))


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def keep(name: str, picture: bytes) -> None:
    if SHOTS:
        Path(SHOTS, name).write_bytes(picture)


@pytest.mark.parametrize("name", ["usual", "hostile"])
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_window(chromium: Browser, pages: dict[str, str], name: str, width: int) -> None:
    chromium.show(pages[name], width=width)
    keep(f"{name}-{width}.png", chromium.picture(whole=True))
    assert chromium.value("document.documentElement.scrollWidth") <= width
    wide = chromium.value(
        "[...document.querySelectorAll('body *')].filter(e => !e.closest('.table, .plot, pre, details:not([open])')"
        " && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"
    )
    assert wide == []


@pytest.mark.parametrize("name", ["usual", "hostile"])
def test_it_asks_for_nothing_and_has_nothing_to_complain_about(
    chromium: Browser, pages: dict[str, str], name: str
) -> None:
    chromium.show(pages[name], width=900)
    asked = [e["params"]["request"]["url"] for e in chromium.events if e["method"] == "Network.requestWillBeSent"]
    assert {url for url in asked if not url.startswith("data:")} == {pages[name]}
    said = [e for e in chromium.events if e["method"] in ("Log.entryAdded", "Runtime.consoleAPICalled",
                                                          "Runtime.exceptionThrown", "Page.javascriptDialogOpening")]  # fmt: skip
    assert said == []


def test_no_script_runs_on_it_whoever_puts_one_there(chromium: Browser, pages: dict[str, str]) -> None:
    chromium.show(pages["hostile"], width=900)
    assert chromium.value("document.scripts.length") == 0
    chromium.value(
        "void document.body.append(Object.assign(document.createElement('script'), {text: 'window.ran = 1'}))"
    )
    assert chromium.value("window.ran === undefined")
    assert any("Content Security Policy" in e["params"]["entry"]["text"] for e in chromium.events
               if e["method"] == "Log.entryAdded")  # fmt: skip


def test_the_style_is_in_force(chromium: Browser, pages: dict[str, str]) -> None:
    chromium.show(pages["usual"], width=900)
    assert chromium.value("getComputedStyle(document.querySelector('.tiles')).display") == "grid"


def test_the_keyboard_goes_from_top_to_bottom_and_sees_where_it_is(chromium: Browser, pages: dict[str, str]) -> None:
    chromium.show(pages["usual"], width=900)
    expected = chromium.value("document.querySelectorAll('a[href], summary').length")
    assert expected > 12
    places, outlines = [], set()
    for _ in range(expected):
        chromium.press("Tab")
        place, tag, outline = chromium.value(
            "(e => [e.getBoundingClientRect().top + scrollY, e.tagName, getComputedStyle(e).outlineStyle])"
            "(document.activeElement)"
        )
        if tag in ("A", "SUMMARY"):
            places.append(place)
        outlines.add(outline)
    assert len(places) > 12
    rows = [round(place / 40) for place in places]  # what stands side by side is one row
    assert rows == sorted(rows)
    assert outlines == {"solid"}


def test_a_folded_table_opens_without_a_script(chromium: Browser, pages: dict[str, str]) -> None:
    chromium.show(pages["usual"], width=900)
    height = "document.querySelector('details').getBoundingClientRect().height"
    before = chromium.value(height)
    chromium.value("document.querySelector('summary').focus()")
    for kind in ("keyDown", "keyUp"):
        chromium.ask(
            "Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r"
        )
    assert chromium.value(height) > before + 50


def test_in_the_dark_paper_is_dark_and_plots_are_light_on_dark(chromium: Browser, pages: dict[str, str]) -> None:
    for scheme, dark in (("light", False), ("dark", True)):
        chromium.show(pages["usual"], width=900, scheme=scheme)
        keep(f"usual-{scheme}.png", chromium.picture(whole=True))
        chromium.value("document.querySelector('.plot').scrollIntoView()")
        shades = brightness(chromium.picture())
        # Paper is most of it, and there is ink on it in either case.
        paper = sorted(shades)[len(shades) // 2]
        assert paper < 40 if dark else paper > 215
        ink = max(shades) if dark else min(shades)
        assert abs(ink - paper) > 150


def test_it_can_be_printed(chromium: Browser, pages: dict[str, str]) -> None:
    chromium.show(pages["usual"], width=900, scheme="dark")
    paper = chromium.printed()
    keep("usual.pdf", paper)
    assert paper.startswith(b"%PDF") and len(paper) > 20_000


def brightness(picture: bytes) -> list[int]:
    """The green of every pixel of a PNG with 8 bits a colour, as Chromium writes it."""
    assert picture.startswith(b"\x89PNG")
    at, data, width, channels = 8, b"", 0, 0
    while at < len(picture):
        size, kind = struct.unpack(">I4s", picture[at : at + 8])
        body = picture[at + 8 : at + 8 + size]
        if kind == b"IHDR":
            width, _, depth, color = struct.unpack(">IIBB", body[:10])
            assert depth == 8 and color in (2, 6)
            channels = 3 if color == 2 else 4
        data += body if kind == b"IDAT" else b""
        at += size + 12
    rows, stride = zlib.decompress(data), width * channels
    shades: list[int] = []
    above = bytearray(stride)
    for start in range(0, len(rows), stride + 1):
        above = _unfiltered(rows[start], bytearray(rows[start + 1 : start + 1 + stride]), above, channels)
        shades += above[1::channels]
    return shades


def _unfiltered(kind: int, row: bytearray, above: bytearray, step: int) -> bytearray:
    """One row of a PNG as it was before it was made easy to compress."""
    for at, value in enumerate(row):
        left = row[at - step] if at >= step else 0
        corner = above[at - step] if at >= step else 0
        guess = (0, left, above[at], (left + above[at]) // 2, _nearest(left, above[at], corner))[kind]
        row[at] = (value + guess) & 255
    return row


def _nearest(left: int, above: int, corner: int) -> int:
    estimate = left + above - corner
    return min((left, above, corner), key=lambda each: abs(estimate - each))

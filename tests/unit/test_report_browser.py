"""The page in a real browser: it fits every width, asks for nothing, runs nothing, and can be used by keyboard alone.

Skipped where there is no Chromium; `make browser` installs it and runs this.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import Browser, browser, found
from matplotlib.image import imread
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
SAYINGS = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Page.javascriptDialogOpening")
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
    said = [event for event in chromium.events if event["method"] in SAYINGS]
    assert said == []


def test_no_script_runs_on_it_whoever_puts_one_there(chromium: Browser, pages: dict[str, str]) -> None:
    chromium.show(pages["hostile"], width=900)
    assert chromium.value("document.scripts.length") == 0
    chromium.value(
        "void document.body.append(Object.assign(document.createElement('script'), {text: 'window.ran = 1'}))"
    )
    assert chromium.value("window.ran === undefined")
    said = [event["params"]["entry"]["text"] for event in chromium.events if event["method"] == "Log.entryAdded"]
    assert any("Content Security Policy" in text for text in said)


def test_the_style_is_in_force(chromium: Browser, pages: dict[str, str]) -> None:
    chromium.show(pages["usual"], width=900)
    assert chromium.value("getComputedStyle(document.querySelector('.tiles')).display") == "grid"


def test_the_keyboard_goes_from_top_to_bottom_and_sees_where_it_is(chromium: Browser, pages: dict[str, str]) -> None:
    chromium.show(pages["usual"], width=900)
    expected = chromium.value("document.querySelectorAll('a[href], summary').length")
    places, outlines = [], set()
    for _ in range(4 * expected):  # what scrolls by itself is a stop, too
        chromium.press("Tab")
        place, tag, outline = chromium.value(
            "(e => [e.getBoundingClientRect().top + scrollY, e.tagName, getComputedStyle(e).outlineStyle])"
            "(document.activeElement)"
        )
        if tag == "BODY" or len(places) == expected:
            break
        outlines.add(outline)
        if tag in ("A", "SUMMARY"):
            places.append(place)
    assert len(places) == expected > 12
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
        box = chromium.value(
            "(e => (e.scrollIntoView(), (r => [r.left, r.top, r.right, r.bottom])(e.getBoundingClientRect())))"
            "(document.querySelector('.plot > svg'))"
        )
        left, top, right, bottom = map(int, box)
        margin = left + (right - left) // 8  # where the labels of the axis are, and nothing else
        shades = green(chromium.picture())[top:bottom, left:margin].ravel()
        paper = sorted(shades)[len(shades) // 2]
        assert paper < 0.15 if dark else paper > 0.85
        assert abs((max if dark else min)(shades) - paper) > 0.6


def test_it_can_be_printed(chromium: Browser, pages: dict[str, str]) -> None:
    chromium.show(pages["usual"], width=900, scheme="dark")
    paper = chromium.printed()
    keep("usual.pdf", paper)
    assert paper.startswith(b"%PDF") and len(paper) > 20_000


def green(picture: bytes) -> Any:
    """How much of it every pixel of a PNG has, 0 to 1, row by row."""
    return imread(io.BytesIO(picture))[..., 1]

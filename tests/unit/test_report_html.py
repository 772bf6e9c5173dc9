"""The page of a run: what is on it, that nothing from outside becomes markup, and that it needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from decision_made import run as decided_run
from decision_made import slow_link
from fabric_made import cluster, swept
from made import RUN, STARTED, conditions, loaded, record, whole_run, without_value
from run_made import STATES, hostile, whole_cluster

from pytest_clusterqual.judge.decision.verdict import decide
from pytest_clusterqual.model.record import Record, Verdict
from pytest_clusterqual.report import html_plots
from pytest_clusterqual.report.html import Told, html_report
from pytest_clusterqual.report.html_sections import section
from pytest_clusterqual.report.html_tables import telemetry
from pytest_clusterqual.report.plots import Measurements, Plot, write_plots

HOSTILE = (
    "<script>alert(1)</script>", "\"'><img src=x onerror=alert(1)>", "]]></style>-->", "{{7*7}}", "\x00\x1b[2J\u202e",
    "node\ud800", "a&amp;b", "javascript:alert(1)",
)  # fmt: skip
TAME = tuple(f"node{number}" for number in range(len(HOSTILE)))
STYLE = (Path(html_plots.__file__).parent / "page.css").read_text()
Element = tuple[str, dict[str, str]]


class Page(HTMLParser):
    """A page as a browser takes it apart: its elements in order, and its text without that of the style."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[Element] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def having(self, name: str) -> list[str]:
        return [attributes[name] for _, attributes in self.elements if name in attributes]


def told(records: Sequence[Record], plots: Sequence[Plot] = (), **more: Any) -> Told:
    environment = {"project": "rack 7", "argv": "pytest qualification/ --nodes 2", "project_file": "version: 1\n"}
    usual: dict[str, Any] = {"run": RUN, "simulated": False, "environment": environment}
    return Told(records=records, plots=plots, **{**usual, **more})


def page(records: Sequence[Record], plots: Sequence[Plot] = (), **more: Any) -> Page:
    return Page(html_report(told(records, plots, **more)))


def drawn(records: Sequence[Record], measurements: Measurements, folder: Path) -> list[Plot]:
    plots, missing = write_plots(records, measurements, folder)
    assert missing == ""
    return plots


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> str:
    """64 nodes x 8 ranks, 60 tests, with all plots."""
    records, measurements = whole_cluster(64, 8, 60)
    plots = drawn(records, measurements, tmp_path_factory.mktemp("run"))
    return html_report(told(records, plots))


def test_the_top_says_how_the_four_criteria_ended_and_what_follows() -> None:
    records = decided_run(fabric=swept_badly())
    decision = decide(records, None)
    text = page(list(records.values()), decision=decision, simulated=True).text
    top = text.partition("How to read this")[0]
    for part in ("Memory", "Fabric ✗ FAIL", "Training Scaling", "Full-Run", "not qualified", decision.why,
                 "Simulated nodes, all on one machine", "pytest qualification/ --nodes 2", "2026-11-30 01:48 UTC",
                 "workload 9f2c41d07a55e310"):  # fmt: skip
        assert part in top, part


def swept_badly() -> list[Record]:
    from decision_made import fabric

    return fabric(verdict=Verdict.FAIL, findings=(slow_link(),))


def test_of_a_run_without_all_criteria_the_others_are_said_not_to_have_run() -> None:
    text = page([record()]).text
    assert "Memory not run" in text and "Training Scaling not run" in text and "Full-Run not run" in text
    assert "Decision: none." in text and "Fabric ✗ FAIL" in text


@pytest.mark.parametrize(("verdict", "mark"), [(Verdict.BLOCKED, "⊘"), (Verdict.ERROR, "!")])
def test_what_was_not_measured_has_its_reason(verdict: Verdict, mark: str) -> None:
    text = page([without_value("test_scaling[ddp-2]", "scaling", verdict, "fabric did not pass: rank 1 died")]).text
    assert f"Training Scaling {mark} {verdict}" in text
    assert "ddp-2: fabric did not pass: rank 1 died" in text.partition("Most important")[0]


def test_every_verdict_of_a_run_is_in_its_row_with_number_requirement_and_line() -> None:
    text = page(whole_run()).text
    for part in (
        "✗ FAIL all_reduce-world busbw 1 MiB 410 MB/s [390, 430] >= 500 MB/s -18 %",
        "? UNDECIDED all_reduce-world busbw 4 MiB 512 MB/s [470, 550] >= 500 MB/s +2.4 %",
        "clusterqual.yaml:14: busbw >= 500 MB/s", "about 20 more rounds", ">= 320 MB/s ( 80 % of expected)",
        "⊘ BLOCKED ddp-2 – –", "headroom 87.4 %", "✓ PASS",
    ):  # fmt: skip
        assert part in text or part.replace("( ", "(") in text, part
    assert "4 numbers of which nothing is required" in text


def test_the_worst_rows_come_first_and_the_rest_is_counted() -> None:
    many = [record(f"test_fabric[{number}]", verdict=Verdict.PASS, margin=number / 100) for number in range(500)]
    failed = [record("test_fabric[bad]"), record("test_fabric[worse]", margin=-0.5)]
    found = section("fabric", [*many, *failed], (), 0, {})
    assert [row.case for row in found.judged.seen[:4]] == ["worse", "bad", "0", "1"]
    shown = len(found.judged.seen) + len(found.judged.folded)
    assert found.judged.rest == f"{502 - shown} PASS more in records.jsonl"
    assert 100 < shown < 502


def test_the_foremost_findings_are_three_suspects_first() -> None:
    notes = tuple(replace(slow_link(), suspect=f"note {number}", level="note") for number in range(3))
    suspects = tuple(replace(slow_link(), suspect=f"suspect {number}") for number in range(2))
    text = page([record(findings=(*notes, *suspects))]).text
    foremost = text.partition("Most important findings")[2].partition("2 more below")[0]
    assert re.findall(r"(suspect \d|note \d)", foremost) == ["suspect 0", "suspect 1", "note 0"]


def test_a_failure_that_the_file_accepts_is_shown_with_its_reason() -> None:
    text = page([replace(record(), exception="switch firmware, ticket 4711")]).text
    assert "1 failure accepted" in text
    assert "FAIL accepted: switch firmware, ticket 4711." in text


def test_what_is_new_appears_by_itself() -> None:
    new = record(
        "test_future[x]", "regained", quantity="regain", label="after 2 h", unit="s", value=90.0, interval=None,
        parts={"waiting": 60.0, "talking": 30.0}, requirement=None, verdict=Verdict.PASS, margin=None,
    )  # fmt: skip
    text = page([new]).text
    assert "regained ✓ PASS" in text
    assert "regain after 2 h 90 s" in text
    assert "Made of: waiting 60 s, talking 30 s." in text


def test_what_spoils_numbers_is_told_at_the_top() -> None:
    busy = record(under=replace(loaded(0.4), oversubscribed=True))
    asked, left_out = {"memory": ["test_memory[ddp]"]}, {"a": "no rails"}
    text = page([busy], asked=asked, note="a plot is missing: x.svg", left_out=left_out).text
    for part in ("other work (40 % of its cores' time)", "Ranks share cores", "although asked for: ddp.",
                 "a plot is missing: x.svg", "1 test: no rails"):  # fmt: skip
        assert part in text, part


def test_the_project_file_stands_as_it_was_written() -> None:
    file = "memory:\n  require:\n    - {peak: '<= 2 GiB'}  # \u202e<b>\n"
    source = html_report(told([record()], environment={"project_file": file}))
    assert "memory:\n  require:\n    - {peak: &#x27;&lt;= 2 GiB&#x27;}  # \\u202e&lt;b&gt;\n" in source


def test_names_from_outside_are_text_and_change_nothing_of_the_page(tmp_path: Path) -> None:
    pages = []
    for names in (HOSTILE, TAME):
        records, measurements = hostile(names)
        plots = drawn(records, measurements, tmp_path / str(len(pages)))
        assert len(plots) >= 3
        name = "".join(names)
        environment = dict.fromkeys(("project", "argv", "project_file", name), name) | {"variables": {name: name}}
        decision = decide(dict(enumerate(records, 1)), None)
        pages.append(page(
            records, plots, environment=environment, run=name, asked={name: [name]}, left_out={name: name}, note=name,
            decision=decision,
        ))  # fmt: skip
    wicked, harmless = pages
    tags = [[tag for tag, _ in each.elements if tag not in ("path", "use", "g", "defs", "text")] for each in pages]
    assert tags[0] == tags[1]
    assert "script" not in tags[0]
    assert not [name for _, found in wicked.elements for name in found if name.startswith("on")]
    assert "<script>alert(1)</script>" in wicked.text and "{{7*7}}" in wicked.text
    assert "\\x00\\x1b[2J\\u202e" in wicked.text and "\u202e" not in wicked.text
    assert "node0node1" in harmless.text


def test_the_page_asks_for_nothing_and_runs_nothing(large: str) -> None:
    found = Page(large)
    tags = {tag for tag, _ in found.elements}
    assert not tags & {"script", "iframe", "object", "embed", "form", "base", "audio", "video", "img"}
    assert "://" not in large
    assert "@import" not in STYLE and "url(" not in STYLE
    assert not found.having("style") and not found.having("src")
    for link in found.having("href"):
        assert link.startswith(("#", "data:,", "data:image/png;base64,")), link
    (policy,) = [a["content"] for tag, a in found.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none';")
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in policy
    assert f"<style>{STYLE}</style>" in large


def test_every_reference_leads_to_one_element_and_no_two_elements_share_a_name(large: str) -> None:
    found = Page(large)
    ids = found.having("id")
    assert len(ids) == len(set(ids)) > 50
    referred = [href[1:] for href in found.having("href") if href.startswith("#")]
    referred += [name for kind in ("aria-labelledby", "aria-describedby") for name in found.having(kind)]
    referred += re.findall(r"url\(#([^)]+)\)", large)
    assert len(referred) > 100
    assert set(referred) <= set(ids)


def test_every_plot_says_in_words_what_it_shows(large: str) -> None:
    plots = re.findall(r"<svg .*?</svg>", large, flags=re.DOTALL)
    assert len(plots) > 20
    for plot in plots:
        assert 'role="img"' in plot.partition(">")[0]
        title, words = (re.findall(rf"<{tag} [^>]*>([^<]+)</{tag}>", plot) for tag in ("title", "desc"))
        assert len(title) == len(words) == 1
        assert re.search(r"\d", words[0])


def test_a_page_of_64_nodes_opens_on_a_telephone(large: str) -> None:
    assert len(large.encode()) < 2_000_000
    text = Page(large).text
    for part in ("64 nodes x 8 ranks", "NIC mlx5_3 of gpu064", "more plots are in the run folder", "UNDECIDED", "ERROR",
                 "rank 17 died: signal 9", "BLOCKED"):  # fmt: skip
        assert part in text, part


def test_a_page_of_1024_nodes_tells_the_worst_and_counts_the_rest() -> None:
    records, _ = whole_cluster(1024, 8, 16, samples=False)
    written = html_report(told(records))
    assert len(written.encode()) < 200_000  # plots come to 1.1 MB at most
    text = Page(written).text
    for part in ("1024 nodes x 8 ranks", "gpu008 and 1016 more", "992 more nodes in records.jsonl",
                 "NIC mlx5_3 of gpu1024", "GPU3: HW thermal slowdown"):  # fmt: skip
        assert part in text, part


def test_each_criterion_has_the_plots_of_its_worst_tests(tmp_path: Path) -> None:
    records, measurements = whole_cluster(4, 2, 30)
    plots = drawn(records, measurements, tmp_path)
    figures, left_out = html_plots.chosen(plots)
    assert left_out == {}
    kinds = {
        name: {figure.title.partition(": ")[2].partition(",")[0] for figure in found} for name, found in figures.items()
    }
    assert kinds["memory"] == {"memory of each rank at its peak"}
    assert {"speedup over the number of nodes", "time lost in a step on 4 nodes"} == kinds["scaling"]
    assert kinds["full_run"] == {"where the time of the full run went"}
    assert "all_reduce in world" in kinds["fabric"]


def test_without_room_every_criterion_keeps_its_worst(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records, measurements = whole_cluster(4, 2, 30)
    plots = drawn(records, measurements, tmp_path)
    monkeypatch.setattr(html_plots, "_MOST_BYTES", 120_000)
    figures, left_out = html_plots.chosen(plots)
    for criterion, found in figures.items():
        of_it = [plot for plot in plots if plot.criterion == criterion]
        assert [figure.title for figure in found] == [plot.picture.title for plot in of_it][: len(found)]
        assert len(found) + left_out.get(criterion, 0) == len(of_it)
    assert set(figures) == {"memory", "fabric", "scaling", "full_run"} and left_out


def test_a_drawing_inside_the_page_is_the_file_without_title_and_caption(tmp_path: Path) -> None:
    (plot, *_) = drawn(swept("test_fabric[all_reduce-world]", cluster(2)), {}, tmp_path)
    inside = html_plots.inlined(plot.svg, "p1", title="<title>", words="a & b")
    marks = [len(re.findall(rf"<{tag}\b", source)) for source in (plot.svg, inside) for tag in ("use", "text")]
    caption = len(re.findall(r"<text\b", plot.svg.partition('id="caption"')[2].partition("</g>")[0]))
    assert marks[0] == marks[2] > 20
    assert marks[1] - marks[3] == caption + 1
    assert "the slowest rank of all groups" not in inside.lower()
    assert "&lt;title&gt;" in inside and "a &amp; b" in inside
    assert "style=" not in inside and "xmlns" not in inside and len(inside) < len(plot.svg) / 2
    whole, part = (float(re.search(r'viewBox="[\d.]+ [\d.]+ [\d.]+ ([\d.]+)"', svg)[1]) for svg in (plot.svg, inside))  # type: ignore[index]
    assert 0.5 * whole < part < whole
    other = html_plots.inlined(plot.svg, "p2", title="", words="")
    assert not set(re.findall(r'id="([^"]+)"', inside)) & set(re.findall(r'id="([^"]+)"', other))


def test_nodes_in_trouble_are_first_in_the_telemetry() -> None:
    records, _ = whole_cluster(64, 8, 12)
    found = telemetry(records)
    assert found.rows[0][0] == "gpu004" and found.rows[0][3] == "GPU3: HW thermal slowdown"
    assert found.rows[1][0] == "gpu003" and "ib0.symbol_error +" in found.rows[1][2]
    assert found.gauges == ["CPU busy", "memory available", "GPU clock", "GPU temperature", "GPU power"]
    assert found.rows[0][1][2:] == ["1200 MHz to 1980 MHz", "41 °C to 78 °C", "90 W to 700 W"]
    assert found.rest == 32


def test_counters_of_one_measurement_count_once_though_many_records_have_them() -> None:
    records, _ = whole_cluster(64, 8, 2)
    (grown,) = {row[2] for row in telemetry(records).rows if row[0] == "gpu003"}
    assert grown == "ib0.symbol_error +2400"  # of two measurements


def test_the_states_of_a_full_run_are_in_the_words_of_its_plot(tmp_path: Path) -> None:
    records, measurements = whole_cluster(4, 2, 11)
    (plot,) = [p for p in drawn(records, measurements, tmp_path) if p.criterion == "full_run"]
    for state, seconds in STATES.items():
        assert (state in plot.picture.words) == (seconds > 0.005 * sum(STATES.values()))


def colors(block: str) -> dict[str, str]:
    return dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6});", block))


def luminance(color: str) -> float:
    """Relative, as WCAG defines it."""
    parts = (int(color[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("ground", ["paper", "tint"])
def test_text_stands_out_from_what_is_behind_it(scheme: str, ground: str) -> None:
    light, dark = STYLE.split("@media screen and (prefers-color-scheme: dark)")
    found = colors(light) if scheme == "light" else {**colors(light), **colors(dark.partition("* {")[0])}
    words = {"ink", "soft", "link", "pass", "fail", "undecided", "blocked", "error", "measured"}
    assert words | {"paper", "tint"} <= set(found)
    for word in words:
        low, high = sorted((luminance(found[word]), luminance(found[ground])))
        assert (high + 0.05) / (low + 0.05) >= 5.5, (word, found[word])  # 4.5 is asked for; small print gets more


def test_the_time_is_from_the_first_begin_to_the_last_end() -> None:
    told = [record(seconds=60.0), record(started=STARTED + 3600, seconds=1800.0)]
    assert ("measured", "2026-11-30 01:48 to 03:18 UTC") in _facts(told)
    assert ("measured", "2026-11-30 01:48 to 2026-12-01 01:48 UTC") in _facts([record(seconds=86_400.0)])


def test_a_time_that_no_calendar_knows_is_left_out() -> None:
    assert "measured" not in dict(_facts([record(started=float("nan"))]))


def _facts(records: Sequence[Record]) -> list[tuple[str, str]]:
    from pytest_clusterqual.report.html_top import facts

    return facts(RUN, {}, records, simulated=False)


def test_the_real_thing_is_called_real() -> None:
    assert ("nodes", "real") in _facts([record(under=conditions(simulated=False))])

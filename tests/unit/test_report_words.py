"""How figures of a record are said: sizes, signs, what was seen once; which row comes first; when it was measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from made import judgement, passed, record
from matplotlib.figure import Figure

from pytest_clusterqual import plugin
from pytest_clusterqual.model.record import Interval, Verdict
from pytest_clusterqual.report import text
from pytest_clusterqual.report.html import Told, html_report
from pytest_clusterqual.report.plot_waterfall import waterfall
from pytest_clusterqual.report.terminal import summary


def test_what_one_run_tells_has_no_interval_that_looks_like_chance() -> None:
    seen = Interval(low=1.1299, high=1.1301, kind="resolution", samples=1)
    once = judgement(quantity="gain", label="", value=1.13, unit="1", interval=seen, requirement=None)
    assert text.interval_of(once) == "(one run)"
    assert text.interval_of(replace(once, interval=replace(seen, kind="median"))) == "[1.13, 1.13]"
    assert text.interval_of(replace(once, interval=replace(seen, low=1.13, high=1.13, kind="count"))) == ""


@pytest.mark.parametrize(
    ("label", "told"),
    [("1115648 B", "1.064 MiB"), ("262656 B", "256.5 KiB"), ("769 KiB", "769 KiB"), ("100 B", "100 B"),
     ("rank 1234 B", "rank 1234 B")],
)  # fmt: skip
def test_a_size_is_said_in_a_unit_that_people_read(label: str, told: str) -> None:
    named = record(label=label)
    assert text.quantity_of(named.judgement) == f"busbw {told}"
    assert f"busbw {told} " in summary([named], run_folder="run", simulated=False, width=200)


@pytest.mark.parametrize(("percent", "told"), [(0.347, "+0.35"), (-2.14, "-2.1"), (163.7, "+164"), (-1234.5, "-1234")])
def test_a_change_has_its_sign_and_no_exponent(percent: float, told: str) -> None:
    assert text.signed(percent) == told


def test_the_parts_of_lost_time_have_no_exponent_either() -> None:
    parts = {"compute loss": 0.16, "wait": 0.02, "residual": -0.004}
    lost = record("test_scaling[a]", "scaling", quantity="lost_time", unit="s", value=0.176, parts=parts, interval=None)
    picture = waterfall([lost])
    assert picture is not None
    ax = Figure().subplots()
    picture.draw([ax])
    assert [each.get_text() for each in ax.texts] == ["160", "20", "-4", "176"]


def test_what_is_required_comes_before_bare_numbers_whatever_their_order() -> None:
    test = "test_memory[ddp]"
    bare = [
        record(test, "memory", quantity=name, verdict=Verdict.MEASURED, requirement=None, margin=None, findings=())
        for name in ("reserved", "active")
    ]
    held = [passed(test, "memory", quantity=name) for name in ("peak", "headroom")]
    table = summary([bare[0], held[0], bare[1], held[1]], run_folder="run", simulated=False, width=200)
    rows = table.partition("\n\n")[0].splitlines()[2:]
    assert [row.split()[-1] for row in rows] == ["PASS", "PASS", "MEASURED", "records.jsonl"]


def test_a_page_says_when_was_measured_and_not_when_that_was_judged_again() -> None:
    later = passed("test_decision", "decision", measurement=None)
    records = [record(seconds=60.0), replace(later, started=later.started + 3600)]
    page = html_report(Told(run="run", simulated=False, environment={}, records=records))
    assert "<dt>measured</dt><dd>2026-11-30 01:48 to 01:49 UTC</dd>" in page


def test_the_page_explains_the_words_of_its_quantities() -> None:
    page = html_report(Told(run="run", simulated=False, environment={}, records=[record()]))
    for word in ("busbw", "alpha", "plateau", "wait", "gain", "goodput", "ETTR", "residual"):
        assert f"<dt>{word}</dt><dd>" in page, word
    assert "<em>one run</em>" in page


def test_pytest_says_what_the_tests_are_judged_by() -> None:
    project = SimpleNamespace(name="rack 7", path=Path("qualification/clusterqual.yaml"))
    stash: dict[Any, Any] = {plugin._selected: True, plugin._key: SimpleNamespace(project=project)}
    config = SimpleNamespace(stash=stash, get_verbosity=lambda: 0)
    told = plugin.pytest_report_collectionfinish(cast(Any, config))
    assert told == ["clusterqual: project rack 7, qualification/clusterqual.yaml"]
    project.path = Path.cwd() / "clusterqual.yaml"
    assert plugin.judged_by(cast(Any, project)) == "clusterqual: project rack 7, clusterqual.yaml"
    config.stash = {}
    assert plugin.pytest_report_collectionfinish(cast(Any, config)) == []

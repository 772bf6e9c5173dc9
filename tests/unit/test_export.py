"""A run as Markdown and as OpenMetrics: readable by what reads them, whatever names are in it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from made import finding, judgement, record, whole_run
from recorded_made import TEST, recorded

from pytest_clusterqual.cli import main
from pytest_clusterqual.model.record import Record, Verdict
from pytest_clusterqual.report.markdown import markdown
from pytest_clusterqual.report.metrics import metrics

HOSTILE = 'x" y\\ <img src=a> | `b` [c](http://d) \u202e\n# e'


def told(records: list[Record]) -> str:
    return markdown(records, run="r", simulated=True, decision=None)


def test_the_worst_test_comes_first_and_heads_the_page() -> None:
    page = told(whole_run())
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert page.splitlines()[0].startswith("## Cluster qualification: ")
    order = [re.split(r" \| ", row)[2] for row in rows]
    severity = ["ERROR", "FAIL", "UNDECIDED", "BLOCKED", "PASS", "MEASURED"]
    assert order == sorted(order, key=severity.index)
    assert page.splitlines()[0].endswith(order[0])
    assert "Simulated nodes" in page


def test_outside_text_stays_text_in_markdown() -> None:
    named = judgement(verdict=Verdict.FAIL, reason=HOSTILE, findings=(finding(suspect=HOSTILE),))
    page = told([replace(record(), test=f"test_fabric[{HOSTILE}]", judgement=named)])
    outside_code = re.sub(r"`[^`]*`", "", page.replace("\\`", ""))
    assert "<img" not in outside_code and "\u202e" not in page
    assert "\\[c\\](http" in page  # no link
    assert len([line for line in page.splitlines() if line.startswith("| `")]) == 1
    row = next(line for line in page.splitlines() if line.startswith("| `"))
    assert len(re.findall(r"(?<!\\)\|", row)) == 5


def test_many_tests_that_passed_are_counted() -> None:
    good = judgement(verdict=Verdict.PASS)
    page = told([replace(record(), test=f"test_memory[{number}]", judgement=good) for number in range(60)])
    assert "| 20 more that passed |" in page


LINE = re.compile(r'([a-z_]+)(\{(?:[a-z]+="(?:[^"\\\n]|\\["\\n])*",?)*\}) (\S+)')


def test_metrics_are_lines_that_a_scraper_reads() -> None:
    named = [replace(each, test=f"{each.test}{HOSTILE}") for each in whole_run()]
    lines = metrics(named).splitlines()
    assert lines[-1] == "# EOF"
    values = [LINE.fullmatch(line) for line in lines if not line.startswith("#")]
    assert values and all(values)
    assert all(float(match[3]) == float(match[3]) for match in values if match)
    families = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(families) == len(set(families))
    assert {match[1] for match in values if match} == set(families)


def test_a_test_has_one_verdict_of_six() -> None:
    lines = [line for line in metrics(whole_run()).splitlines() if line.startswith("clusterqual_verdict{")]
    by_test: dict[str, list[int]] = {}
    for line in lines:
        by_test.setdefault(line.split('test="')[1].split('"')[0], []).append(int(line.rpartition(" ")[2]))
    assert by_test and all(sorted(values) == [0, 0, 0, 0, 0, 1] for values in by_test.values())


def test_the_command_prints_either(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(tmp_path / "run")
    assert main(["export", str(tmp_path / "run"), "--format", "markdown"]) == 0
    out = capsys.readouterr().out
    assert f"| `{TEST}` | memory | PASS | " in out and "**Decision**: " in out
    assert main(["export", str(tmp_path / "run"), "--format", "openmetrics"]) == 0
    assert "clusterqual_peak_bytes{" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["export", str(tmp_path / "run"), "--format", "word"])

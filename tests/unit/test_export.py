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
    assert page.splitlines()[0].endswith("refused") and order[0] in page.splitlines()[2]
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


def test_a_summary_is_never_longer_than_ci_shows() -> None:
    bad = judgement(verdict=Verdict.FAIL, reason="|" * 10_000)
    page = told([replace(record(), test=f"{'x' * 5000}[{number}]", judgement=bad) for number in range(1000)])
    assert "| 800 more that did not pass |" in page
    assert len(page.encode()) < 2**20


def test_many_tests_that_passed_are_counted() -> None:
    good = judgement(verdict=Verdict.PASS)
    page = told([replace(record(), test=f"test_memory[{number}]", judgement=good) for number in range(60)])
    assert "| 20 more that passed |" in page


NAME, LABEL, TEXT = r"[a-zA-Z_:][a-zA-Z0-9_:]*", r"[a-zA-Z_][a-zA-Z0-9_]*", r'(?:[^"\\\n]|\\["\\n])*'
SAMPLE = re.compile(rf'({NAME})(?:\{{((?:{LABEL}="{TEXT}",?)*)\}})? (\S+)')


def refused(text: str) -> list[str]:
    """What a strict collector has against metrics: the rules of the node exporter's textfile collector (Prometheus'
    text format 0.0.4, and no time beside a value), and of OpenMetrics 1.0.
    """
    found, families, series = [], dict[str, set[str]](), set[tuple[str, str]]()
    *lines, last = text.split("\n")
    if last or lines[-1:] != ["# EOF"]:
        found.append("the end is not # EOF and a line feed")
    current = ""
    for line in lines[:-1]:
        if about := re.fullmatch(rf"# (HELP|TYPE) ({NAME}) (.+)", line):
            kind, name, _ = about.groups()
            if name != current and name in families:
                found.append(f"{name}: not in one group")
            if kind in families.setdefault(name, set()) or "sample" in families[name]:
                found.append(f"{name}: {kind} twice, or after a value")
            current = name
            families[name].add(kind)
            continue
        match = SAMPLE.fullmatch(line)
        if match is None:
            found.append(f"no line of the format: {line}")
            continue
        labels = sorted(re.findall(rf'({LABEL})="({TEXT})"', match[2] or ""))
        if match[1] != current or not {"HELP", "TYPE"} <= families.get(match[1], set()):
            found.append(f"{match[1]}: a value outside its group, or without HELP and TYPE")
        if len(dict(labels)) < len(labels):
            found.append(f"{match[1]}: a label twice")
        if (match[1], str(labels)) in series:
            found.append(f"{match[1]}: a series twice")
        series.add((match[1], str(labels)))
        families.setdefault(match[1], set()).add("sample")
        float(match[3])
    return found


def twice_measured() -> list[Record]:
    """What ``qualify.samples("barrier", ...)`` records, called twice in one test, and names that differ in blanks."""
    test = "qualification/test_own.py::test_barrier"
    own = [
        replace(record(), test=test, criterion="own", judgement=judgement(quantity=quantity, value=value, unit="s"))
        for quantity, value in (("barrier", 0.001), ("barrier", 0.002), ("measured_timestamp", 1.0), ("é barrier", 1.0))
    ]
    return [*own, *(replace(each, test=f"{test}[a {blank}b]") for each in own for blank in ("", " "))]


@pytest.mark.parametrize("records", [whole_run(), twice_measured(), []], ids=["whole run", "twice", "none"])
def test_no_collector_refuses_the_metrics(records: list[Record]) -> None:
    named = [replace(each, test=f"{each.test}{HOSTILE}") for each in records]
    assert refused(metrics(records)) == refused(metrics(named)) == []


def test_figures_of_the_same_name_are_told_apart_by_a_number() -> None:
    lines = [line for line in metrics(twice_measured()[:2]).splitlines() if line.startswith("clusterqual_barrier_")]
    assert [line.rpartition(" ")[2] for line in lines] == ["0.001", "0.002"]
    assert ["number=" in line for line in lines] == [False, True]
    assert 'number="2"' in lines[1]


@pytest.mark.parametrize(
    ("there", "instead", "said"),
    [
        ("# EOF\n", "# EOF", "the end"),
        ("# EOF\n", "", "the end"),
        ("# TYPE clusterqual_peak_bytes gauge\n", "", "clusterqual_peak_bytes: a value outside"),
        ("# HELP clusterqual_peak_bytes", "# HELP clusterqual_goodput_ratio", "clusterqual_peak_bytes: a value"),
        ("# TYPE clusterqual_peak_bytes ", "# TYPE clusterqual_peak_bytes x\n" * 2, "clusterqual_peak_bytes: TYPE"),
        ("# EOF\n", "# TYPE clusterqual_verdict gauge\n# EOF\n", "clusterqual_verdict: not in one"),
        ('criterion="memory"', 'criterion="memo"ry"', "no line"),
        ('criterion="memory"', 'criterion="memory",criterion="x"', "clusterqual_verdict: a label twice"),
        ('verdict="PASS"', 'verdict="FAIL"', "clusterqual_verdict: a series twice"),
        ('verdict="PASS"} 1', 'verdict="PASS"} 1 1796003304000', "no line"),
    ],
)  # fmt: skip
def test_each_rule_of_a_collector_notices_what_breaks_it(there: str, instead: str, said: str) -> None:
    text = metrics(whole_run())
    assert there in text
    assert any(each.startswith(said) for each in refused(text.replace(there, instead, 1)))


def test_a_test_has_one_verdict_of_six() -> None:
    lines = [line for line in metrics(whole_run()).splitlines() if line.startswith("clusterqual_verdict{")]
    by_test: dict[str, list[int]] = {}
    for line in lines:
        by_test.setdefault(line.split('test="')[1].split('"')[0], []).append(int(line.rpartition(" ")[2]))
    assert by_test and all(sorted(values) == [0, 0, 0, 0, 0, 1] for values in by_test.values())


def test_a_test_is_as_good_as_its_worst_figure() -> None:
    figures = [replace(record(), judgement=judgement(verdict=each)) for each in (Verdict.PASS, Verdict.FAIL)]
    (line,) = [line for line in metrics(figures).splitlines() if line.endswith("} 1") and "verdict{" in line]
    assert 'verdict="FAIL"' in line


def test_the_command_prints_either(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(tmp_path / "run")
    assert main(["export", str(tmp_path / "run"), "--format", "markdown"]) == 0
    out = capsys.readouterr().out
    assert f"| `{TEST}` | memory | PASS | " in out and "**Decision**: " in out
    assert main(["export", str(tmp_path / "run"), "--format", "openmetrics"]) == 0
    assert "clusterqual_peak_bytes{" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["export", str(tmp_path / "run"), "--format", "word"])

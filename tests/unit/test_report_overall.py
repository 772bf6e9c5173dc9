"""Whether a run is accepted: the same line in the terminal, on the page and in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from made import passed, record, without_value

from pytest_clusterqual.model.record import Record, Verdict
from pytest_clusterqual.report.html import Told, html_report
from pytest_clusterqual.report.markdown import markdown
from pytest_clusterqual.report.overall import incomplete, overall
from pytest_clusterqual.report.terminal import summary

NAMES = ("nodes", "memory", "fabric", "scaling", "full_run")
WELL = [passed(f"test_{name}[a]", name) for name in NAMES]
ASKED = {each.criterion: [each.test] for each in WELL}
MORE = {**ASKED, "fabric": [*ASKED["fabric"], "test_fabric[b]", "test_fabric[c]"]}
UNDECIDED = record("test_scaling[a]", "scaling", verdict=Verdict.UNDECIDED)
BLOCKED = without_value("test_full_run[a]", "full_run", Verdict.BLOCKED, "scaling did not pass")
BARE = record("test_memory[a]", "memory", verdict=Verdict.MEASURED, requirement=None, margin=None)
Asked = Mapping[str, Sequence[str]]


def instead(*others: Record) -> list[Record]:
    """A run that is well but for these."""
    tests = {each.test for each in others}
    return [*(each for each in WELL if each.test not in tests), *others]


@pytest.mark.parametrize(
    ("records", "asked", "told"),
    [
        (WELL, ASKED, "accepted: all 5 criteria are PASS"),
        (WELL[:2], {}, "passed: nodes and memory; no other criterion was asked for"),
        (WELL, MORE, "no verdict yet: 2 tests not run"),
        (WELL[:4], ASKED, "no verdict yet: 1 test not run"),
        ([], ASKED, "no verdict yet: 5 tests not run"),
        (WELL, {**ASKED, "fabric": []}, "accepted: all 5 criteria are PASS"),
        (WELL[:2], {"fabric": []}, "no verdict yet: no test of fabric applies here"),
        (instead(record("test_fabric[a]")), MORE, "refused: fabric FAIL, 2 tests not run"),
        (instead(UNDECIDED, BLOCKED), ASKED, "no verdict yet: scaling UNDECIDED, full_run BLOCKED"),
        (instead(BARE), ASKED, "no verdict yet: nothing is required of memory"),
        (instead(record("test_memory[a]", "memory", verdict=Verdict.ERROR)), ASKED, "no verdict yet: memory ERROR"),
        ([*WELL, record("test_fabric[a]", verdict=Verdict.ERROR), record("test_fabric[a]")], ASKED,
         "refused: fabric FAIL"),
        ([*WELL, record("test_own", "own")], ASKED, "refused: own FAIL"),
        ([*WELL, replace(BARE, test="test_decision", criterion="decision")], {**ASKED, "own": ["test_own"]},
         "accepted: all 5 criteria are PASS"),
        ([replace(BARE, criterion="own")], {}, "no verdict yet: nothing was judged"),
    ],
)  # fmt: skip
def test_every_criterion_that_was_asked_for_has_to_pass_with_all_its_tests(
    records: list[Record], asked: Asked, told: str
) -> None:
    assert str(overall(records, asked, simulated=False)) == told


def test_simulated_nodes_are_never_accepted() -> None:
    told = "passed: all 5 criteria are PASS (simulated nodes: no evidence about a network)"
    assert str(overall(WELL, ASKED, simulated=True)) == told


def test_the_line_is_the_first_in_every_report_and_simulated_nodes_are_no_evidence() -> None:
    records, told = instead(record("test_fabric[a]")), "fabric FAIL (simulated nodes: no evidence about a network)"
    terminal = summary(records, run_folder="run", simulated=True, width=200, asked=ASKED).partition("\n\n")[2]
    assert terminal.splitlines()[0].split(maxsplit=1) == ["overall", f"refused: {told}"]
    page = html_report(Told(run="run", simulated=True, environment={}, records=records, asked=ASKED))
    assert f'<h1>run: <span class="FAIL">refused</span></h1>\n<p class="lead">{told}.</p>' in page
    heads = markdown(records, run="run", simulated=True, decision=None, asked=ASKED).splitlines()
    assert heads[0:3:2] == ["## Cluster qualification: refused", f"{told}."]


def test_a_criterion_without_all_its_tests_says_so_beside_its_verdict() -> None:
    group = [passed("test_fabric[a]", "fabric")]
    assert incomplete("fabric", group, MORE) == "incomplete, 1 of 3 tests"
    assert incomplete("fabric", group, ASKED) == "" == incomplete("fabric", group, {})
    terminal = summary(group, run_folder="run", simulated=False, width=200, asked=MORE)
    assert "fabric   PASS      incomplete, 1 of 3 tests; tightest margin" in terminal
    page = html_report(Told(run="run", simulated=False, environment={}, records=group, asked=MORE))
    assert '<strong class="incomplete">incomplete, 1 of 3 tests</strong>' in page
    assert "<p>incomplete, 1 of 3 tests; tightest margin" in page

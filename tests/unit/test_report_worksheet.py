"""The decision as a page: terminal, Markdown, JSON; and as the last line of a run's summary."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from decision_made import NEEDS_TWO, fabric, ladder, memory, row, run, scaling, slow_link
from rich.cells import cell_len

from pytest_clusterqual.judge.decision.verdict import decide
from pytest_clusterqual.model.codec import from_json
from pytest_clusterqual.model.decision import Decision, Line, Symptom
from pytest_clusterqual.model.project import DecisionPlan
from pytest_clusterqual.model.record import Verdict
from pytest_clusterqual.report.terminal import summary
from pytest_clusterqual.report.text import ranges
from pytest_clusterqual.report.worksheet import as_json, markdown, worksheet

FOLDER = "clusterqual-runs/20261130T014824Z"
MEMORY = decide(run(memory=[*memory(), *ladder(NEEDS_TWO)], scaling=None, full_run=None), None)
GOLDEN = """\
decision                    memory-driven scale-out
run                         20261130T014824Z

training identity
  job                       workload 9f2c41d07a55e310 (records 2-3)
  hardware                  NVIDIA H100 (cuda, nccl); hosts gpu000, gpu001 (records 1-13)
  software                  python 3.11.2, torch 2.13.0 (record 2)

parallelism
  ddp                       Memory PASS (records 2-3)
  rungs that do not fit     one device; microbatch 1; recompute full; shard; shard, recompute;
                            tensor 4 (records 4-9)
  rungs that fit            2 nodes at 1.3 x the time (record 10)

single-node baseline
  memory                    no rung inside one node holds the job (records 4-9)

multi-node candidate
  none                      no layout was measured on several nodes by Training Scaling

decision
  outcome                   memory-driven scale-out: no rung inside one node holds the job, and 2
                            nodes do (records 4-10)"""


def rich_decision() -> Decision:
    records = run(fabric=fabric(verdict=Verdict.FAIL, findings=(slow_link(),)), scaling=scaling(width=0.5))
    return decide(records, DecisionPlan(expect="performance", source="clusterqual.yaml:70"))


def test_the_page_reads_like_this() -> None:
    assert worksheet(MEMORY, run="20261130T014824Z", width=100) == GOLDEN


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    long = Line(section="decision", label="a label that is longer than all others are", text="word " * 40, records=(1,))
    page = worksheet(replace(rich_decision(), lines=(long,)), run="r", width=width)
    assert max(map(cell_len, page.splitlines())) <= width
    assert "a label that is longer than all others are" in page


def test_symptoms_are_directions() -> None:
    page = " ".join(worksheet(rich_decision(), run="r", width=120).split())
    assert "symptoms seen in the records, and what to check first: directions, no proofs" in page
    assert re.search(r"seen +the step time of ddp-2nodes 1 node varies", page)
    assert "symptoms" not in worksheet(MEMORY, run="r", width=120)


def test_json_is_the_decision() -> None:
    page = json.loads(as_json(rich_decision(), run="r"))
    assert (page.pop("run"), page.pop("title")) == ("r", "not qualified")
    assert from_json(Decision, page) == rich_decision()


def test_markdown_is_one_table_a_section_and_one_of_symptoms() -> None:
    page = markdown(rich_decision(), run="r")
    assert page.startswith("# Not qualified\n")
    assert [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")] == [
        "Training identity", "Parallelism", "Single-node baseline", "Multi-node candidate", "Decision", "Symptoms",
    ]  # fmt: skip
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {4}


def test_what_comes_from_outside_does_not_steer_the_page() -> None:
    evil = "rank | 3 <script>\x1b[31m *now*\nhere"
    symptom = Symptom(seen=evil, check_first=evil, records=(1,))
    line = Line(section="decision", label=evil, text=evil, records=(1,))
    made = replace(MEMORY, why=evil, lines=(line,), symptoms=(symptom,))
    page = markdown(made, run=evil)
    assert "\x1b" not in page and "<script>" not in page.replace("\\<script\\>", "")
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in page.splitlines() if row.startswith("|")} == {4}
    assert "\x1b" not in worksheet(made, run=evil, width=100)


@pytest.mark.parametrize(
    ("numbers", "told"), [((), ""), ((3,), "3"), ((3, 1, 2), "1-3"), ((1, 2, 4, 6, 7), "1-2, 4, 6-7")]
)
def test_numbers_as_ranges(numbers: tuple[int, ...], told: str) -> None:
    assert ranges(numbers) == told


def closing(verdict: Verdict | None) -> str:
    """What the summary says last of the decision; with a verdict of its test."""
    reason = f"performance-driven scale-out: ddp on 2 nodes does the work sooner (expected: {verdict})"
    tested = {99: row("decision[2nodes]", "outcome", verdict=verdict, reason=reason)} if verdict else {}
    shown = summary(
        list({**run(), **tested}.values()), run_folder=FOLDER, simulated=False, width=200, decision=decide(run(), None)
    )  # fmt: skip
    (line,) = [line for line in shown.splitlines() if line.startswith("decision  ")]
    return " ".join(line.split())


def test_the_summary_has_one_line_of_it() -> None:
    told = "performance-driven scale-out: ddp on 2 nodes does the work sooner"
    assert closing(None).startswith(f"decision {told}")
    assert closing(Verdict.MEASURED).startswith(f"decision {told}")
    assert closing(Verdict.FAIL) == f"decision FAIL {told} (expected: FAIL)"

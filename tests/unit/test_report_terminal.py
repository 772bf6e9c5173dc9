"""The terminal summary, the message of a failing test, and the progress line."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from full_run_made import full_run as made_run
from full_run_made import killed_run, ladders, measured, quiet
from made import (
    conditions,
    demand,
    finding,
    judgement,
    loaded,
    measured_sizes,
    passed,
    record,
    whole_run,
    without_value,
)
from rich.cells import cell_len

from pytest_clusterqual.judge.full_run.verdict import judge_full_run
from pytest_clusterqual.model.record import Interval, Record, Verdict
from pytest_clusterqual.report.terminal import failure_message, progress_line, summary

FOLDER = "clusterqual-runs/20261130T014824Z"
SIMULATED = "simulated nodes: all on one machine; nothing here is evidence about a network"

GOLDEN = """\
  case                quantity             value                required             margin  verdict
memory
  ddp                 peak                 412 MiB              <= 2 GiB             +80 %   PASS
                      headroom             87.4 %               >= 10 %              +774 %  PASS
fabric
  all_reduce-world    busbw 1 MiB          410 MB/s [390, 430]  >= 500 MB/s          -18 %   FAIL
                      +6 more in records.jsonl: 1 UNDECIDED, 1 PASS, 4 MEASURED
  send_recv-inter_    busbw 1 MiB          345 MB/s [338, 355]  >= 320 MB/s (80 %    +7.8 %  PASS
  node                                                          of expected)
                      +2 more in records.jsonl
scaling
  ddp-2               -                    -                    -                            BLOCKED
full_run
  ddp-async           goodput              46.3 % (one run)     >= 40 %              +16 %   PASS
                      checkpoint_          3.84 s (one run)     <= 20 s              +81 %   PASS
                      completion

overall   refused: fabric FAIL, scaling BLOCKED (simulated nodes: no evidence about a network)
memory    PASS      tightest margin: peak of ddp +80 %
fabric    FAIL      all_reduce-world 1 MiB: busbw 410 MB/s [390 MB/s, 430 MB/s] is below the
          required >= 500 MB/s
scaling   BLOCKED   ddp-2: fabric did not pass: test_fabric[all_reduce-world] is FAIL
full_run  PASS      tightest margin: goodput of ddp-async +16 %
look at   link of node1 (slow rank): rank 1 arrives last in 11 of 12 rounds, 1.8 x the median of the
          others; check next: the NIC counters and cable of node1
on        2 nodes x 1 rank, cpu, gloo
note      simulated nodes: all on one machine; nothing here is evidence about a network
records   clusterqual-runs/20261130T014824Z"""


def shown(*records: Record, width: int = 100, simulated: bool = False, color: bool = False) -> str:
    return summary(records, run_folder=FOLDER, simulated=simulated, width=width, color=color)


def line_with(text: str, start: str) -> str:
    return next(line for line in text.splitlines() if line.strip().startswith(start))


def flat(text: str) -> str:
    return " ".join(text.split())


def test_the_whole_run_reads_like_this() -> None:
    assert shown(*whole_run(), simulated=True) == GOLDEN


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    text = shown(*whole_run(), simulated=True, width=width)
    assert max(map(cell_len, text.splitlines())) <= width
    assert all(line == line.rstrip() for line in text.splitlines())
    assert SIMULATED in flat(text)


@pytest.mark.parametrize("width", [80, 140])
def test_numbers_and_verdicts_are_whole_at_any_usual_width(width: int) -> None:
    text = shown(*whole_run(), width=width)
    for piece in ("410 MB/s", "[390, 430]", ">= 500 MB/s", "-18 %", "UNDECIDED", "<= 20 s", "+774 %", "busbw 1 MiB"):
        assert piece in text


def test_the_terminal_of_the_caller_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TERM": "dumb", "COLUMNS": "30", "FORCE_COLOR": "1", "NO_COLOR": ""}.items():
        monkeypatch.setenv(name, value)
    assert shown(*whole_run(), simulated=True) == GOLDEN


def test_color_adds_color_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    colored = shown(*whole_run(), simulated=True, color=True)
    assert "\x1b[1;31mFAIL\x1b[0m" in colored
    assert re.sub(r"\x1b\[[\d;]*m", "", colored) == GOLDEN


def test_sizes_without_a_requirement_share_one_row() -> None:
    text = shown(*measured_sizes("test_fabric[all_reduce-world]", 1024, 7, 1e6))
    assert text.count("MEASURED") == 2  # the row and the criterion's line
    assert "busbw 4 MiB" in text
    assert line_with(text, "+").strip() == "+6 more in records.jsonl"
    assert "fabric MEASURED no requirement in the project file: numbers only, never a PASS" in flat(text)


def test_passed_sizes_share_the_row_of_the_tightest() -> None:
    margins = (0.5, 0.1, 0.9)
    sized = [passed("test_fabric[x]", "fabric", label=f"{2**i} KiB", margin=m) for i, m in enumerate(margins)]
    text = shown(*sized)
    assert "busbw 2 KiB" in text
    assert "busbw 1 KiB" not in text
    assert "+2 more in records.jsonl" in text


def test_a_fabric_test_has_one_row_its_worst_and_the_others_are_counted_by_verdict() -> None:
    text = shown(
        passed("test_fabric[x]", "fabric", label="64 KiB", margin=0.01),
        record("test_fabric[x]", label="1 MiB", verdict=Verdict.UNDECIDED, margin=-0.9),
        record("test_fabric[x]", label="4 MiB", margin=-0.1),
        record("test_fabric[x]", label="16 MiB", margin=-0.3),
        *measured_sizes("test_fabric[x]", 1024, 3, 1e6),
    )
    table = text.split("\n\n")[0].splitlines()
    assert [line.split()[1:3] for line in table if " x " in line] == [["busbw", "16"]]
    assert table[-1].strip() == "+6 more in records.jsonl: 1 FAIL, 1 UNDECIDED, 1 PASS, 3 MEASURED"


def test_what_did_not_really_run_goes_before_what_failed() -> None:
    text = shown(record(margin=-0.9), record(label="4 MiB", verdict=Verdict.ERROR, margin=None, reason="nan"))
    assert "busbw 4 MiB" in line_with(text, "all_reduce-world")
    assert line_with(text, "+").strip() == "+1 more in records.jsonl: 1 FAIL"


def test_of_bare_numbers_the_largest_size_is_shown_whatever_is_measured_beside_it() -> None:
    numbers = measured_sizes("test_fabric[x]", 1024, 3, 1e6)
    wait = record(
        "test_fabric[x]", quantity="wait", label="16 KiB", value=0.1, unit="1", interval=None,
        verdict=Verdict.MEASURED, requirement=None, margin=None, findings=(),
    )  # fmt: skip
    assert "busbw 16 KiB" in line_with(shown(*numbers, wait), "x")


def test_sizes_of_two_tests_do_not_share_a_row() -> None:
    text = shown(*measured_sizes("test_fabric[a]", 1024, 2, 1e6), *measured_sizes("test_fabric[b]", 1024, 2, 1e6))
    assert text.count("+1 more in records.jsonl") == 2


def test_node_counts_of_scaling_keep_their_rows() -> None:
    points = [
        record(
            "test_scaling[ddp]",
            "scaling",
            quantity="step_time",
            label=f"{n} nodes",
            value=1.0 / n,
            unit="s",
            verdict=Verdict.MEASURED,
            requirement=None,
            margin=None,
            interval=None,
        )
        for n in (1, 2, 4)
    ]
    text = shown(*points)
    assert text.count("step_time") == 3
    assert "more in" not in text


def test_a_pass_beside_bare_numbers_says_so() -> None:
    text = shown(passed("test_fabric[x]", "fabric"), *measured_sizes("test_fabric[x]", 1024, 3, 1e6))
    assert "fabric PASS tightest margin: busbw of x 1 MiB -18 %; 3 numbers have no requirement" in flat(text)


def test_the_worst_record_speaks_for_its_criterion() -> None:
    text = shown(
        record(reason="a bit slow", margin=-0.01),
        record(reason="very slow", margin=-0.6),
        record(reason="not sure", verdict=Verdict.UNDECIDED, margin=-0.9),
        passed("test_fabric[y]", "fabric"),
    )
    assert "fabric FAIL all_reduce-world 1 MiB: very slow (+1 more FAIL)" in flat(text)


def test_wrong_results_go_before_slow_ones() -> None:
    wrong = record(
        quantity="wrong_elements",
        label="",
        value=3.0,
        unit="1",
        interval=None,
        requirement=None,
        margin=None,
        reason="3 wrong elements",
    )
    assert "all_reduce-world: 3 wrong elements (+1 more FAIL)" in shown(record(margin=-0.9), wrong)


def test_the_finding_of_the_worst_is_shown_and_the_others_counted() -> None:
    growth = finding(suspect="rank 0", kind="growth")
    slow = finding(suspect="link of node3")
    text = shown(
        record("test_memory[ddp]", "memory", verdict=Verdict.PASS, findings=(growth,)),
        record(findings=(slow,)),
        record(findings=(slow,), margin=-0.02),
    )
    assert "look at link of node3 (slow rank):" in flat(text)
    assert flat(text).count("(+1 more in records.jsonl)") == 1
    assert "growth" not in text


def test_findings_that_accuse_nobody_are_notes_after_the_suspect() -> None:
    notes = tuple(finding(suspect=f"note {number}", level="note") for number in range(5))
    text = shown(record(findings=(*notes[:3], finding(suspect="node3"), *notes[3:])))
    assert [line.split()[0:3] for line in text.splitlines() if line.startswith(("look at", "note"))] == [
        ["look", "at", "node3"], ["note", "note", "0"], ["note", "note", "1"], ["note", "note", "2"],
    ]  # fmt: skip
    assert flat(text).count("more in records.jsonl)") == 1
    assert "cable of node1 (+2 more in records.jsonl)" in flat(text)
    assert "look at" not in shown(record(findings=notes))


def test_one_finding_at_several_sizes_is_one_line() -> None:
    late = [finding(suspect="rank 3", evidence=f"at {size} KiB") for size in (4, 16)]
    spread = [finding(suspect="nobody", level="note", evidence=f"at {size} KiB") for size in (4, 16)]
    sizes = [record(findings=(a, b)) for a, b in zip(late, spread, strict=True)]
    message = failure_message([each.judgement for each in sizes], None)
    for text in (shown(*sizes), message):
        assert len(re.findall("^look at", text, re.MULTILINE)) == len(re.findall("^note", text, re.MULTILINE)) == 1
        assert "at 4 KiB" in text and "at 16 KiB" not in text


def test_the_plots_are_told_where_there_are_some() -> None:
    assert "\nplots" not in shown(record())
    text = summary([record()], run_folder=FOLDER, simulated=False, width=100, plots=2)
    assert text.splitlines()[-1] == f"plots    2 SVG files in {FOLDER}/plots"


def test_notes_say_what_the_numbers_may_owe_to() -> None:
    text = flat(
        shown(
            record(under=conditions(oversubscribed=True)),
            record(under=loaded(0.18)),
            record(under=loaded(0.31)),
            record(under=loaded(0.02, "node0")),
        )
    )
    assert "ranks share cores (oversubscribed)" in text
    assert "node1 was loaded by other work (31 % of its cores' time)" in text
    assert "node0 was loaded" not in text
    assert SIMULATED not in text


def test_no_note_without_a_cause() -> None:
    assert "note" not in shown(record())


def test_no_records_is_no_success() -> None:
    text = shown(simulated=True)
    assert text.startswith("no qualification test made a record\n")
    assert "PASS" not in text
    assert FOLDER in text


def test_criteria_of_users_own_tests_come_last() -> None:
    text = shown(record("test_mine[x]", "disk"), record(), passed("test_memory[ddp]", "memory"))
    headings = [line for line in text.split("\n\n")[0].splitlines() if not line.startswith(" ")]
    assert headings == ["memory", "fabric", "disk"]


def test_outside_text_cannot_steer_the_terminal() -> None:
    evil = "node\x1b[2J\x07\u202e\n[bold]x[/bold]\x9b31m\u2028"
    bad = record(
        f"test_fabric[{evil}]",
        evil,
        quantity=evil,
        label=evil,
        reason=evil,
        requirement=demand(evil, 1, "B/s"),
        findings=(finding(suspect=evil, evidence=evil),),
        under=conditions(hosts=(evil,), backend=evil),
    )
    message = failure_message([bad.judgement], bad.conditions)
    for text in (shown(bad, width=300), message, progress_line(evil, 1, 0, 1, None)):
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\u2028]", text)
        assert "\\x1b[2J\\x07\\u202e [bold]x[/bold]\\x9b31m" in text


def test_values_without_a_value_and_nan_are_readable() -> None:
    lost = record(value=float("nan"), interval=None, verdict=Verdict.ERROR, margin=float("nan"), reason="nan")
    assert "nan" in line_with(shown(lost), "all_reduce")
    missing = line_with(shown(without_value("test_memory[ddp]", "memory", Verdict.ERROR, "rank 1 died")), "ddp")
    assert missing.split() == ["ddp", "-", "-", "-", "ERROR"]


def test_interval_in_another_unit_is_written_out() -> None:
    wide = record(value=1.0e9, interval=Interval(low=0.9e9, high=1.1e9, kind="median"))
    assert "1 GB/s [900 MB/s, 1.1 GB/s]" in shown(wide, width=140)


def test_failure_message_is_worst_first_with_the_source_of_each_demand() -> None:
    message = failure_message(
        [
            judgement(label="4 MiB", verdict=Verdict.UNDECIDED, reason="straddles", margin=0.02),
            judgement(label="16 MiB", verdict=Verdict.PASS, reason="fine", margin=0.2, findings=()),
            judgement(
                label="1 MiB",
                margin=-0.1,
                reason="below",
                requirement=demand(">= 80 % of expected", 0.5e9, "B/s", 15, "1 NIC x 625 MB/s"),
            ),
            judgement(label="64 KiB", verdict=Verdict.MEASURED, requirement=None, margin=None, reason="-", findings=()),
            judgement(label="2 MiB", margin=-0.4, reason="far below"),
        ],
        conditions(layout="ddp", bytes=4096, oversubscribed=True, load=loaded(0.31).load),
    )
    assert message.splitlines() == [
        "FAIL 2 MiB: far below (clusterqual.yaml:14: busbw >= 500 MB/s)",
        "FAIL 1 MiB: below (clusterqual.yaml:15: busbw >= 80 % of expected, expected from 1 NIC x 625 MB/s)",
        "UNDECIDED 4 MiB: straddles (clusterqual.yaml:14: busbw >= 500 MB/s)",
        "MEASURED without a requirement: busbw 64 KiB 410 MB/s [390, 430]",
        "measured on 2 nodes x 1 rank, cpu, gloo; hosts node0, node1; simulated on one machine; ranks share cores; "
        "device name AMD EPYC 9654; layout ddp; 4 KiB; python 3.11.2; torch 2.13.0; "
        "other work took 31 % of node1's cores",
        "look at link of node1 (slow rank): rank 1 arrives last in 11 of 12 rounds, 1.8 x the median of the others; "
        "check next: the NIC counters and cable of node1",
    ]


def test_a_failure_message_looks_at_suspects_only() -> None:
    notes = tuple(finding(suspect=f"note {number}", level="note") for number in range(4))
    message = failure_message([judgement(findings=(*notes, finding(suspect="node3")))], None)
    assert [" ".join(line.split()[:3]) for line in message.splitlines()[1:]] == [
        "look at node3", "note note 0", "note note 1", "note note 2",
    ]  # fmt: skip
    assert message.endswith("(+1 more in records.jsonl)")


def test_a_failure_message_lists_no_figure_that_has_no_value() -> None:
    bare = judgement(label="4 MiB", verdict=Verdict.MEASURED, requirement=None, margin=None, reason="-", findings=())
    lost = replace(bare, quantity="waiting", value=None, interval=None)
    assert (
        "MEASURED without a requirement: busbw 4 MiB 410 MB/s [390, 430]"
        in failure_message([judgement(findings=()), lost, bare], None).splitlines()
    )
    assert "MEASURED" not in failure_message([judgement(findings=()), lost], None)
    assert failure_message([lost], None) == "MEASURED without a requirement: waiting 4 MiB"


def test_failure_message_without_conditions_has_no_line_for_them() -> None:
    assert failure_message([judgement(findings=(), requirement=None, reason="x")], None) == "FAIL 1 MiB: x"


@pytest.mark.parametrize(
    ("left", "text"),
    [
        (None, ""),
        (0.0, ""),
        (float("nan"), ""),
        (11.2, ", about 12 s left"),
        (89.9, ", about 90 s left"),
        (91.0, ", about 2 min left"),
        (7200.0, ", about 2.0 h left"),
    ],
)
def test_progress_line(left: float | None, text: str) -> None:
    line = progress_line("fabric all_reduce-world", 4, 3, 8, left)
    assert line == f"fabric all_reduce-world on 4 ranks: 3 of 8{text}"


def test_progress_line_of_one_rank() -> None:
    assert progress_line("memory ddp", 1, 0, 3, None) == "memory ddp on 1 rank: 0 of 3"


def test_the_ledger_of_a_full_run_adds_up_and_ends_with_the_gain() -> None:
    alone = made_run(quiet(0, data=0.5, step=3.0), nodes=1)
    m = measured(killed_run(), alone=alone, apart=ladders({0: 0.5, 1: 0.75}, held=0.75, step=1.0))
    judged = judge_full_run(m, [])
    records = [replace(record("test_full_run[ddp-2nodes]", "full_run"), judgement=each) for each in judged]
    lines = shown(*records, width=80).splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("ledger"))
    assert (
        "\n".join(lines[first : first + 4])
        == """\
ledger    ddp-2nodes: 28.12 s = init 5.00, load 0.50, kept 5.00,
          exposed transfer 2.50, wait 2.50, data 3.25, checkpoint 1.25,
          lost 2.00, detection 0.50, restart 1.50, rendezvous 2.25, reload 1.00,
          hook last save 0.25, teardown 0.62; gain 1.47 over one node"""
    )

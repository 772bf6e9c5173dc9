"""A user's own regular expression for the lines of a log: refused, or read in the units of its groups."""

from __future__ import annotations

from pathlib import Path

import pytest
from logs_made import read, steps_of, titan

from pytest_clusterqual.errors import ReadError


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("step (", "want a regular expression such as"),
        (r"step \d+", "there is no group step"),
        (r"(?P<step>\d+) (?P<second>\d+)", "the group second means nothing here; want some of step, seconds, milli"),
        (r"(?P<step>\d+) (?P<seconds>\d+) (?P<milliseconds>\d+)", "seconds and milliseconds are the same figure"),
        (r"(?P<step>\d+)(a+)+b", '"(?P<step>\\\\d+)(a+)+" repeats what repeats itself'),
        (r"(?P<step>\d+)(?:x(?:a|aa)){2,}$", "repeats what repeats itself"),
        (r"(?P<step>\d+).*?.*x", '.*?.*" repeats what repeats itself'),
        (r"(?P<step>\d+)\s+\s*x", '\\\\s+\\\\s*" repeats what repeats itself'),
        (r"(?P<step>\d+) (?P<tokens_per_second>\d+)", "does not tell the work of a step"),
        ("x" * 501, "at most 500 are read"),
        (r"(?P<step>\w+)", "train.log:1: want numbers in all groups but rank, and a step"),
        (r"nothing (?P<step>\d+)", "is found in none of 3 lines"),
    ],
)
def test_patterns_that_cannot_be_used(tmp_path: Path, pattern: str, message: str) -> None:
    with pytest.raises(ReadError) as error:
        read(tmp_path, "abc\n" + titan([2.0]).replace("\n", " ", 1), pattern)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "pattern",
    [
        r"(?P<step>\d+)[)+]+x",
        r"\((?P<step>\d+)\)+",
        r"(?P<step>\d+)(?:[a+]b)+",
        r"[](]+(?P<step>\d)",
        r"(?P<step>\d+)(?:[^]+]a)+",
    ],
)
def test_repeats_that_are_harmless(pattern: str, tmp_path: Path) -> None:
    text = "1)+)x (2)) 3abab ](4 5xa\n"
    assert len(steps_of(read(tmp_path, text, pattern))) == 1


@pytest.mark.parametrize(
    ("group", "text", "seconds", "over"),
    [
        ("seconds", "0.5", 0.5, [1, 1]), ("milliseconds", "500", 0.5, [1, 1]), ("steps_per_second", "2", 0.5, [1, 1]),
        ("minutes", "0.5", 30, [1, 1]), ("mean_seconds", "0.5", 0.5, [10, 10]),
        ("mean_milliseconds", "1,500", 1.5, [10, 10]),
    ],
)  # fmt: skip
def test_units_by_the_name_of_the_group(tmp_path: Path, group: str, text: str, seconds: float, over: list[int]) -> None:
    log = read(tmp_path, f"at 10: {text}\nat 20: {text}\n", rf"at (?P<step>\d+): (?P<{group}>[\d.,]+)")
    assert [(step.seconds, step.over) for step in steps_of(log)] == [(seconds, each) for each in over]


def test_work_of_a_step_from_the_rate_of_a_pattern(tmp_path: Path) -> None:
    pattern = r"(?P<step>\d+) (?P<milliseconds>\d+)ms (?P<tokens_per_second>[\d.]+)k?"
    (step,) = steps_of(read(tmp_path, "7 500ms 2048\n", pattern))
    assert (step.seconds, step.tokens) == (0.5, 1024)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "step 3 took 0,512 s",
            "train.log:1: want numbers in all groups but rank, and a step: got 0,512, want a point",
        ),
        ("step 3 took 1,5 s", "got 1,5, want a point before decimals, and commas between thousands only"),
        ("step 3 took 1.024,5 s", "got 1.024,5, want a point"),
        ("step 3.5 took 1 s", "want numbers in all groups but rank, and a step: got step 3.5"),
    ],
)
def test_figures_that_would_be_read_wrongly(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(ReadError) as error:
        read(tmp_path, line, r"step (?P<step>\S+) took (?P<seconds>[\d.,]+) s")
    assert message in str(error.value)


@pytest.mark.parametrize(("text", "seconds"), [("1,024.5", 1024.5), ("1,000,000", 1e6), ("2.5", 2.5)])
def test_commas_part_thousands(tmp_path: Path, text: str, seconds: float) -> None:
    (step,) = steps_of(read(tmp_path, f"step 3 took {text} s", r"step (?P<step>\d+) took (?P<seconds>[\d.,]+) s"))
    assert step.seconds == seconds


def test_a_number_in_front_is_no_label_where_the_pattern_wants_it(tmp_path: Path) -> None:
    text, pattern = "7: loss 2.5 (0.5 s)\n8: loss 2.4 (0.5 s)\n", r"^(?P<step>\d+): loss .* \((?P<seconds>\S+) s"
    assert [(step.step, step.printer) for step in steps_of(read(tmp_path, text, pattern))] == [(7, ""), (8, "")]
    labelled = read(tmp_path, "".join(f"3: {line}" for line in text.splitlines(keepends=True)), pattern)
    assert [(step.step, step.printer) for step in steps_of(labelled)] == [(7, "task 3"), (8, "task 3")]

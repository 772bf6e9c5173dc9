"""What is looked at of a line: no number that was cut is read as another one, and no step behind another is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from logs_made import read, steps_of

from pytest_clusterqual.errors import ReadError
from pytest_clusterqual.read import training_log

OWN = r"step (?P<step>\d+) took (?P<seconds>[\d.]+)"


@pytest.mark.parametrize("cut", ["step 1", "step 100 took 1", "step 100 took 125.", "step 100 took 125.5e"])
def test_a_number_that_is_cut_is_not_read(tmp_path: Path, cut: str) -> None:
    line = "step 100 took 125.5e1 s"
    with pytest.raises(ReadError, match="is found in none of 1 lines"):
        read(tmp_path, "y" * (4000 - len(cut)) + line, OWN)
    (step,) = steps_of(read(tmp_path, "y" * (4000 - len(line)) + line, OWN))
    assert (step.step, step.seconds) == (100, 125.5)


@pytest.mark.parametrize("start", ["\r", "\x1b[G", "\x1b[1G", "\x1b[2K\x1b[1G"])
def test_what_writes_over_a_line_begins_another(tmp_path: Path, start: str) -> None:
    text = "".join(f"{start}step {n} took 0.5 s" for n in range(1, 9))
    assert [step.step for step in steps_of(read(tmp_path, text, OWN))] == list(range(1, 9))


@pytest.mark.parametrize("part", [30, 37, 64, 400])
def test_a_line_that_is_read_in_parts(tmp_path: Path, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No piece of it is shorter than it stands there, wherever a part ends."""
    text = "".join(f"\rstep {n} took {n}.5 s" for n in range(100, 130)) + "\nstep 130 took 130.5 s"
    whole = read(tmp_path, text, OWN)
    monkeypatch.setattr(training_log, "_LONGEST_RAW", part)
    assert read(tmp_path, text, OWN) == whole
    assert [(step.step, step.seconds) for step in steps_of(whole)] == [(n, n + 0.5) for n in range(100, 131)]

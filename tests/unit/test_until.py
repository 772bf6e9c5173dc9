"""How far a full run goes: so many steps, or so much time by rank 0's clock."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from pytest_clusterqual.rank import until as module
from pytest_clusterqual.rank.until import Until


class Clock:
    now, wall = 100.0, 5000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.wall


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def test_steps_end_with_the_last_one(tmp_path: Path) -> None:
    until = Until(10, None, tmp_path)
    assert list(until.after(7)) == [8, 9, 10]
    assert not until.over
    assert (until.reached(9), until.reached(10)) == (False, True)
    assert until.progress(4) == (4, 10)


def test_time_is_over_by_the_clock_and_ends_by_word(tmp_path: Path, clock: Clock) -> None:
    until = Until(10, 90.0, tmp_path)
    clock.now += 50.0  # until the job is built
    until.begin()
    assert list(itertools.islice(until.after(7), 5)) == [8, 9, 10, 11, 12]
    clock.now += 89.0
    assert (until.over, until.reached(10), until.progress(12)) == (False, False, (1.5, 1.5))
    clock.now += 1.0
    assert (until.over, until.reached(13)) == (True, False)
    until.end()
    assert until.reached(13)


def test_time_goes_on_through_a_failure(tmp_path: Path, clock: Clock) -> None:
    lines = [
        {"rank": 0, "at": 30.0, "wall": 4940.0}, {"what": "load", "at": 31.0}, {"what": "step", "at": 40.0},
        {"what": "step", "at": 50.0},
    ]  # fmt: skip
    whole = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "rank0-attempt0.jsonl").write_text(whole + '{"what":"st')
    (tmp_path / "rank0-attempt1.jsonl").write_text("")
    until = Until(10, 90.0, tmp_path)  # its first step began 50 s ago
    until.begin()
    clock.now += 39.0
    assert not until.over
    clock.now += 1.0
    assert until.over


def test_an_attempt_that_did_no_step_is_no_beginning(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "rank0-attempt0.jsonl").write_text('{"rank":0,"at":30.0,"wall":4940.0}\n{"what":"load","at":31.0}\n')
    until = Until(10, 90.0, tmp_path)
    until.begin()
    clock.now += 89.0
    assert not until.over

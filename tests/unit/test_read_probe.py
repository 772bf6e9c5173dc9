"""Folders of a probe read back: torn lines, foreign files, bad lines, and how much memory it takes."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import msgspec
import pytest

from pytest_clusterqual.errors import ReadError
from pytest_clusterqual.model.probe import Line
from pytest_clusterqual.probe import Probe
from pytest_clusterqual.read import probe
from pytest_clusterqual.read.probe import FastLine, probe_files, probe_lines, probed_processes


def recorded(folder: Path, *, steps: int = 3) -> Path:
    """The file of one process."""
    writing = Probe(folder, rank=0)
    for _ in range(steps):
        with writing.step(tokens=8):
            pass
    writing.close()
    return max(folder.glob("rank0-attempt*.jsonl"))


def read(folder: Path) -> tuple[list[int], list[str]]:
    """The steps of all processes of rank 0, and what was told."""
    told: list[str] = []
    files = probe_files(folder, told.append)[0]
    return [line.step for file in files for line in probe_lines(file, told.append) if line.what == "step"], told


@pytest.mark.parametrize("cut", [1, 10, 30])
def test_a_last_line_that_a_kill_cut_short_is_told_and_left_out(tmp_path: Path, cut: int) -> None:
    file = recorded(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(whole[: whole.rindex(b'{"what":"end"')][:-cut])
    steps, told = read(tmp_path)
    if cut == 1:  # the line lacks nothing but its end
        assert (steps, told) == ([1, 2, 3], [])
    else:
        assert (steps, told) == ([1, 2], [f"{file}:4: the last line was cut off by a kill and is left out"])


def test_a_process_killed_before_its_first_line_is_told_and_left_out(tmp_path: Path) -> None:
    recorded(tmp_path)
    for name, content in (("rank0-attempt1.jsonl", b""), ("rank0-attempt2.jsonl", b'{"probe":1,"ra')):
        (tmp_path / name).write_bytes(content)
    steps, told = read(tmp_path)
    assert steps == [1, 2, 3]
    assert told == [
        f"{tmp_path}/rank0-attempt{attempt}.jsonl: the process was killed before its first line was whole; left out"
        for attempt in (1, 2)
    ]


def test_files_that_lack_are_told(tmp_path: Path) -> None:
    for _ in range(6):
        recorded(tmp_path)
    for attempt in (1, 2, 4):
        (tmp_path / f"rank0-attempt{attempt}.jsonl").unlink()
    (told,) = read(tmp_path)[1]
    assert told.startswith(f"{tmp_path}: 3 of the 6 files of rank 0 are not there, first rank0-attempt1.jsonl: their")


def test_processes_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for steps in range(1, 13):
        recorded(tmp_path, steps=steps)
    assert [file.start.attempt for file in probe_files(tmp_path, pytest.fail)[0]] == list(range(12))


def test_other_files_may_lie_beside(tmp_path: Path) -> None:
    recorded(tmp_path)
    (tmp_path / "rank0-attempt0.jsonl.bak").write_text("?")
    (tmp_path / "notes.txt").write_text("?")
    assert read(tmp_path) == ([1, 2, 3], [])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "is no line of a probe"),
        ("step 4 took 0.2 s", "is no line of a probe"),
        ('{"what":"nap","at":1.0}', r"is no line of a probe: Invalid enum value 'nap' - at `\$.what`"),
        ('{"what":"step","seconds":1.0}', "missing required field `at`"),
        ('{"what":"step","at":1.0,"seconds":"2"}', r"Expected `float`, got `str` - at `\$.seconds`"),
        ('{"what":"step","at":NaN}', "is no line of a probe"),
        ('{"what":"step","at":1.0,"seconds":-2}', "got -2 seconds, want none below 0"),
        ('{"what":"step","at":1.0,"seconds":2,"own":-1}', "got -1 seconds, want none below 0"),
        ('{"what":"step","at":1.0,"seconds":2,"own":50}', "own: got 50 of 2 seconds"),
        ('{"what":"step","at":1.0,"tokens":-8}', r"Expected `int` >= 0 - at `\$.tokens`"),
        (f'{{"what":"step","at":1.0,"sequences":{2**63}}}', r"Expected `int` <= 9223372036854775807 - at `\$.seq"),
        (f'{{"what":"step","at":1.0,"step":{-(10**30)}}}', r"Expected `int` >= -9223372036854775808 - at `\$.step`"),
    ],
)
def test_any_other_line_that_is_none_is_refused_by_its_place(tmp_path: Path, line: str, message: str) -> None:
    file = recorded(tmp_path)
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:2], line, *lines[2:]]) + "\n")
    with pytest.raises(ReadError, match=rf"^{file}:3: .*{message}"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"probe": 2}, "probe: got 2, want 1: another version wrote it"),
        ({"rank": 1}, "got rank 1, attempt 0, want those of the file's name"),
        ({"attempt": 3}, "got rank 0, attempt 3, want"),
        ({"began": "long ago"}, r"is no line of a probe: Expected `float`, got `str` - at `\$.began`"),
        ({"began": 1e12}, r"began: got 1e\+12 s, want no time after this line, "),
        ({"world": 2**63}, "world: got 9223372036854775808, want a number of ranks"),
        ({"clock": None}, r"Expected `str`, got `null` - at `\$.clock`"),
    ],
)
def test_a_first_line_that_is_none_is_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    file = recorded(tmp_path)
    first, rest = file.read_text().split("\n", 1)
    file.write_text(json.dumps({**json.loads(first), **changes}) + "\n" + rest)
    with pytest.raises(ReadError, match=rf"^{file}:1: .*{message}"):
        read(tmp_path)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ReadError, match=r"no file rank0-attempt0.jsonl or the like; want the folder that a probe wrote"
    ):
        probe_files(tmp_path, pytest.fail)
    for wrong in (tmp_path / "absent", recorded(tmp_path)):
        with pytest.raises(ReadError, match=f"{wrong}: cannot be read: .*; want the folder that a probe wrote"):
            probe_files(wrong, pytest.fail)


def test_a_line_without_an_end_is_not_read_into_memory(tmp_path: Path) -> None:
    file = recorded(tmp_path)
    with file.open("ab") as more:
        more.write(b'{"what":"hook","at":1.0,"name":"' + b"x" * 1_000_000)
    (process,) = probe_files(tmp_path, pytest.fail)[0]
    tracemalloc.start()
    try:
        with pytest.raises(ReadError, match=rf"^{file}:6: is no line of a probe"):
            list(probe_lines(process, pytest.fail))
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 500_000
    file.write_bytes(b'{"probe":1,"rank":0' + b" " * 1_000_000)
    told: list[str] = []
    with pytest.raises(ReadError, match="no file rank0-attempt0"):
        probe_files(tmp_path, told.append)
    assert "before its first line was whole" in told[0]


def test_what_a_measurement_cannot_hold_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(tmp_path)
    assert len(probed_processes(tmp_path)[0][0].lines) == 4
    monkeypatch.setattr(probe, "_MOST", 100)
    monkeypatch.setattr(probe, "probe_lines", pytest.fail)
    with pytest.raises(ReadError, match=r"the probes of 1 ranks wrote 0 MiB, .*`clusterqual import probe` makes the"):
        probed_processes(tmp_path)


def test_a_long_file_takes_no_more_memory_than_a_short_one(tmp_path: Path) -> None:
    file = recorded(tmp_path, steps=20_000)
    (process,) = probe_files(tmp_path, pytest.fail)[0]
    tracemalloc.start()
    try:
        assert sum(1 for _ in probe_lines(process, pytest.fail)) == 20_001
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < file.stat().st_size / 10


def test_the_fast_line_has_the_fields_of_a_line() -> None:
    """It is another class for its speed alone."""
    slow, fast = Line(what="done", at=1.5), FastLine(what="done", at=1.5)
    assert {field.name: getattr(slow, field.name) for field in fields(Line)} == msgspec.structs.asdict(fast)
    assert get_type_hints(Line).keys() - {"JSON_SPARSE"} == get_type_hints(FastLine).keys()

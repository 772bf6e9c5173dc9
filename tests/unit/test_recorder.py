"""What a test has made is written at once, whole or not at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from made import RUN, record

from pytest_clusterqual.folder import lines
from pytest_clusterqual.folder.runs import RunFolder
from pytest_clusterqual.run.recorder import Recorder


def made(path: Path) -> RunFolder:
    return RunFolder.create(path, run=RUN, environment={}, simulated=True)


def test_the_records_of_a_test_are_one_append(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, append, told = made(tmp_path), lines.append, []

    def noted(path: Path, line: bytes) -> int:
        told.append(path.name)
        return append(path, line)

    monkeypatch.setattr(lines, "append", noted)
    recorder = Recorder(folder, cast(Any, None), None)
    recorder.keep([record(label=f"{size} KiB") for size in (1, 2, 4)])
    recorder.keep([])
    assert told == ["records.jsonl"] and not recorder.problem
    assert [each.of for each in RunFolder.open(tmp_path).records()] == [3, 3, 3]


def test_what_cannot_be_written_is_a_problem_and_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made(tmp_path)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    recorder = Recorder(folder, cast(Any, None), None)
    with monkeypatch.context() as patch:
        patch.setattr(lines, "append", full)
        recorder.keep([record(), record()])
    assert "records.jsonl: cannot be written: No space left on device" in recorder.problem
    assert len(folder.records()) == 2 and not RunFolder.open(tmp_path).records()
    recorder.keep([record(test="another")])
    assert len(RunFolder.open(tmp_path).records()) == 3


@pytest.mark.parametrize(("kept", "known"), [(0, 1), (1, 1), (2, 1), (3, 4)])
def test_of_records_that_were_added_together_some_are_none(tmp_path: Path, kept: int, known: int) -> None:
    folder, file = made(tmp_path), tmp_path / "records.jsonl"
    folder.add_record(record(label="of an own case"))
    folder.add_records([record(label=f"{size} KiB") for size in (1, 2, 4)])
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[: 1 + kept]))
    again = RunFolder.open(tmp_path)
    assert len(again.records()) == len(again.history()) == known
    again.begin_attempt()
    again.add_records([replace(record(), attempt=again.attempt)] * 2)
    assert [each.attempt for each in RunFolder.open(tmp_path).records()] == [2, 2]
    assert list(RunFolder.open(tmp_path).numbered()) == [kept + 2, kept + 3]


def test_records_without_the_number_of_those_beside_them_are_read(tmp_path: Path) -> None:
    folder, file = made(tmp_path), tmp_path / "records.jsonl"
    folder.add_records([record(), record()])
    file.write_text(file.read_text().replace(', "of": 2}', "}"))
    assert len(RunFolder.open(tmp_path).records()) == 2

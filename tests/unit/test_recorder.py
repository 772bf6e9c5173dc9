"""What a test has made is written at once, whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from made import RUN, record

from pytest_clusterqual.folder import lines
from pytest_clusterqual.folder.runs import RunFolder
from pytest_clusterqual.run.recorder import Recorder


def test_the_records_of_a_test_are_one_append(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, append, told = RunFolder.create(tmp_path, run=RUN, environment={}, simulated=True), lines.append, []

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
    folder = RunFolder.create(tmp_path, run=RUN, environment={}, simulated=True)

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

"""Parts of one qualification become one run; parts of different ones are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from recorded_made import PROJECT, TEST, recorded

from pytest_clusterqual.cli import main
from pytest_clusterqual.errors import RunFolderError
from pytest_clusterqual.judging import changes, judge_again, own_project
from pytest_clusterqual.merging import merge
from pytest_clusterqual.runs import RunFolder, Selected

OTHER = "qualification/test_memory.py::test_memory[fsdp-2nodes]"


def part(path: Path, test: str, **environment: Any) -> Path:
    """A run of one test."""
    folder = recorded(path)
    for name in ("records.jsonl", "measurements.jsonl"):
        file = folder.path / name
        file.write_text(file.read_text().replace(TEST, test))
    folder.update_environment(environment)
    RunFolder.open(path).select({test: Selected(criterion="memory", layout="ddp")})
    return path


def test_two_parts_are_one_run(tmp_path: Path) -> None:
    shards = [part(tmp_path / "a", TEST), part(tmp_path / "b", OTHER, device="cpu")]
    merge(shards, tmp_path / "whole")
    whole = RunFolder.open(tmp_path / "whole")
    assert [test for test, _, _ in whole.measurements().values()] == [TEST, OTHER]
    assert {(record.test, record.measurement) for record in whole.records()} == {(TEST, "m0001"), (OTHER, "m0002")}
    assert whole.tests.keys() == {TEST, OTHER}
    assert whole.environment["merged"] == ["20261130T014824Z", "20261130T014824Z"]
    assert whole.environment["device"] == "cpu"
    assert changes(whole.records(), judge_again(whole, own_project(whole))) == []


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"nodes": 4}, "nodes: 2 in .*a, 4 in .*b"),
        ({"project_file": PROJECT + "# other"}, "project_file: another text"),
        ({"device_name": "H200"}, "device_name: H100 in .*, H200 in "),
    ],
)
def test_parts_of_different_runs_are_refused(tmp_path: Path, environment: dict[str, Any], words: str) -> None:
    shards = [part(tmp_path / "a", TEST, device_name="H100"), part(tmp_path / "b", OTHER, **environment)]
    with pytest.raises(RunFolderError, match=f"b: is no part of the same qualification: {words}"):
        merge(shards, tmp_path / "whole")
    assert not (tmp_path / "whole").exists()


def test_a_test_in_two_parts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"b: has .*ddp-2nodes\], which .*a has too"):
        merge([part(tmp_path / "a", TEST), part(tmp_path / "b", TEST)], tmp_path / "whole")


def test_of_a_part_that_was_resumed_the_last_attempt_counts(tmp_path: Path) -> None:
    folder = RunFolder.open(part(tmp_path / "a", TEST))
    folder.begin_attempt()
    folder.add_record(replace(folder.records()[0], attempt=2))
    whole = merge([folder.path, part(tmp_path / "b", OTHER)], tmp_path / "whole")
    assert [record.attempt for record in whole.records()] == [1] * 3


def test_the_command_writes_one_junit_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shards = [part(tmp_path / "a", TEST), part(tmp_path / "b", OTHER)]
    assert main(["merge", *map(str, shards), "--out", str(tmp_path / "whole")]) == 0
    assert "ddp-2nodes" in capsys.readouterr().out
    cases = ElementTree.parse(tmp_path / "whole" / "junit.xml").getroot().iter("testcase")
    assert [case.get("name") for case in cases] == ["test_memory[ddp-2nodes]", "test_memory[fsdp-2nodes]"]
    assert json.loads((tmp_path / "whole" / "environment.json").read_text())["run"] == "whole"

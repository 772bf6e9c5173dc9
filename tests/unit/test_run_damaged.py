"""What stands in a run folder beside its lines is read as strictly as they are."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from made import RUN

from pytest_clusterqual.errors import RunFolderError
from pytest_clusterqual.folder.runs import RunFolder


def made(path: Path) -> RunFolder:
    return RunFolder.create(path, run=RUN, environment={}, simulated=True)


@pytest.mark.parametrize("key", ["nodes", "nproc_per_node", "attempts"])
@pytest.mark.parametrize("value", ["x", -5, 0, True, 2.0, None])
def test_a_number_of_nodes_ranks_or_attempts_that_is_none_is_named(tmp_path: Path, key: str, value: object) -> None:
    made(tmp_path).update_environment({key: value})
    with pytest.raises(RunFolderError) as refused:
        RunFolder.open(tmp_path)
    assert str(refused.value) == (
        f"{tmp_path}/environment.json: {key}: got {value!r}, want a positive whole number; restore the file"
    )


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("variables", ["x"], "variables: got ['x'], want dict"),
        ("hosts", 3, "hosts: got 3, want tuple"),
        ("named_hosts", [["a"]], "named_hosts[0]: got ['a'], want str"),
        ("merged", {"a": 1}, "merged.a: got 1, want dict"),
    ],
)
def test_what_the_environment_says_is_of_its_kind(tmp_path: Path, key: str, value: object, told: str) -> None:
    made(tmp_path).update_environment({key: value})
    with pytest.raises(RunFolderError, match=re.escape(f"{tmp_path}/environment.json: {told}")):
        RunFolder.open(tmp_path)


def test_an_environment_that_is_no_json_is_named_without_a_line_to_remove(tmp_path: Path) -> None:
    made(tmp_path)
    (tmp_path / "environment.json").write_text('{\n"schema": 1,\n"nodes": NaN}')
    with pytest.raises(RunFolderError, match=r"environment.json: not JSON \(NaN is not JSON\); restore the file$"):
        RunFolder.open(tmp_path)


@pytest.mark.parametrize("name", ["records.jsonl", "measurements.jsonl"])
def test_a_pipe_is_not_waited_for(tmp_path: Path, name: str) -> None:
    made(tmp_path)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(RunFolderError, match=f"{name}: cannot be read: it is no file"):
        RunFolder.open(tmp_path)


def test_tests_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    folder, file = made(tmp_path), tmp_path / "tests.json"
    assert folder.tests == {}
    file.unlink()
    file.symlink_to(file.name)
    with pytest.raises(RunFolderError, match=r"tests.json: cannot be read: Too many levels .*; restore the file"):
        _ = folder.tests
    file.unlink()
    file.mkdir()
    with pytest.raises(RunFolderError, match=r"tests.json: cannot be read: Is a directory; restore the file"):
        folder.select({})
    with pytest.raises(RunFolderError, match=r"tests.json: cannot be read: Is a directory; restore the file"):
        RunFolder.open(tmp_path)

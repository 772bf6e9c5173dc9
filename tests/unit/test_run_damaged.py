"""What stands in a run folder beside its lines is read as strictly as they are."""

from __future__ import annotations

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

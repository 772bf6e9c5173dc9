"""Where a run inside pytest looks for what is the user's own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_clusterqual.run.asked import import_path


def test_functions_are_found_beside_the_tests_also_if_the_project_file_is_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tests, files = tmp_path / "qualification", tmp_path / "sites" / "oslo"
    for folder in (tests, files):
        folder.mkdir(parents=True)
    (tests / "test_one.py").touch()
    monkeypatch.chdir(tmp_path)
    config: Any = SimpleNamespace(
        args=["qualification/", "qualification/test_one.py::test_it"], rootpath=tmp_path,
        invocation_params=SimpleNamespace(dir=tmp_path),
    )  # fmt: skip
    project: Any = SimpleNamespace(path=files / "clusterqual.yaml")
    assert import_path(config, project) == [str(files), str(tests), str(tmp_path)]

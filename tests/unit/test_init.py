"""The suite for a new site: it is the repository's own, nothing is overwritten, and a wheel brings it along."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from pytest_clusterqual.cli import main
from pytest_clusterqual.commands.init import check_free, suite, write
from pytest_clusterqual.errors import ClusterQualError

ROOT = Path(__file__).resolve().parents[2]
FILES = {path.name: path.read_text() for path in sorted((ROOT / "qualification").glob("*.py"))}


def test_the_suite_is_the_one_of_the_repository() -> None:
    assert "test_memory.py" in FILES
    assert suite() == FILES


def test_all_files_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", str(tmp_path / "new" / "site")]) == 0
    folder = tmp_path / "new" / "site" / "qualification"
    assert {path.name for path in folder.iterdir()} == {*FILES, "clusterqual.yaml"}
    assert f"read {folder}/clusterqual.yaml, then: pytest {folder} --nodes 2\n" in capsys.readouterr().out


@pytest.mark.parametrize("there", ["clusterqual.yaml", "test_fabric.py"])
def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str], there: str) -> None:
    folder = tmp_path / "qualification"
    folder.mkdir()
    (folder / there).write_text("mine")
    assert main(["init", str(tmp_path)]) == 4
    assert f"{folder / there}: there already, and nothing is overwritten" in capsys.readouterr().err
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [(there, "mine")]


def test_other_files_are_in_nobodys_way(tmp_path: Path) -> None:
    write(tmp_path, {"mine.py": "mine"})
    check_free(tmp_path, FILES)
    write(tmp_path, FILES)
    assert (tmp_path / "mine.py").read_text() == "mine"


def test_a_file_that_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    write(tmp_path, {"b": "mine"})
    with pytest.raises(ClusterQualError, match="b: cannot be written: File exists"):
        write(tmp_path, {"a": "", "b": ""})
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("b", "mine")]


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Path.open

    def full(path: Path, *arguments: str, **named: str) -> Any:
        stream: Any = opened(path, *arguments, **named)
        if path.name == "b":
            stream.write = refuse
        return stream

    def refuse(_text: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(ClusterQualError, match="b: cannot be written: No space left on device; mend that or"):
        write(tmp_path, {"a": "", "b": ""})
    assert not list(tmp_path.iterdir())


def test_a_file_where_the_folder_should_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "qualification").write_text("")
    assert main(["init", str(tmp_path)]) == 4
    assert "qualification: cannot be written" in capsys.readouterr().err


def test_a_wheel_brings_every_room_and_the_suite(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", minversion="77")
    for name in ("pytest_clusterqual", "qualification"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    build = "import setuptools.build_meta as backend; backend.build_wheel('wheel')"
    subprocess.run([sys.executable, "-c", build], cwd=tmp_path, check=True, capture_output=True, timeout=120)
    (wheel,) = (tmp_path / "wheel").glob("*.whl")
    installed = tmp_path / "installed"
    zipfile.ZipFile(wheel).extractall(installed)
    modules = {path.relative_to(tmp_path) for path in (tmp_path / "pytest_clusterqual").rglob("*.py")}
    brought = {path.relative_to(installed) for path in installed.rglob("*.py")}
    assert brought == modules | {Path("pytest_clusterqual/suite", name) for name in FILES}

    shutil.rmtree(tmp_path / "qualification")  # what is found now came with the wheel
    program = "from pytest_clusterqual.commands import init; print(init.__file__, *init.suite())"
    found = subprocess.run([sys.executable, "-c", program], cwd=installed, check=True, capture_output=True, text=True)
    assert found.stdout.split() == [str(installed / "pytest_clusterqual" / "commands" / "init.py"), *FILES]

"""Whoever has the file alone has the run: opened anywhere, it is judged, replayed and shown with the same verdicts."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from recorded_made import PROJECT, TEST
from seal_made import edited, resealed, rewritten, run_folder, sealed

from pytest_clusterqual.cli import main

SUITE = Path(__file__).parents[2] / "qualification"


def judgements(run: Path) -> list[tuple[str, str, float, str]]:
    """Test, quantity, value and verdict of every record."""
    records = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    told = [(record["test"].rpartition("/")[2], record["judgement"]) for record in records]
    return [(test, each["quantity"], each["value"], each["verdict"]) for test, each in told]


def test_a_seal_gives_the_run_folder_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    file = sealed(tmp_path)
    before = {path.relative_to("run"): path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    shutil.rmtree("run")
    assert main(["verify", str(file), "--extract", "opened/run"]) == 0
    assert "extracted  opened/run: the run folder" in capsys.readouterr().out
    opened = Path("opened/run")
    found = {path.relative_to(opened): path.read_bytes() for path in opened.rglob("*") if path.is_file()}
    assert found == {**before, Path("clusterqual.yaml"): PROJECT.encode()}
    assert not (opened.stat().st_mode & 0o700) ^ 0o700 and list(Path("opened").iterdir()) == [opened]
    assert main(["judge", "opened/run"]) == 0
    out = capsys.readouterr().out
    assert "412 MiB" in out and "PASS" in out and "changed" not in out
    assert main(["seal", "opened/run", "--out", "again.zip"]) == 0
    assert main(["verify", "again.zip"]) == 0


def test_its_tests_come_to_the_same_verdicts(tmp_path: Path) -> None:
    """With nothing but the file and the suite, in another folder."""
    file, laptop = sealed(tmp_path / "site"), tmp_path / "laptop"
    before = judgements(tmp_path / "site" / "run")
    shutil.rmtree(tmp_path / "site" / "run")
    assert main(["verify", str(file), "--extract", str(laptop / "run")]) == 0
    shutil.copy(SUITE / "test_memory.py", laptop)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "test_memory.py", "--qual-replay=run",
         "--qual-config=run/clusterqual.yaml", "--qual-run-dir=again"],
        cwd=laptop, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
        env={name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "CLUSTERQUAL_"))},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert judgements(laptop / "again") == before == [(TEST.rpartition("/")[2], *before[0][1:]), *before[1:]]


def test_what_is_not_as_it_was_sealed_is_not_opened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = rewritten(sealed(tmp_path), {"ranks/node0.log": b"others\n"})
    assert main(["verify", str(file), "--extract", str(tmp_path / "opened")]) == 1
    assert "extracted" not in capsys.readouterr().out
    assert not (tmp_path / "opened").exists() and not list(tmp_path.glob(".clusterqual-*"))


def test_what_does_not_follow_is_opened_to_be_looked_at(tmp_path: Path) -> None:
    run = edited(run_folder(tmp_path / "run"), "records.jsonl", lambda line: line["judgement"].update(verdict="FAIL"))
    assert main(["verify", str(resealed(run)), "--extract", str(tmp_path / "opened")]) == 1
    assert {verdict for *_, verdict in judgements(tmp_path / "opened")} == {"FAIL"}


def test_a_disk_without_room_is_no_fault_of_the_seal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, taken = sealed(tmp_path), tmp_path / "taken"
    monkeypatch.setattr(shutil, "disk_usage", lambda _place: SimpleNamespace(free=100))
    assert main(["verify", str(file), "--extract", str(taken)]) == 4
    out, err = capsys.readouterr()
    assert re.search(r"taken: cannot be written: its parts have \d+ bytes, and there is room for 100; give an", err)
    assert "REFUSED" not in out and not taken.exists()


def test_a_seal_is_opened_into_a_folder_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = sealed(tmp_path)
    assert main(["verify", str(file), "--extract", str(tmp_path / "run")]) == 4
    assert "run: is there already; give another folder with --extract" in capsys.readouterr().err
    assert main(["verify", str(file), "--extract", str(file / "run")]) == 4
    assert "cannot be written: File exists; give another folder with --extract" in capsys.readouterr().err

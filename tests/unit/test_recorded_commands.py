"""The commands on recorded runs, as a person types them."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from recorded_made import PROJECT, TEST, recorded

from pytest_clusterqual.cli import main
from pytest_clusterqual.folder.runs import RunFolder, Selected
from pytest_clusterqual.report import plots


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return recorded(tmp_path / "run").path


def test_a_run_is_judged_by_its_own_file(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["judge", "run"]) == 0
    assert "changed" not in capsys.readouterr().out


def test_a_stricter_file_says_what_changed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("strict.yaml").write_text(PROJECT.replace("<= 1 GiB", "<= 1 KiB"))
    assert main(["judge", "run", "--config", "strict.yaml"]) == 1
    out = capsys.readouterr().out
    assert f"changed    {TEST}: peak <= 1 GiB, now <= 1 KiB: 412 MiB PASS -> 412 MiB FAIL" in out
    assert "warning" not in out


def test_demands_that_cannot_be_told_to_belong_together_have_lines_of_their_own(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two = 'peak: "<= 1 KiB"}, {peak: "<= 2 GiB"'
    Path("two.yaml").write_text(PROJECT.replace('peak: "<= 1 GiB"', two))
    assert main(["judge", "run", "--config", "two.yaml"]) == 1
    out = capsys.readouterr().out
    assert f"changed    {TEST}: peak <= 1 GiB: 412 MiB PASS -> not judged" in out
    assert out.count("peak <= ") == 3 and "peak <= 2 GiB: not judged -> 412 MiB PASS" in out


def test_the_file_of_another_job_is_told(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = PROJECT.replace("global_batch: 4", "global_batch: 8").replace("not-on-this-machine", "elsewhere")
    Path("other.yaml").write_text(text)
    assert main(["judge", "run", "--config", "other.yaml"]) == 0
    told = "warning    other.yaml describes another job than was measured: workload.global_batch\n"
    assert told in capsys.readouterr().out
    environment = json.loads((run / "environment.json").read_text())
    (run / "environment.json").write_text(json.dumps({**environment, "project_file": "version: 0"}))
    assert main(["judge", "run", "--config", "other.yaml"]) == 0, "its own file need not be readable"
    assert "warning" not in capsys.readouterr().out


def test_a_file_that_is_not_there_is_asked_for_by_the_option_of_judge(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["judge", "run", "--config", "none.yaml"]) == 4
    assert "none.yaml: there is no such file; point to the project file with --config FILE" in capsys.readouterr().err


def test_a_run_that_cannot_be_written_shows_its_verdicts(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def read_only(old: Path, new: Path) -> None:
        if run in new.absolute().parents:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        replace(old, new)

    monkeypatch.setattr(os, "replace", read_only)
    monkeypatch.setattr(plots, "write_plots", lambda *_, **__: ([], ""))
    assert main(["report", "run"]) == 4
    told = capsys.readouterr()
    assert "PASS" in told.out and "report.html" not in told.out
    for name in ("junit.xml", "decision.json", "report.html"):
        assert f"run/{name}: cannot be written: Read-only file system\n" in told.err
    assert "report on a copy of it; --out FILE puts the page elsewhere" in told.err
    assert main(["report", "run", "--out", "page.html"]) == 0
    told = capsys.readouterr()
    assert "page.html" in told.out and Path("page.html").exists()
    assert "run/junit.xml: cannot be written" in told.err


def test_two_runs_are_compared(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(Path("other"))
    assert main(["compare", "run", "other"]) == 0
    assert "new / old" in capsys.readouterr().out
    assert main(["compare", "run", "nowhere"]) == 4
    assert "nowhere: is not a run folder" in capsys.readouterr().err


def test_a_run_is_sealed_and_verified(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["seal", "run"]) == 0
    assert "run.clusterqual.zip; nobody has signed it" in capsys.readouterr().out
    shutil.rmtree(run)
    assert main(["verify", "run.clusterqual.zip"]) == 0
    out = capsys.readouterr().out
    assert "verified   judged again from what was measured" in out
    assert f"  PASS     {TEST}" in out


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="there is no ssh-keygen here")
def test_a_signed_run_names_its_key(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "key"]
    subprocess.run(made, check=True, stdin=subprocess.DEVNULL)
    assert main(["seal", "run", "--key", "key", "--out", "record.zip"]) == 0
    Path("signers").write_text(f"qa@site {Path('key.pub').read_text()}")
    assert main(["verify", "record.zip", "--signers", "signers"]) == 0
    assert "trusted as qa@site" in capsys.readouterr().out
    content = Path("record.zip").read_bytes()
    at = content.index(b"measurements.jsonl") + 200
    Path("record.zip").write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    assert main(["verify", "record.zip", "--signers", "signers"]) == 1
    assert "REFUSED    measurements.jsonl: was changed" in capsys.readouterr().out


def test_what_is_no_seal_is_told(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "run/environment.json"]) == 4
    assert "environment.json: is no sealed run" in capsys.readouterr().err
    Path("run.clusterqual.zip").touch()
    assert main(["seal", "run"]) == 4
    assert "is there already" in capsys.readouterr().err


def test_a_run_that_lost_what_it_was_asked_is_not_well(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "tests.json").unlink()
    for command in ("report", "judge"):
        assert main([command, "run"]) == 1
        assert capsys.readouterr().err.startswith("tests.json: is missing, so nobody knows what was asked of this run")
    assert main(["seal", "run", "--out", "seal.zip"]) == 0
    assert main(["verify", "seal.zip"]) == 1
    assert "DIFFERENT  tests.json: is missing" in capsys.readouterr().out


def test_of_a_run_that_was_killed_an_own_test_without_a_record_is_told(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder.open(run)
    folder.select({TEST: Selected(criterion="memory"), "test_own.py::test_own": Selected(criterion="own")})
    for command in ("report", "judge"):
        assert main([command, "run"]) == 1
        assert "asked for and not recorded: test_own.py::test_own\n" in capsys.readouterr().out
    assert main(["seal", "run", "--out", "killed.zip"]) == 0
    assert main(["verify", "killed.zip"]) == 1
    assert "NO RECORD  test_own.py::test_own\n" in capsys.readouterr().out
    folder.end()
    assert [main([command, "run"]) for command in ("report", "judge")] == [0, 0]
    assert main(["seal", "run", "--out", "ended.zip"]) == 0
    assert main(["verify", "ended.zip"]) == 0
    assert "NO RECORD" not in capsys.readouterr().out
    folder.select({})
    assert not folder.ended, "it goes on"


def test_a_run_of_nothing_is_not_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = recorded(tmp_path / "run")
    for name in ("records.jsonl", "measurements.jsonl"):
        (folder.path / name).write_text("")
    assert main(["report", str(folder.path)]) == 1
    assert "nothing was asked of this run" in capsys.readouterr().out

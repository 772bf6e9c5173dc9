"""The commands on recorded runs, as a person types them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from recorded_made import PROJECT, TEST, recorded

from pytest_clusterqual.cli import main


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
    assert f"changed    {TEST}: peak <= 1 GiB: 412 MiB PASS -> not judged" in out
    assert f"changed    {TEST}: peak <= 1 KiB: not judged -> 412 MiB FAIL" in out


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

"""The shell completes the command: its subcommands, its options, files where files are meant."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from pytest_clusterqual.cli import main


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("clusterqual ", "verify"), ("clusterqual import ", "nccl-tests"), ("clusterqual judge --con", "--config"),
        ("clusterqual export run --format ", "markdown"), ("clusterqual verify ", "sealed.zip"),
    ],
)  # fmt: skip
def test_bash_offers_what_can_be_typed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], typed: str, offered: str
) -> None:
    assert main(["completion", "bash"]) == 0
    (tmp_path / "completion.sh").write_text(capsys.readouterr().out)
    (tmp_path / "sealed.zip").touch()
    words = typed.split(" ")
    script = (
        "source ./completion.sh; "
        f"COMP_WORDS=({' '.join(words[:-1])} '{words[-1]}'); COMP_CWORD={len(words) - 1}; "
        f"COMP_LINE='{typed}'; COMP_POINT={len(typed)}; "
        "complete -p clusterqual; _shtab_clusterqual; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert offered in done.stdout.splitlines(), done.stdout + done.stderr


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells_have_theirs(capsys: pytest.CaptureFixture[str], shell: str) -> None:
    assert main(["completion", shell]) == 0
    assert "verify" in capsys.readouterr().out

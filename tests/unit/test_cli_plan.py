"""`clusterqual plan`: what the layouts of a project file ask of the network, before anything is started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from project_files import SMALL

from pytest_clusterqual.cli import main

FILE = SMALL + "fabric: {}\n"


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("NODES", "NPROC_PER_NODE", "CONFIG"):
        monkeypatch.delenv(f"CLUSTERQUAL_{name}", raising=False)
    Path("clusterqual.yaml").write_text(FILE)


def test_the_map_of_the_file_found_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--nodes", "2"]) == 0
    said = capsys.readouterr().out
    assert "2 nodes x 1 rank; estimate" in said
    assert "ddp.replicate: 1 group of 2 ranks over 2 nodes" in said
    assert "all_reduce" in said


def test_options_beat_the_environment_and_that_the_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Path("clusterqual.yaml").rename("other.yaml")
    monkeypatch.setenv("CLUSTERQUAL_CONFIG", "other.yaml")
    monkeypatch.setenv("CLUSTERQUAL_NODES", "4")
    monkeypatch.setenv("CLUSTERQUAL_NPROC_PER_NODE", "2")
    assert main(["plan", "--nodes", "2"]) == 0
    assert "2 nodes x 2 ranks" in capsys.readouterr().out


def test_the_hosts_of_the_file_are_the_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    Path("clusterqual.yaml").write_text(FILE + "launcher: {kind: ssh, hosts: 'gpu[1-4]'}\n")
    assert main(["plan"]) == 0
    assert "1 group of 4 ranks over 4 nodes" in capsys.readouterr().out


def test_it_must_know_how_many_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["plan"])
    assert left.value.code == 2
    assert "say how many nodes to plan for, e.g. --nodes 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "nodes", "message"),
    [
        (None, "2", "clusterqual.yaml: there is no such file"),
        ("version: 2\n", "2", "clusterqual.yaml:1: version: got 2"),
        (FILE, "3", "workload.global_batch: got 4, want a multiple of 3"),
    ],
)
def test_a_file_that_is_wrong_is_told(
    text: str | None, nodes: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("clusterqual.yaml").unlink()
    if text is not None:
        Path("clusterqual.yaml").write_text(text)
    assert main(["plan", "--nodes", nodes]) == 4
    assert message in capsys.readouterr().err


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from pytest_clusterqual.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: print(sorted({'torch', 'numpy', 'pydantic', 'rich', 'pint'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "plan" in done.stdout

"""The plugin loads in every pytest run of an environment: there it must cost next to nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sites import Site

HEAVY = {"torch", "pydantic", "pint", "yaml", "matplotlib", "numpy", "scipy", "rich", "junitparser"}


def loaded(*args: str, cwd: Path) -> set[str]:
    """Top-level modules that are there after a pytest run."""
    code = (
        "import sys, pytest\n"
        "code = pytest.main(['-p', 'no:cacheprovider', *sys.argv[1:]])\n"
        "print('MODULES', *sys.modules)\n"
        "sys.exit(code)"
    )
    result = subprocess.run([sys.executable, "-c", code, *args], cwd=cwd, capture_output=True, text=True, check=True)
    names = set(result.stdout.rpartition("MODULES")[2].split())
    assert "pytest_clusterqual.plugin" in names or args == ("--version",), "the plugin must have been there"
    return {name.partition(".")[0] for name in names}


def test_the_plugin_imports_nothing_heavy(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text("def test_other(): pass\n")
    assert not loaded("--version", cwd=tmp_path) & HEAVY
    assert not loaded("test_other.py", cwd=tmp_path) & HEAVY


def test_collection_touches_no_torch(site: Site) -> None:
    names = loaded("--collect-only", "--nodes", "2", cwd=site.path)
    assert "yaml" in names, "the project file must have been read"
    assert not names & {"torch", "matplotlib"}


def test_collection_starts_no_process(site: Site) -> None:
    (site.path / "conftest.py").write_text(
        "import sys\n"
        "def hook(event, args):\n"
        "    if event in ('subprocess.Popen', 'os.fork', 'os.posix_spawn', 'os.system', 'os.exec', 'socket.bind'):\n"
        "        print('STARTED', event, args, flush=True)\n"
        "        raise SystemExit(99)\n"
        "sys.addaudithook(hook)\n"
    )
    run = site.run("--collect-only", "-q")
    assert run.code == 0, run.out
    assert "STARTED" not in run.out
    assert not run.folder.exists(), "collection opens no run folder"
    assert run.out.splitlines()[:7] == [
        "test_memory.py::test_memory[ddp-2nodes]",
        "test_fabric.py::test_fabric[all_reduce-intra_node]",
        "test_fabric.py::test_fabric[send_recv-intra_node]",
        "test_fabric.py::test_fabric[all_reduce-world]",
        "test_fabric.py::test_fabric[send_recv-world]",
        "test_scaling.py::test_scaling[ddp-2nodes]",
        "test_full_run.py::test_full_run[ddp-2nodes]",
    ]


@pytest.mark.parametrize("flags", [["-p", "no:clusterqual"], []])
def test_other_tests_run_beside_it(tmp_path: Path, flags: list[str]) -> None:
    (tmp_path / "test_other.py").write_text("def test_other(): pass\n")
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *flags],
        cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTEST_ADDOPTS": ""}, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout
    assert "1 passed" in result.stdout
    assert "qualification" not in result.stdout

"""Every block of the pages that is YAML, Python or a shell script is one that works."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml
from pages_read import NAMES, Block, blocks
from recorded_made import PROJECT

from pytest_clusterqual.read.project import load_project

# Pipelines of CI servers; test_ci_snippets.py looks at them.
NO_PROJECT = ("docs/ci.md",)
# Lines of a script, with what stands between them left out; test_own_job_page.py holds them against it.
IN_PARTS = ("docs/own-job.md",)
# Stands for pytest and for what comes after it: says that it is there, and ends in order when it is told to.
STAND_IN = """#!/bin/bash
echo "${0##*/} $*" >> said
[[ $0 == */pytest ]] || exit 0
trap 'sleep 0.2; echo told >> said; exit 143' TERM
mkdir -p "run-$SLURM_JOB_ID"
echo > ready
sleep 20 & wait
"""


def every(language: str, *left_out: str) -> list[Block]:
    return [block for page in NAMES if page not in left_out for block in blocks(page, language)]


@pytest.mark.parametrize("block", every("yaml", *NO_PROJECT), ids=lambda block: block.where)
def test_every_part_of_a_project_file_loads_with_the_rest_of_one(block: Block, tmp_path: Path) -> None:
    shown = yaml.safe_load(block.text)
    rest = {key: value for key, value in yaml.safe_load(PROJECT).items() if key not in shown}
    if "workload" in rest:
        rest["workload"] = {**rest["workload"], "steps": 100, "data": {}}
    if "command" in shown.get("workload", {}):
        rest.pop("layouts", None)
        (tmp_path / "train.py").touch()
    text = block.text if "version" in shown else block.text + yaml.safe_dump(rest, sort_keys=False)
    (tmp_path / "clusterqual.yaml").write_text(text)
    load_project(tmp_path / "clusterqual.yaml", nodes=2)


@pytest.mark.parametrize("block", every("python", *IN_PARTS), ids=lambda block: block.where)
def test_every_python_block_compiles_and_what_it_imports_is_there(block: Block) -> None:
    for node in ast.walk(ast.parse(block.text, block.where)):
        for module in _imported(node):
            if module.startswith("pytest_clusterqual"):
                names = [each.name for each in node.names] if isinstance(node, ast.ImportFrom) else []
                assert all(hasattr(importlib.import_module(module), name) for name in names), block.where
            else:
                assert importlib.util.find_spec(module.partition(".")[0]), f"{block.where}: {module}"


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [each.name for each in node.names] if isinstance(node, ast.Import) else []


@pytest.mark.parametrize("block", every("bash"), ids=lambda block: block.where)
def test_the_order_to_end_reaches_pytest_through_a_batch_script(block: Block, tmp_path: Path) -> None:
    """SIGTERM to the shell, as Slurm sends it; tests/lab/test_batch_job.py lets Slurm do so."""
    for name in ("pytest", "clusterqual"):
        (tmp_path / name).write_text(STAND_IN)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "job.sh").write_text(block.text)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    with subprocess.Popen(["bash", "job.sh"], cwd=tmp_path, env=environment, start_new_session=True) as shell:
        try:
            deadline = time.monotonic() + 10
            while not (tmp_path / "ready").exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            shell.send_signal(signal.SIGTERM)
            assert shell.wait(10) == 143
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
    pytest_line, *rest = (tmp_path / "said").read_text().splitlines()
    assert pytest_line == "pytest qualification/ --qual-launcher slurm --qual-run-dir run-7"
    after = ["clusterqual export run-7 --format markdown"] if "trap" in block.text else []
    assert rest == ["told", *after]

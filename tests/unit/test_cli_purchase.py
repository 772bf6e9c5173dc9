"""`clusterqual plan` with a section `purchase`: neither nodes nor hosts nor torch are needed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from project_files import SMALL

from pytest_clusterqual.cli import main

FILE = (
    SMALL
    + """\
purchase:
  nodes: [{name: one, devices: 1, device_memory: 80 GB, counts: [1, 2]}]
  models: [{name: seventy, parameters: 70e9, layers: 80, hidden: 8192, heads: 64, kv_heads: 8, context: 4096}]
"""
)


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("NODES", "NPROC_PER_NODE", "CONFIG"):
        monkeypatch.delenv(f"CLUSTERQUAL_{name}", raising=False)
    Path("clusterqual.yaml").write_text(FILE)


def test_no_nodes_are_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("what could be bought; estimate: ")
    assert "traffic of one optimizer step" not in said


def test_with_nodes_it_comes_after_the_network_map(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--nodes", "2"]) == 0
    said = capsys.readouterr().out
    assert said.index("traffic of one optimizer step") < said.index("what could be bought; estimate: ")


def test_json_has_all_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["purchase"]
    assert found["purchase"]["kind"] == "estimate"
    rows = {row["weights"]: row for row in found["purchase"]["serving"]}
    assert {weights: row["fit"] for weights, row in rows.items()} == {"bf16": "no", "fp8": "tight", "int4": "fits"}
    assert rows["int4"]["weight_share"] == 0.4375


def test_it_works_where_torch_is_not_installed() -> None:
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from pytest_clusterqual.cli import main\n"
        "raise SystemExit(main(['plan']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "seventy in int4 on one (estimate)" in done.stdout

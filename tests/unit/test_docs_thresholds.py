"""The figures of docs/thresholds.md are those that the product computes from the file of the page."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from pathlib import Path

import pytest
from pages_read import blocks, text_of

from pytest_clusterqual.cli import main
from pytest_clusterqual.judge.statistics import samples_needed, spread
from pytest_clusterqual.read.project import load_project

PAGE = "docs/thresholds.md"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("NODES", "NPROC_PER_NODE", "CONFIG"):
        monkeypatch.delenv(f"CLUSTERQUAL_{name}", raising=False)
    path = tmp_path / "clusterqual.yaml"
    path.write_text(blocks(PAGE, "yaml")[0].text)
    return path


def test_the_plan_is_that_of_the_file(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan"]) == 0
    assert blocks(PAGE, "text")[0].text in capsys.readouterr().out


def test_a_demand_above_what_was_promised_is_refused_in_these_words(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(file.read_text().replace(">= 80 % of expected", ">= 450 GB/s"))
    assert main(["plan", "--nodes", "2"]) == 4
    assert blocks(PAGE, "text")[1].text in capsys.readouterr().err


def test_the_budget_of_a_step_is_that_of_the_target(file: Path) -> None:
    project = load_project(file, nodes=2, nproc_per_node=8)
    assert project.target is not None
    steps = math.ceil(project.target.tokens / (project.workload.global_batch * project.workload.sequence_length))
    seconds = f"{project.target.time / steps:.3g} s"
    assert f"there are {steps:,} of them" in text_of(PAGE)
    assert f"leave {seconds} for" in text_of(PAGE).replace("\n", " ")


def test_the_samples_that_a_distance_takes() -> None:
    one = [-1 / 1.4826, 0.0, 1 / 1.4826]
    assert spread(one) == pytest.approx(1)
    rows = re.findall(r"^\| (\d(?:/\d)?) \| (\d+) \|$", text_of(PAGE), flags=re.MULTILINE)
    assert len(rows) == 5
    assert [samples_needed(one, float(Fraction(distance))) for distance, _ in rows] == [int(n) for _, n in rows]

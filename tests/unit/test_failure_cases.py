"""What a planned failure asks of the world: a spare node, a layout that fits fewer, somebody who notices."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_clusterqual.errors import ProjectFileError
from pytest_clusterqual.measure.cases import Case, cases
from pytest_clusterqual.model.full_run import FAILURES
from pytest_clusterqual.model.project import Project
from pytest_clusterqual.read.project import load_project

DDP, WIDE = {"name": "ddp"}, {"name": "wide", "tensor": 4}
FILE: dict[str, Any] = {
    "version": 1,
    "project": "failures",
    "workload": {
        "model": {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 4, "ffn": 128, "vocab": 256},
        "optimizer": {"name": "adamw", "lr": 1e-3}, "precision": "fp32", "sequence_length": 32, "microbatch": 1,
        "global_batch": 12, "steps": 20, "seed": 1,
    },
    "layouts": [DDP],
}  # fmt: skip


def load(
    folder: Path, *failures: dict[str, Any], nodes: int, nproc: int = 1, every: int = 6, **changes: Any
) -> Project:
    full_run = {"checkpoint": {"every": every}, "failure": [{"at_step": 8, **failure} for failure in failures]}
    (folder / "clusterqual.yaml").write_text(json.dumps({**FILE, "full_run": full_run, **changes}))
    return load_project(folder / "clusterqual.yaml", nodes=nodes, nproc_per_node=nproc)


def found(folder: Path, *failures: dict[str, Any], nodes: int, nproc: int = 1, **changes: Any) -> list[Case]:
    project = load(folder, *failures, nodes=nodes, nproc=nproc, **changes)
    return cases(project, "full_run", nodes=nodes, nproc_per_node=nproc)


def told(folder: Path, *failures: dict[str, Any], nodes: int, **changes: Any) -> str:
    with pytest.raises(ProjectFileError) as raised:
        load(folder, *failures, nodes=nodes, **changes)
    return str(raised.value)


SPARE = {"kill_node": 0, "go_on": "spare"}
FEWER = {"kill_node": 0, "go_on": "fewer"}


def test_a_spare_node_is_kept_out_of_the_run(tmp_path: Path) -> None:
    same, spare = found(tmp_path, {"kill_node": 2}, SPARE, nodes=3)
    assert (str(same), same.nodes) == ("ddp-3nodes-kill_node", 3)
    assert (str(spare), spare.nodes, spare.inapplicable) == ("ddp-2nodes-kill_node-spare", 2, "")


def test_without_a_spare_node_it_is_told(tmp_path: Path) -> None:
    (spare,) = found(tmp_path, SPARE, nodes=1)
    assert spare.inapplicable == "there is no spare node: it needs --nodes 2 or more"


def test_a_layout_that_does_not_fit_what_is_left_is_told(tmp_path: Path) -> None:
    narrow, wide = found(tmp_path, FEWER, nodes=2, nproc=2, layouts=[DDP, WIDE])
    assert narrow.inapplicable == ""
    assert wide.inapplicable.startswith("with one node less: ")
    (batch,) = found(tmp_path, FEWER, nodes=6, workload={**FILE["workload"], "global_batch": 6})
    assert batch.inapplicable == (
        "with one node less: global_batch 6 is not a multiple of microbatch 1 x 5 data-parallel ranks = 5"
    )


def test_a_single_rank_that_hangs_is_told(tmp_path: Path) -> None:
    assert found(tmp_path, {"hang_rank": 0}, nodes=1)[0].inapplicable == "a single rank that hangs is noticed by nobody"
    assert found(tmp_path, {"hang_rank": 0}, nodes=2)[0].inapplicable == ""


def test_the_spare_node_cannot_be_the_one_that_is_lost(tmp_path: Path) -> None:
    assert "got 2, want a node below 2: the last of 3 is the spare" in told(
        tmp_path, {**SPARE, "kill_node": 2}, nodes=3
    )
    assert "got 3, want a node below 3" in told(tmp_path, {"kill_node": 3}, nodes=3)


def test_a_save_that_is_to_fail_must_come(tmp_path: Path) -> None:
    said = told(tmp_path, {"fail_save": 0, "at_step": 19}, nodes=2)
    assert "full_run.failure[0].at_step: got 19, want at most 18, or more steps: no checkpoint is saved" in said
    assert load(tmp_path, {"fail_save": 0, "at_step": 18}, nodes=2).full_run is not None


def test_the_failures_of_the_page_are_all_there_are(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "recovery.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)
    rest = json.dumps({**FILE, "workload": {**FILE["workload"], "steps": 40}})
    (tmp_path / "clusterqual.yaml").write_text(yaml.safe_dump({**yaml.safe_load(rest), **yaml.safe_load(text)}))
    project = load_project(tmp_path / "clusterqual.yaml", nodes=3, nproc_per_node=1)
    assert project.full_run is not None
    assert {failure.kind for failure in project.full_run.failures} == set(FAILURES)
    table = re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE)
    assert sorted(table) == sorted(FAILURES)

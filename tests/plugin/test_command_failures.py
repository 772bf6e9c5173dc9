"""Failures done to a training script from outside, with torchrun and with a launcher line of the file's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_site import TRAIN, own_site
from sites import Run, nothing_left

pytestmark = pytest.mark.slow

HANG = 5  # seconds
TORCHRUN = [
    "torchrun", "--nnodes={nodes}", "--node_rank={node_rank}", "--nproc-per-node={nproc_per_node}",
    "--master_addr={address}", "--master_port={port}", "--max_restarts={restarts}",
]  # fmt: skip
# Name of the test -> what the file plans, and whom the note names.
OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "hang_rank": ({"hang_rank": 1}, "rank 1 on node1"),
    "sigterm": ({"sigterm": True}, "the job"),
    "kill_node-fewer": ({"kill_node": 0, "go_on": "fewer"}, "node0"),
    "kill_node-spare": ({"kill_node": 0, "go_on": "spare"}, "node0"),
}


def recovered(path: Path, failures: list[dict[str, Any]], **workload: Any) -> Run:
    site = own_site(
        path, TRAIN, ["{steps}", "{run}"], workload={"steps": 40, **workload}, memory=None, scaling=None,
        full_run={
            "failure": [{**failure, "at_step": 13} for failure in failures], "alone": False,
            "hang_timeout": f"{HANG} s", "require": [{"recovery": "<= 30 min"}],
        },
    )  # fmt: skip
    run = site.run("--qual-keep-going", timeout=400)
    print(run.out)
    assert run.code == 0
    assert nothing_left(site.path)
    return run


def check(run: Run, case: str, suspect: str) -> dict[str, float]:
    """Its figures, after a look at those that every failure has."""
    told = [r["judgement"] for r in run.records if r["test"].endswith(f"[own-{case}]")]
    figures = {judgement["quantity"]: judgement for judgement in told if not judgement["label"]}
    assert figures["recovery"]["verdict"] == "PASS"
    (note,) = figures["recovery"]["findings"]
    assert note["suspect"] == suspect
    values = {quantity: judgement["value"] for quantity, judgement in figures.items()}
    assert values["recovery"] > 0
    assert values["steps_lost"] in (2, 3), "the last save was after step 10"
    return values


def test_a_lost_node_and_a_launcher_line_of_its_own(tmp_path: Path) -> None:
    run = recovered(tmp_path, [{"kill_node": 1}], launcher_line=TORCHRUN)
    check(run, "2nodes", "node1")
    assert run.records[0]["conditions"]["rank_nodes"] == ["node0", "node1"]


@pytest.mark.full
def test_all_others(tmp_path: Path) -> None:
    run = recovered(tmp_path, [failure for failure, _ in OTHERS.values()])
    for name, (_, suspect) in OTHERS.items():
        nodes = "1node" if name.endswith("spare") else "2nodes"
        values = check(run, f"{nodes}-{name}", suspect)
        assert values["detection"] >= (HANG if name == "hang_rank" else 0)


@pytest.mark.full
def test_a_rank_is_killed_under_a_launcher_line_that_starts_it_again(tmp_path: Path) -> None:
    check(recovered(tmp_path, [{"kill_rank": 1}], launcher_line=TORCHRUN), "2nodes", "rank 1 on node1")

"""Failures as the project file plans them, each a test of its own, on simulated nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sites import Run, Site

from pytest_clusterqual.folder.runs import RunFolder
from pytest_clusterqual.model.full_run import FullRun

pytestmark = pytest.mark.slow

AT = 5  # there is a checkpoint of step 3
HANG = 5  # seconds
# Name of the test -> what the file plans, and whom the note names.
QUICK: dict[str, tuple[dict[str, Any], str]] = {
    "hang_rank": ({"hang_rank": 1}, "rank 1 on node1"),
    "kill_node-fewer": ({"kill_node": 0, "go_on": "fewer"}, "node0"),
}
OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "kill_rank": ({"kill_rank": 1}, "rank 1 on node1"),
    "raise_rank": ({"raise_rank": 0}, "rank 0 on node0"),
    "fail_save": ({"fail_save": 1}, "rank 1 on node1"),
    "sigterm": ({"sigterm": True}, "the job"),
    "kill_node": ({"kill_node": 1}, "node1"),
    "kill_node-spare": ({"kill_node": 0, "go_on": "spare"}, "node0"),
}


def recovered(site: Site, planned: dict[str, tuple[dict[str, Any], str]]) -> Run:
    site.configure({
        "full_run": {
            "steps": 10, "checkpoint": {"every": 3, "mode": "sync"}, "hang_timeout": f"{HANG} s",
            "alone": False, "apart": False, "failure": [{**failure, "at_step": AT} for failure, _ in planned.values()],
            "require": [{"recovery": "<= 30 min"}],
        },
    })  # fmt: skip
    run = site.run("-k", "full_run", "--qual-keep-going", timeout=400)
    print(run.out)
    return run


def figures(run: Run, name: str) -> dict[str, dict[str, Any]]:
    """The judgements of one test by quantity, the states of the ledger left out."""
    nodes = "1node" if name.endswith("spare") else "2nodes"
    theirs = [r["judgement"] for r in run.records if r["test"].endswith(f"[ddp-{nodes}-{name}]")]
    return {judgement["quantity"]: judgement for judgement in theirs if not judgement["label"]}


def full_run(run: Run, name: str) -> FullRun:
    """What the ranks wrote in one test."""
    (found,) = [m for test, _, m in RunFolder.open(run.folder).measurements().values() if test.endswith(f"-{name}]")]
    return found.run


def check_hang(run: FullRun, detection: float) -> None:
    """The survivor waited as long as it was to, from when it came to wait: a little before the other hung, or after."""
    survivor, victim = (rank.processes[0].lines for rank in run.ranks)
    waited = next(line for line in survivor if line.error)
    (struck,) = (line.at for line in victim if line.what == "fault")
    assert waited.seconds >= HANG
    assert detection == pytest.approx(waited.at + waited.seconds - struck)


def check(run: Run, planned: dict[str, tuple[dict[str, Any], str]]) -> None:
    assert run.code == 0, run.out
    for name, (_, hit) in planned.items():
        told = figures(run, name)
        assert told["recovery"]["verdict"] == "PASS", name
        (note,) = told["recovery"]["findings"]
        assert (note["suspect"], note["level"]) == (hit, "note")
        values = {quantity: judgement["value"] for quantity, judgement in told.items()}
        print(name, {quantity: values.get(quantity) for quantity in (
            "detection", "restart", "rendezvous", "checkpoint_load", "recovery", "steps_lost")})  # fmt: skip
        assert values["detection"] >= 0
        if name == "hang_rank":
            check_hang(full_run(run, name), values["detection"])
        assert values["recovery"] >= values["rendezvous"] > 0
        assert values["steps_lost"] == 0 if name == "sigterm" else 1 <= values["steps_lost"] <= 6
        if name != "sigterm":  # which does nothing twice
            assert told["resumed_loss"]["verdict"] == "MEASURED"
    logs = "".join(path.read_text() for path in Path(run.folder / "ranks").glob("*.log"))
    assert "Unable to shutdown process" not in logs, "nobody waited for the agent's grace of 30 s"


def test_a_hang_and_a_lost_node(site: Site) -> None:
    check(recovered(site, QUICK), QUICK)


@pytest.mark.full
def test_all_others(site: Site) -> None:
    check(recovered(site, OTHERS), OTHERS)


def test_a_spare_node_that_is_not_there_is_told(site: Site) -> None:
    site.configure({"full_run": {
        "steps": 10, "checkpoint": {"every": 3},
        "failure": [{"kill_node": 0, "at_step": AT}, {"kill_node": 0, "at_step": AT, "go_on": "spare"}],
    }})  # fmt: skip
    run = site.run("-k", "full_run and spare", "--collect-only", "-q", nodes=1)
    assert "test_full_run[ddp-1node-kill_node-spare]" in run.out
    run = site.run("-k", "full_run and spare", "--qual-keep-going", nodes=1)
    assert "there is no spare node: it needs --nodes 2 or more" in run.out, run.out

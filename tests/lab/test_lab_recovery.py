"""Every failure that a project file can plan, on three hosts through ssh and Slurm: it ends with a closed ledger."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from lab_hosts import Lab
from lab_site import nothing_left

pytestmark = [pytest.mark.lab(hosts=3, slurm=True, pin=True), pytest.mark.full]

SUITE = Path(__file__).parents[2] / "qualification"
AT, HANG = 25, 5
FAILURES: dict[str, dict[str, Any]] = {
    "kill_rank": {"kill_rank": 1},
    "hang_rank": {"hang_rank": 1},
    "raise_rank": {"raise_rank": 1},
    "fail_save": {"fail_save": 1},
    "sigterm": {"sigterm": True},
    "kill_node": {"kill_node": 1},
    "kill_node-spare": {"kill_node": 0, "go_on": "spare"},
    "kill_node-fewer": {"kill_node": 0, "go_on": "fewer"},
}
PROJECT: dict[str, Any] = {
    "version": 1,
    "project": "recovery",
    "workload": {
        "model": {"layers": 2, "hidden": 64, "heads": 2, "kv_heads": 1, "ffn": 128, "vocab": 256},
        "optimizer": {"name": "adamw", "lr": 3.0e-4}, "precision": "fp32", "sequence_length": 32, "microbatch": 1,
        "global_batch": 12, "steps": 40, "seed": 1,
    },
    "layouts": [{"name": "ddp"}],
    "full_run": {
        "checkpoint": {"every": 10, "mode": "async"}, "hang_timeout": f"{HANG} s", "apart": False, "alone": False,
        "failure": [{**failure, "at_step": AT} for failure in FAILURES.values()],
        "require": [{"recovery": "<= 30 min"}, {"steps_lost": "<= 20"}],
    },
}  # fmt: skip


class Recovered:
    """One run of the suite's Full-Run from the login host, every failure a test."""

    def __init__(self, lab: Lab, launcher: str) -> None:
        folder = lab.shared / f"recovery-{launcher}"
        folder.mkdir()
        (folder / "test_full_run.py").write_text((SUITE / "test_full_run.py").read_text())
        options: dict[str, Any] = {"kind": launcher, "device": "cpu", "job_timeout": "2 min"}
        if launcher == "ssh":
            options["hosts"] = lab.hosts_arg
        (folder / "clusterqual.yaml").write_text(json.dumps({**PROJECT, "launcher": options}))
        argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--nodes=3", "--qual-run-dir=run",
                "--qual-keep-going"]  # fmt: skip
        with nothing_left(lab, seconds=20):
            done = lab.login.run(argv, cwd=folder, timeout=1800)
        self.code, self.out = done.returncode, done.stdout + done.stderr
        print(self.out)
        lines = (folder / "run" / "records.jsonl").read_text().splitlines()
        self._records = [json.loads(line) for line in lines]

    def of(self, name: str) -> list[dict[str, Any]]:
        nodes = 2 if name.endswith("spare") else 3
        return [r["judgement"] for r in self._records if r["test"].endswith(f"[ddp-{nodes}nodes-{name}]")]


@pytest.fixture(scope="module", params=["ssh", "slurm"])
def recovered(request: pytest.FixtureRequest, lab: Lab) -> Recovered:
    return Recovered(lab, request.param)


@pytest.mark.parametrize("name", FAILURES)
def test_every_failure_is_recovered_from_and_accounted(name: str, recovered: Recovered) -> None:
    judged = recovered.of(name)
    assert judged, recovered.out[-6000:]
    assert {judgement["verdict"] for judgement in judged} == {"PASS", "MEASURED"}, recovered.out[-6000:]
    told = {judgement["quantity"]: judgement for judgement in judged if not judgement["label"]}
    values = {quantity: judgement["value"] for quantity, judgement in told.items()}
    print(name, {quantity: values.get(quantity) for quantity in (
        "detection", "restart", "rendezvous", "checkpoint_load", "recovery", "steps_lost")})  # fmt: skip
    states = {judgement["label"]: judgement["value"] for judgement in judged if judgement["quantity"] == "time"}
    assert states["rendezvous"] > 0 and states["kept"] > 0
    assert min(seconds for state, seconds in states.items() if state != "residual") >= 0
    (note,) = told["recovery"]["findings"]
    node = {"kill_node-spare": "node1", "kill_node-fewer": "node1", "kill_node": "node2"}
    assert note["suspect"] == {"sigterm": "the job", **node}.get(name, "rank 1 on node2")
    if name == "hang_rank":
        assert values["detection"] >= HANG / 2, "whoever waits may have begun a little before the other hung"
    if name == "sigterm":
        assert values["steps_lost"] == 0
    else:
        assert told["resumed_loss"]["value"] <= (1e-4 if name == "kill_node-fewer" else 1e-6)

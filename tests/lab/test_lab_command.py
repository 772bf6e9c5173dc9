"""A training script of the user's own on two hosts, through ssh and Slurm, and on one that is short of memory."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import lab_faults_processes as processes
import pytest
from lab_hosts import Lab
from lab_site import expect_nothing_left, nothing_left

pytestmark = [pytest.mark.lab(hosts=2, slurm=True, pin=True), pytest.mark.full]

REPOSITORY = Path(__file__).parents[2]
AT = 25
ENOUGH = 500 << 20  # for the agent and the process beside the rank
PLAIN: dict[str, Any] = {
    "version": 1,
    "project": "own",
    "workload": {
        "name": "plain", "steps": 6,
        "command": ["train.py", "--folder", "{run}", "--steps", "{steps}", "--save-every", 10],
    },
    "memory": {"steps": 2, "require": [{"peak": "<= 4 GiB"}]},
    "scaling": {"points": [1, 2], "repeats": 1, "warmup_steps": 2},
    "full_run": {
        "steps": 40, "failure": {"kill_rank": 1, "at_step": AT}, "alone": False,
        "require": [{"recovery": "<= 30 min"}, {"steps_lost": "<= 20"}],
    },
}  # fmt: skip


def run(lab: Lab, name: str, script: str, project: dict[str, Any], launcher: str) -> tuple[str, list[dict[str, Any]]]:
    """What the suite printed on the login host, and its records."""
    folder = lab.shared / name
    folder.mkdir()
    for criterion in ("memory", "scaling", "full_run"):
        test = f"test_{criterion}.py"
        (folder / test).write_text((REPOSITORY / "qualification" / test).read_text())
    (folder / "train.py").write_text(script)
    options: dict[str, Any] = {"kind": launcher, "device": "cpu", "job_timeout": "3 min"}
    if launcher == "ssh":
        options["hosts"] = lab.hosts_arg
    (folder / "clusterqual.yaml").write_text(json.dumps({**project, "launcher": options}))
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--nodes=2", "--qual-run-dir=run",
            "--qual-keep-going"]  # fmt: skip
    done = lab.login.run(argv, cwd=folder, timeout=900)
    lines = (folder / "run" / "records.jsonl").read_text().splitlines()
    return done.stdout + done.stderr, [json.loads(line) for line in lines]


@pytest.mark.parametrize("launcher", ["ssh", "slurm"])
def test_a_command_gets_its_verdicts_on_two_hosts(launcher: str, lab: Lab) -> None:
    script = (REPOSITORY / "examples" / "plain" / "train.py").read_text()
    with nothing_left(lab, seconds=20):
        out, records = run(lab, f"own-{launcher}", script, PLAIN, launcher)
    found: dict[str, set[str]] = {}
    for record in records:
        found.setdefault(record["criterion"], set()).add(record["judgement"]["verdict"])
        assert record["conditions"] is not None, out[-6000:]
        assert not record["conditions"]["simulated"]
        assert record["conditions"].get("rank_nodes", ["node1", "node2"]) == ["node1", "node2"]
    assert found == {"memory": {"PASS", "MEASURED"}, "scaling": {"MEASURED"}, "full_run": {"PASS", "MEASURED"}}
    figures = {(r["criterion"], r["judgement"]["quantity"]): r["judgement"] for r in records}
    assert figures["full_run", "recovery"]["value"] > 0
    assert 1 <= figures["full_run", "steps_lost"]["value"] <= 10
    assert figures["scaling", "speedup"]["value"] > 0


@pytest.mark.parametrize("launcher", ["ssh", "slurm"])
def test_a_command_is_recovered_from_every_failure_that_can_be_done_to_it(launcher: str, lab: Lab) -> None:
    script = (REPOSITORY / "examples" / "plain" / "train.py").read_text()
    failures: dict[str, dict[str, Any]] = {
        "hang_rank": {"hang_rank": 1}, "sigterm": {"sigterm": True}, "kill_node": {"kill_node": 1},
        "kill_node-fewer": {"kill_node": 0, "go_on": "fewer"},
    }  # fmt: skip
    project = {key: value for key, value in PLAIN.items() if key not in ("memory", "scaling")}
    project["full_run"] = {
        "steps": 40, "failure": [{**each, "at_step": AT} for each in failures.values()], "alone": False,
        "hang_timeout": "5 s", "require": [{"recovery": "<= 30 min"}],
    }  # fmt: skip
    with nothing_left(lab, seconds=20):
        out, records = run(lab, f"own-failures-{launcher}", script, project, launcher)
    for name in failures:
        told = {
            r["judgement"]["quantity"]: r["judgement"]
            for r in records
            if r["test"].endswith(f"[plain-2nodes-{name}]") and not r["judgement"]["label"]
        }
        assert told["recovery"]["verdict"] == "PASS", out[-6000:]
        assert 0 < told["recovery"]["value"] < 120
        assert 1 <= told["steps_lost"]["value"] <= 10


def test_a_rank_that_the_kernel_kills_for_want_of_memory_is_a_fail(lab: Lab) -> None:
    script = "from pytest_clusterqual.probe import Probe\nProbe()\nheld = bytearray(2 << 30)\n"
    project = {**PLAIN, "scaling": None, "full_run": None, "memory": {"require": [{"headroom": ">= 10 %"}]}}
    project["workload"] = {"command": ["train.py"]}
    host = lab["node2"]
    with processes.memory_limit(host, ENOUGH):
        before = processes.oom_kills(host)
        out, records = run(
            lab, "own-memory", script, {k: v for k, v in project.items() if v is not None}, "ssh"
        )  # fmt: skip
        assert processes.oom_kills(host) > before
        expect_nothing_left(lab, seconds=45)
    judged = [r["judgement"] for r in records if r["criterion"] == "memory"]
    assert {each["verdict"] for each in judged} == {"FAIL"}, out[-6000:]
    assert {each["quantity"] for each in judged} == {"peak", "headroom"}
    assert all("rank 1 on node2 was killed by the kernel for want of memory" in each["reason"] for each in judged)

"""xdist and Slurm: all workers use the one allocation that the controller has."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from lab_hosts import Lab
from lab_probes import until
from lab_site import wait_until

from pytest_clusterqual.folder.runs import RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.lab(hosts=2, slurm=True)]

TESTS = """
def test_where(node, qualify):
    (said,) = node.run("jobs:where", name=node.name)
    assert said["node"] == node.name
    with open("jobs", "a") as file:
        print(said["job"], file=file)
    qualify.samples("calls", [1.0] * 6, unit="1", require=">= 1")
"""
# A second round waits until it is killed.
JOBS = """
import os
import time
from pathlib import Path


def where(ctx, *, name):
    Path(f"{name}.here").touch()
    while Path("wait").exists():
        time.sleep(0.05)
    return {"node": ctx.node, "job": os.environ["SLURM_JOB_ID"]}
"""
PROJECT = {
    "version": 1, "project": "leases",
    "launcher": {"kind": "slurm", "device": "cpu", "slurm": {"time": "10 min"}},
    "workload": {
        "model": {"layers": 1, "hidden": 32, "heads": 2, "kv_heads": 1, "ffn": 64, "vocab": 256},
        "optimizer": {"name": "adamw", "lr": 3.0e-4}, "precision": "fp32", "sequence_length": 32, "microbatch": 1,
        "global_batch": 4, "steps": 6, "seed": 1,
    },
    "layouts": [{"name": "ddp"}],
}  # fmt: skip
PYTEST = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--qual-run-dir", "run", "-n", "2")


@pytest.fixture
def folder(lab: Lab, request: pytest.FixtureRequest) -> Path:
    made = lab.shared / "".join(filter(str.isalnum, request.node.name))
    made.mkdir()
    (made / "clusterqual.yaml").write_text(json.dumps(PROJECT))
    (made / "test_nodes.py").write_text(TESTS)
    (made / "jobs.py").write_text(JOBS)
    return made


def jobs_of(lab: Lab) -> list[str]:
    return lab.login.run(["squeue", "--noheader", "--format", "%i"], check=True).stdout.split()


@pytest.mark.parametrize("before", [(), ("salloc", "-t10", "-N2")], ids=["outside", "inside"])
def test_all_workers_use_one_allocation(lab: Lab, folder: Path, before: tuple[str, ...]) -> None:
    done = lab.login.run([*before, *PYTEST, "--nodes", "2"], cwd=folder, timeout=180)
    assert done.returncode == 0, done.stdout
    tests = RunFolder.open(folder / "run").records()
    assert {(r.test.partition("::")[2], *(r.conditions.rank_nodes if r.conditions else ())) for r in tests} == {
        ("test_where[node0]", "node1"), ("test_where[node1]", "node2"),
    }  # fmt: skip
    numbers = (folder / "jobs").read_text().split()
    assert len(numbers) == 2
    assert len(set(numbers)) == 1
    until(lambda: not jobs_of(lab))
    for host in lab.nodes:
        until(lambda host=host: not host.processes())


def test_a_killed_controller_gives_the_nodes_back(lab: Lab, folder: Path) -> None:
    (folder / "wait").touch()
    command = lab.login.popen([*PYTEST, "--nodes", "2"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        here = [folder / f"node{i}.here" for i in (1, 2)]
        wait_until(lambda: all(path.exists() for path in here), seconds=120, what="a job on each node")
        assert len(jobs_of(lab)) == 1
        os.kill(command.inner(), signal.SIGKILL)
        until(lambda: not jobs_of(lab))
        for host in lab.nodes:
            until(lambda host=host: not host.processes())
    finally:
        command.kill()
        command.communicate()

"""The suite on two hosts through ssh and through mpirun."""

from __future__ import annotations

import json

import pytest
from lab_hosts import Lab
from lab_site import nothing_left
from lab_suite import run_suite

pytestmark = pytest.mark.lab(hosts=2, pin=True)
CRITERIA = {"nodes", "memory", "fabric", "scaling", "full_run", "own"}


@pytest.mark.full
def test_the_whole_suite_passes_on_two_hosts(lab: Lab) -> None:
    with nothing_left(lab, seconds=60):
        suite = run_suite(lab, "whole", "--qual-hosts", lab.hosts_arg)
    assert suite.code == 0, suite.out[-6000:]
    assert suite.verdicts == dict.fromkeys(CRITERIA, "PASS")
    conditions = [r["conditions"] for r in suite.records if r["conditions"]]
    assert {tuple(c["hosts"]) for c in conditions if c["nodes"] == 2} == {("node1", "node2")}
    assert not any(c["simulated"] for c in conditions)
    assert "simulated" not in suite.out


@pytest.mark.parametrize("launcher", ["ssh", "mpi"])
def test_a_part_of_the_suite_passes(launcher: str, lab: Lab) -> None:
    part = "test_nodes or (test_memory and ddp) or (test_fabric and (all_reduce or send_recv))"
    with nothing_left(lab, seconds=60):
        suite = run_suite(
            lab, f"part-{launcher}", "--qual-hosts", lab.hosts_arg, "--qual-launcher", launcher, "-k", part
        )
    assert suite.code == 0, suite.out[-6000:]
    assert suite.verdicts == dict.fromkeys(("nodes", "memory", "fabric"), "PASS")
    environment = json.loads((suite.folder / "environment.json").read_text())
    assert (environment["hosts"], environment["launcher"]) == (["node1", "node2"], launcher)
    surveyed = {path.stem: json.loads(path.read_text()) for path in (suite.folder / "nodes").iterdir()}
    assert {name: survey["host"]["name"] for name, survey in surveyed.items()} == {"node1": "node1", "node2": "node2"}
    samples = [c for r in suite.records if (c := r["conditions"]) and c.get("telemetry")]
    assert {t["node"] for c in samples for t in c["telemetry"]} == {"node1", "node2"}

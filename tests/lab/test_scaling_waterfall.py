"""Scaling says where the time goes: a slow link, a slow host, slow data are each blamed for what they cost."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from lab_faults_disks import slow_file
from lab_faults_network import link_rate
from lab_faults_processes import cpu_quota
from lab_hosts import Lab

pytestmark = [pytest.mark.lab(hosts=2, pin=True), pytest.mark.full]

SUITE = Path(__file__).parents[2] / "qualification"
MIB = 1 << 20
# On its own a step computes for some ten milliseconds, and exchanges 1.5 MB.
PROJECT: dict[str, Any] = {
    "version": 1,
    "project": "waterfall",
    "workload": {
        "model": {"layers": 2, "hidden": 128, "heads": 2, "kv_heads": 1, "ffn": 256, "vocab": 256},
        "optimizer": {"name": "adamw", "lr": 3.0e-4}, "precision": "fp32", "sequence_length": 128, "microbatch": 2,
        "global_batch": 16, "steps": 8, "seed": 1,
    },
    "layouts": [{"name": "ddp"}],
    "scaling": {"points": [1, 2], "warmup_steps": 2, "budget": "2 min",
                "require": [{"nodes": 2, "efficiency": ">= 0.5"}]},
}  # fmt: skip


class Run:
    """One run of the suite's test of scaling from the login host."""

    def __init__(self, lab: Lab, name: str, *, data: Path | None = None) -> None:
        folder = lab.shared / name
        folder.mkdir()
        (folder / "test_scaling.py").write_text((SUITE / "test_scaling.py").read_text())
        launcher = {"kind": "ssh", "device": "cpu", "job_timeout": "60 s", "hosts": lab.hosts_arg}
        workload = {**PROJECT["workload"], "data": {"path": str(data) if data else None}}
        text = json.dumps({**PROJECT, "launcher": launcher, "workload": workload})
        (folder / "clusterqual.yaml").write_text(text)
        argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--nodes=2", "--qual-run-dir=run",
                "--qual-keep-going"]  # fmt: skip
        done = lab.login.popen(
            argv, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        try:
            self.out, _ = done.communicate(timeout=400)
        finally:
            if done.poll() is None:
                done.kill()
        print(self.out)
        lines = (folder / "run" / "records.jsonl").read_text().splitlines()
        self.judgements = [json.loads(line)["judgement"] for line in lines]

    def of(self, quantity: str) -> dict[str, Any]:
        (found,) = [j for j in self.judgements if j["quantity"] == quantity and j["label"] == "2 nodes"]
        return dict(found)

    @property
    def blamed(self) -> str:
        parts = self.of("lost_time")["parts"]
        assert sum(parts.values()) == pytest.approx(self.of("lost_time")["value"])
        return max(parts, key=parts.__getitem__)

    @property
    def suspects(self) -> set[str]:
        return {f["suspect"] for j in self.judgements for f in j["findings"] if f["level"] == "suspect"}

    def missed(self) -> bool:
        """Other work on this machine makes a FAIL by time UNDECIDED; where the time went is told all the same."""
        found = self.of("efficiency")
        return found["verdict"] == "FAIL" or "the machine was loaded" in found["reason"]


def test_a_slow_link_turns_a_pass_into_a_fail_and_transfer_is_blamed(lab: Lab) -> None:
    healthy = Run(lab, "healthy")
    assert healthy.of("efficiency")["verdict"] == "PASS" or "loaded" in healthy.of("efficiency")["reason"], healthy.out
    with ExitStack() as stack:
        for host in lab.nodes:
            stack.enter_context(link_rate(host, "50mbit"))
        run = Run(lab, "slow-link")
    assert run.missed(), run.out
    assert run.blamed == "exposed transfer", run.out
    assert run.of("exposed_communication")["value"] > 0.5
    assert run.suspects == set()


def test_a_host_with_a_quarter_of_its_core_is_waited_for_and_named(lab: Lab) -> None:
    with cpu_quota(lab["node2"], 0.25):
        run = Run(lab, "quota")
    assert run.missed(), run.out
    assert run.blamed == "wait", run.out
    assert {suspect.rpartition(" on ")[2] for suspect in run.suspects} == {"node2"}, run.out
    waits = run.of("waiting")["per_rank"]
    assert waits["0"] > waits["1"], "the fast rank waits"


def test_slow_data_of_one_host_are_blamed_and_it_is_named(lab: Lab) -> None:
    data = lab.shared / "data" / "tokens.bytes"
    data.parent.mkdir()
    data.write_bytes(random.Random(1).randbytes(96 * MIB))  # of so much only samples are read beforehand
    with slow_file(lab["node2"], data, 20):
        run = Run(lab, "slow-data", data=data)
    assert run.blamed == "data stall", run.out
    assert run.of("data_stall")["value"] > 0.2
    assert "rank 1 on node2" in run.suspects, run.out

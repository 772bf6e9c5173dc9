"""A full run says on which host the data come slowly: the others wait for it in their steps, not for data."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from lab_faults_disks import slow_file
from lab_hosts import Lab

pytestmark = [pytest.mark.lab(hosts=2, pin=True), pytest.mark.full]

SUITE = Path(__file__).parents[2] / "qualification"
MIB = 1 << 20
PROJECT: dict[str, Any] = {
    "version": 1,
    "project": "slow data",
    "workload": {
        "model": {"layers": 2, "hidden": 128, "heads": 2, "kv_heads": 1, "ffn": 256, "vocab": 256},
        "optimizer": {"name": "adamw", "lr": 3.0e-4}, "precision": "fp32", "sequence_length": 128, "microbatch": 2,
        "global_batch": 16, "steps": 20, "seed": 1,
    },
    "layouts": [{"name": "ddp"}],
    "full_run": {"checkpoint": {"every": 10, "mode": "sync"}, "alone": False, "apart": False},
}  # fmt: skip


def data_stall(lab: Lab, name: str, data: Path, loader: dict[str, int]) -> dict[str, Any]:
    """The share of data and step time that each rank waited for data in one full run."""
    folder = lab.shared / name
    folder.mkdir()
    (folder / "test_full_run.py").write_text((SUITE / "test_full_run.py").read_text())
    launcher = {"kind": "ssh", "device": "cpu", "job_timeout": "120 s", "hosts": lab.hosts_arg}
    workload = {**PROJECT["workload"], "data": {"path": str(data), **loader}}
    (folder / "clusterqual.yaml").write_text(json.dumps({**PROJECT, "launcher": launcher, "workload": workload}))
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--nodes=2", "--qual-run-dir=run",
            "--qual-keep-going"]  # fmt: skip
    done = lab.login.run(argv, cwd=folder, timeout=400)
    print(done.stdout, done.stderr)
    lines = (folder / "run" / "records.jsonl").read_text().splitlines()
    judgements = [json.loads(line)["judgement"] for line in lines]
    (found,) = [each for each in judgements if each["quantity"] == "data_stall"]
    return dict(found)


@pytest.mark.parametrize("loader", [{}, {"prefetch": 0}, {"workers": 2}], ids=["thread", "on-demand", "processes"])
def test_the_host_with_slow_data_is_named(lab: Lab, loader: dict[str, int]) -> None:
    data = lab.shared / "data" / "tokens.bytes"
    data.parent.mkdir(exist_ok=True)
    data.write_bytes(random.Random(1).randbytes(96 * MIB))  # of so much only samples are read beforehand
    name = "-".join(["slow", *loader])
    with slow_file(lab["node2"], data, 20):
        slow = data_stall(lab, name, data, loader)
    assert slow["value"] > 0.2
    assert "rank 1 on node2" in slow["reason"]
    assert slow["per_rank"]["0"] < slow["per_rank"]["1"] / 3

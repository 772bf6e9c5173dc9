"""The memory ladder on a host that is short of memory: the kernel kills a rank, and the next rung is tried."""

from __future__ import annotations

import json
import sys

import lab_faults_processes as processes
import pytest
from lab_hosts import Lab
from lab_site import PROJECT, expect_nothing_left

pytestmark = [pytest.mark.lab(hosts=1, pin=True), pytest.mark.full]

# Its activations take about 1.4 GiB at once, and 100 MiB sequence by sequence.
JOB = {
    "model": {"layers": 4, "hidden": 64, "heads": 2, "kv_heads": 1, "ffn": 256, "vocab": 256},
    "sequence_length": 512, "microbatch": 64, "global_batch": 64, "steps": 1,
}  # fmt: skip
ENOUGH = 1400 << 20  # for the agent, the supervisor and a rank of the smaller kind
TEST = """
import pytest


@pytest.mark.criterion("memory")
def test_memory(measurement, qualify):
    qualify(measurement)
"""


def test_a_rank_that_the_kernel_kills_is_a_rung_that_does_not_fit(lab: Lab) -> None:
    folder = lab.shared / "ladder"
    folder.mkdir()
    (folder / "test_memory.py").write_text(TEST)
    (folder / "clusterqual.yaml").write_text(json.dumps({
        **{key: value for key, value in PROJECT.items() if key != "full_run"},
        "launcher": {**PROJECT["launcher"], "hosts": lab.hosts_arg, "job_timeout": "120 s"},
        "workload": {**PROJECT["workload"], **JOB}, "memory": {"steps": 1, "ladder": True, "budget": "1 s"},
        "scaling": {"points": [1], "warmup_steps": 0},
    }))  # fmt: skip
    argv = [
        sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--nodes", "1", "--qual-run-dir", "run",
        "test_memory.py", "-k", "ladder",
    ]  # fmt: skip
    host = lab["node1"]
    with processes.memory_limit(host, ENOUGH):
        before = processes.oom_kills(host)
        ended = lab.login.run(argv, cwd=folder, timeout=400)
        assert processes.oom_kills(host) > before
        expect_nothing_left(lab, seconds=45)
    records = [json.loads(line) for line in (folder / "run" / "records.jsonl").read_text().splitlines()]
    fits = {r["judgement"]["label"]: r["judgement"] for r in records if r["judgement"]["quantity"] == "fits"}
    assert fits["one device"]["value"] == 0, ended.stdout[-3000:]
    assert "rank 0 on node1 was killed by the kernel for want of memory" in fits["one device"]["reason"]
    assert fits["recompute full"]["value"] == 1
    (first,) = [r["judgement"] for r in records if r["judgement"]["quantity"] == "first_fit"]
    assert first["label"].startswith(("microbatch", "recompute"))

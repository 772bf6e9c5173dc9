"""Four hosts: the tests of single nodes take as long as one of them with `-n 4`, and find the same."""

from __future__ import annotations

import json
import sys
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from typing import Any

import pytest
from lab_hosts import Lab

from pytest_clusterqual.folder.runs import RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.full, pytest.mark.lab(hosts=4)]

SECONDS = 20.0  # of each test of a single node, whatever else the machine does; long against the start of ranks

TESTS = """
import json


def note(spans):
    with open("spans", "a") as file:
        file.writelines(json.dumps(span) + "\\n" for span in spans)


def test_figure(node, qualify):
    (value, span), = node.run("jobs:figure", seconds=SECONDS)
    note([span])
    qualify.samples("figure", [value] * 6, unit="s", require="<= 2 s")


def test_together(cluster, qualify):
    note([span for _, span in cluster.run("jobs:figure", seconds=0.5)])
    qualify.samples("figure", [1.0] * 6, unit="s", require="<= 2 s")
"""
JOBS = """
import time
from pathlib import Path


def figure(ctx, *, seconds):
    began = time.monotonic()
    time.sleep(seconds)
    return float(Path("/tmp/figure").read_text()), [ctx.node, began, time.monotonic()]
"""
PROJECT: dict[str, Any] = {
    "version": 1,
    "project": "leases",
    "launcher": {"kind": "ssh", "device": "cpu"},
    "workload": {
        "model": {"layers": 1, "hidden": 32, "heads": 2, "kv_heads": 1, "ffn": 64, "vocab": 256},
        "optimizer": {"name": "adamw", "lr": 3.0e-4}, "precision": "fp32", "sequence_length": 32, "microbatch": 1,
        "global_batch": 4, "steps": 6, "seed": 1,
    },
    "layouts": [{"name": "ddp"}],
}  # fmt: skip


@dataclass
class Ended:
    """A run that has ended; `began` is when pytest was started, by the clock of the spans."""

    code: int
    out: str
    folder: RunFolder
    began: float
    spans: list[tuple[str, float, float]]
    cases: set[tuple[str | None, str | None]]

    @property
    def verdicts(self) -> dict[str, str]:
        return {record.test.partition("::")[2]: record.judgement.verdict.value for record in self.folder.records()}

    @property
    def alone(self) -> list[tuple[str, float, float]]:
        """The spans of the tests of single nodes, by their beginning."""
        return sorted((span for span in self.spans if span[2] - span[1] > SECONDS / 2), key=lambda span: span[1])

    @property
    def seconds(self) -> float:
        """From the start until the last single node was done; single nodes come first."""
        return self.alone[-1][2] - self.began


def run(lab: Lab, name: str, *options: str) -> Ended:
    """The tests on all hosts, from the login host, in a folder of their own."""
    folder = lab.shared / name
    folder.mkdir()
    (folder / "clusterqual.yaml").write_text(json.dumps(PROJECT))
    (folder / "test_nodes.py").write_text(TESTS.replace("SECONDS", str(SECONDS)))
    (folder / "jobs.py").write_text(JOBS)
    began = time.monotonic()
    done = lab.login.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--qual-hosts", lab.hosts_arg,
         "--qual-run-dir", "run", "--junitxml", "pytest.xml", *options],
        cwd=folder, timeout=240,
    )  # fmt: skip
    assert not [process for host in lab.nodes for process in host.processes()]
    cases = {(case.get("classname"), case.get("name")) for case in ET.parse(folder / "pytest.xml").iter("testcase")}
    spans = [tuple(json.loads(line)) for line in (folder / "spans").read_text().splitlines()]
    return Ended(done.returncode, done.stdout + done.stderr, RunFolder.open(folder / "run"), began, spans, cases)


@pytest.fixture(scope="module")
def runs(lab: Lab) -> dict[str, Ended]:
    for number, host in enumerate(lab.nodes, 1):
        host.path("/tmp/figure").write_text("3" if number == 3 else "1")
    return {"plain": run(lab, "plain"), "spread": run(lab, "spread", "-n", "4")}


def test_it_takes_clearly_less_time(runs: dict[str, Ended]) -> None:
    seconds = {name: made.seconds for name, made in runs.items()}
    print(f"single nodes: {seconds['plain']:.1f} s, with -n 4 {seconds['spread']:.1f} s")
    assert seconds["spread"] < 0.75 * seconds["plain"]


def test_the_verdicts_are_the_same_and_right(runs: dict[str, Ended]) -> None:
    right = {f"test_figure[node{i}]": "FAIL" if i == 3 else "PASS" for i in (1, 2, 3, 4)} | {"test_together": "PASS"}
    for made in runs.values():
        assert made.verdicts == right, made.out
        assert made.code == 1


def test_no_node_is_used_by_two_and_all_nodes_are_used_alone(runs: dict[str, Ended]) -> None:
    for made in runs.values():
        for node in ("node1", "node2", "node3", "node4"):
            (_, _, end), (_, begin, _) = sorted((s for s in made.spans if s[0] == node), key=lambda span: span[1])
            assert end <= begin
    alone = runs["spread"].alone
    assert len(alone) == 4
    assert alone[-1][1] < alone[0][2], "the last of the single nodes began before the first had ended"


def test_reports_are_whole(runs: dict[str, Ended]) -> None:
    assert runs["spread"].cases == runs["plain"].cases
    for record in runs["spread"].folder.records():
        assert record.conditions is not None
        node = record.test.partition("[")[2].rstrip("]")
        wanted = (node,) if node else ("node1", "node2", "node3", "node4")
        assert (record.conditions.rank_nodes, record.conditions.hosts) == (wanted, wanted)
        assert not record.conditions.simulated

"""The decision inside a run: after all other tests, also beside other workers, and never because of a gate."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from sites import SMALL, SUITE, Run, Site, make_site, nothing_left

from pytest_clusterqual.cli import main

pytestmark = pytest.mark.slow

# One node is done at once and is fine, the other one is not, and takes its time where another worker could be ahead.
NODES = """
import os
import time

import pytest


@pytest.mark.criterion("nodes")
def test_alone(node, qualify):
    if "PYTEST_XDIST_WORKER" in os.environ:
        time.sleep(3 * node.index)
    qualify.samples("calls", [1.0 - node.index] * 6, unit="1", require=">= 1")
"""


def decided(run: Run) -> tuple[str, str]:
    """Verdict and outcome of the last record, which is the decision's."""
    last = run.records[-1]
    assert last["criterion"] == "decision", run.out
    return last["judgement"]["verdict"], last["judgement"]["label"]


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """No job fits in what the file demands, whatever else the machine does; and just that is expected to come out."""
    site = make_site(tmp_path_factory.mktemp("site"))
    shutil.copy(SUITE / "test_decision.py", site.path)
    tight = {"require": [{"peak": "<= 1 KiB"}]}
    site.configure({"memory": tight, "fabric": None, "decision": {"expect": "not-qualified"}})
    run = site.run("-rA")
    assert nothing_left(site.path)
    return run


def test_a_run_that_failed_is_decided_as_well(failed: Run) -> None:
    assert failed.code == 1
    assert failed.verdicts("scaling") == failed.verdicts("full_run") == ["BLOCKED"]
    assert decided(failed) == ("PASS", "not-qualified")
    assert "PASSED test_decision.py::test_decision[2nodes]" in failed.out


def test_the_terminal_has_one_line_of_it_and_the_folder_a_page(failed: Run) -> None:
    told = "decision PASS not qualified: Memory: ddp-2nodes: peak"
    assert told in " ".join(failed.out.split())
    page = (failed.folder / "decision.md").read_text()
    assert page.startswith("# Not qualified")
    assert "this decides about the demonstration, not about a cluster" in page
    told = json.loads((failed.folder / "decision.json").read_text())
    (outcome,) = [line for line in told["lines"] if line["label"] == "outcome"]
    assert {failed.records[number - 1]["criterion"] for number in outcome["records"]} == {"memory"}


def test_another_expectation_of_the_same_run_is_not_met(
    failed: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = Site(tmp_path)
    site.configure({"decision": {"expect": "performance"}})
    assert main(["decide", str(failed.folder)]) == 0
    assert main(["decide", str(failed.folder), "--qual-config", str(tmp_path / "clusterqual.yaml")]) == 1
    assert "another was expected: performance-driven scale-out" in capsys.readouterr().out


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_it_waits_for_what_other_workers_measure(site: Site, workers: tuple[str, ...]) -> None:
    for test in site.path.glob("test_*.py"):
        test.unlink()
    (site.path / "test_a.py").write_text((SUITE / "test_decision.py").read_text())  # collected first, run last
    (site.path / "test_b.py").write_text(NODES)
    site.configure({"decision": {"expect": "not-qualified"}})
    run = site.run(*workers)
    assert run.code == 1
    told = {r["test"].partition("::")[2]: r["judgement"]["verdict"] for r in run.records if r["criterion"] == "nodes"}
    assert told == {"test_alone[node0]": "PASS", "test_alone[node1]": "FAIL"}
    assert decided(run) == ("PASS", "not-qualified"), run.out


def test_another_outcome_fails_with_the_place_that_expects_it(site: Site) -> None:
    shutil.copy(SUITE / "test_decision.py", site.path)
    site.configure({"decision": {"expect": "memory"}, "memory": None, "fabric": None, "full_run": None,
                    "scaling": None})  # fmt: skip
    run = site.run("-k", "decision")
    assert run.code == 1
    assert decided(run) == ("UNDECIDED", "undecided")
    assert "UNDECIDED: undecided: neither Memory nor Training Scaling was measured (expected: memory-driven" in run.out
    assert "clusterqual.yaml:" in run.out


def test_without_an_expectation_it_is_told_only(site: Site) -> None:
    shutil.copy(SUITE / "test_decision.py", site.path)
    site.configure({"decision": {}})
    run = site.run("-k", "decision or memory", "-rs")
    assert run.code == 0, run.out
    assert decided(run)[0] == "MEASURED"
    assert "MEASURED: undecided: Fabric was not run" in " ".join(run.out.split("\n"))


def test_a_job_that_no_rung_inside_one_node_holds_needs_several(site: Site) -> None:
    """Real ranks run out of memory on one node, whatever is recomputed there; shares of two nodes hold the job."""
    shutil.copy(SUITE / "test_decision.py", site.path)
    model = {"layers": 8, "hidden": 128, "heads": 4, "kv_heads": 4, "ffn": 384, "vocab": 256}
    job = {**SMALL["workload"], "model": model, "sequence_length": 128, "microbatch": 1, "global_batch": 2, "steps": 2}
    # On one node the parameters, their gradients and two moments of each take 27 MiB, and activations come on top.
    ladder = {"steps": 2, "ladder": True, "device_memory": "30 MiB", "budget": "1 s", "require": [{"peak": "<= 1 GiB"}]}
    site.configure({
        "workload": job, "memory": ladder, "scaling": None, "full_run": None, "decision": {"expect": "memory"},
    })  # fmt: skip
    run = site.run()
    assert decided(run) == ("PASS", "memory"), run.out
    told = json.loads((run.folder / "decision.json").read_text())
    (outcome,) = [line for line in told["lines"] if line["label"] == "outcome"]
    rests_on = [run.records[number - 1]["judgement"] for number in outcome["records"]]
    fits = {judgement["label"]: judgement["value"] for judgement in rests_on if judgement["quantity"] == "fits"}
    assert fits == {"one device": 0, "recompute selective": 0, "recompute full": 0, "2 nodes": 1}

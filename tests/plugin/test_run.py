"""One small run on real ranks, from the project file to the JUnit file, looked at from all sides."""

from __future__ import annotations

import json
import os
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from sites import SMALL, Run, Site, make_site, nothing_left

from pytest_clusterqual.folder.runs import RunFolder
from pytest_clusterqual.model.codec import from_json
from pytest_clusterqual.model.full_run import FullRunMeasurement
from pytest_clusterqual.model.record import Record

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    site = make_site(tmp_path_factory.mktemp("site"))
    site.configure({"full_run": {
        **SMALL["full_run"], "alone": True, "apart": True, "require": [{"recovery": "<= 300 s"}, {"gain": ">= 0.001"}],
    }})  # fmt: skip
    made = site.run("--junitxml", "pytest.xml")
    assert nothing_left(site.path)
    return made


def test_all_four_criteria_pass(run: Run) -> None:
    assert run.code == 0, run.out
    for criterion in ("memory", "fabric", "scaling", "full_run"):
        assert set(run.verdicts(criterion)) >= {"PASS"}, criterion
        assert set(run.verdicts(criterion)) <= {"PASS", "MEASURED"}, criterion
    assert "5 passed, 2 skipped" in run.out  # a group of one rank has no fabric in it


def test_the_terminal_says_what_was_found_and_what_it_is_not(run: Run) -> None:
    for words in ("speedup", "recovery", "peak", "latency", "PASS", "records    run", "SVG files in run/plots"):
        assert words in run.out
    assert "simulated nodes: all on one machine" in run.out
    assert "left out: 2 tests: intra_node is a group of 1 rank with 2 x 1 ranks: there is no fabric in it" in run.out


def test_every_record_is_whole_and_says_under_which_conditions(run: Run) -> None:
    for line in run.records:
        record = from_json(Record, line)
        assert record.conditions is not None
        assert record.conditions.simulated
        assert record.conditions.rank_nodes == ("node0", "node1")
        assert record.conditions.versions.keys() >= {"python", "torch", "pytest_clusterqual"}
        if record.judgement.quantity in ("checkpoint_loss", "checkpoint_interval"):  # worked out, not measured
            continue
        if record.judgement.value is None:  # what a sweep cannot tell is said without a number, if nobody asks for it
            assert record.judgement.quantity in ("alpha", "plateau", "wait")
            assert record.judgement.verdict == "MEASURED"
            continue
        assert record.judgement.interval is not None
        assert record.judgement.interval.low <= record.judgement.value <= record.judgement.interval.high


def test_raw_measurements_can_be_read_again_and_belong_to_the_records(run: Run) -> None:
    measurements = RunFolder.open(run.folder).measurements()
    assert {line["measurement"] for line in run.records} == set(measurements)
    assert [criterion for _test, criterion, _ in measurements.values()] == [
        "memory", "fabric", "fabric", "scaling", "full_run",
    ]  # fmt: skip


def test_scaling_compared_the_same_job(run: Run) -> None:
    (scaling,) = [m for _, c, m in RunFolder.open(run.folder).measurements().values() if c == "scaling"]
    assert [r.conditions.nodes for r in scaling.runs[:4]] == [1, 2, 2, 1], "baseline and candidate are interleaved"
    assert len({r.conditions.workload for r in scaling.runs}) == 1
    one, two = scaling.runs[0], scaling.runs[1]
    assert len(one.ranks) == 1
    assert len(two.ranks) == 2
    assert one.ranks[0].losses == pytest.approx(two.ranks[0].losses, rel=1e-4)


def test_the_step_on_most_nodes_was_taken_apart_and_its_parts_add_up(run: Run) -> None:
    (scaling,) = [m for _, c, m in RunFolder.open(run.folder).measurements().values() if c == "scaling"]
    assert scaling.not_apart == ""
    assert len(scaling.apart) >= 12
    (lost,) = [line["judgement"] for line in run.records if line["judgement"]["quantity"] == "lost_time"]
    assert (lost["label"], lost["value"]) == ("2 nodes", pytest.approx(sum(lost["parts"].values())))
    assert "lost time  ddp-2nodes: " in run.out


def test_the_full_run_lost_a_rank_and_came_back(run: Run) -> None:
    (full,) = [m for _, c, m in RunFolder.open(run.folder).measurements().values() if c == "full_run"]
    assert isinstance(full, FullRunMeasurement)
    lines = {rank.rank: [line for process in rank.processes for line in process.lines] for rank in full.run.ranks}
    faults = [(rank, line.step) for rank, mine in lines.items() for line in mine if line.what == "fault"]
    assert faults == [(1, 5)]
    for rank in full.run.ranks:
        resumed = [line.step for line in lines[rank.rank] if line.what == "resumed"]
        assert resumed == [0, 3], "from the last complete checkpoint"
        assert {line.step for line in lines[rank.rank] if line.what == "loss"} == set(range(1, 11))
        assert rank.began <= rank.processes[0].start.began
        assert rank.ended >= max(line.at + line.seconds for line in rank.processes[-1].lines)
    assert not list(run.folder.glob("checkpoints*"))


def test_the_ledger_of_the_full_run_closes_and_one_node_did_the_same(run: Run) -> None:
    (full,) = [m for _, c, m in RunFolder.open(run.folder).measurements().values() if c == "full_run"]
    judged = [line["judgement"] for line in run.records if line["criterion"] == "full_run"]
    values = {j["quantity"]: j["value"] for j in judged}
    seconds = {j["label"]: j["value"] for j in judged if j["quantity"] == "time"}
    assert full.alone is not None, full.not_alone
    assert (full.alone.conditions.nodes, len(full.alone.ranks), full.alone.steps) == (1, 1, 10)
    assert values["gain"] > 0
    assert len(full.apart) >= 3, full.not_apart
    assert all(value >= 0 for state, value in seconds.items() if state != "residual")
    assert all(
        seconds[state] > 0 for state in ("init", "kept", "lost", "restart", "rendezvous", "reload", "checkpoint")
    )
    walls = [rank.ended - rank.began for rank in full.run.ranks]
    assert any(sum(seconds.values()) == pytest.approx(wall, abs=0.1) for wall in walls), "of the rank that is told"
    assert abs(seconds["residual"]) <= max(0.005 * max(walls), 1.0)
    assert values["steps_lost"] == 1, "step 4, done after the checkpoint of step 3"
    assert f"; gain {values['gain']:.3g} over one node" in " ".join(run.out.split())


def test_pytests_own_junit_carries_values_and_conditions(run: Run) -> None:
    tree = ET.parse(run.folder.parent / "pytest.xml")
    cases = {case.get("name"): case for case in tree.iter("testcase")}
    properties = {p.get("name"): p.get("value") for p in cases["test_memory[ddp-2nodes]"].iter("property")}
    assert properties["clusterqual.verdict"] == "PASS"
    assert properties["clusterqual.simulated"] == "true"
    assert float(properties["clusterqual.value"] or "nan") > 0


def test_the_run_folders_junit_counts_right(run: Run) -> None:
    suite = ET.parse(run.folder / "junit.xml").getroot().find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("5", "0", "0")


def test_the_run_leaves_a_page_of_all_criteria_with_their_plots(run: Run) -> None:
    page = (run.folder / "report.html").read_text()
    for part in (
        "Simulated nodes, all on one machine", "memory of each rank at its peak", "over the message size",
        "speedup over the number of nodes", "course of the full run", "where the time of the full run went",
    ):  # fmt: skip
        assert part in page, part
    assert "report.html" in run.out


def test_the_environment_is_recorded_without_secrets(run: Run) -> None:
    environment = json.loads((run.folder / "environment.json").read_text())
    assert environment["argv"].startswith("pytest ")
    assert "workload:" in environment["project_file"]
    assert environment["versions"]["torch"]
    assert environment["device"] == "cpu"
    assert len(environment["hosts"]) == 1
    assert "SECRET" not in json.dumps(environment)


def test_judge_again_under_another_file(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from pytest_clusterqual.cli import main

    site = make_site(tmp_path)
    assert main(["judge", str(run.folder), "--config", str(site.path / "clusterqual.yaml")]) == 0
    site.configure({"memory": {"require": [{"peak": "<= 1 KiB"}]}})
    before = (run.folder / "records.jsonl").read_bytes()
    assert main(["judge", str(run.folder), "--config", str(site.path / "clusterqual.yaml")]) == 1
    assert "is above the required <= 1 KiB" in " ".join(capsys.readouterr().out.split())
    assert (run.folder / "records.jsonl").read_bytes() == before
    assert main(["report", str(run.folder)]) == 0
    assert main(["report", str(tmp_path / "nowhere")]) == 4


def test_more_ranks_than_cores_on_request_and_every_record_says_so(site: Site) -> None:
    """Two nodes with two ranks each: groups inside nodes, across them, and the whole world."""
    cores = len(os.sched_getaffinity(0))
    site.configure({
        "fabric": {**SMALL["fabric"], "collectives": ["all_reduce"], "groups": ["intra_node", "inter_node", "world"],
                   "sizes": {"from": "4 KiB", "to": "4 KiB", "factor": 2},
                   "require": [{"collective": "all_reduce", "busbw": ">= 1 B/s"}]},
        "scaling": None, "full_run": None,
    })  # fmt: skip
    (site.path / "test_scaling.py").unlink()
    (site.path / "test_full_run.py").unlink()
    run = site.run("--nproc-per-node=2")
    assert run.code == 0, run.out
    assert {r["test"].partition("::")[2] for r in run.records} == {
        "test_memory[ddp-2nodes]", "test_fabric[all_reduce-intra_node]", "test_fabric[all_reduce-inter_node]",
        "test_fabric[all_reduce-world]",
    }  # fmt: skip
    for record in run.records:
        assert record["conditions"]["rank_nodes"] == ["node0", "node0", "node1", "node1"]
        assert record["conditions"]["oversubscribed"] is (cores < 4)
    assert ("ranks share cores (oversubscribed)" in run.out) is (cores < 4)


STRICT: dict[str, Any] = {
    "memory": {"require": [{"peak": "<= 1 KiB"}]},
    "fabric": {**SMALL["fabric"], "groups": ["world"], "collectives": ["all_reduce"],
               "require": [{"collective": "all_reduce", "busbw": ">= 100 TB/s"}]},
    "scaling": {**SMALL["scaling"], "require": [{"nodes": 2, "speedup": ">= 1000"}], "budget": "1 s"},
    "full_run": {**SMALL["full_run"], "require": [{"recovery": "<= 1 ms"}]},
}  # fmt: skip


def test_stricter_demands_turn_each_criterion_red_for_the_right_reason(site: Site) -> None:
    site.configure(STRICT)
    run = site.run("--qual-keep-going")
    assert run.code == 1, run.out
    assert "4 failed" in run.out
    for criterion, quantity in (
        ("memory", "peak"), ("fabric", "busbw"), ("scaling", "speedup"), ("full_run", "recovery"),
    ):  # fmt: skip
        judged = [r["judgement"] for r in run.records if r["criterion"] == criterion and r["judgement"]["requirement"]]
        # On a loaded machine slowness is an honest UNDECIDED; a size never is.
        allowed = {"FAIL"} if criterion in ("memory",) else {"FAIL", "UNDECIDED"}
        assert {j["verdict"] for j in judged} <= allowed, criterion
        assert all(j["quantity"] == quantity for j in judged)
        assert all(j["verdict"] == "FAIL" or "the machine was loaded" in j["reason"] for j in judged)
    assert "clusterqual.yaml:" in run.out, "a failure names the line that demands it"
    failures = {f.get("type") for f in ET.parse(run.folder / "junit.xml").iter("failure")}
    assert failures <= {"fail", "undecided"}
    assert "fail" in failures


def judged_again(run: Run, site: Site, *options: str) -> Run:
    """The same tests on what was recorded: what follows from a verdict needs no ranks."""
    return site.run("--qual-replay", str(run.folder), *options, nodes=None)


def test_a_gate_that_did_not_pass_blocks_what_it_guards(run: Run, site: Site) -> None:
    site.configure({**STRICT, "fabric": {**SMALL["fabric"], "groups": ["world"], "collectives": ["send_recv"],
                                         "require": [{"latency": "<= 100 s"}]}})  # fmt: skip
    again = judged_again(run, site)
    assert again.code == 1
    assert again.verdicts("memory") == ["FAIL", "MEASURED"]
    assert again.verdicts("scaling") == ["BLOCKED"]
    assert again.verdicts("full_run") == ["BLOCKED"]
    reasons = {r["criterion"]: r["judgement"]["reason"] for r in again.records}
    assert reasons["scaling"] == "memory did not pass: test_memory[ddp-2nodes] is FAIL"
    assert reasons["full_run"] == "scaling did not pass: test_scaling[ddp-2nodes] is BLOCKED"


def test_a_number_without_a_requirement_is_no_verdict(run: Run, site: Site) -> None:
    site.configure({"memory": {}})
    again = judged_again(run, site, "-k", "memory")
    assert again.verdicts("memory") == ["MEASURED", "MEASURED"]
    assert "memory: no verdict was reached, so this run does not exit 0" in again.out
    assert again.code == 1


@pytest.mark.parametrize(
    ("until", "code", "told"), [("2999-01-01", 0, "xfailed"), ("2020-01-01", 1, "expired on 2020-01-01")]
)
def test_known_exceptions(run: Run, site: Site, until: str, code: int, told: str) -> None:
    site.configure({
        "memory": STRICT["memory"], "exceptions": [{"test": "test_memory*", "reason": "ticket 4711", "until": until}],
    })  # fmt: skip
    again = judged_again(run, site, "-k", "memory", "-rx")
    assert told in again.out
    assert "ticket 4711" in again.out
    assert again.verdicts("memory") == ["FAIL", "MEASURED"], "the record tells what was measured, exception or not"
    assert again.code == code
    kinds = [(e.tag, e.get("type")) for e in ET.parse(again.folder / "junit.xml").iter() if e.get("type")]
    assert kinds == [("skipped", "excepted") if code == 0 else ("failure", "fail")]


OWN = """
import pytest

def test_where(cluster, topology, rank_map, workload, requirements):
    got = cluster.run("own_jobs:where", greeting="hello")
    assert got == [[0, 2, "hello", "node0"], [1, 2, "hello", "node1"]]
    assert cluster.run("own_jobs:where", nodes=1, greeting="x") == [[0, 1, "x", "node0"]]
    assert topology.nodes == ("node0", "node1")
    assert topology.simulated
    assert [place.node for place in rank_map.places] == ["node0", "node1"]
    assert workload.steps == 6
    assert {r.quantity for r in requirements} == {"peak", "busbw", "latency", "speedup", "recovery"}

def test_own_samples(cluster, qualify):
    samples = [max(cluster.run("own_jobs:figure", value=value)) for value in (1, 2, 3, 4, 5, 6)]
    judgement = qualify.samples("own_latency", samples, unit="s", require="<= 10 s")
    assert (judgement.value, judgement.interval.low, judgement.interval.high) == (3.5, 1, 6)

def test_own_samples_red(qualify):
    qualify.samples("own_latency", [3.0] * 6, unit="s", require="<= 1 s")

def test_too_few(qualify):
    qualify.samples("own_latency", [0.1] * 5, unit="s", require="<= 1 s")

def test_nan(qualify):
    qualify.samples("own_latency", [float("nan")] * 6, unit="s", require="<= 1 s")

def test_a_dead_rank(cluster):
    cluster.run("own_jobs:die")

@pytest.mark.criterion("memory")
def test_own_memory(measurement, qualify):
    measurement.ranks[0]
    qualify(measurement)
"""
OWN_JOBS = """
import os, signal

def where(ctx, greeting):
    return [ctx.rank, ctx.world_size, greeting, ctx.node]

def figure(ctx, value):
    return value

def die(ctx):
    if ctx.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    ctx.group.barrier().wait()
"""


def test_own_tests(site: Site) -> None:
    for test in site.path.glob("test_*.py"):
        test.unlink()
    (site.path / "test_own.py").write_text(OWN)
    (site.path / "own_jobs.py").write_text(OWN_JOBS)
    run = site.run("-rA")
    assert "PASSED test_own.py::test_where" in run.out, run.out
    assert "PASSED test_own.py::test_own_samples\n" in run.out
    assert "PASSED test_own.py::test_own_memory[ddp-2nodes]" in run.out
    assert "own_latency 3 s meets" not in run.out
    assert "own_latency 3 s is above the required <= 1 s" in " ".join(run.out.split())
    assert {r["test"]: r["judgement"]["verdict"] for r in run.records if r["criterion"] == "own"} == {
        "test_own.py::test_own_samples": "PASS", "test_own.py::test_own_samples_red": "FAIL",
        "test_own.py::test_too_few": "UNDECIDED", "test_own.py::test_nan": "ERROR",
        "test_own.py::test_a_dead_rank": "ERROR",
    }  # fmt: skip
    assert "rank 1 on node1 was killed by SIGKILL" in run.out
    assert run.code == 1

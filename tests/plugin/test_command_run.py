"""A training script of the user's own on two simulated nodes: real verdicts, and every way in which it goes wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_site import STRUCK_BY, TRAIN, own_site
from sites import Run, nothing_left

from pytest_clusterqual.folder.runs import RunFolder
from pytest_clusterqual.model.full_run import FullRunMeasurement
from pytest_clusterqual.model.memory import MemoryMeasurement
from pytest_clusterqual.model.training import ScalingMeasurement

pytestmark = pytest.mark.slow

LOGGED = """\
import sys, time
import peers
others = peers.connect()
for step in range(1, 9):
    began = time.monotonic()
    peers.summed(others, sum(n * n % 7 for n in range(peers.RANK, 240_000, peers.WORLD)))
    if peers.RANK == 0:
        print(f"step {step} took {time.monotonic() - began:.6f} s")
"""
# What goes wrong depends on the number of steps, which each criterion has of its own.
WRONG = """\
import os, sys, time
import peers
others = peers.connect()
what = {2: "memory", 7: "hang", 4: "raise"}[int(sys.argv[1])]
if peers.RANK == 1:
    if what == "memory":
        raise MemoryError("Unable to allocate 9 TiB")
    if what == "raise":
        raise ValueError("no such shard")
    time.sleep(600)
peers.summed(others, 1.0)
"""


def measured(run: Run, kind: str) -> Any:
    (found,) = [m for _, name, m in RunFolder.open(run.folder).measurements().values() if name == kind]
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    site = own_site(
        tmp_path_factory.mktemp("own"), TRAIN, ["{steps}", "{run}"], workload={"steps": 8},
        memory={"steps": 2, "require": [{"peak": "<= 1 GiB"}, {"headroom": ">= 1 %"}]},
        scaling={"points": [1, 2], "repeats": 1, "warmup_steps": 2},
        full_run={
            "steps": 40, "failure": {"kill_rank": 1, "at_step": 13},
            "require": [{"recovery": "<= 300 s"}, {"goodput": ">= 0.1 %"}, {"gain": ">= 0.01"}],
        },
    )  # fmt: skip
    made = site.run("--qual-keep-going")  # without a section on Fabric its gate is closed
    assert nothing_left(site.path)
    return made


def test_a_command_gets_verdicts_for_memory_scaling_and_the_full_run(run: Run) -> None:
    assert "2 passed, 2 skipped" in run.out, run.out
    assert set(run.verdicts("memory")) == {"PASS"}
    assert set(run.verdicts("scaling")) == {"MEASURED"}
    assert set(run.verdicts("full_run")) == {"PASS", "MEASURED"}
    assert {line["test"].partition("[")[2] for line in run.records} == {"own-2nodes]"}


def test_its_memory_is_that_of_its_processes(run: Run) -> None:
    m = measured(run, "memory")
    assert isinstance(m, MemoryMeasurement)
    assert [rank.rank for rank in m.ranks] == [0, 1]
    assert all(1 << 20 < rank.step_peaks[0] < rank.limit for rank in m.ranks)
    assert len(m.ranks[0].losses) == 2, "memory.steps is what {steps} stood for"
    assert m.conditions.rank_nodes == ("node0", "node1")
    assert "not known: what it is made of" in run.out + str(run.records)


def test_its_scaling_is_timed_step_by_step_on_each_number_of_nodes(run: Run) -> None:
    m = measured(run, "scaling")
    assert isinstance(m, ScalingMeasurement)
    assert [one.conditions.nodes for one in m.runs] == [1, 2]
    assert len({one.conditions.workload for one in m.runs}) == 1
    for one in m.runs:
        for rank in one.ranks:
            assert (len(rank.warmup_seconds), len(rank.step_seconds), rank.tokens_per_step) == (2, 8, 240_000)
            assert rank.unknown == ("inside",)
    shown = {line["judgement"]["quantity"] for line in run.records if line["criterion"] == "scaling"}
    assert {"speedup", "efficiency", "throughput", "data_stall"} <= shown


def test_the_killed_rank_came_back_and_the_ledger_closes(run: Run) -> None:
    m = measured(run, "full_run")
    assert isinstance(m, FullRunMeasurement)
    assert m.not_apart == "a command's step is seen from outside only"
    for full in (m.run, m.alone):
        assert full is not None, m.not_alone
        assert full.steps == 40
        faults = [
            (r.rank, line.step) for r in full.ranks for p in r.processes for line in p.lines if line.what == "fault"
        ]
        ((rank, step),) = faults
        assert rank == len(full.ranks) - 1
        assert 13 <= step <= STRUCK_BY
        assert [len(each.processes) for each in full.ranks] == [2] * len(full.ranks)
    figures = {
        line["judgement"]["quantity"]: line["judgement"] for line in run.records if line["criterion"] == "full_run"
    }
    assert {"recovery", "detection", "restart", "rendezvous", "checkpoint_blocking", "gain"} <= set(figures)
    assert figures["steps_lost"]["value"] in (2, 3), "the last save was after step 10"
    assert figures["checkpoint_load"]["value"] > 0


def test_what_each_rank_printed_stays_and_nothing_else(run: Run) -> None:
    assert not list(run.folder.glob("command-*"))
    assert len(list(run.folder.glob("ranks/*-output/rank0.log"))) == 5, "memory, two points, the run and the one alone"


def test_a_script_with_nothing_but_its_log(tmp_path: Path) -> None:
    pattern = r"step (?P<step>\d+) took (?P<seconds>[\d.]+) s"
    site = own_site(
        tmp_path, LOGGED, [], workload={"log": {"pattern": pattern}, "sequences_per_step": 4}, memory=None,
        scaling={"points": [1, 2], "repeats": 1, "warmup_steps": 1}, full_run={},
    )  # fmt: skip
    run = site.run("--qual-keep-going")
    m = measured(run, "scaling")
    assert [[len(rank.step_seconds) for rank in one.ranks] for one in m.runs] == [[7], [7]], "rank 0 speaks"
    figures = {
        line["judgement"]["quantity"]: line["judgement"] for line in run.records if line["criterion"] == "scaling"
    }
    assert figures["speedup"]["value"] > 0
    assert figures["throughput"]["value"] is None
    assert "a log does not tell where all the time of a run goes" in run.out


def test_each_wrong_way_is_named(tmp_path: Path) -> None:
    site = own_site(
        tmp_path, WRONG, ["{steps}"], workload={"steps": 6}, memory={"steps": 2}, scaling=None,
        full_run={"steps": 4, "alone": False},
    )  # fmt: skip
    run = site.run("--qual-keep-going")
    assert run.code == 1
    (memory,) = [line["judgement"] for line in run.records if line["criterion"] == "memory"]
    assert memory["verdict"] == "FAIL", "out of memory is a result"
    assert memory["reason"].startswith("the job ran out of memory: rank 1 on node1 left with exit code 1: MemoryError")
    (failed,) = [line["judgement"] for line in run.records if line["criterion"] == "full_run"]
    assert failed["verdict"] == "ERROR"
    assert "rank 1 on node1 left with exit code 1: ValueError: no such shard" in failed["reason"]
    assert [finding["suspect"] for finding in failed["findings"]] == ["rank 1 on node1"]
    assert nothing_left(site.path)


def test_a_script_that_hangs_is_ended_at_its_limit(tmp_path: Path) -> None:
    site = own_site(
        tmp_path, WRONG, ["7"], workload={"time_limit": "2 s"}, memory={}, scaling=None, full_run=None
    )  # fmt: skip
    run = site.run()
    assert run.code == 1
    (hung,) = [line["judgement"] for line in run.records if line["criterion"] == "memory"]
    assert hung["verdict"] == "ERROR"
    assert "did not end within its limit of 2 s" in hung["reason"]
    assert "workload.time_limit" in hung["reason"]
    assert nothing_left(site.path)

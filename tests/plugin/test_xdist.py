"""With xdist: single nodes side by side, all nodes alone, and everything reported as if one process had run it."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from sites import Run, Site, make_site, nothing_left, until

from pytest_clusterqual.folder.runs import RunFolder

pytestmark = pytest.mark.slow

# With xdist the tests of the two nodes meet: each waits until the other has begun, and one stays for longer.
TESTS = """
import json
import os
import time
from pathlib import Path

import pytest

NODES = ("node0", "node1")
WORKER = os.environ.get("PYTEST_XDIST_WORKER")


@pytest.fixture(autouse=True)
def noted(request):
    began = time.monotonic()
    yield
    with open("spans", "a") as file:
        print(json.dumps([request.node.name, began, time.monotonic(), WORKER]), file=file)


def test_alone(node, qualify):
    assert node.run("jobs:where") == [[0, 1, node.name]]
    Path(f"{node.name}.here").touch()
    began = time.monotonic()
    while WORKER and not all(Path(f"{name}.here").exists() for name in NODES):
        assert time.monotonic() - began < 60
        time.sleep(0.01)
    if WORKER and node.index == 1:
        time.sleep(1.5)
    qualify.samples("calls", [1.0] * 6, unit="1", require=">= 1")


def test_of_something_else():
    pass


def test_again(node):
    node.run("jobs:where")


def test_together(cluster, qualify):
    cluster.run("jobs:where")
    qualify.samples("calls", [1.0] * 6, unit="1", require=">= 2")


@pytest.mark.criterion("memory")
def test_memory(measurement, qualify):
    qualify(measurement)
"""
JOBS = """
import time
from pathlib import Path


def where(ctx):
    return [ctx.rank, ctx.world_size, ctx.node]


def sleep(ctx, *, name):
    Path(f"{name}.here").touch()
    time.sleep(300)
"""


def prepared(path: Path, tests: str = TESTS) -> Site:
    """The small project with these tests instead of the suite's, and the jobs above."""
    site = make_site(path)
    for test in site.path.glob("test_*.py"):
        test.unlink()
    (site.path / "test_nodes.py").write_text(tests)
    (site.path / "jobs.py").write_text(JOBS)
    return site


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """The same tests without xdist and with it."""
    made = {}
    for name, options in (("plain", ()), ("spread", ("-n", "2"))):
        site = prepared(tmp_path_factory.mktemp(name))
        made[name] = site.run("--junitxml=pytest.xml", "-rA", *options)
        assert nothing_left(site.path)
    return made


def test_the_verdicts_are_the_same(runs: dict[str, Run]) -> None:
    told = {
        name: {(r["test"], r["criterion"], r["judgement"]["quantity"], r["judgement"]["verdict"]) for r in run.records}
        for name, run in runs.items()
    }
    assert told["spread"] == told["plain"], runs["spread"].out
    assert ("test_nodes.py::test_alone[node1]", "own", "calls", "PASS") in told["spread"]
    assert ("test_nodes.py::test_together", "own", "calls", "FAIL") in told["spread"]
    assert ("test_nodes.py::test_memory[ddp-2nodes]", "memory", "peak", "PASS") in told["spread"]
    assert runs["spread"].code == runs["plain"].code == 1
    for run in runs.values():
        assert "1 failed, 6 passed" in run.out
        assert "\nclusterqual: project small, clusterqual.yaml\n" in run.out


OF_ALL_NODES = ("test_together", "test_memory[ddp-2nodes]")


def spans(run: Run) -> dict[str, tuple[float, float, str]]:
    """Test -> when it had its nodes, and which worker it was in."""
    lines = [json.loads(line) for line in (run.folder.parent / "spans").read_text().splitlines()]
    return {name: (began, ended, worker) for name, began, ended, worker in lines}


@pytest.mark.parametrize("name", ["plain", "spread"])
def test_no_node_is_used_by_two(runs: dict[str, Run], name: str) -> None:
    noted = spans(runs[name])
    for node in ("node0", "node1"):
        mine = sorted(noted[test] for test in (f"test_alone[{node}]", f"test_again[{node}]", *OF_ALL_NODES))
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(mine)), noted


def test_tests_of_the_same_nodes_stay_in_one_worker(runs: dict[str, Run]) -> None:
    worker = {test: span[2] for test, span in spans(runs["spread"]).items()}
    assert worker["test_alone[node0]"] == worker["test_again[node0]"]
    assert worker["test_alone[node1]"] == worker["test_again[node1]"]
    assert worker["test_together"] == worker["test_memory[ddp-2nodes]"]
    launches = {log.name.partition("-")[0] for log in (runs["spread"].folder / "ranks").iterdir()}
    assert len(launches) == 3, "ranks stay warm from one test to the next"


def test_conditions_are_those_of_the_nodes_the_test_had(runs: dict[str, Run]) -> None:
    for run in runs.values():
        where = {r["test"].partition("::")[2]: r["conditions"] for r in run.records}
        assert (where["test_alone[node1]"]["nodes"], where["test_alone[node1]"]["rank_nodes"]) == (1, ["node1"])
        assert {told["node"] for told in where["test_alone[node1]"]["telemetry"]} <= {"node1"}
        assert (where["test_together"]["nodes"], where["test_together"]["rank_nodes"]) == (2, ["node0", "node1"])


def test_reports_are_whole_and_name_the_tests_alike(runs: dict[str, Run]) -> None:
    for file in ("pytest.xml", "run/junit.xml"):
        names = {
            name: {
                (case.get("classname"), case.get("name"))
                for case in ET.parse(run.folder.parent / file).iter("testcase")
            }
            for name, run in runs.items()
        }
        assert names["spread"] == names["plain"]
        assert ("test_nodes", "test_alone[node1]") in names["spread"]
    assert "calls" in runs["spread"].out, "the table of verdicts is printed"
    assert "left out" not in runs["spread"].out


def test_the_run_folder_is_as_one_process_would_have_left_it(runs: dict[str, Run]) -> None:
    files = {name: {path.name for path in run.folder.iterdir()} for name, run in runs.items()}
    assert files["spread"] - files["plain"] == {"leases"}
    folder = RunFolder.open(runs["spread"].folder)
    assert {record.measurement for record in folder.records()} == {None, *folder.measurements()}
    assert [name.partition("-")[2] for name in folder.measurements()] == ["m0001"]
    assert folder.environment["hosts"], "what only the ranks could tell is in the environment"
    node = {test.partition("::")[2]: selected.node for test, selected in folder.tests.items()}
    assert (node["test_alone[node1]"], node["test_together"]) == ("node1", "")
    assert "test_of_something_else" not in node


ORDER = """
import pytest

@pytest.mark.criterion("full_run")
def test_run(cluster): pass

def test_together(cluster): pass

@pytest.mark.criterion("fabric", needs=["nodes"])
def test_fabric(cluster): pass

def test_of_something_else(): pass

@pytest.mark.criterion("nodes")
def test_needed(node): pass

@pytest.mark.criterion("memory", needs=["nodes"])
def test_in_need(node): pass

@pytest.mark.criterion("scaling")
def test_free(node): pass

def test_own(node): pass

def test_with_all(node, topology): pass
"""


def test_single_nodes_come_first_unless_a_gate_wants_an_order(tmp_path: Path) -> None:
    run = prepared(tmp_path, ORDER).run("--collect-only", "-q")
    assert [line.partition("::")[2] for line in run.out.splitlines() if "::" in line] == [
        "test_free[node0]", "test_free[node1]", "test_own[node0]",
        "test_of_something_else",  # where it stands
        "test_own[node1]", "test_needed[node0]", "test_needed[node1]", "test_in_need[node0]", "test_in_need[node1]",
        "test_fabric", "test_together", "test_with_all[node0]", "test_with_all[node1]", "test_run",
    ]  # fmt: skip


CRASH = """
import os, signal, threading
import pytest


@pytest.mark.criterion("nodes")
def test_health(node, qualify):
    assert node.run("jobs:where") == [[0, 1, node.name]]
    qualify.samples("calls", [1.0] * 6, unit="1", require=">= 1")


@pytest.mark.criterion("memory", needs=["nodes"])
def test_memory(measurement, qualify):
    qualify(measurement)


@pytest.mark.criterion("fabric", needs=["memory"])
def test_crash(cluster):
    with open("crashes", "a") as file:
        file.write("once ")
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGKILL)).start()
    cluster.run("jobs:sleep", name="both")


@pytest.mark.criterion("scaling", needs=["memory"])
def test_scaling(measurement, qualify):
    qualify(measurement)


@pytest.mark.criterion("full_run", needs=["fabric"])
def test_full_run(measurement, qualify):
    qualify(measurement)
"""


def test_a_worker_that_dies_frees_its_nodes_and_loses_one_test(tmp_path: Path) -> None:
    site = prepared(tmp_path, CRASH)
    run = site.run("-n", "2")
    assert run.code == 1, run.out
    assert run.verdicts("nodes") == ["PASS", "PASS"]
    assert set(run.verdicts("memory")) == {"PASS", "MEASURED"}, "what the dead worker had recorded is there"
    (crashed,) = [r["judgement"] for r in run.records if r["criterion"] == "fabric"]
    assert crashed["verdict"] == "ERROR"
    assert re.fullmatch(r"worker 'gw[01]' crashed while running 'test_nodes.py::test_crash'", crashed["reason"])
    assert (site.path / "crashes").read_text() == "once ", "a test that ended its worker is not run again"
    assert run.verdicts("scaling")[0] == "PASS", "another worker got the nodes, and knew that memory had passed"
    assert run.verdicts("full_run") == ["BLOCKED"]
    cases = {str(case.get("name")): case for case in ET.parse(run.folder / "junit.xml").iter("testcase")}
    results = {name: [e.tag for e in case if e.tag != "properties"] for name, case in cases.items()}
    assert results == {
        "test_health[node0]": [], "test_health[node1]": [], "test_memory[ddp-2nodes]": [], "test_crash": ["error"],
        "test_scaling[ddp-2nodes]": [], "test_full_run[ddp-2nodes]": ["skipped"],
    }  # fmt: skip


SLOW = """
def test_before(node, qualify):
    node.run("jobs:where")
    qualify.samples("calls", [1.0] * 6, unit="1", require=">= 1")

def test_slow(node):
    node.run("jobs:sleep", name=node.name, timeout=300)
"""


def working_in(folder: Path) -> list[int]:
    """Processes whose working directory is `folder`."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cwd").readlink() == folder:
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 2), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_run_that_is_cut(tmp_path: Path, number: int, code: int) -> None:
    """Only the controller gets the signal; workers and ranks end all the same."""
    site = prepared(tmp_path, SLOW)
    process = site.start("-n", "2")
    try:
        assert until(lambda: all((site.path / f"{node}.here").exists() for node in ("node0", "node1")))
        os.kill(process.pid, number)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == code, out
    assert nothing_left(site.path)
    assert until(lambda: not working_in(site.path))
    folder = RunFolder.open(site.path / "run")
    assert {(r.test, r.judgement.verdict.value) for r in folder.records()} == {
        (f"test_nodes.py::test_before[node{i}]", "PASS") for i in (0, 1)
    }  # fmt: skip
    if number != signal.SIGKILL:
        assert "calls" in out, "the summary is printed all the same"
        assert len(list(ET.parse(site.path / "run" / "junit.xml").iter("testcase"))) == 2


@pytest.mark.parametrize(
    ("options", "changes", "told"),
    [
        (["-n", "2", "--dist", "loadfile"], {}, "distributed by the nodes they need; leave out --dist loadfile"),
        (["--tx", "2*popen", "--dist", "load"], {}, "workers on this machine only; say -n 4 instead of --tx"),
        (["--looponfail"], {}, "not run in a loop; leave out --looponfail"),
        (["-n", "2"], {"version": 2}, "clusterqual.yaml:"),
        (["-n", "2", "--nodes", "200"], {"workload": None}, "at most 150 are possible"),
        (["-n", "2", "--qual-resume", "run"], {}, "leave out --qual-run-dir"),
    ],
)
def test_what_cannot_be_spread_is_refused_before_any_worker_starts(
    tmp_path: Path, options: list[str], changes: dict[str, Any], told: str
) -> None:
    site = prepared(tmp_path)
    if "workload" in changes:
        from sites import SMALL

        changes = {"workload": {**SMALL["workload"], "global_batch": 200}}
    site.configure(changes)
    run = site.run(*options)
    assert run.code == 4, run.out
    assert told in run.out
    assert "workers" not in run.out.replace("to workers on", "")
    assert "Traceback" not in run.out
    assert not run.folder.exists()


def pytest_in(folder: Path, *args: str) -> Run:
    """pytest without any of our options."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *args],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    return Run(code=done.returncode, out=done.stdout + done.stderr, folder=folder)


def test_a_run_that_only_the_workers_know_of_is_refused_by_its_tests(tmp_path: Path) -> None:
    run = pytest_in(prepared(tmp_path).path, "-n", "2")
    assert run.code == 1, run.out
    assert "with -n, say how many nodes to qualify on the command line, e.g. --nodes 2" in run.out
    assert "node down" not in run.out, "a refusal is no crash"
    assert "1 passed" in run.out, "other tests run"


def test_other_tests_are_spread_as_ever(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(
        "import pytest\n\n@pytest.fixture\ndef cluster(): return 7\n\n@pytest.fixture(params=[1, 2])\n"
        "def node(request): return request.param\n\ndef test(cluster, node): assert cluster + node > 7\n"
    )
    run = pytest_in(tmp_path, "-n", "2", "-v")
    assert run.code == 0, run.out
    assert "2 passed" in run.out
    assert "LoadScheduling" in run.out

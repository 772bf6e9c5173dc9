"""A run that was cut goes on: what was measured stays, the rest is measured, and the reports are those of one run."""

from __future__ import annotations

import os
import signal
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from sites import Run, Site, make_site, nothing_left, until

from pytest_clusterqual.folder.runs import RunFolder

pytestmark = pytest.mark.slow

# Between memory and scaling the first run waits to be killed.
TESTS = """
from pathlib import Path

import pytest


@pytest.mark.criterion("memory")
def test_memory(measurement, qualify):
    qualify(measurement)


@pytest.mark.criterion("fabric")
def test_wait(cluster, qualify):
    if not Path("go on").exists():
        cluster.run("jobs:sleep", timeout=300)
    qualify.samples("calls", [1.0] * 6, unit="1", require=">= 1")


@pytest.mark.criterion("scaling", needs=["memory"])
def test_scaling(measurement, qualify):
    qualify(measurement)
"""
JOBS = """
import time
from pathlib import Path

def sleep(ctx):
    Path("sleeping").touch()
    time.sleep(300)
"""
ALL = ["test_memory[ddp-2nodes]", "test_wait", "test_scaling[ddp-2nodes]"]


@pytest.fixture
def cut(site: Site) -> Site:
    for test in site.path.glob("test_*.py"):
        test.unlink()
    (site.path / "test_cut.py").write_text(TESTS)
    (site.path / "jobs.py").write_text(JOBS)
    return site


def kill(site: Site, *options: str) -> None:
    """A run that is killed while its second test is under way."""
    process = site.start(*options)
    try:
        assert until((site.path / "sleeping").exists), (
            process.communicate()[0] if process.poll() is not None else "hangs"
        )
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
    assert nothing_left(site.path)
    (site.path / "go on").touch()


def resume(site: Site, *options: str, nodes: int = 2) -> Run:
    site.into = "--qual-resume"
    return site.run(*options, nodes=nodes)


def reported(run: Run) -> dict[str, list[str]]:
    """Test -> what the JUnit report of the run folder says beside its properties."""
    cases = ET.parse(run.folder / "junit.xml").iter("testcase")
    return {str(case.get("name")): [e.tag for e in case if e.tag != "properties"] for case in cases}


@pytest.mark.parametrize(
    ("first", "second"), [((), ()), (("-n", "1"), ()), (("-n", "1"), ("-n", "1"))], ids=["plain", "from -n", "with -n"]
)
def test_what_was_measured_is_not_measured_again(cut: Site, first: tuple[str, ...], second: tuple[str, ...]) -> None:
    kill(cut, *first)
    before = dict(RunFolder.open(cut.path / "run").measurements())
    assert [criterion for _, criterion, _ in before.values()] == ["memory"]

    run = resume(cut, *second)
    assert run.code == 0, run.out
    assert "3 passed" in run.out
    folder = RunFolder.open(run.folder)
    assert [criterion for _, criterion, _ in folder.measurements().values()] == ["memory", "scaling"]
    assert {name: made for name, made in folder.measurements().items() if name in before} == before
    assert {record.test.partition("::")[2]: record.attempt for record in folder.records()} == {
        ALL[0]: 1, ALL[1]: 2, ALL[2]: 2,
    }  # fmt: skip
    assert {record.measurement for record in folder.records()} == {None, *folder.measurements()}
    assert reported(run) == {name: [] for name in ALL}
    assert not list(run.folder.glob("*-gw*.jsonl")), "what the workers wrote apart is together"
    assert "speedup" in run.out
    assert "peak" in run.out, "the table has what was measured before"


def test_an_error_is_measured_again_and_a_failure_is_not(site: Site) -> None:
    """The first scaling measurement cannot be judged; the memory that was measured is too much."""
    for name in ("fabric", "full_run"):
        (site.path / f"test_{name}.py").unlink()
    site.configure({"memory": {"require": [{"peak": "<= 1 KiB"}]}})
    (site.path / "sitecustomize.py").write_text(
        "import os\n"
        "if 'CLUSTERQUAL_SECRET' in os.environ and 'LOCAL_RANK' in os.environ and not os.path.exists('mended'):\n"
        "    import pytest_clusterqual.rank.training as training\n"
        "    real = training.fixed_work\n"
        "    def fixed_work(ctx, **kwargs):\n"
        "        return {**real(ctx, **kwargs), 'losses': [float('nan')] * 6}\n"
        "    training.fixed_work = fixed_work\n"
    )
    site.environment = {"PYTHONPATH": str(site.path)}
    run = site.run("--qual-keep-going")
    assert (run.verdicts("memory")[0], run.verdicts("scaling")) == ("FAIL", ["ERROR"]), run.out
    before = RunFolder.open(run.folder).measurements()
    assert [criterion for _, criterion, _ in before.values()] == ["memory", "scaling"]

    (site.path / "mended").touch()
    run = resume(site, "--qual-keep-going")
    assert run.code == 1, "the memory is still too much"
    folder = RunFolder.open(run.folder)
    assert [criterion for _, criterion, _ in folder.measurements().values()] == ["memory", "scaling", "scaling"]
    kept, made = ([r for r in folder.records() if r.criterion == name] for name in ("memory", "scaling"))
    assert {(r.attempt, r.measurement) for r in kept} == {(1, "m0001")}
    assert {(r.attempt, r.measurement) for r in made} == {(2, "m0003")}
    assert reported(run) == {ALL[0]: ["failure"], ALL[2]: []}
    assert "1 failed, 1 passed" in run.out


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A run that ended before its first test."""
    site = make_site(tmp_path_factory.mktemp("done"))
    site.run("-k", "intra_node")
    assert (site.path / "run" / "environment.json").exists()
    return site


@pytest.mark.parametrize("spread", [(), ("-n", "1")], ids=["plain", "spread"])
@pytest.mark.parametrize(
    ("changes", "options", "nodes", "told"),
    [
        (
            {"memory": {}},
            (),
            2,
            "run: cannot go on: project_file was another text; start a new run without --qual-resume",
        ),
        ({}, (), 4, "run: cannot go on: nodes was 2, now 4"),
        ({}, ("--nproc-per-node=2",), 2, "run: cannot go on: nproc_per_node was 1, now 2"),
        ({}, ("--qual-hosts=a,b",), 2, "run: cannot go on: launcher was local, now ssh"),
        ({}, ("--qual-run-dir=other",), 2, "--qual-resume goes on in its own folder; leave out --qual-run-dir"),
        ({}, ("--qual-resume=nowhere",), 2, "nowhere: is not a run folder"),
    ],
)
def test_another_run_is_not_gone_on_with(
    done: Site, spread: tuple[str, ...], changes: dict[str, Any], options: tuple[str, ...], nodes: int, told: str
) -> None:
    done.configure(changes)
    before = (done.path / "run" / "environment.json").read_bytes()
    run = resume(done, *options, *spread, nodes=nodes)
    assert run.code == 4, run.out
    assert told in run.out
    assert "Traceback" not in run.out
    assert (done.path / "run" / "environment.json").read_bytes() == before

"""However a run ends: what was recorded is whole, nothing is left running, and the exit code says so."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from textwrap import indent

import pytest
from sites import Run, Site, left_over, make_site, nothing_left, until

from pytest_clusterqual.folder.runs import RunFolder

pytestmark = pytest.mark.slow

# A test of one's own after the first criterion: a job that never ends, so that the run can be cut there.
SLOW = """
import pytest

@pytest.mark.criterion("memory")
def test_memory(measurement, qualify):
    qualify(measurement)

def test_slow(cluster):
    cluster.run("slow_jobs:sleep", timeout=300)
"""
SLOW_JOBS = """

from pathlib import Path

def sleep(ctx):
    Path("sleeping").write_text("")
    time.sleep(300)
"""


@pytest.fixture
def slow(site: Site) -> Site:
    for test in site.path.glob("test_*.py"):
        test.unlink()
    (site.path / "test_slow.py").write_text(SLOW)
    (site.path / "slow_jobs.py").write_text(SLOW_JOBS)
    return site


def cut(site: Site, number: int) -> Run:
    """Send a signal to pytest while its job runs."""
    process = site.start()
    assert until((site.path / "sleeping").exists), (
        process.communicate()[0] if process.poll() is not None else "it hangs"
    )
    assert len(left_over(site.path)) >= 4
    os.kill(process.pid, number)
    try:
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    return Run(code=process.returncode, out=out, folder=site.path / "run")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 2), (signal.SIGTERM, 143)])
def test_cut_during_a_job(slow: Site, number: int, code: int) -> None:
    run = cut(slow, number)
    assert run.code == code, run.out
    assert nothing_left(slow.path)
    assert run.verdicts("memory") == ["PASS", "MEASURED"]
    assert "peak" in run.out, "the summary is printed all the same"
    assert ET.parse(run.folder / "junit.xml").getroot().find("testsuite") is not None


def test_killed_during_a_job(slow: Site) -> None:
    run = cut(slow, signal.SIGKILL)
    assert run.code == -signal.SIGKILL
    assert nothing_left(slow.path)
    assert [record.judgement.verdict.value for record in RunFolder.open(run.folder).records()] == ["PASS", "MEASURED"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_cut_during_the_launch(slow: Site, number: int) -> None:
    """No rank gets further than its start, so that nothing is measured, however late the signal is sent."""
    (slow.path / "sitecustomize.py").write_text(
        "import os, time\nif 'CLUSTERQUAL_SECRET' in os.environ and 'LOCAL_RANK' in os.environ:\n    time.sleep(300)\n"
    )
    slow.environment = {"PYTHONPATH": str(slow.path)}
    process = slow.start()
    try:
        assert until(lambda: left_over(slow.path))
        process.send_signal(number)
        process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode != 0
    assert nothing_left(slow.path)
    assert RunFolder.open(slow.path / "run").records() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_cut_during_the_reports(slow: Site, number: int) -> None:
    """The reports are being written when the signal arrives: the records stay, the exit code is not 0."""
    (slow.path / "test_slow.py").write_text(SLOW.partition("def test_slow")[0])
    (slow.path / "conftest.py").write_text(
        "import os, signal\n"
        "import pytest_clusterqual.report.junit as junit\n"
        "real = junit.write_junit\n"
        "def write_junit(*args, **kwargs):\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
        "    return real(*args, **kwargs)\n"
        "junit.write_junit = write_junit\n"
    )
    run = slow.run()
    assert run.code in (2, 143, -signal.SIGTERM), run.out
    assert run.verdicts("memory") == ["PASS", "MEASURED"]
    assert nothing_left(slow.path)


FAULTS = """
import pytest
from pytest_clusterqual.errors import ClusterQualError

@pytest.mark.criterion("memory")
def test_memory(measurement, qualify):
    qualify(measurement)

@pytest.mark.criterion("scaling", needs=["memory"])
def test_scaling(measurement, qualify):
    qualify(measurement)
"""


# Name of a layout -> what the job that measures its memory does, and what is told of it.
WRONG = {
    "raises": ("if ctx.rank == 1: raise MemoryError('no more')", "rank 1 on node1 raised MemoryError: no more"),
    "killed": (
        "if ctx.rank == 1: os.kill(os.getpid(), 9)\nreturn real(ctx, **kwargs)", "rank 1 on node1 was killed by SIGKILL"
    ),
    "missing": (
        "value = real(ctx, **kwargs)\nif ctx.rank == 1: del value['losses']\nreturn value",
        "rank 1 on node1 returned: the field 'losses' is missing",
    ),
    "too-few": ("value = real(ctx, **kwargs)\nif ctx.rank == 1: value['step_peaks'] = []\nreturn value", "rank 1"),
    "nan": ("value = real(ctx, **kwargs)\nvalue['losses'][0] = float('nan')\nreturn value", "rank 0"),
    "nan-bytes": (
        "value = real(ctx, **kwargs)\nif ctx.rank == 1: value['step_peaks'][0] = float('nan')\nreturn value", "rank 1"
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run in which the memory of each layout goes wrong in another way, on the ranks themselves."""
    site = make_site(tmp_path_factory.mktemp("broken"))
    for test in site.path.glob("test_*.py"):
        test.unlink()
    (site.path / "test_faults.py").write_text(FAULTS)
    cases = "".join(
        f"if kwargs['layout']['name'] == {name!r}:\n{indent(code, '    ')}\n" for name, (code, _) in WRONG.items()
    )
    (site.path / "sitecustomize.py").write_text(
        "import os\n"
        "if 'CLUSTERQUAL_SECRET' in os.environ and 'LOCAL_RANK' in os.environ:\n"
        "    import pytest_clusterqual.rank.memory as memory\n"
        "    real = memory.measure\n"
        f"    def measure(ctx, **kwargs):\n{indent(cases, '        ')}"
        "    memory.measure = measure\n"
    )
    site.environment = {"PYTHONPATH": str(site.path)}
    site.configure({"layouts": [{"name": name} for name in WRONG]})
    made = site.run()
    assert nothing_left(site.path)
    return made


@pytest.mark.parametrize("name", WRONG)
def test_a_measurement_that_fails_is_an_error_with_a_name(broken: Run, name: str) -> None:
    memory, scaling = (r["judgement"] for r in broken.records if r["test"].endswith(f"[{name}-2nodes]"))
    assert (memory["verdict"], scaling["verdict"]) == ("ERROR", "BLOCKED"), broken.out
    assert WRONG[name][1] in memory["reason"]
    cases = {case.get("name"): case for case in ET.parse(broken.folder / "junit.xml").iter("testcase")}
    for criterion, tag in (("memory", "error"), ("scaling", "skipped")):
        assert [e.tag for e in cases[f"test_{criterion}[{name}-2nodes]"] if e.tag != "properties"] == [tag]


def test_measurements_that_fail_are_counted(broken: Run) -> None:
    assert broken.code == 1
    assert f"{len(WRONG)} skipped, {len(WRONG)} errors in" in broken.out
    said = " ".join(broken.out.split())
    assert said.count("Traceback") == said.count("traceback of rank 1 on node1")


def test_torch_missing(site: Site) -> None:
    (site.path / "torch.py").write_text("raise ImportError('No module named torch')\n")
    (site.path / "test_other.py").write_text("def test_other(): pass\n")
    site.environment = {"PYTHONPATH": str(site.path)}
    run = site.run("-k", "memory or other")
    assert run.code == 1
    assert "torch is not installed in this environment, so no rank can run: pip install torch" in run.out
    assert "1 passed" in run.out
    assert run.verdicts("memory") == ["ERROR"]


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["plain", "spread"])
def test_a_full_run_folder(site: Site, options: tuple[str, ...]) -> None:
    """The disk fills up: the run says so, names the folder, and what was recorded before stays readable."""
    code = (
        "import resource, sys, pytest\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (6000, resource.RLIM_INFINITY))\n"
        "sys.exit(pytest.main(sys.argv[1:]))\n"
    )
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    result = subprocess.run(
        [sys.executable, "-c", code, "--nodes=2", "--qual-run-dir=run", "-p", "no:cacheprovider",
         "-k", "memory or fabric", *options],
        cwd=site.path, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert result.returncode not in (0, -signal.SIGXFSZ), result.stdout
    assert str(site.path / "run") in result.stdout
    assert "INTERNALERROR" not in result.stdout
    for line in (site.path / "run" / "records.jsonl").read_text().splitlines():
        json.loads(line)


def test_an_unreadable_data_file(site: Site) -> None:
    import yaml

    project = yaml.safe_load((site.path / "clusterqual.yaml").read_text())
    project["workload"]["data"] = {"path": "missing.bin"}
    site.configure(project)
    run = site.run()
    assert run.code == 4
    assert "workload.data.path: got " in run.out
    assert "missing.bin" in run.out


def test_a_data_file_that_vanishes_names_the_rank(site: Site) -> None:
    import yaml

    (site.path / "data.bin").write_bytes(bytes(range(256)) * 40)
    project = yaml.safe_load((site.path / "clusterqual.yaml").read_text())
    project["workload"]["data"] = {"path": "data.bin"}
    site.configure(project)
    (site.path / "conftest.py").write_text(
        "import os, pytest\n"
        "@pytest.hookimpl(trylast=True)\n"
        "def pytest_collection_finish(session):\n"
        "    os.unlink('data.bin')\n"
    )
    run = site.run("-k", "memory")
    assert run.code == 1
    assert run.verdicts("memory") == ["ERROR"]
    assert "data.bin" in run.records[0]["judgement"]["reason"]
    assert "rank 0 on node0" in run.records[0]["judgement"]["reason"]


def test_nodes_that_cannot_be_had_are_tried_twice_and_named(site: Site) -> None:
    """Every test is an ERROR with the host's name; from the third on nothing is waited for."""
    layouts = [{"name": name} for name in ("a", "b", "c")]
    site.configure(
        {"launcher": {"kind": "ssh", "device": "cpu"}, "layouts": layouts, "full_run": None, "scaling": None}
    )
    run = site.run("--qual-hosts=no-such-host.invalid", "--qual-keep-going", nodes=None)
    assert run.code == 1
    errors = [r["judgement"] for r in run.records if r["judgement"]["verdict"] == "ERROR"]
    assert len(errors) >= 3
    assert all("no-such-host.invalid" in error["reason"] or "cannot start ssh" in error["reason"] for error in errors)
    assert ["this failed 2 times and was not tried again" in error["reason"] for error in errors[:3]] == [
        False,
        False,
        True,
    ]

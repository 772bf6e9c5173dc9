"""What cannot be run is refused before anything starts: exit code 4 and a sentence that helps."""

from __future__ import annotations

import re
from typing import Any

import pytest
from sites import SMALL, Site


def refused(site: Site, *args: str) -> str:
    run = site.run(*args)
    assert run.code == 4, run.out
    assert "Traceback" not in run.out
    assert not run.folder.exists() or not (run.folder / "records.jsonl").exists()
    return run.out


def test_the_number_of_nodes_is_needed(site: Site) -> None:
    site.environment = {"CLUSTERQUAL_NODES": "two"}
    assert "--nodes: got 'two' from the environment, want a positive whole number" in without_nodes(site)
    site.environment = {}
    assert "say how many nodes to qualify, e.g. --nodes 2" in without_nodes(site)


def without_nodes(site: Site) -> str:
    run = site.run(nodes=None)
    assert run.code == 4, run.out
    return run.out


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5"])
def test_nodes_must_be_a_positive_number(site: Site, value: str) -> None:
    assert f"argument --nodes: want a positive whole number, got '{value}'" in refused(site, f"--nodes={value}")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"version": 2}, r"clusterqual\.yaml:\d+: version: got 2, want 1"),
        ({"surprise": 1}, r"clusterqual\.yaml:\d+: surprise: "),
        (
            {"workload": {**SMALL["workload"], "global_batch": 3}},
            r"clusterqual\.yaml:\d+: workload\.global_batch: got 3, ",
        ),
        ({"memory": {"require": [{"peak": "<= 3 seconds"}]}}, r'memory\.require\[0\]\.peak: got "?.*3 seconds'),
    ],
)
def test_a_bad_project_file(site: Site, changes: dict[str, Any], told: str) -> None:
    site.configure(changes)
    assert re.search(told, refused(site)), site.run().out


def test_all_problems_of_a_file_in_one_message(site: Site) -> None:
    site.configure({"project": 3, "surprise": 1, "memory": {"require": [{"peak": "2 GiB"}]}})
    out = refused(site)
    assert len(re.findall(r"clusterqual\.yaml:\d+: ", out)) >= 3


def test_no_project_file(site: Site) -> None:
    (site.path / "clusterqual.yaml").unlink()
    assert "no clusterqual.yaml in" in refused(site)
    assert "nowhere.yaml" in refused(site, "--qual-config", "nowhere.yaml")


def test_more_ranks_than_cores(site: Site) -> None:
    site.configure({
        "launcher": {"kind": "local", "device": "cpu"}, "workload": {**SMALL["workload"], "global_batch": 64},
    })  # fmt: skip
    out = refused(site, "--nodes=64")
    assert re.search(r"64 nodes x 1 ranks = 64 ranks need 64 cores, this machine has \d+; ask for fewer", out)


def test_more_gpus_than_there_are(site: Site) -> None:
    site.environment = {"CUDA_VISIBLE_DEVICES": ""}
    site.configure({"launcher": {"kind": "local", "device": "cuda"}})
    assert "2 nodes x 1 ranks = 2 ranks need 2 GPUs, this machine has 0" in refused(site)


@pytest.mark.parametrize("name", ["cluster", "node", "qualify", "topology"])
def test_fixtures_of_the_same_name_are_not_ours(site: Site, name: str) -> None:
    """A suite that has nothing to do with qualification may have a cluster of its own."""
    (site.path / "clusterqual.yaml").unlink()
    fixture = f"import pytest\n\n@pytest.fixture\ndef {name}(%s):\n    return 7\n"
    (site.path / "conftest.py").write_text(fixture % "")
    (site.path / "test_other.py").write_text(f"def test_other({name}):\n    assert {name} == 7\n")
    run = site.run("test_other.py")
    assert run.code == 0, run.out
    (site.path / "conftest.py").write_text(fixture % name)
    assert "no clusterqual.yaml in" in refused(site, "test_other.py"), "one that is made from ours is ours"


def test_an_unknown_criterion(site: Site) -> None:
    (site.path / "test_own.py").write_text(
        "import pytest\n@pytest.mark.criterion('latency')\ndef test_own(measurement): pass\n"
    )
    assert "criterion('latency',): want one of nodes, memory, fabric, scaling, full_run" in refused(site)


def test_a_run_folder_that_holds_a_run(site: Site) -> None:
    (site.path / "run").mkdir()
    (site.path / "run" / "environment.json").write_text('{"schema": 99}')
    run = site.run()
    assert run.code == 4
    assert str(site.path / "run") in run.out


def test_a_run_folder_that_is_a_file(site: Site) -> None:
    (site.path / "run").write_text("mine")
    run = site.run()
    assert run.code == 4
    assert str(site.path / "run") in run.out
    assert (site.path / "run").read_text() == "mine"


def test_a_run_folder_that_cannot_be_made(site: Site) -> None:
    run = site.run("--qual-run-dir", "/proc/run")
    assert run.code == 4
    assert "/proc/run" in run.out
    assert "Traceback" not in run.out


def test_other_tests_of_the_same_run_are_not_held_back_by_deselected_ones(site: Site) -> None:
    site.configure({"version": 2})
    (site.path / "test_other.py").write_text("def test_other(): pass\n")
    run = site.run("-k", "other")
    assert run.code == 0, run.out
    assert "1 passed" in run.out

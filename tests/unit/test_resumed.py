"""Which run may go on: one that nobody else is writing, on the machine and with the versions that it began with."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from asked_made import LAUNCHER, Options, opened
from made import memory_measurement
from recorded_made import PROJECT, TEST

from pytest_clusterqual.errors import ClusterQualError, RunFolderError
from pytest_clusterqual.folder.leases import write_alone
from pytest_clusterqual.run.asked import open_folder, other_machine, read_asked
from pytest_clusterqual.run.qualification import Qualification

FILE = PROJECT.replace("  data: {path: not-on-this-machine.bytes}\n", "") + LAUNCHER


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A run that was cut after its first measurement."""
    (tmp_path / "clusterqual.yaml").write_text(FILE)
    opened(tmp_path, qual_run_dir="run")[0].update_environment({"device": "cpu", "versions": {"torch": "2.13.0"}})
    return tmp_path


def refused(site: Path, **options: Any) -> str:
    """Why the run may not go on; it is left as it was."""
    before = (site / "run" / "environment.json").read_bytes()
    with pytest.raises(ClusterQualError) as error:
        opened(site, qual_resume="run", **options)
    assert (site / "run" / "environment.json").read_bytes() == before
    return str(error.value)


def changed(site: Path, **told: object) -> None:
    file = site / "run" / "environment.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **told}))


def test_a_run_that_is_still_going_is_not_gone_on_with(site: Path) -> None:
    going: Any = Options(site, nodes=2, qual_resume="run")
    assert open_folder(going, read_asked(going), simulated=True).attempt == 2
    told = f"{site}/run: is being written by another session (pid {os.getpid()} on "
    assert refused(site).startswith(told) and refused(site).endswith("); wait for its end, or end it")
    going.end()
    assert opened(site, qual_resume="run")[0].attempt == 3


def test_a_new_run_is_not_gone_on_with_either(site: Path) -> None:
    going: Any = Options(site, nodes=2, qual_run_dir="new")
    open_folder(going, read_asked(going), simulated=True)
    with pytest.raises(RunFolderError, match="new: is being written by another session"):
        opened(site, qual_resume="new")
    going.end()


def test_a_session_that_was_killed_writes_no_more(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from pytest_clusterqual.folder.leases import write_alone\n"
        "end = write_alone(Path(sys.argv[1])); print('writes', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"writes\n"
        with pytest.raises(RunFolderError, match=rf"another session \(pid {process.pid} on "):
            write_alone(tmp_path)
        process.send_signal(signal.SIGKILL)
        process.wait()
    write_alone(tmp_path)()


def test_where_there_are_no_locks_a_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", fails)
    write_alone(tmp_path)()


def test_its_number_of_nodes_and_ranks_is_that_of_the_run(site: Path) -> None:
    opened(site, qual_run_dir="two", nproc_per_node=2)
    config: Any = Options(site, qual_resume="two")
    asked = read_asked(config)
    assert (asked.nodes, asked.nproc_per_node) == (2, 2)


def test_a_run_that_is_not_there_is_told_first(site: Path) -> None:
    config: Any = Options(site, qual_resume="nowhere", qual_config="nowhere.yaml")
    with pytest.raises(RunFolderError, match="nowhere: is not a run folder"):
        read_asked(config)


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"package": "0.0.9"}, "package was 0.0.9, now "),
        ({"simulated": False}, "simulated was False, now True"),
        ({"launcher": "ssh"}, "launcher was ssh, now local"),
        ({"replay_of": "first"}, "it is a replay of first, in which nothing was measured"),
    ],
)
def test_another_kind_of_run_is_refused_by_name(site: Path, told: dict[str, object], why: str) -> None:
    changed(site, **told)
    assert f"{site}/run: cannot go on: {why}" in refused(site)


def test_what_is_measured_on_another_machine_is_not_kept(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = memory_measurement()
    assert made.conditions is not None
    elsewhere = replace(made.conditions, device="cuda", versions={"torch": "2.14.0"})
    measured: list[object] = []

    def measure(session: object, case: object) -> Any:
        measured.append(case)
        return replace(made, conditions=elsewhere)

    monkeypatch.setattr("pytest_clusterqual.measure.criteria.measure", measure)
    folder, _ = opened(site, qual_resume="run")
    project = SimpleNamespace(of_test=lambda _: None)
    one: Any = SimpleNamespace(
        folder=folder, project=project, _kept={}, _refused="", _replay=None, session=SimpleNamespace(project=project),
        _progress=None,
    )  # fmt: skip
    item, case = SimpleNamespace(nodeid=TEST, stash={}), SimpleNamespace(criterion="memory")
    for _ in range(2):
        with pytest.raises(
            RunFolderError, match=r"device was cpu, now cuda and torch was 2\.13\.0, now 2\.14\.0; start"
        ):
            Qualification.measure(one, cast(Any, item), cast(Any, case))
        Qualification.note_report(one, cast(Any, item), cast(Any, SimpleNamespace(skipped=False, failed=True)))
    assert len(measured) == 1, "the second test is not measured in vain"
    assert not folder.measurements() and not folder.records(), "and what was recorded before stands"
    same = replace(elsewhere, device="cpu", versions={"torch": "2.13.0"}, hosts=("another",))
    assert other_machine(folder, same) == "", "other hosts of the same kind are fine"


@pytest.mark.parametrize("value", ["²", "x", "0", "-1"])
def test_a_number_from_the_environment_that_is_none_is_told(
    site: Path, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLUSTERQUAL_NODES", value)
    config: Any = Options(site)
    with pytest.raises(ClusterQualError, match=rf"--nodes: got '{value}' from the environment, want a positive whole"):
        read_asked(config)


def test_its_lines_are_read_once_the_folder_is_this_sessions_and_not_at_collection(site: Path) -> None:
    (site / "run" / "records.jsonl").write_text("no record\n")
    config: Any = Options(site, nodes=2, qual_resume="run")
    asked = read_asked(config)
    assert asked.resumed is not None and asked.resumed.environment["device"] == "cpu"
    with pytest.raises(RunFolderError, match=r"records.jsonl:1"):
        open_folder(config, asked, simulated=True)
    config.end()

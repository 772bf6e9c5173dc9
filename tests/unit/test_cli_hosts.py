"""Which hosts the commands mean, and how they refuse what does not go together."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import pytest

from pytest_clusterqual.cli import main
from pytest_clusterqual.errors import ClusterQualError
from pytest_clusterqual.model.project import LauncherOptions
from pytest_clusterqual.session.hosts import in_short, launcher_options, to_ask

needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh here")
SSH = LauncherOptions(kind="ssh", hosts=("gpu1", "gpu2", "gpu3"), python="/opt/python3")


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No project file, no allocation and no variable of the caller's."""
    monkeypatch.chdir(tmp_path)
    for name in ("HOSTS", "LAUNCHER", "NODES", "CONFIG"):
        monkeypatch.delenv(f"CLUSTERQUAL_{name}", raising=False)
    monkeypatch.delenv("SLURM_JOB_NUM_NODES", raising=False)


@pytest.mark.parametrize(
    ("options", "kind", "hosts", "expected"),
    [
        (LauncherOptions(), None, None, ("local", ())),
        (LauncherOptions(), None, "gpu[1-2]", ("ssh", ("gpu1", "gpu2"))),
        (LauncherOptions(kind="slurm"), None, "gpu1", ("ssh", ("gpu1",))),
        (LauncherOptions(), "mpi", "gpu1", ("mpi", ("gpu1",))),
        (SSH, None, None, ("ssh", SSH.hosts)),
        (SSH, "mpi", None, ("mpi", SSH.hosts)),
        (SSH, None, "other", ("ssh", ("other",))),
    ],
)
def test_command_line_beats_file(
    options: LauncherOptions, kind: str | None, hosts: str | None, expected: tuple[str, tuple[str, ...]]
) -> None:
    chosen = launcher_options(options, kind=kind, hosts=hosts)
    assert (chosen.kind, chosen.hosts) == expected
    assert chosen.python == options.python


@pytest.mark.parametrize(
    ("kind", "hosts", "message"),
    [
        ("pbs", None, "--qual-launcher: got 'pbs', want one of local, ssh, slurm, mpi"),
        ("slurm", "gpu1", "--qual-hosts: the slurm launcher takes no hosts; want --qual-launcher ssh"),
        (None, "gpu1,gpu1", "--qual-hosts: gpu1 listed again"),
    ],
)
def test_what_does_not_go_together(kind: str | None, hosts: str | None, message: str) -> None:
    with pytest.raises(ClusterQualError, match=message):
        launcher_options(SSH, kind=kind, hosts=hosts)


def test_some_of_the_hosts_and_another_python() -> None:
    assert to_ask(SSH, count=2, python=None).hosts == ("gpu1", "gpu2")
    assert to_ask(SSH, count=None, python="/usr/bin/python3").python == "/usr/bin/python3"
    assert to_ask(SSH, count=None, python=None) == SSH


@pytest.mark.parametrize(
    ("options", "count", "python", "message"),
    [
        (LauncherOptions(), None, "/opt/python3", "--python: want --qual-hosts"),
        (LauncherOptions(kind="slurm"), None, None, "say how many nodes to ask Slurm for with --nodes"),
        (LauncherOptions(kind="mpi"), None, None, "the mpi launcher has 0 hosts, want at least 1"),
        (SSH, 4, None, "the ssh launcher has 3 hosts, want 4"),
    ],
)
def test_what_says_too_little(options: LauncherOptions, count: int | None, python: str | None, message: str) -> None:
    with pytest.raises(ClusterQualError, match=message):
        to_ask(options, count=count, python=python)


def test_an_allocation_says_how_many_nodes_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "4")
    assert to_ask(LauncherOptions(kind="slurm"), count=None, python=None).kind == "slurm"


@pytest.mark.parametrize(
    ("hosts", "short"),
    [((), ""), (("gpu1", "gpu2", "gpu3"), "gpu[1-3]"), (("gpu2", "login", "gpu1"), "gpu2,login,gpu1")],
)
def test_the_short_form_keeps_the_order(hosts: tuple[str, ...], short: str) -> None:
    assert in_short(hosts) == short


@pytest.mark.parametrize("command", ["doctor", "init"])
@pytest.mark.parametrize(
    "arguments",
    [
        ("--qual-hosts", "gpu[1"), ("--qual-launcher", "pbs"), ("--qual-launcher", "slurm"), ("--nodes", "0"),
        ("--qual-hosts", "gpu1", "--nodes", "2"), ("--timeout", "soon"), ("--timeout", "-1"), ("--timeout", "inf"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_usage(command: str, arguments: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as left:
        main([command, *arguments])
    assert left.value.code == 2
    assert list(tmp_path.iterdir()) == []


def test_the_doctor_sees_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor"])
    said = capsys.readouterr().out
    assert code == (0 if "1 of 1 hosts can run ranks" in said else 1)
    assert socket.gethostname() in said


@needs_ssh
@pytest.mark.parametrize("place", ["clusterqual.yaml", "qualification/clusterqual.yaml", "elsewhere.yaml"])
def test_the_doctor_asks_the_hosts_of_the_project_file(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["init", "."]) == 0
    written = tmp_path / "qualification" / "clusterqual.yaml"
    text = written.read_text().replace("kind: local", "kind: ssh\n  hosts: nobody.invalid")
    written.unlink()
    (tmp_path / place).write_text(text)
    monkeypatch.setenv("CLUSTERQUAL_CONFIG", "elsewhere.yaml" if place.startswith("elsewhere") else "")
    assert main(["doctor", "--timeout", "20"]) == 1
    assert "0 of 1 hosts can run ranks" in capsys.readouterr().out


def test_a_file_that_is_wrong_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "clusterqual.yaml").write_text("version: 2\n")
    assert main(["doctor"]) == 4
    assert "clusterqual.yaml:1: version: got 2" in capsys.readouterr().err


@needs_ssh
def test_hosts_from_the_environment(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLUSTERQUAL_HOSTS", "nobody1.invalid,nobody2.invalid")
    assert main(["doctor", "--timeout", "20"]) == 1
    said = capsys.readouterr().out
    assert "0 of 2 hosts can run ranks" in said and "!nobody1.invalid" in said


@needs_ssh
def test_nothing_is_written_where_no_host_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--qual-hosts", "nobody.invalid", "--timeout", "20"]) == 4
    assert "no host has answered" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []

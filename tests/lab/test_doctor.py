"""`clusterqual doctor` and `init` on real hosts: the host that is wrong is named, and the others are seen."""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import lab_faults_disks as disks
import lab_faults_settings as settings
import pytest
from lab_hosts import Lab

from pytest_clusterqual import __version__
from pytest_clusterqual.judge.nodes.hosts import FEWEST_FILES, LEAST_DISK
from pytest_clusterqual.read.project import load_project

pytestmark = [
    pytest.mark.lab(hosts=3),
    pytest.mark.skipif(
        resource.getrlimit(resource.RLIMIT_NOFILE)[0] < FEWEST_FILES
        or shutil.disk_usage("/dev/shm").total < LEAST_DISK,
        reason="hosts of the lab inherit this machine's open files and memory, which are too few for a healthy host",
    ),
]
PROGRAM = "import sys; from pytest_clusterqual.cli import main; sys.exit(main())"
SECONDS_TO_CONNECT = 10  # after which ssh gives up a host
PATIENCE = 7  # seconds: less than ssh has, and several times what a healthy host takes to answer
THIRD = "node3"


def clusterqual(lab: Lab, *arguments: str) -> subprocess.CompletedProcess[str]:
    return lab.login.run([sys.executable, "-c", PROGRAM, *arguments], cwd=lab.shared, env={"COLUMNS": "140"})


def doctor(lab: Lab, *arguments: str) -> tuple[int, str]:
    done = clusterqual(lab, "doctor", *(arguments or ("--qual-hosts", lab.hosts_arg)))
    assert done.stderr == ""
    return done.returncode, done.stdout


def rows(said: str) -> dict[str, list[str]]:
    """Host -> its cells, of the table."""
    lines = [re.split(r"\s{2,}", line) for line in said.partition("\n\n")[0].splitlines()[1:]]
    return {host.lstrip("!"): [host, *cells] for host, *cells in lines}


def marked(said: str) -> dict[str, list[str]]:
    """Host -> those of its cells that are wrong."""
    return {host: bad for host, cells in rows(said).items() if (bad := [c for c in cells if c.startswith("!")])}


def told(said: str, host: str) -> str:
    """What is said of a host below the table, on one line."""
    below = " ".join(said.partition("\n\n")[2].split())
    return below.partition(f"{host} ")[2]


def test_healthy_hosts(lab: Lab) -> None:
    code, said = doctor(lab)
    assert (code, marked(said)) == (0, {})
    assert list(rows(said)) == ["node1", "node2", "node3"]
    assert "3 of 3 hosts can run ranks" in said


@pytest.mark.parametrize("launcher", ["ssh", "mpi"])
def test_a_dead_host_is_named_and_hides_no_other(healthy: Lab, launcher: str) -> None:
    if launcher == "mpi" and shutil.which("mpirun") is None:
        pytest.skip("there is no mpirun here")
    healthy["node2"].kill()
    began = time.monotonic()
    code, said = doctor(healthy, "--qual-hosts", healthy.hosts_arg, "--qual-launcher", launcher)
    assert time.monotonic() - began < 6 * SECONDS_TO_CONNECT  # the kernel itself would try for two minutes
    assert (code, marked(said)) == (1, {"node2": ["!node2"]})
    assert rows(said)[THIRD][3] == __version__
    assert told(said, "node2").startswith(
        "connect to host node2 port 22: Connection timed out: check that the host is up"
    )


def test_the_wait_for_a_host_can_be_cut(healthy: Lab) -> None:
    healthy["node1"].kill()
    code, said = doctor(healthy, "--qual-hosts", healthy.hosts_arg, "--timeout", str(PATIENCE))
    assert (code, marked(said)) == (1, {"node1": ["!node1"]})
    assert told(said, "node1").startswith(f"no answer within {PATIENCE} s"), "and not what ssh says of it later"


@pytest.mark.parametrize(
    ("package", "version", "column", "words"),
    [
        ("pytest_clusterqual", "0.0.9", 3, f"pytest-clusterqual 0.0.9, here it is {__version__}"),
        ("torch", "2.11.0", 2, "torch 2.11.0, most have"),
    ],
)
def test_another_version_on_one_host(lab: Lab, package: str, version: str, column: int, words: str) -> None:
    with settings.old_version(lab[THIRD], package, version):
        code, said = doctor(lab)
    assert (code, marked(said)) == (1, {THIRD: [f"!{version}"]})
    assert rows(said)[THIRD][column] == f"!{version}"
    assert words in told(said, THIRD)


def test_a_host_without_this_package(lab: Lab) -> None:
    import pytest_clusterqual

    with disks.mounted(lab[THIRD], Path(pytest_clusterqual.__file__).parent, "-t", "tmpfs", "nothing"):
        code, said = doctor(lab)
    assert (code, marked(said)) == (1, {THIRD: ["!missing"]})
    assert f"no pytest-clusterqual: install pytest-clusterqual {__version__} there" in told(said, THIRD)


@pytest.mark.parametrize(("seconds", "code", "cell"), [(42, 1, "!-42"), (4, 0, "!-4")])
def test_a_clock_that_is_behind(lab: Lab, seconds: int, code: int, cell: str) -> None:
    with settings.clock_behind(lab[THIRD], seconds):
        done = doctor(lab)
    ((bad,),) = marked(done[1]).values()
    assert (done[0], bad.partition(".")[0]) == (code, cell)
    assert ("world of one" in told(done[1], THIRD)) == (code == 1)


def test_names_that_are_exchanged(lab: Lab) -> None:
    with settings.swapped_names(lab.login, "node1", "node2"):
        code, said = doctor(lab)
    assert (code, marked(said)) == (1, {"node1": ["!node1"], "node2": ["!node2"]})
    assert told(said, "node1").startswith("answers as node2")
    assert told(said, "node2").startswith("answers as node1")


def test_one_machine_twice_and_a_name_that_nobody_has(lab: Lab) -> None:
    code, said = doctor(lab, "--qual-hosts", f"node1,{lab['node1'].address},{THIRD},node9")
    assert code == 1
    assert set(marked(said)) == {"node1", lab["node1"].address, "node9"}
    assert f"{lab['node1'].address},node1  one and the same machine, node1" in said
    assert told(said, "node9").startswith("Could not resolve hostname node9")
    assert rows(said)[THIRD][3] == __version__


def test_a_key_that_is_refused(lab: Lab) -> None:
    with disks.mounted(lab[THIRD], lab.state / "ssh" / "user.pub", "--bind", "/dev/null"):
        code, said = doctor(lab)
    assert (code, marked(said)) == (1, {THIRD: [f"!{THIRD}"]})
    assert told(said, THIRD).startswith("Permission denied (publickey): give this user a key")


def test_shared_memory_that_is_small(lab: Lab) -> None:
    with disks.small_disk(lab[THIRD], "/dev/shm", 64 << 20):
        code, said = doctor(lab)
    assert (code, marked(said)) == (1, {THIRD: ["!64 MiB"]})


def test_another_python_that_lacks_everything(lab: Lab) -> None:
    bare = "/usr/bin/python3"
    asked = [bare, "-c", "import importlib.util as util; print(util.find_spec('torch'))"]
    if not Path(bare).exists() or subprocess.check_output(asked, text=True) != "None\n":
        pytest.skip(f"{bare} is not there, or has torch")
    code, said = doctor(lab, "--qual-hosts", lab.hosts_arg, "--python", bare)
    assert code == 1
    assert [cells[2:4] for cells in rows(said).values()] == [["!missing", "!missing"]] * 3
    assert "node[1-3]  " in said


def test_a_new_site(lab: Lab) -> None:
    done = clusterqual(lab, "init", "site", "--qual-hosts", lab.hosts_arg)
    assert done.returncode == 0, done.stderr
    written = lab.shared / "site" / "qualification" / "clusterqual.yaml"
    project = load_project(written, nodes=3)
    assert (project.launcher.kind, project.launcher.hosts) == ("ssh", ("node1", "node2", "node3"))
    assert f'hosts: "{lab.hosts_arg}"' in written.read_text()
    assert "found on 3 of 3" in written.read_text()


def test_a_new_site_while_a_host_is_dead(healthy: Lab) -> None:
    healthy["node2"].kill()
    done = clusterqual(healthy, "init", "half", "--qual-hosts", healthy.hosts_arg, "--timeout", str(PATIENCE))
    assert done.returncode == 0
    assert re.match(rf"node2: no answer within {PATIENCE} s.*; the project file is made without it", done.stderr)
    written = (healthy.shared / "half" / "qualification" / "clusterqual.yaml").read_text()
    assert f'hosts: "{healthy.hosts_arg}"' in written and "found on 2 of 2" in written

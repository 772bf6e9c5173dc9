"""The lab itself: hosts that are apart, ssh between them, and no trace of a lab on any way out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import lab_hosts
import lab_state
import pytest
from lab_cgroups import own_cgroups
from lab_host import Impossible, outside
from lab_hosts import Lab
from lab_probes import until

HERE = Path(__file__).parent
NAMES = ("login", "node1", "node2")


def output(lab: Lab, name: str, *argv: str) -> str:
    return lab[name].run(argv, check=True).stdout.strip()


@pytest.mark.parametrize("name", NAMES)
def test_a_host_has_a_name_an_address_and_processes_of_its_own(lab: Lab, name: str) -> None:
    assert output(lab, name, "hostname") == name
    assert [output(lab, name, "getent", "hosts", other).split() for other in NAMES] == [
        [lab[other].address, other] for other in NAMES
    ]
    assert f"inet {lab[name].address}/24" in output(lab, name, "ip", "address", "show", "eth0")
    assert sorted(os.listdir(lab[name].path("/sys/class/net"))) == ["eth0", "lo"]
    seen = output(lab, name, "sh", "-c", "cat /proc/[0-9]*/cmdline").replace("\0", " ")
    assert "lab_init" in seen and "lab_keeper" not in seen  # its own PID 1, nothing of the machine


@pytest.mark.parametrize("folder", ["/tmp", "/root", "/run", "/dev/shm", "/etc"])
def test_a_host_has_files_of_its_own(lab: Lab, folder: str) -> None:
    lab["node1"].run(["sh", "-c", f"echo mine >{folder}/clusterqual-lab-file"], check=True)
    assert lab["node1"].read(f"{folder}/clusterqual-lab-file") == "mine\n"
    assert not lab["node2"].path(f"{folder}/clusterqual-lab-file").exists()
    assert not Path(folder, "clusterqual-lab-file").exists()


def test_one_folder_is_the_same_everywhere(lab: Lab) -> None:
    for name in NAMES:
        lab[name].run(["sh", "-c", f"hostname >>{lab.shared}/names"], check=True)
    assert (lab.shared / "names").read_text().split() == list(NAMES)


def test_the_project_and_its_python_are_there_too(lab: Lab) -> None:
    code = "import pytest_clusterqual; print(pytest_clusterqual.__file__)"
    assert output(lab, "node1", sys.executable, "-c", code) == output(lab, "login", sys.executable, "-c", code)


def test_a_command_gets_environment_folder_and_input_and_gives_its_exit_code(lab: Lab) -> None:
    script = "echo $WORD; pwd; cat; echo trouble >&2; exit 7"
    done = lab.login.run(["sh", "-c", script], env={"WORD": "hello"}, cwd=lab.shared, input="text")
    assert (done.returncode, done.stdout, done.stderr) == (7, f"hello\n{lab.shared}\ntext", "trouble\n")
    with pytest.raises(RuntimeError, match=r"login: .* ended with 3: out"):
        lab.login.run(["sh", "-c", "echo out; exit 3"], check=True)


def test_a_command_that_takes_too_long_is_ended(lab: Lab) -> None:
    with pytest.raises(subprocess.TimeoutExpired, match=r"^Command '\['sleep', '1000'\]' timed out"):
        lab.login.run(["sleep", "1000"], timeout=0.2)
    assert lab.login.processes() == []


def test_processes_of_a_host_are_told_with_their_environment(lab: Lab) -> None:
    with lab["node1"].popen(["sleep", "1000"], env={"RANK": "5"}) as command:
        until(lambda: lab["node1"].processes(lambda process: process.argv == ("sleep", "1000")))
        (process,) = lab["node1"].processes()
        assert process.pid == command.inner() and process.environ["RANK"] == "5"
        assert lab["node2"].processes() == []
        command.send_signal(signal.SIGUSR1)
        assert command.wait(20) == -signal.SIGUSR1
    assert lab["node1"].processes() == []


def test_a_command_dies_with_the_one_who_waits_for_it(lab: Lab) -> None:
    with lab["node1"].popen(["sleep", "1000"]) as command:
        until(lambda: lab["node1"].processes(lambda process: process.argv == ("sleep", "1000")))
        os.kill(command.pid, signal.SIGKILL)  # the one outside, not the command
        until(lambda: not lab["node1"].processes())


@pytest.mark.parametrize("node", ["node1", "node2"])
def test_ssh_from_the_login_host(lab: Lab, node: str) -> None:
    done = lab.login.run(["ssh", node, "hostname; echo trouble >&2; exit 3"])
    assert (done.returncode, done.stdout, done.stderr) == (3, f"{node}\n", "trouble\n")
    until(lambda: not lab[node].processes())  # nor does sshd keep a process for the session


def test_ssh_goes_from_the_login_host_only_and_to_known_hosts_only(lab: Lab) -> None:
    refused = lab["node1"].run(["ssh", "-o", "BatchMode=yes", "node2", "true"])
    assert refused.returncode == 255 and "Host key verification failed" in refused.stderr
    refused = lab.login.run(["ssh", "-o", "HostKeyAlias=stranger", "node2", "true"])
    assert refused.returncode == 255 and "Host key verification failed" in refused.stderr


def test_a_dead_host_comes_back_by_a_reboot(healthy: Lab) -> None:
    lab, node = healthy, healthy["node2"]
    before = node.pid
    node.write("/tmp/file", "gone with the reboot")
    sleeper = node.popen(["sleep", "1000"])
    assert lab.login.run(["ssh", "node2", "true"]).returncode == 0
    sleeper.send_signal(signal.SIGSTOP)  # nor does a hanging process keep the host
    node.kill()
    assert not node.alive and sleeper.wait(20) == -signal.SIGKILL and not Path(f"/proc/{before}").exists()
    lab.reboot("node2")
    assert not node.path("/tmp/file").exists() and node.processes() == []
    assert lab.login.run(["ssh", "node2", "hostname"]).stdout == "node2\n"
    node.kill()
    lab.revive()
    assert node.alive and lab["node1"].alive


def test_pinned_hosts_have_a_core_each() -> None:
    cores = sorted(os.sched_getaffinity(0))
    with Lab(3, pin=True) as lab:
        found = {name: lab[name].run(["nproc"]).stdout.strip() for name in lab.hosts}
        with lab["node1"].popen(["sleep", "1000"]) as one, lab["node2"].popen(["sleep", "1000"]) as two:
            assert os.sched_getaffinity(one.inner() or 0) == {cores[0]}
            assert os.sched_getaffinity(two.inner() or 0) == {cores[1 % len(cores)]}
    assert found == {"login": str(len(cores)), "node1": "1", "node2": "1", "node3": "1"}


def test_nothing_is_put_into_the_machines_own_namespaces() -> None:
    def seen() -> list[str]:
        commands = (["ip", "link"], ["ip", "rule"], ["ip", "route", "show", "table", "all"], ["nft", "list", "ruleset"])
        mounts = [f"/proc/{pid}/mounts" for pid in ("1", "self")]
        return [outside(command) for command in commands] + [Path(mount).read_text() for mount in mounts]

    before = seen()
    with Lab(1) as lab:
        assert lab.login.run(["ssh", "node1", "true"]).returncode == 0
        assert seen() == before
        state = lab.state
        assert cgroups(state.name)
    assert seen() == before
    assert not state.exists() and not cgroups(state.name)


def test_two_labs_do_not_disturb_each_other(lab: Lab) -> None:
    with Lab(2) as other:
        (other.shared / "file").write_text("theirs")
        other["node1"].write("/tmp/file", "theirs")
        assert not (lab.shared / "file").exists() and not lab["node1"].path("/tmp/file").exists()
        other["node2"].kill()
        assert lab.login.run(["ssh", "node2", "hostname"]).stdout == "node2\n"
    assert lab.login.run(["ssh", "node1", "hostname"]).stdout == "node1\n"


HOLDER = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
from lab_hosts import Lab
from lab_probes import until
with Lab(1) as lab:
    command = lab["node1"].popen(["sleep", "1000"])
    hosts = [host.pid for host in lab.hosts.values()]
    print(lab.state, lab.keeper.pid, lab.login.anchor, command.inner(), *hosts, flush=True)
    if sys.stdin.read() == "raise":
        raise ValueError("on purpose")
"""

WAYS_OUT = (
    "end", "exception", "SIGTERM", "SIGINT", "SIGKILL", "SIGKILL with a stopped command",
    "the keeper and the owner killed",
)  # fmt: skip


def end(holder: subprocess.Popen[str], keeper: int, command: int, way: str) -> None:
    if way == "the keeper and the owner killed":
        os.kill(keeper, signal.SIGKILL)
        holder.kill()
    elif way == "SIGKILL with a stopped command":
        os.kill(command, signal.SIGSTOP)
        helper = int(Path(f"/proc/{command}/status").read_text().partition("PPid:")[2].split()[0])
        until(lambda: "State:\tT" in Path(f"/proc/{helper}/status").read_text())
        holder.kill()
    elif way in ("SIGTERM", "SIGINT", "SIGKILL"):
        holder.send_signal(getattr(signal, way))
    holder.communicate("raise" if way == "exception" else "", timeout=60)


@pytest.mark.parametrize("way", WAYS_OUT)
def test_a_lab_is_gone_on_every_way_out(way: str) -> None:
    pipe = subprocess.PIPE
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )
    assert holder.stdout is not None
    folder, *pids = holder.stdout.readline().split()
    state = Path(folder)
    assert state.is_dir() and cgroups(state.name) and all(alive(int(pid)) for pid in pids)
    end(holder, int(pids[0]), int(pids[2]), way)
    until(lambda: not any(alive(int(pid)) for pid in pids))
    if way == "the keeper and the owner killed":
        assert state.is_dir()
        Lab(1).close()  # sweeps
    until(lambda: not state.exists() and not cgroups(state.name))


def test_what_no_lab_left_is_not_swept(lab: Lab) -> None:
    strange = lab.state.parent / "not-of-a-lab"
    strange.mkdir()
    try:
        Lab(1).close()
        assert strange.is_dir() and lab.state.is_dir()
    finally:
        strange.rmdir()


def test_what_cannot_be_swept_yet_is_not_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab_state, "PATIENCE", 0.1)
    if not (own := own_cgroups()):
        pytest.skip("there are no cgroups of version 1 here")
    cgroup = next(iter(own.values())) / f"clusterqual-lab-test-{os.getpid()}"
    state = tmp_path / "state"
    state.mkdir()
    (state / lab_state.CGROUPS).write_text(f"{cgroup}\n")
    cgroup.mkdir()
    with subprocess.Popen(["sleep", "1000"]) as stays:
        try:
            (cgroup / "cgroup.procs").write_text(str(stays.pid))
            lab_state.sweep(state)
            assert state.exists() and cgroup.exists()
        finally:
            stays.kill()
    lab_state.sweep(state)
    assert not state.exists() and not cgroup.exists()


def test_where_the_lab_cannot_be_its_tests_are_skipped_with_the_reason(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CLUSTERQUAL_LAB", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    conftest = (HERE / "conftest.py").read_text(encoding="utf-8")
    pytester.makeconftest(f"{conftest}\nimport lab_hosts\nlab_hosts.NEEDED = ('sh', 'no-such-tool')\n")
    pytester.makepyfile("def test_it(lab): pass")
    result = pytester.runpytest_subprocess("-rs", "-p", "no:cacheprovider")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*the lab needs no-such-tool"])
    monkeypatch.setenv("CLUSTERQUAL_LAB", "required")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*CLUSTERQUAL_LAB=required, but the lab needs no-such-tool"])


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("os.geteuid", lambda: 1000, "needs root"),
        ("own_cgroups", dict, "no cpuset controller"),
        ("KEEPER", HERE / "no-such-keeper.py", "no namespaces here: .*No such file"),
    ],
)
def test_the_reason_is_exact(name: str, value: object, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, _, attribute = f"lab_hosts.{name}".rpartition(".")
    monkeypatch.setattr(f"{owner}.{attribute}", value)
    with pytest.raises(Impossible, match=reason):
        lab_hosts.Lab(1, pin=True)


def cgroups(name: str) -> list[Path]:
    """The cgroup directories of the lab whose folder has that name."""
    return [found for own in own_cgroups().values() for found in own.glob(f"clusterqual-lab-{name}")]


def alive(pid: int) -> bool:
    """True if the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

"""Faults of a host's processes, disks and settings: each is seen to be there, and seen to be gone afterwards."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lab_faults_disks as disks
import lab_faults_processes as processes
import lab_faults_settings as settings
import pytest
from lab_host import Host
from lab_hosts import Lab
from lab_probes import connection, python, until

MIB = 1 << 20

# --- processes

LISTEN_TO = """
import socket, sys
peer = socket.create_connection((sys.argv[1], 5002), timeout=60)
print(peer.recv(4).decode(), flush=True)
peer.settimeout(float(sys.argv[2]))
try:
    print("ended" if peer.recv(1) == b"" else "data")
except TimeoutError:
    print("silence")
except OSError:
    print("ended")
"""
HOLD = """
import socket, time
server = socket.create_server(("", 5002))
print("listening", flush=True)
peer, _ = server.accept()
peer.send(b"held")
time.sleep(1000)
"""


@pytest.mark.parametrize(("power_loss", "heard", "patience"), [(False, "ended", 60), (True, "silence", 2)])
def test_kill_host(healthy: Lab, power_loss: bool, heard: str, patience: float) -> None:
    one, two = healthy.nodes
    pipe = subprocess.PIPE
    with two.popen([sys.executable, "-S", "-c", HOLD], stdout=pipe) as holder:
        assert holder.stdout is not None and holder.stdout.readline()
        with one.popen([sys.executable, "-S", "-c", LISTEN_TO, "node2", str(patience)], stdout=pipe) as peer:
            assert peer.stdout is not None and peer.stdout.readline() == "held\n"
            with processes.kill_host(healthy, "node2", power_loss=power_loss):
                assert peer.stdout.read() == f"{heard}\n"
                assert not two.alive
    assert two.alive and connection(one, two) == "connected"


@contextlib.contextmanager
def sleepers(host: Host) -> Any:
    """Two sleeping ranks on a host."""
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(host.popen(["sleep", "1000"], env={"RANK": str(rank)})) for rank in (0, 1)]
        until(lambda: len(host.processes(processes.argv("sleep 1000"))) == 2)
        yield made


def state(pid: int | None) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_sigkill(lab: Lab) -> None:
    with sleepers(lab["node1"]) as (zero, one):
        (killed,) = processes.sigkill(lab["node1"], processes.environ(RANK=1))
        assert killed.environ["RANK"] == "1"
        assert one.wait(20) == -signal.SIGKILL and zero.poll() is None


def test_sigstop(lab: Lab) -> None:
    with sleepers(lab["node1"]) as (zero, one):
        with processes.sigstop(lab["node1"], processes.environ(RANK=1)):
            until(lambda: state(one.inner()) == "T")
            assert state(zero.inner()) != "T"
        until(lambda: state(one.inner()) == "S")
        one.terminate()
        assert one.wait(20) == -signal.SIGTERM  # whoever waits for it goes on as well


def test_a_fault_of_no_process_is_a_mistake(lab: Lab) -> None:
    with pytest.raises(RuntimeError, match="no process of node1 matches"):
        processes.sigkill(lab["node1"], processes.environ(RANK=7))


def test_pulses(lab: Lab) -> None:
    with sleepers(lab["node1"]) as (zero, one):
        hit, spared = one.inner(), zero.inner()
        with processes.pulses(lab["node1"], processes.environ(RANK=1), on_ms=20, off_ms=20):
            for wanted in ("T", "S") * 3:
                until(lambda wanted=wanted: state(hit) == wanted)
                assert state(spared) == "S"
        until(lambda: state(hit) == "S")
        assert {state(pid) for pid in (hit, spared) * 50 if time.sleep(0.002) is None} == {"S"}


def test_cpu_quota(lab: Lab) -> None:
    node = lab["node1"]
    work = "import time\nbegan, used = time.monotonic(), time.process_time()\n"
    work += "while time.process_time() < used + 0.05: pass\nprint(time.monotonic() - began)"

    def throttled() -> int:
        """How often the kernel has held the host back; what else slows its work down is not in it."""
        counted = (node.cgroups["cpu"] / "cpu.stat").read_text().split()
        return int(counted[counted.index("nr_throttled") + 1])

    with processes.cpu_quota(node, 0.1):
        assert float(python(node, work)) > 0.25
    before = throttled()
    assert before >= 10
    python(node, work)
    assert throttled() == before


def test_memory_limit(lab: Lab) -> None:
    node = lab["node1"]
    hungry = [sys.executable, "-S", "-c", f"print(len(b'1' * {200 * MIB}))"]
    before = processes.oom_kills(node)
    with processes.memory_limit(node, 100 * MIB):
        assert node.run(hungry).returncode == -signal.SIGKILL
    assert processes.oom_kills(node) == before + 1
    assert node.run(hungry).returncode == 0
    assert node.alive and connection(lab.login, node) == "connected"


# --- disks

WRITE = f"""
import os, sys, time
began = time.perf_counter()
with open(sys.argv[1] + "/file", "wb") as file:
    file.write(os.urandom(4 * {MIB}))
    file.flush()
    os.fsync(file.fileno())
print(time.perf_counter() - began)
"""


@pytest.fixture
def folder(lab: Lab) -> str:
    made = lab.shared / "disk"
    made.mkdir(exist_ok=True)
    return str(made)


def write(host: Host, folder: str) -> str:
    """Seconds that it takes to write 4 MiB to the disk, or what stands in the way."""
    done = host.run([sys.executable, "-S", "-c", WRITE, folder])
    return done.stdout or done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (lambda host, path: disks.small_disk(host, path, 2 * MIB), "No space left on device"),
        (disks.read_only, "Read-only file system"),
    ],
)
def test_small_and_read_only_disks(lab: Lab, folder: str, fault: Callable[..., Any], reason: str) -> None:
    one, two = lab.nodes
    with fault(two, folder):
        assert reason in write(two, folder)
        assert float(write(one, folder)) > 0  # the fault is on one host only
        assert float(write(two, "/tmp")) > 0
    assert float(write(two, folder)) > 0


def test_full_disk(lab: Lab, folder: str) -> None:
    node = lab["node2"]
    with disks.small_disk(node, folder, 8 * MIB):
        with disks.full_disk(node, folder):
            assert "No space left on device" in write(node, folder)
        assert float(write(node, folder)) > 0


def test_only_a_small_disk_is_filled(lab: Lab, folder: str) -> None:
    with pytest.raises(RuntimeError, match="put a small_disk there first"), disks.full_disk(lab["node2"], folder):
        pass


def test_slow_disk(lab: Lab, folder: str) -> None:
    node = lab["node2"]
    with disks.slow_disk(node, folder, 4 * MIB):
        slow = float(write(node, folder))
    with disks.slow_disk(node, folder, 1024 * MIB):  # other work may hold up one write, and not ten
        assert any(slow > 5 * float(write(node, folder)) for _ in range(10))


# --- settings


def test_swapped_names(lab: Lab) -> None:
    with settings.swapped_names(lab.login, "node1", "node2"):
        assert [lab.login.run(["ssh", name, "hostname"]).stdout for name in ("node1", "node2")] == [
            "node2\n",
            "node1\n",
        ]
        assert lab["node1"].run(["getent", "hosts", "node1"]).stdout.startswith("10.77.0.1 ")
    assert [lab.login.run(["ssh", name, "hostname"]).stdout for name in ("node1", "node2")] == ["node1\n", "node2\n"]


def test_clock_behind(lab: Lab) -> None:
    def behind(name: str) -> list[float]:
        """By each way to ask; how long asking took makes it less."""
        times = "import time, datetime; print(time.time(), datetime.datetime.now().timestamp(), time.time_ns() / 1e9)"
        before = time.time()
        done = lab.login.run(["ssh", name, sys.executable, "-S", "-c", f"'{times}'"], check=True)
        return [before - float(text) for text in done.stdout.split()]

    with settings.clock_behind(lab["node2"], 100):
        assert all(50 < seconds < 101 for seconds in behind("node2"))
        assert max(behind("node1")) < 1
        steady = "import time; began = time.monotonic(); time.sleep(0.1); print(time.monotonic() - began)"
        assert float(python(lab["node2"], steady)) >= 0.1
    assert max(behind("node2")) < 1


VERSION = "import {0}, importlib.metadata; print({0}.__version__, importlib.metadata.version({0!r}))"


@pytest.mark.parametrize("package", ["pytest_clusterqual", "numpy"])
def test_old_version(lab: Lab, package: str) -> None:
    ask = [sys.executable, "-c", VERSION.format(package)]
    told = lab["node1"].run(ask, check=True).stdout
    assert re.fullmatch(r"\d\S+ \d\S+\n", told)
    with settings.old_version(lab["node2"], package, "0.0.7"):
        assert lab["node2"].run(ask, check=True).stdout == "0.0.7 0.0.7\n"
        assert lab["node1"].run(ask, check=True).stdout == told
    assert lab["node2"].run(ask, check=True).stdout == told

"""Leases: no node has two holders, nobody waits for ever, and who dies holds nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_clusterqual.errors import RunFolderError
from pytest_clusterqual.folder.leases import Leases

# Takes leases on what its arguments name, one after the other; while it has them, nobody else may have made the files.
HOLDER = """
import os, sys, time
from pathlib import Path
from pytest_clusterqual.folder.leases import Leases

folder, hold, wanted = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
leases = Leases(folder / "leases")
for names in wanted:
    lease = leases.acquire(names.split(","))
    for name in lease.nodes:
        os.close(os.open(folder / name, os.O_CREAT | os.O_EXCL))
    print(names, flush=True)
    time.sleep(hold)
    for name in lease.nodes:
        (folder / name).unlink()
    lease.release()
"""


def holder(folder: Path, *wanted: str, hold: float = 0.0) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder), str(hold), *wanted],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        process.kill()
        process.communicate()


def opened(pid: int | str) -> list[str]:
    """What files a process has open, by their paths."""
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            found.append(os.readlink(link))
    return found


def waits(process: subprocess.Popen[str]) -> bool:
    """True once the process sleeps with a lock file open."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        asleep = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"
        if asleep and any("/leases/" in path for path in opened(process.pid)):
            return True
        time.sleep(0.02)
    return False


@pytest.fixture(autouse=True)
def _no_wait_is_for_ever() -> Iterator[None]:
    def give_up(*_: object) -> None:
        raise TimeoutError("a lease was not to be had within 60 s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def test_no_node_has_two_holders_and_all_come_to_an_end(tmp_path: Path) -> None:
    """Every order of wishes that could end in an embrace, many times over."""
    wishes = [("a,b", "c,a"), ("b,a", "b,c"), ("c", "a,b,c"), ("b", "c,b")]
    processes = [holder(tmp_path, *(wish * 15), hold=0.002) for wish in wishes]
    try:
        for process in processes:
            _, err = process.communicate(timeout=60)
            assert process.returncode == 0, err
    finally:
        end(*processes)


def test_other_nodes_can_be_had_meanwhile(tmp_path: Path) -> None:
    first = Leases(tmp_path).acquire(["a"])
    second = Leases(tmp_path).acquire(["b", "c"])
    assert (first.nodes, second.nodes) == ({"a"}, {"b", "c"})
    second.release()
    second.release()
    Leases(tmp_path).acquire(["c"]).release()
    first.release()
    assert not [path for path in opened("self") if path.startswith(str(tmp_path))]


def test_one_who_wants_many_is_not_passed_by(tmp_path: Path) -> None:
    """While it waits for all, single nodes that are free are not given to who came later."""
    held = Leases(tmp_path / "leases").acquire(["a"])
    many = holder(tmp_path, "a,b", hold=300)
    late = None
    try:
        assert waits(many)
        late = holder(tmp_path, "b")
        assert waits(late)
        held.release()
        assert line(many) == "a,b"
        many.kill()
        assert line(late) == ""  # the file of the one that was killed is still there: it had the node until then
    finally:
        held.release()
        end(*filter(None, (many, late)))


@pytest.mark.parametrize("at", ["holding", "waiting"])
def test_who_is_killed_holds_nothing(tmp_path: Path, at: str) -> None:
    leases = Leases(tmp_path / "leases")
    held = leases.acquire(["b"]) if at == "waiting" else None
    process = holder(tmp_path, "a,b", hold=300)
    try:
        assert waits(process) if held else line(process) == "a,b"
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if held:
            held.release()
        leases.acquire(["a", "b"]).release()
    finally:
        end(process)


def test_programs_started_meanwhile_do_not_hold_the_lease(tmp_path: Path) -> None:
    leases = Leases(tmp_path)
    lease = leases.acquire(["a"])
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False)
    forked = os.fork()
    if forked == 0:
        signal.pause()
    try:
        lease.release()
        leases.acquire(["a"]).release()
        assert not [path for path in opened(child.pid) if path.startswith(str(tmp_path))]
    finally:
        child.communicate(b"\n")
        os.kill(forked, signal.SIGKILL)
        os.waitpid(forked, 0)


def test_a_wait_that_is_interrupted_leaves_nothing_behind(tmp_path: Path) -> None:
    leases = Leases(tmp_path)
    held = leases.acquire(["b"])

    class Enough(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Enough

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(Enough):
            leases.acquire(["a", "b", "c"])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    leases.acquire(["a", "c"]).release()  # neither the turn nor the nodes before the missing one are kept
    held.release()


def test_a_folder_that_cannot_be_locked_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"/proc/leases/\.turn: cannot be locked: .*; run without -n, or give"):
        Leases(Path("/proc/leases")).acquire(["a"])

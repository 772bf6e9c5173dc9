"""What a lab leaves on the machine besides processes, and how it goes away again.

That is one folder and one cgroup directory a controller. Interfaces, rules and mounts live in
namespaces and vanish with the last process in them. The folder's lock is held by the lab's owner
and its keeper; a folder whose lock is free belongs to nobody any more and is swept.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = "lock"
CGROUPS = "cgroups"  # one directory a line, written before they are made
PATIENCE = 10.0  # seconds for the processes of a lab to go


def labs_folder() -> Path:
    """The folder of all labs of this user on this machine; nobody else can write there."""
    folder = Path(tempfile.gettempdir()) / "clusterqual-labs"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
        raise RuntimeError(f"{folder} belongs to somebody else: remove it, or set TMPDIR")
    return folder


def new_state() -> tuple[Path, int]:
    """Sweep what dead labs left, then make the folder of a new one; with the descriptor that locks it."""
    folder = labs_folder()
    with _locked(folder / LOCK):
        sweep_dead(folder)
        state = Path(tempfile.mkdtemp(dir=folder, prefix=f"{os.getpid()}-"))
        lock = os.open(state / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
    return state, lock


def sweep_dead(folder: Path) -> None:
    """Sweep every lab whose owner and keeper are gone."""
    for lock in folder.glob(f"*/{LOCK}"):
        try:
            descriptor = os.open(lock, os.O_RDWR)
        except FileNotFoundError:
            continue  # its keeper was faster
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue  # a living lab
        else:
            sweep(lock.parent)
        finally:
            os.close(descriptor)


def sweep(state: Path) -> None:
    """Remove the cgroups and the folder of one lab; its processes are gone, about to go, or killed here."""
    record = state / CGROUPS
    left = [Path(line) for line in record.read_text(encoding="utf-8").splitlines()] if record.exists() else []
    deadline = time.monotonic() + PATIENCE
    while left := [cgroup for cgroup in left if not _remove_cgroup(cgroup)]:
        if time.monotonic() > deadline:
            return  # the next lab tries again
        time.sleep(0.02)
    shutil.rmtree(state, ignore_errors=True)


def _remove_cgroup(path: Path) -> bool:
    """Remove a cgroup with those below it; False as long as a process is in one. It is killed.

    A helper that waits outside for a stopped command is stopped itself, and nothing else would end it.
    """
    try:
        for below in [entry for entry in path.iterdir() if entry.is_dir()]:
            for pid in (below / "cgroup.procs").read_text(encoding="utf-8").split():
                os.kill(int(pid), signal.SIGKILL)
            below.rmdir()
        path.rmdir()
    except OSError:
        return not path.exists()
    return True


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)

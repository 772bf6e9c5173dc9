"""Leases: which of several processes on this machine has which nodes, so that no node is measured by two at once.

A lease is a file lock for each node. The kernel frees the locks of a process that ends, however it ends. So it is with
the run folder, which one session writes at a time.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO, NoReturn

from pytest_clusterqual.errors import RunFolderError

# Whoever waits for nodes holds this lock meanwhile. So only one waits for nodes, the others wait
# for their turn: nobody takes the nodes away from one who wants many, and no two wait for each other.
_TURN = ".turn"
_WRITER = ".writer"  # in the run folder: who writes it
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)  # what a file system without locks says


class Leases:
    """The locks of one run, in a folder that all its processes see."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def acquire(self, nodes: Iterable[str]) -> Lease:
        """Wait until all of `nodes` are free, and have them. Who waits must hold no lease.

        Raises:
            RunFolderError: the file system of the folder has no locks.
        """
        names = frozenset(nodes)
        with contextlib.ExitStack() as held:  # whatever interrupts the wait leaves no lock behind
            turn = held.enter_context(self._lock(_TURN))
            for name in sorted(names):
                held.enter_context(self._lock(f"{name}.lock"))
            turn.close()
            return Lease(names, held.pop_all())

    def _lock(self, name: str) -> contextlib.ExitStack:
        """Wait for one lock; closing what is returned gives it back."""
        path = self._folder / name
        with contextlib.ExitStack() as undo:
            try:
                self._folder.mkdir(exist_ok=True)
                # Not inherited by the programs that are started meanwhile, which would hold the lock as well.
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
                undo.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                undo.callback(fcntl.flock, descriptor, fcntl.LOCK_UN)
            except OSError as error:
                raise RunFolderError(
                    f"{path}: cannot be locked: {error.strerror}; run without -n, or give a folder on another file "
                    "system with --qual-run-dir"
                ) from error
            return undo.pop_all()


class Lease:
    """Some nodes that nobody else has until they are released."""

    def __init__(self, nodes: frozenset[str], locks: contextlib.ExitStack) -> None:
        self.nodes = nodes
        self._locks = locks

    def release(self) -> None:
        """Give the nodes back. May be called again."""
        self._locks.close()


def write_alone(run: Path) -> Callable[[], None]:
    """Be the only session that writes the run folder `run`, until what is returned is called, once. Its workers may
    write as well: they do not ask. Where the file system has no locks nobody is kept out.

    Raises:
        RunFolderError: another session writes it.
    """
    path = run / _WRITER
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be written: {error.strerror}; start a new run elsewhere") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            with os.fdopen(descriptor, "rb") as file:
                _refuse(run, file, error)
    with contextlib.suppress(OSError):  # on a full disk it does not say who
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"pid {os.getpid()} on {socket.gethostname()}".encode(), 0)
    return lambda: os.close(descriptor)


def refuse_unended(run: Path) -> None:
    """That no session writes the run folder `run`, which is only read.

    Raises:
        RunFolderError: one does.
    """
    with contextlib.suppress(FileNotFoundError, PermissionError), open(run / _WRITER, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                _refuse(run, file, error)


def _refuse(run: Path, file: BinaryIO, error: OSError) -> NoReturn:
    who = file.read(300).decode(errors="replace").strip() or "it does not say who"
    raise RunFolderError(f"{run}: is being written by another session ({who}); wait for its end, or end it") from error

"""Faults of disks: of one host's own, or of one that all hosts share. Each is a context manager that undoes itself."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

from lab_host import Host, Impossible, outside, refused
from lab_hosts import Lab

_FORGET = """
import os, sys, time
file = os.open(sys.argv[1], os.O_RDONLY)
while True:
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    time.sleep(0.02)
"""
_FILL_AT_MOST = 1 << 30  # bytes; full_disk is for small disks
_ZEROS = bytes(4096)


@contextmanager
def small_disk(host: Host, path: str | Path, size: int) -> Iterator[None]:
    """An empty disk of `size` bytes stands at `path`, a folder."""
    with mounted(host, path, "-t", "tmpfs", "-o", f"size={size}", "small"):
        yield


@contextmanager
def full_disk(host: Host, path: str | Path) -> Iterator[None]:
    """The disk at `path` has no byte left; it must have been made small before."""
    folder = host.path(path)
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if free > _FILL_AT_MOST:
        raise RuntimeError(f"{path} on {host.name} has {free} bytes free: put a small_disk there first")
    filling = folder / "lab-filling"
    try:
        # Until the disk itself says so: others write meanwhile, and a file system keeps some of the free bytes.
        with filling.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(_ZEROS)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
        yield
    finally:
        filling.unlink()


@contextmanager
def read_only(host: Host, path: str | Path) -> Iterator[None]:
    """Nothing below `path` can be written."""
    with mounted(host, path, "--bind", str(path)):
        host.run(["mount", "-o", "remount,bind,ro", path], check=True)
        yield


@contextmanager
def slow_disk(host: Host, path: str | Path, bytes_per_second: int, *, size: int = 256 << 20) -> Iterator[None]:
    """An empty disk of `size` bytes stands at `path`, which reads and writes no faster than that.

    Written data counts when it is synchronized; what stays in the page cache is as fast as memory.
    """
    if "blkio" not in host.cgroups:
        raise Impossible("there is no blkio controller of cgroup version 1 here")
    image = host.state / f"{host.name}-slow-disk"
    with image.open("wb") as file:
        file.truncate(size)
    try:
        _try(host, ["mkfs.ext4", "-q", "-O", "^has_journal", image])
        with mounted(host, path, "-o", "loop", image), throttled(host, path, bytes_per_second):
            yield
    finally:
        image.unlink()


@contextmanager
def slow_file(host: Host, path: Path, reads_per_second: int) -> Iterator[None]:
    """This host reads the file at `path` from a disk of its own, no more often than that and each time anew."""
    if "blkio" not in host.cgroups:
        raise Impossible("there is no blkio controller of cgroup version 1 here")
    content, image = path.read_bytes(), host.state / f"{host.name}-slow-file"
    with image.open("wb") as file:
        file.truncate(2 * len(content))
    try:
        _try(host, ["mkfs.ext4", "-q", "-O", "^has_journal", image])
        with mounted(host, path.parent, "-o", "loop", image):
            host.path(path).write_bytes(content)
        # Mounted again nothing of it is in memory yet, and so it remains: pages that are mapped by nobody are dropped.
        with (
            mounted(host, path.parent, "-o", "loop", image),
            throttled(host, path, reads_per_second, of="iops"),
            host.popen([sys.executable, "-S", "-c", _FORGET, path]) as forgetting,
        ):
            try:
                yield
            finally:
                forgetting.kill()
    finally:
        image.unlink()


@contextmanager
def shared_disk(lab: Lab, path: Path, size: int) -> Iterator[None]:
    """An empty disk of `size` bytes stands at `path` on all hosts: the same one, as a cluster's storage is."""
    image = lab.state / "shared-disk"
    with image.open("wb") as file:
        file.truncate(size)
    outside(["mkfs.ext4", "-q", "-O", "^has_journal", "-m", "0", str(image)])
    device = outside(["losetup", "--find", "--show", str(image)]).strip()
    with ExitStack() as stack:
        stack.callback(image.unlink)
        try:
            for host in lab.hosts.values():
                stack.enter_context(mounted(host, path, device))
        finally:
            outside(["losetup", "--detach", device])  # takes effect when the last host lets go of it
        yield


@contextmanager
def now_read_only(host: Host, path: Path) -> Iterator[None]:
    """A disk that stands at `path` cannot be written by this host any more."""
    deadline = time.monotonic() + 20
    while host.run(["mount", "-o", "remount,bind,ro", path]).returncode:  # busy while a file is being written
        if time.monotonic() > deadline:
            raise Impossible(f"{path} on {host.name} cannot be made read-only")
    yield
    host.run(["mount", "-o", "remount,bind,rw", path], check=True)


@contextmanager
def throttled(host: Host, path: str | Path, most: int, *, of: Literal["bps", "iops"] = "bps") -> Iterator[None]:
    """From now on this host reads and writes the disk at `path` no faster than so many bytes, or requests, a second."""
    device = os.stat(host.path(path)).st_dev
    limits = [host.cgroups["blkio"] / f"blkio.throttle.{way}_{of}_device" for way in ("read", "write")]
    for limit in limits:
        limit.write_text(f"{os.major(device)}:{os.minor(device)} {most}")
    try:
        yield
    finally:
        for limit in limits:
            limit.write_text(f"{os.major(device)}:{os.minor(device)} 0")


@contextmanager
def mounted(host: Host, path: str | Path, *what: str | Path) -> Iterator[None]:
    _try(host, ["mount", *what, path])
    try:
        yield
    finally:
        if host.alive:
            host.run(["umount", "--lazy", path], check=True)


def _try(host: Host, argv: list[str | Path]) -> None:
    done = host.run(argv)
    if done.returncode:
        raise refused(f"{argv[0]} on {host.name}: {done.stderr.strip()}")

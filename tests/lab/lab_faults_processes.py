"""Faults of a host's processes: dead, stopped, jittering, short of cores or memory; and the death of the host.

Each but `sigkill` is a context manager that undoes itself.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab_host import Host, Impossible, Match, Process, deliver, ip
from lab_hosts import Lab

_PERIOD_US = 10_000  # shorter than what a rank does at a stretch, so that the quota slows it evenly


def environ(**wanted: object) -> Match:
    """Matches processes by their environment: ``environ(RANK=1)``."""
    return lambda process: all(process.environ.get(name) == str(value) for name, value in wanted.items())


def argv(part: str) -> Match:
    """Matches processes with that text in their command line."""
    return lambda process: part in " ".join(process.argv)


@contextmanager
def kill_host(lab: Lab, name: str, *, power_loss: bool = False) -> Iterator[None]:
    """The host crashes: its peers see connections reset, or hear nothing more after a `power_loss`."""
    if power_loss:
        ip(lab[name].anchor, f"link set {name} down")
    lab[name].kill()
    try:
        yield
    finally:
        lab.reboot(name)


def sigkill(host: Host, match: Match) -> list[Process]:
    """Kill the processes that match; return them."""
    return _signal_all(_found(host, match), signal.SIGKILL)


@contextmanager
def sigstop(host: Host, match: Match) -> Iterator[list[Process]]:
    """The processes that match now hang."""
    stopped = _signal_all(_found(host, match), signal.SIGSTOP)
    try:
        yield stopped
    finally:
        _signal_all(stopped, signal.SIGCONT)


@contextmanager
def pulses(host: Host, match: Match, *, on_ms: float, off_ms: float) -> Iterator[None]:
    """Whatever processes match are stopped for `on_ms`, again and again, with `off_ms` between."""
    _found(host, match)
    over = threading.Event()

    def beat() -> None:
        while not over.is_set():
            stopped = _signal_all(host.processes(match), signal.SIGSTOP)
            over.wait(on_ms / 1000)
            _signal_all(stopped, signal.SIGCONT)
            over.wait(off_ms / 1000)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def cpu_quota(host: Host, cores: float) -> Iterator[None]:
    """All processes of the host together get that many cores."""
    cgroup = _cgroup(host, "cpu")
    (cgroup / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
    (cgroup / "cpu.cfs_quota_us").write_text(str(round(cores * _PERIOD_US)))
    try:
        yield
    finally:
        (cgroup / "cpu.cfs_quota_us").write_text("-1")


@contextmanager
def memory_limit(host: Host, size: int) -> Iterator[None]:
    """The host has `size` bytes of memory, its RAM disks included: who asks for more is killed by the kernel."""
    limit = _cgroup(host, "memory") / "memory.limit_in_bytes"
    limit.write_text(str(size))
    try:
        yield
    finally:
        limit.write_text("-1")


def oom_kills(host: Host) -> int:
    """How many processes of the host the kernel has killed for memory since the lab began."""
    text = (_cgroup(host, "memory") / "memory.oom_control").read_text()
    return int(dict(line.split() for line in text.splitlines())["oom_kill"])


def _cgroup(host: Host, controller: str) -> Path:
    if controller not in host.cgroups:
        raise Impossible(f"there is no {controller} controller of cgroup version 1 here")
    return host.cgroups[controller]


def _found(host: Host, match: Match) -> list[Process]:
    found = host.processes(match)
    if not found:
        raise RuntimeError(f"no process of {host.name} matches: {host.processes()}")
    return found


def _signal_all(processes: list[Process], number: int) -> list[Process]:
    for process in processes:
        deliver(process.pid, number)
    return processes

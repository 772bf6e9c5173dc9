"""One host of a lab: its namespaces, commands in it, and its files and processes seen from outside."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

INIT = Path(__file__).with_name("lab_init.py")
REPOSITORY = Path(__file__).resolve().parents[2]
# What a host sees below its own /tmp and /root: this Python and this project, where they stand there.
KEPT = (Path(sys.prefix), Path(sys.base_prefix), REPOSITORY)
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Joins the cgroups named before `--`, then becomes the command behind it.
_JOIN = 'while [ "$1" != -- ]; do echo $$ >"$1/cgroup.procs"; shift; done; shift; exec "$@"'


_LACKING = re.compile("not supported|unknown|no such (file|device)|not found", re.IGNORECASE)


class Impossible(pytest.skip.Exception):
    """This machine or its kernel cannot do it: the test that asked for it is skipped with the reason."""


def refused(error: str) -> BaseException:
    """Why a fault could not be planted: impossible where kernel or machine lack something, else a mistake."""
    return Impossible(error) if _LACKING.search(error) else RuntimeError(error)


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """A process of a host as this machine sees it: `pid` is the outer one and can be given to ``os.kill``."""

    pid: int
    argv: tuple[str, ...]
    environ: Mapping[str, str] = field(repr=False)


Match = Callable[[Process], bool]


class Command(subprocess.Popen[str]):
    """A command in a host. Signals go to the command itself, not to the helper that waits for it outside.

    As a context manager it ends the command, rather than wait for it.
    """

    def inner(self) -> int | None:
        """The command's own pid, as this machine sees it; None once it has ended."""
        while self.poll() is None:
            if below := children(self.pid):
                return below[0]
            time.sleep(0.002)  # the helper has not forked yet, or is about to leave
        return None

    def send_signal(self, sig: int) -> None:
        """Deliver a signal to the command; terminate() and kill() come here too."""
        if pid := self.inner():
            deliver(pid, sig)

    def __exit__(self, *exception: Any) -> None:
        self.kill()
        super().__exit__(*exception)


class Host:
    """A machine of a lab; it is down until `boot`."""

    def __init__(self, name: str, address: str, *, state: Path, anchor: int, names: str) -> None:
        self.name = name
        self.address = address
        self.cgroups: dict[str, Path] = {}  # controller -> directory
        self.environment = {
            "HOME": "/root", "USER": "root", "LOGNAME": "root", "SHELL": "/bin/sh", "LANG": "C.UTF-8",
            "PATH": f"{Path(sys.executable).parent}:{SYSTEM_PATH}",
        }  # fmt: skip
        self.pid = 0  # of its PID 1, as this machine sees it
        self.state = state
        self.anchor = anchor  # the pid of the switch
        self._names = names
        self._boot: subprocess.Popen[str] | None = None
        self._daemons: frozenset[int] = frozenset()

    def boot(self) -> None:
        """Bring the host up: its PID 1, its own files, its link to the switch."""
        log = self.state / "log" / f"{self.name}-boot.log"
        (self.state / "hosts" / self.name).mkdir(parents=True, exist_ok=True)
        script = self.state / f"{self.name}.sh"
        script.write_text("\n".join(self._set_up()))
        argv = [
            "nsenter", "-t", str(self.anchor), "-p",
            "unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc",
            "--propagation", "private", "sh", "-e", str(script),
        ]  # fmt: skip
        with log.open("w") as errors:
            self._boot = subprocess.Popen(
                self._joined(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        assert self._boot.stdout is not None
        if not self._boot.stdout.readline():
            raise Impossible(f"{self.name} does not come up: {log.read_text().strip()}")
        self.pid = children(children(self._boot.pid)[0])[0]  # nsenter, unshare, init
        self._connect()

    def _set_up(self) -> Iterator[str]:
        """The shell lines that make the host's own view of the file system, then become its PID 1."""
        own = self.state / "hosts" / self.name  # empty outside, a tmpfs in here
        yield f"mount -t tmpfs -o mode=755 disk {own}"
        yield f"mkdir {own}/etc {own}/work {own}/cgroup {own}/tmp {own}/root"
        yield f"mount -t overlay -o lowerdir=/etc,upperdir={own}/etc,workdir={own}/work etc /etc"
        yield f"echo {self.name} | tee /etc/hostname >/proc/sys/kernel/hostname"
        yield f"rm -f /etc/resolv.conf /etc/hosts; : >/etc/resolv.conf; printf %s '{self._names}' >/etc/hosts"
        yield "sed -i 's/^hosts:.*/hosts: files/' /etc/nsswitch.conf"
        yield "mount -t tmpfs -o mode=755 run /run; mkdir /run/lock /run/sshd /run/munge"
        yield "mount -t tmpfs -o mode=1777 shm /dev/shm"
        yield f"mount --rbind /sys/fs/cgroup {own}/cgroup; mount -t sysfs sysfs /sys"  # of its own network namespace
        yield f"mount --move {own}/cgroup /sys/fs/cgroup"
        for point, mode in (("/root", "700"), ("/tmp", "1777")):
            yield f"mount -t tmpfs -o mode={mode} fresh {own}{point}"
            for kept in (*KEPT, self.state):
                if kept.is_relative_to(point):
                    yield f"mkdir -p {own}{kept}; mount --bind {kept} {own}{kept}"
            yield f"mount --move {own}{point} {point}"
        yield f"exec {sys.executable} -I -S {INIT}"

    def _connect(self) -> None:
        # The same card after a reboot: neighbours remember its address.
        card = "02:00:" + ":".join(f"{int(part):02x}" for part in self.address.split("."))
        ip(self.anchor, f"link add {self.name} type veth peer name eth0 address {card} netns {self.pid}",
           f"link set {self.name} master switch up")  # fmt: skip
        ip(self.pid, f"addr add {self.address}/24 dev eth0", "link set lo up", "link set eth0 up")

    def came_up(self) -> None:
        """What runs in the host from now on is not its own: `processes` tells it."""
        self._daemons = frozenset(process.pid for process in self._all_processes())

    @property
    def alive(self) -> bool:
        return self._boot is not None and self._boot.poll() is None

    def kill(self) -> None:
        """End the host at once, as a crash does: every process in it and its link are gone."""
        if self.alive:
            everything = list(self._all_processes())
            os.kill(self.pid, signal.SIGKILL)
            for process in everything:  # dead by now, but for what waits for them outside
                deliver(process.pid, signal.SIGKILL)
        self.forget()
        try:
            ip(self.anchor, f"link del {self.name}")  # the kernel takes its time to do so itself
        except RuntimeError:
            pass

    def forget(self) -> None:
        """Wait for the end of a host that has been killed, by whomever."""
        if self._boot is not None:
            self._boot.communicate(timeout=30)
            self._boot = None

    def popen(
        self, argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None, cwd: str | Path = "/", **streams: Any
    ) -> Command:
        """Start a command in the host, in a session of its own; it dies with the returned object's process."""
        inside = ["setsid", "setpriv", "--pdeathsig", "KILL", "env", "-C", str(cwd), *map(str, argv)]
        enter = ["nsenter", "-t", str(self.pid), "-m", "-u", "-i", "-n", "-p", *inside]
        return Command(self._joined(enter), env={**self.environment, **(env or {})}, text=True,
                       start_new_session=True, **streams)  # fmt: skip

    def run(
        self, argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None, cwd: str | Path = "/",
        input: str = "", timeout: float = 60, check: bool = False,
    ) -> subprocess.CompletedProcess[str]:  # fmt: skip
        """Run a command in the host to its end, at most `timeout` seconds; with `check` a failure raises."""
        pipe = subprocess.PIPE
        with self.popen(argv, env=env, cwd=cwd, stdin=pipe, stdout=pipe, stderr=pipe) as command:
            try:
                out, err = command.communicate(input, timeout)
            except BaseException as error:
                command.kill()
                if isinstance(error, subprocess.TimeoutExpired):
                    error.cmd = list(argv)  # not the way into the host
                raise
        if check and command.returncode:
            raise RuntimeError(f"{self.name}: {argv} ended with {command.returncode}: {out}{err}")
        return subprocess.CompletedProcess(list(argv), command.returncode, out, err)

    def _joined(self, argv: Sequence[str]) -> list[str]:
        return ["sh", "-c", _JOIN, "sh", *map(str, self.cgroups.values()), "--", *argv]

    def path(self, path: str | Path) -> Path:
        """A path of the host as this machine reaches it (absolute links on the way lead out of the host)."""
        return Path(f"/proc/{self.pid}/root") / str(path).lstrip("/")

    def read(self, path: str | Path) -> str:
        return self.path(path).read_text(encoding="utf-8")

    def write(self, path: str | Path, text: str) -> None:
        self.path(path).write_text(text, encoding="utf-8")

    def processes(self, match: Match = lambda process: True) -> list[Process]:
        """The processes of this host that `match`, without its PID 1 and the daemons it came up with."""
        return [process for process in self._all_processes() if process.pid not in self._daemons and match(process)]

    def _all_processes(self) -> Iterator[Process]:
        namespace = os.readlink(f"/proc/{self.pid}/ns/pid")
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if os.readlink(entry / "ns/pid") != namespace:
                        continue
                    argv, environ = (_zero_ended(entry / name) for name in ("cmdline", "environ"))
                except OSError:
                    continue  # gone meanwhile
                if argv:  # else a zombie
                    pairs = dict(pair.split("=", 1) for pair in environ if "=" in pair)
                    yield Process(pid=int(entry.name), argv=argv, environ=pairs)


def ip(pid: int, *lines: str) -> None:
    """Run lines of ``ip -batch`` in the network namespace of a process."""
    in_network(pid, ["ip", "-batch", "-"], "\n".join(lines))


def in_network(pid: int, argv: Sequence[str], input: str = "") -> None:
    """Run a short command of this machine in the network namespace of a process."""
    outside(["nsenter", "-t", str(pid), "-n", *argv], input)


def outside(argv: Sequence[str], input: str = "") -> str:
    """Run a short command on this machine; a failure raises RuntimeError with what it said."""
    done = subprocess.run(list(argv), input=input, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)} ended with {done.returncode}: {input} {done.stderr.strip()}")
    return done.stdout


def children(pid: int) -> list[int]:
    """The children of a process with one thread."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def deliver(pid: int, sig: int) -> None:
    """Send a signal to a process of a host, unless it is gone meanwhile.

    nsenter stops itself when its command is stopped, and must go on when the command does, or ends.
    """
    try:
        parent = int(Path(f"/proc/{pid}/status").read_text().partition("PPid:")[2].split()[0])
        os.kill(pid, sig)
        if sig in (signal.SIGCONT, signal.SIGKILL) and Path(f"/proc/{parent}/comm").read_text() == "nsenter\n":
            os.kill(parent, signal.SIGCONT)
    except (FileNotFoundError, ProcessLookupError):
        pass


def _zero_ended(path: Path) -> tuple[str, ...]:
    text = path.read_bytes().decode(errors="replace")
    return tuple(text.rstrip("\0").split("\0")) if text else ()

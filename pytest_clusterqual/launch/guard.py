"""The guard: one small process on every node that ties the node's ranks to the session's life.

It is started by whatever reaches the node (directly, ssh, srun), reads one line of JSON from its
standard input - what to run, with which environment - finds the node's own address and interface,
and starts the torchrun agent. The secret comes in that line and never stands on a command line.
When its standard input ends, the session is gone or wants it to end: the guard kills every process
below it and leaves. Over a network a broken connection may tell nobody, so there the session also
sends a byte every few seconds, and the guard ends the ranks if they stay away; a ``?`` asks what
the ranks are doing. It is the reaper of
its descendants, so nothing can escape by outliving its parent.

Standard output carries events as JSON lines, among them samples of the node's condition; the
agent's and the ranks' output goes to standard error. It must start in milliseconds and run beside
any torch: standard library, and NVML where there is one.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_clusterqual import __version__
from pytest_clusterqual.launch.network import NoRoute, own_place, reachable
from pytest_clusterqual.launch.plan import OWN_ADDRESS
from pytest_clusterqual.launch.telemetry import Sampler

_SAMPLE_SECONDS = 1.0
_LOOK_SECONDS = 0.25
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def main() -> int:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the session decides; it speaks through standard input
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with open(0, "rb", buffering=0, closefd=False) as lifeline:  # no buffer: what follows the line is for `_watch`
        line = lifeline.readline()
    if not line:
        return 0
    order: dict[str, Any] = json.loads(line)
    scratch = tempfile.mkdtemp(prefix="clusterqual-")
    try:
        return _run(order, scratch)
    finally:
        kill_descendants()
        shutil.rmtree(scratch, ignore_errors=True)


def _run(order: dict[str, Any], scratch: str) -> int:
    _tell("hello", host=socket.gethostname(), version=__version__, python=platform.python_version())
    try:
        address, interface = _place(order)
    except NoRoute as error:
        _tell("failed", reason=str(error))
        return 1
    environment = {
        **os.environ, **order["environment"],
        "CLUSTERQUAL_ADDRESS": address, "CLUSTERQUAL_SCRATCH": scratch, "TMPDIR": scratch,
    }  # fmt: skip
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        if order["interface"] or name not in environment:  # what was asked for wins over what the node is set to
            environment[name] = interface
    if cores := order["cores"]:
        os.sched_setaffinity(0, cores)
    argv = [word.replace(OWN_ADDRESS, address) for word in order["argv"]]
    if "/" not in argv[0] and (beside := Path(sys.executable).with_name(argv[0])).exists():
        argv[0] = str(beside)  # a launcher out of the environment that this Python is of
    _tell("began", monotonic=time.monotonic(), address=address, interface=interface, scratch=scratch)
    try:
        agent = subprocess.Popen(
            argv, env=environment, stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno(),
            preexec_fn=die_with(os.getpid()),  # noqa: PLW1509  # the guard has one thread
        )  # fmt: skip
    except OSError as error:
        _tell("failed", reason=f"cannot start {argv[0]}: {error.strerror}")
        return 127
    return _watch(agent, float(order["heartbeat"]))


def _place(order: dict[str, Any]) -> tuple[str, str]:
    """This node's address and interface, once it is certain that it speaks with the session's version and store."""
    if order["version"] != __version__:
        raise NoRoute(
            f"{socket.gethostname()} has pytest-clusterqual {__version__}, the session {order['version']}: install the "
            "same version on every host"
        )
    address, port = order["store"]
    if reason := reachable(address, port, 10.0):
        raise NoRoute(
            f"{socket.gethostname()} cannot reach the session at {address} port {port}: {reason}; open the port, "
            "or set launcher.address to an address that the nodes can reach"
        )
    if order["address"]:
        return order["address"], order["interface"]
    return own_place(order["interface"], order["peers"])


def _watch(agent: subprocess.Popen[bytes], heartbeat: float) -> int:
    """Wait for the agent, for the end of the lifeline, or for the session to fall silent."""
    ended = os.pidfd_open(agent.pid)
    kills = out_of_memory_kills()
    heard = sampled = time.monotonic()
    sampler = Sampler()
    while True:
        ready, _, _ = select.select([0, ended], [], [], _LOOK_SECONDS)
        now = time.monotonic()
        if ended in ready:
            code = int(agent.wait())
            _tell("ended", monotonic=now, code=code, out_of_memory=code == -9 and out_of_memory_kills() > kills)
            return code if code >= 0 else 128 - code
        if 0 in ready:
            said = os.read(0, 4096)
            if not said:
                return 0
            heard = now
            if b"?" in said and _all_read():
                _tell("ranks", states=rank_states())
        if heartbeat and now - heard > heartbeat:
            print(f"no sign of life from the session for {heartbeat:g} s: the ranks are ended", file=sys.stderr)
            return 1
        end_stopped_ranks(agent.pid)
        if now - sampled >= _SAMPLE_SECONDS:
            sampled = now
            if _all_read():
                _tell("sample", **sampler.sample())


def _all_read() -> bool:
    """False while the session does not read what it was told; a guard that waits there misses the end of its lifeline.

    A pipe counts as writable only with a page free, which is more than any sample needs.
    """
    return bool(select.select([], [1], [], 0)[1])


def die_with(parent: int) -> Callable[[], None]:
    """What runs in a child before it begins: should even the guard be killed, its agent goes, and the ranks with it."""

    def begin() -> None:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it was killed before the kernel was asked to tell
            os._exit(0)

    return begin


def _tell(event: str, **data: object) -> None:
    sys.stdout.write(json.dumps({"event": event, **data}) + "\n")
    sys.stdout.flush()


def end_stopped_ranks(agent: int) -> None:
    """Kill the ranks that the agent has told to end and that cannot: SIGTERM waits until a stopped process goes on.

    The agent itself would wait for 30 s before it kills, which no option of torchrun shortens when it restarts.
    A rank that is stopped and was not told to end stays as it is.
    """
    try:
        ranks = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    except OSError:  # it is gone, or this kernel does not tell: then the 30 s it is
        return
    for pid in map(int, ranks):
        try:
            state, pending = _status(pid, "State"), int(_status(pid, "ShdPnd"), 16)
            if state.startswith("T") and pending >> (signal.SIGTERM - 1) & 1:
                rank = _local_rank(pid)
                os.kill(pid, signal.SIGKILL)
                if _all_read():
                    _tell("stopped", local_rank=rank)
        except OSError:
            continue  # gone meanwhile


def rank_states() -> dict[str, str]:
    """LOCAL_RANK -> what the kernel says each rank does, such as ``T (stopped)``."""
    states = {}
    for pid in descendants(os.getpid()):
        try:
            if rank := _local_rank(pid):
                states[rank] = _status(pid, "State")
        except OSError:
            continue  # gone meanwhile
    return states


def _local_rank(pid: int) -> str:
    found = re.search(rb"\0LOCAL_RANK=(\d+)\0", Path(f"/proc/{pid}/environ").read_bytes())
    return found[1].decode() if found else ""


def _status(pid: int, field: str) -> str:
    """One field of what the kernel tells of a process."""
    return Path(f"/proc/{pid}/status").read_text().partition(f"\n{field}:")[2].partition("\n")[0].strip()


def out_of_memory_kills() -> int:
    """How many processes this machine's kernel has killed for want of memory so far."""
    try:
        return int(re.findall(r"^oom_kill (\d+)", Path("/proc/vmstat").read_text(), re.MULTILINE)[0])
    except (OSError, IndexError):
        return 0


def kill_descendants() -> None:
    """Kill everything below this process, whatever it does against it.

    Killed processes leave their children to this one (it is their subreaper), so the walk is
    repeated until nothing is left.
    """
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        living = descendants(os.getpid())
        for pid in living:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        try:
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)


def descendants(root: int) -> list[int]:
    """All processes below `root`, from /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue  # gone meanwhile
            children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


if __name__ == "__main__":
    sys.exit(main())

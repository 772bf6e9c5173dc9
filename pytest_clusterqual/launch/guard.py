"""The guard: one small process on every node that ties the node's ranks to the session's life.

It is started by whatever reaches the node (directly, ssh, srun), reads one line of JSON from its
standard input - what to run, with which environment - and starts the torchrun agent. The secret
comes in that line and never stands on a command line. When its standard input ends, the session
is gone or wants it to end: the guard kills every process below it and leaves. It is the reaper of
its descendants, so nothing can escape by outliving its parent.

Standard output carries events as JSON lines; the agent's and the ranks' output goes to standard
error. Standard library only: it must start in milliseconds and run beside any torch.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def main() -> int:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the session decides; it speaks through standard input
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    line = sys.stdin.buffer.readline()  # the session writes one line, then nothing: no byte is lost in the buffer
    if not line:
        return 0
    order = json.loads(line)
    scratch = tempfile.mkdtemp(prefix="clusterqual-")
    try:
        return _run(order, scratch)
    finally:
        kill_descendants()
        shutil.rmtree(scratch, ignore_errors=True)


def _run(order: dict[str, object], scratch: str) -> int:
    environment = {**os.environ, **order["environment"], "CLUSTERQUAL_SCRATCH": scratch, "TMPDIR": scratch}  # type: ignore[dict-item]  # JSON
    if cores := order["cores"]:
        os.sched_setaffinity(0, cores)  # type: ignore[arg-type]  # JSON
    _tell(event="began", monotonic=time.monotonic(), scratch=scratch)
    try:
        agent = subprocess.Popen(  # type: ignore[call-overload]  # JSON
            order["argv"], env=environment, stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno(),
            preexec_fn=_die_with_the_guard,  # noqa: PLW1509  # the guard has one thread
        )  # fmt: skip
    except OSError as error:
        _tell(event="failed", reason=f"cannot start {order['argv'][0]}: {error.strerror}")  # type: ignore[index]
        return 127
    ended = os.pidfd_open(agent.pid)
    while True:
        ready, _, _ = select.select([0, ended], [], [])
        if ended in ready:
            code = int(agent.wait())
            _tell(event="ended", monotonic=time.monotonic(), code=code)
            return code if code >= 0 else 128 - code
        if not os.read(0, 4096):
            return 0


def _die_with_the_guard() -> None:
    """Runs in the agent before it begins: should even the guard be killed, its agent goes, and the ranks with it."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _tell(**event: object) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


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

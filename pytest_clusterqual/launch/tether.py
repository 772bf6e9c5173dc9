"""The tether: runs one program for as long as its standard input is open, and no longer than its limit.

``python -m pytest_clusterqual.launch.tether SECONDS PROGRAM...``. Whoever started it and goes, for
whatever reason, takes along everything below it.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time

from pytest_clusterqual.launch.guard import die_with, kill_descendants

_PR_SET_CHILD_SUBREAPER = 36
_LEAVE_SECONDS = 5.0  # for what starts processes elsewhere, such as mpirun, to end them


def main() -> int:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the session decides; it speaks through standard input
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    limit, argv = float(sys.argv[1]), sys.argv[2:]
    try:
        program = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            preexec_fn=die_with(os.getpid()),  # noqa: PLW1509
        )
    except OSError as error:
        print(f"cannot start {argv[0]}: {error.strerror}", file=sys.stderr)
        return 127
    try:
        return _watch(program, limit)
    finally:
        kill_descendants()


def _watch(program: subprocess.Popen[bytes], limit: float) -> int:
    ended = os.pidfd_open(program.pid)
    deadline = time.monotonic() + limit
    while (left := deadline - time.monotonic()) > 0:
        ready, _, _ = select.select([0, ended], [], [], left)
        if ended in ready:
            code = program.wait()
            return code if code >= 0 else 128 - code
        if 0 in ready and not os.read(0, 4096):
            break
    program.terminate()
    select.select([ended], [], [], _LEAVE_SECONDS)
    return 143


if __name__ == "__main__":
    sys.exit(main())

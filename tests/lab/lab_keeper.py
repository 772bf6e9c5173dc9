"""The keeper of one lab: a program that outlives the lab's owner just long enough to take the lab down.

It starts the anchor, which is PID 1 of the PID namespace in which all hosts live and whose network
namespace is the switch. When the owner closes the pipe or dies in whatever way, the keeper ends
the anchor, and the kernel ends every process, interface and mount below it; the keeper then
removes what is left on disk. Should the keeper be killed, the anchor's pipe ends likewise, and
the next lab sweeps the rest.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from lab_state import sweep

INIT = Path(__file__).with_name("lab_init.py")


def main(state: Path, owner: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # the owner decides
    anchor = subprocess.Popen(
        ["unshare", "--net", "--pid", "--fork", "--kill-child", sys.executable, "-I", "-S", str(INIT)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert anchor.stdin is not None and anchor.stdout is not None
    try:
        if anchor.stdout.readline():
            print(anchor.pid, flush=True)
            owner_ended = os.pidfd_open(owner)  # the pipe alone would not do: a fork of the owner may hold its end
            select.select([0, owner_ended], [], [])
    except ProcessLookupError:
        pass  # the owner was faster than its keeper
    finally:
        anchor.stdin.close()
        try:
            anchor.wait(2)
        except subprocess.TimeoutExpired:
            pass  # a stopped process is in its way: sweeping kills it
        sweep(state)
        anchor.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))

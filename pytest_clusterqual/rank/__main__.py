"""Entry point of every process that torchrun starts: ``-m pytest_clusterqual.rank serve|train|command WORDS``.

serve: a supervisor. It imports torch once and forks a worker for each generation; the worker
joins the process group and runs jobs. A worker that dies or hangs is replaced by a fork, which
takes a tenth of a second where a new launch takes many. The supervisor never touches a device
and never hosts a store: neither survives a fork.

train: one attempt of a full run under torchrun's own restart.

command: a user's own script, beside which this process stays.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn


def follow_parent() -> None:
    """Have the kernel kill this process when its parent dies, however that happens."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)  # 1 = PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


def main() -> None:
    follow_parent()
    if sys.argv[1:2] == ["command"] and len(sys.argv) > 2:
        _command(sys.argv[2:])
    from pytest_clusterqual.rank import supervisor

    mode = sys.argv[1] if len(sys.argv) == 2 else ""
    if mode == "serve":
        supervisor.serve()
    elif mode == "train":
        _train(supervisor.train)
    else:
        sys.exit("usage: torchrun -m pytest_clusterqual.rank MODE (started by the launcher, not by hand)")


def _train(attempt: Callable[[], None]) -> None:
    """Leave at once after an error: a thread that saves may wait for a peer that hangs, and the interpreter for it.

    So may the ends of NCCL's communicators. The agent would wait as well, and its peers for the agent.
    """
    try:
        attempt()
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def _command(words: list[str]) -> NoReturn:
    from pytest_clusterqual.errors import ClusterQualError
    from pytest_clusterqual.rank import command

    try:
        command.run(words)
    except ClusterQualError as error:  # the session shows what is printed here
        sys.exit(str(error))


if __name__ == "__main__":
    main()

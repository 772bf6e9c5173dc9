"""Entry point of every process that torchrun starts: ``-m pytest_clusterqual.rank serve|train``.

serve: a supervisor. It imports torch once and forks a worker for each generation; the worker
joins the process group and runs jobs. A worker that dies or hangs is replaced by a fork, which
takes a tenth of a second where a new launch takes many. The supervisor never touches a device
and never hosts a store: neither survives a fork.

train: one attempt of a full run under torchrun's own restart.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys


def follow_parent() -> None:
    """Have the kernel kill this process when its parent dies, however that happens."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)  # 1 = PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


def main() -> None:
    follow_parent()
    from pytest_clusterqual.rank import supervisor

    mode = sys.argv[1] if len(sys.argv) == 2 else ""
    if mode == "serve":
        supervisor.serve()
    elif mode == "train":
        supervisor.train()
    else:
        sys.exit("usage: torchrun -m pytest_clusterqual.rank serve|train (started by the launcher, not by hand)")


if __name__ == "__main__":
    main()

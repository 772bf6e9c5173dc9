"""What else the cores of a rank do while it is measured; standard library only."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path


class LoadWatch:
    """Time of this rank's cores that other processes or the hypervisor took meanwhile."""

    # user, nice, system, steal of a line of /proc/stat. Interrupts are left out: the rank's own
    # network traffic shows up there.
    _FIELDS = (1, 2, 3, 8)

    def __init__(self) -> None:
        self._cores = os.sched_getaffinity(0)
        self._began = (time.monotonic(), self._busy(), time.process_time())

    def taken(self, child: float = 0.0) -> tuple[float, float]:
        """Core-seconds that others took, and core-seconds there were; `child` are those of a process that is its own.

        The kernel counts in ticks of 10 ms: only the sum over a second or more says something.
        """
        began, busy, own = self._began
        elapsed = time.monotonic() - began
        mine = time.process_time() - own + child
        return (self._busy() - busy) - mine, elapsed * len(self._cores)

    def _busy(self) -> float:
        ticks = 0
        with open("/proc/stat") as stat:
            for line in stat:
                fields = line.split()
                if fields[0][:3] == "cpu" and fields[0][3:].isdigit() and int(fields[0][3:]) in self._cores:
                    ticks += sum(int(fields[i]) for i in self._FIELDS if i < len(fields))
        return ticks / float(os.sysconf("SC_CLK_TCK"))


def of_children() -> float:
    """CPU-seconds of processes that this one has started: those that have ended, and those of multiprocessing."""
    ended = os.times()
    alive = (child.pid for child in multiprocessing.active_children())
    return ended.children_user + ended.children_system + sum(_of(process) for process in alive if process)


def _of(process: int) -> float:
    try:
        # The command's name may hold blanks and brackets; the numbers begin after its last bracket.
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / float(os.sysconf("SC_CLK_TCK"))

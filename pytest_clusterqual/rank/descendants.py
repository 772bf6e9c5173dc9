"""The processes below one, as the kernel tells them: a rank may be a launcher's script with the trainer below it."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path


def below(process: int) -> list[int]:
    """All processes below this one; none where the kernel does not tell of children."""
    found: list[int] = []
    waiting = [process]
    while waiting:
        children = _children(waiting.pop())
        found += children
        waiting += children
    return found


def _children(process: int) -> list[int]:
    children: list[int] = []
    try:
        for task in Path(f"/proc/{process}/task").iterdir():
            children += map(int, (task / "children").read_text().split())
    except OSError:  # gone meanwhile
        pass
    return children


def stop_tree(process: int) -> list[int]:
    """SIGSTOP to this process and all below it: what is stopped begins no other."""
    stopped: list[int] = []
    while left := [each for each in (process, *below(process)) if each not in stopped]:
        for each in left:
            _send(each, signal.SIGSTOP)
        stopped += left
    return stopped


def kill_tree(process: int) -> None:
    """SIGKILL to this process and all below it; stopped first, so that none acts on the end of another."""
    for each in stop_tree(process):
        _send(each, signal.SIGKILL)


def peak(process: int) -> int:
    """The most memory that one process below this one has had so far, bytes; 0 without any."""
    return max(map(_peak, below(process)), default=0)


def _peak(process: int) -> int:
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:  # gone meanwhile
        return 0
    found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def _send(process: int, number: signal.Signals) -> None:
    try:
        os.kill(process, number)
    except ProcessLookupError:
        pass

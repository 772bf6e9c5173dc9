"""How much host memory a save takes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

# Seconds between two looks. A look takes the interpreter from training, on a busy machine for more than its own 50 us.
EVERY = 0.2


class HostMemory:
    """Looks at this process while training stands still, and all the time at those that save for it.

    In the middle of a step a process has more memory than between two, save or not. A process that is there for saving
    alone is charged as a whole.
    """

    def __init__(self, savers: Sequence[int] = ()) -> None:
        """`savers` are the ids of processes that save for this one."""
        self._savers = tuple(savers)
        self._before = self._own = self._beside = 0  # bytes
        self._still = False
        self._over = threading.Event()
        self._over.set()
        self._lock = threading.Lock()

    def begin(self) -> None:
        """A save begins, and training stands still for it."""
        self._before = self._own = sum(_resident("self"))
        self._beside = 0
        self._still = True
        self._over.clear()
        threading.Thread(target=self._watch, daemon=True, name="host-memory").start()

    def goes_on(self) -> None:
        """Training goes on, the save perhaps beside it."""
        self._look()
        self._still = False

    def between_steps(self) -> None:
        """Training stands still for a moment."""
        if not self._over.is_set():
            self._look(still=True)

    def end(self) -> int:
        """The save is complete: bytes that it took at most."""
        self._look()
        self._over.set()
        with self._lock:
            return self._own - self._before + self._beside

    def _watch(self) -> None:
        over = self._over
        while not over.wait(EVERY):
            self._look()

    def _look(self, *, still: bool = False) -> None:
        own = sum(_resident("self")) if still or self._still else 0
        # What they share with this process, the copy of the state, is in its own.
        beside = sum(_resident(str(saver))[0] for saver in self._savers)
        with self._lock:
            self._own, self._beside = max(self._own, own), max(self._beside, beside)


def _resident(process: str) -> tuple[int, int]:
    """Bytes of memory that a process has to itself, and shared with others; files aside."""
    try:
        lines = (Path("/proc") / process / "status").read_text().splitlines()
    except OSError:  # it has ended
        return 0, 0
    found = dict(line.split(":", 1) for line in lines if line.startswith(("RssAnon:", "RssShmem:")))
    own, shared = (int(found.get(name, "0").split()[0]) * 1024 for name in ("RssAnon", "RssShmem"))
    return own, shared

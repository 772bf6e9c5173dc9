"""How much more host memory a rank has while it saves."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

EVERY = 0.05  # seconds between two looks: a look costs some 50 us


class HostMemory:
    """Looks at the resident memory of this process all the time, and while it saves also at that of its savers.

    What a save takes is the difference of two peaks, so that what steps need anyway is not charged to it. A process
    that is there for saving alone is charged as a whole.
    """

    def __init__(self, savers: Sequence[int] = ()) -> None:
        """`savers` are the ids of processes that save for this one."""
        self._savers = tuple(savers)
        self._calm = self._saving = 0  # bytes
        self._busy = False
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        threading.Thread(target=self._watch, daemon=True, name="host-memory").start()

    def begin(self) -> None:
        """A save begins."""
        self._look()
        with self._lock:
            self._busy, self._saving = True, 0

    def end(self) -> int:
        """The save is complete: bytes that it took at most."""
        self._look()
        with self._lock:
            self._busy = False
            return max(self._saving - self._calm, 0)

    def close(self) -> None:
        """Look no more."""
        self._stopped.set()

    def _watch(self) -> None:
        while not self._stopped.wait(EVERY):
            self._look()

    def _look(self) -> None:
        with self._lock:
            if self._busy:
                self._saving = max(self._saving, resident(None, *self._savers))
            else:
                self._calm = max(self._calm, resident(None))


def resident(*processes: int | None) -> int:
    """Bytes of memory that these processes have, None for this one, files aside; what they share counts once."""
    each = [_parts("self" if process is None else str(process)) for process in processes]
    return sum(own for own, _ in each) + max((shared for _, shared in each), default=0)


def _parts(process: str) -> tuple[int, int]:
    """Bytes of its own and shared with others."""
    try:
        lines = (Path("/proc") / process / "status").read_text().splitlines()
    except OSError:  # it has ended
        return 0, 0
    found = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)
             if name in ("RssAnon", "RssShmem")}  # fmt: skip
    return found.get("RssAnon", 0), found.get("RssShmem", 0)

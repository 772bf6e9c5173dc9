"""The order to end: SIGTERM, heard even by a rank that waits in a collective."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import TracebackType

LEAST_PATIENCE = 2.0  # seconds
LONGEST_STEPS = 3  # so many times as long as any step so far may the one under way take


class Notice:
    """From entering on SIGTERM ends nothing by itself: `given` becomes true, and whoever trains ends in order.

    torchrun's agent sends the same signal to ranks whose peer has failed, and their step may never end: with NCCL a
    collective waits for a dead peer, and Python runs no handler meanwhile. So a thread looks after the step under way,
    and ends the process if that takes far longer than any before; without it the agent would wait for 30 s.
    """

    def __init__(self) -> None:
        self.given = False
        self._steps = 0
        self._longest = 0.0
        self._last: float | None = None
        self._agreed = threading.Event()
        self._reading, self._writing = os.pipe()

    def alive(self) -> None:
        """To be called before the first step and after each."""
        now = time.monotonic()
        self._longest = max(self._longest, now - (self._last or now))
        self._last = now
        self._steps += 1

    @property
    def agreed(self) -> bool:
        """All ranks know that they are to end after this step."""
        return self._agreed.is_set()

    def agree(self) -> None:
        """Say so: the thread looks no more."""
        self._agreed.set()

    def __enter__(self) -> Notice:
        os.set_blocking(self._writing, False)
        # The interpreter's own C handler writes into the pipe at once; one in Python waits for the main thread.
        self._pipe_before = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        self._handler_before = signal.signal(signal.SIGTERM, lambda *_: None)
        threading.Thread(target=self._listen, daemon=True, name="notice").start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGTERM, self._handler_before)
        signal.set_wakeup_fd(self._pipe_before)
        os.close(self._writing)  # its other end goes with the thread that reads it

    def _listen(self) -> None:
        while signal.SIGTERM not in (heard := os.read(self._reading, 64)):
            if not heard:
                os.close(self._reading)
                return
        self.given = True
        steps = self._steps
        while not self._agreed.wait(max(LEAST_PATIENCE, LONGEST_STEPS * self._longest)):
            if self._steps == steps:
                os._exit(128 + signal.SIGTERM)
            steps = self._steps

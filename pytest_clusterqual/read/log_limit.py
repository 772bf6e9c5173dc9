"""A limit of time for a user's own regular expression: Python's engine has none, and no check sees all that need it."""

from __future__ import annotations

import re
import signal
import threading
from types import FrameType

_SLOW = 0.03  # seconds, some ticks of its clock: no line takes longer with an expression that is fit for it
BUDGET = 5.0  # seconds of the processor that all slow lines together may take


class _Ended(BaseException):
    """Not to be held for an error by whoever is interrupted."""


class Limited:
    """Searches lines for `pattern`. The clock is that of the process, which others on the machine do not slow.

    Only the main thread is told of it: in another one there is no limit.
    """

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern
        self._left = BUDGET

    @property
    def text(self) -> str:
        return self._pattern.pattern

    def search(self, text: str) -> re.Match[str] | None:
        """As of a pattern.

        Raises:
            TimeoutError: this line and the slow ones before it took too long.
        """
        if threading.current_thread() is not threading.main_thread():
            return self._pattern.search(text)
        try:
            return self._search(text)
        except _Ended:
            raise TimeoutError from None

    def _search(self, text: str) -> re.Match[str] | None:
        before = signal.signal(signal.SIGVTALRM, _end)
        try:
            signal.setitimer(signal.ITIMER_VIRTUAL, self._left)
            return self._pattern.search(text)
        finally:
            left, _ = signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, before or signal.SIG_DFL)
            if self._left - left > _SLOW:
                self._left = max(left, _SLOW)


def _end(number: int, frame: FrameType | None) -> None:
    raise _Ended

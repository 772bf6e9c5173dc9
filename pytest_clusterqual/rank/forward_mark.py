"""When a rank had done what it computes without the others, by its device's own word."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING

import torch

from pytest_clusterqual.probe import Probe

if TYPE_CHECKING:
    from pytest_clusterqual.rank.jobs import Context


class ForwardMark:
    """Around a step that ends with the device; call it where the last forward pass has been given to that.

    Up to there, copies of a model have not yet waited for each other, so it shows which rank computes slowly. Where no
    forward pass is seen, as in a pipeline, nothing is told.
    """

    def __init__(self, ctx: Context, probe: Probe) -> None:
        self._probe = probe
        self._events: list[torch.cuda.Event] | None = None
        if ctx.device.type == "cuda":
            self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        self._began = self._at = 0.0

    def __enter__(self) -> None:
        self._at = 0.0
        self._began = time.monotonic()
        if self._events:
            self._events[0].record()

    def __call__(self) -> None:
        self._at = time.monotonic()
        if self._events:
            self._events[1].record()

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if kind is not None or not self._at:
            return
        if self._events:
            self._at = self._began + self._events[0].elapsed_time(self._events[1]) * 1e-3
        self._probe.stage("forward", self._at)

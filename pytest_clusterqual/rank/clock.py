"""Moments on the clock of whatever works the calls off: this process, or the device's current stream."""

from __future__ import annotations

import time
from typing import Any

import torch


def moment(device: torch.device) -> Any:
    """Now. On a device the moment is reached when its stream comes to it, so nothing waits for it here."""
    if device.type == "cpu":
        return time.perf_counter()
    event = torch.Event(device=device, enable_timing=True)
    event.record()
    return event


def seconds_between(begin: Any, end: Any) -> float:
    """Seconds from one `moment` to another; waits until the device has reached the later one."""
    if isinstance(begin, float):
        return float(end - begin)
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3

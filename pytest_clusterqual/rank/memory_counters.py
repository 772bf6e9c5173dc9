"""Counting the memory of training steps, in each kind of device memory."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.rank.control_groups import proc_bytes
from pytest_clusterqual.rank.job import Job
from pytest_clusterqual.rank.memory_events import STEP, Timeline, timeline


class Counter(Protocol):
    """Counts the memory of the steps in one kind of device memory."""

    counted: str

    def step(self, job: Job, batches: Any) -> Tensor:
        """Do one optimizer step under the count."""

    def finish(self) -> None:
        """End counting."""

    def peaks(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Allocated and reserved peaks of each step, in bytes."""

    def device_used(self) -> int:
        """Highest use seen at device level, in bytes."""

    def timeline(self) -> Timeline | None:
        """All allocations; None if torch's profiler saw none there."""


class CpuCounter:
    """Every tensor that torch's CPU allocator made since this object was, from the profiler's events.

    Exact and repeatable, which the resident set is not: that also holds the interpreter, the
    libraries and whatever freed memory the C library keeps. So a process that is `confined` to less
    memory than there is counts tensors at device level, too, as if they lay on a device of their own.
    """

    def __init__(self, *, confined: bool = False) -> None:
        self.counted = "bytes held by torch's CPU allocator (profiler memory events)"
        if not _count_on_all_threads():
            self.counted += "; what communication threads free counts as held"
        if not _reset_resident_peak():
            self.counted += "; the resident peak is since the process began"
        self._confined = confined
        self._profile = _profile()
        self._timeline: Timeline | None = None

    def step(self, job: Job, batches: Any) -> Tensor:
        with record_function(STEP):
            return job.step(batches)

    def finish(self) -> None:
        self._timeline = _ended(self._profile, "cpu")

    def peaks(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self.timeline().peaks(), ()

    def device_used(self) -> int:
        return self.timeline().most if self._confined else resident_peak()

    def timeline(self) -> Timeline:
        assert self._timeline is not None  # nobody asks before the end
        return self._timeline


class CudaCounter:
    """CUDA's caching allocator, and the device's own free memory. The profiler adds what the peak is made of."""

    counted = "bytes allocated by torch's CUDA allocator (max_memory_allocated)"

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._allocated: list[int] = []
        self._reserved: list[int] = []
        self._used = 0
        self._profile = _profile()
        self._timeline: Timeline | None = None

    def step(self, job: Job, batches: Any) -> Tensor:
        torch.cuda.reset_peak_memory_stats(self._device)
        with record_function(STEP):
            loss = job.step(batches)
        torch.cuda.synchronize(self._device)
        free, total = torch.cuda.mem_get_info(self._device)
        self._used = max(self._used, total - free)
        self._allocated.append(torch.cuda.max_memory_allocated(self._device))
        self._reserved.append(torch.cuda.max_memory_reserved(self._device))
        return loss

    def finish(self) -> None:
        with suppress(MeasurementError):  # the allocator's own figures are there without it
            self._timeline = _ended(self._profile, "cuda")

    def peaks(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return tuple(self._allocated), tuple(self._reserved)

    def device_used(self) -> int:
        return self._used

    def timeline(self) -> Timeline | None:
        return self._timeline


def _profile() -> Any:
    started = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    started.start()
    return started


def _ended(profiling: Any, device: str) -> Timeline:
    profiling.stop()
    return timeline(profiling.profiler.kineto_results.experimental_event_tree(), device)


def _count_on_all_threads() -> bool:
    """Have torch's allocator keep its total on threads that the profiler does not follow, too.

    A buffer that gloo's own thread is the last to drop would otherwise count as held for ever.
    torch has a switch for it, but no door to it from Python.
    """
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
        ctypes.c_bool.in_dll(library, "FLAGS_caffe2_report_cpu_memory_usage").value = True
    except (OSError, ValueError):
        return False
    return True


def resident_peak(status: Path = Path("/proc/self/status")) -> int:
    """The largest resident set of this process so far, in bytes."""
    return proc_bytes(status, "VmHWM", "the kernel does not tell the peak resident set")


def _reset_resident_peak() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True

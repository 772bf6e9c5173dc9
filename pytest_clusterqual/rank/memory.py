"""Memory of one rank over whole optimizer steps of the exact job, in a fresh process."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter
from torch.profiler import ProfilerActivity, profile, record_function

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.model.codec import from_json, to_json
from pytest_clusterqual.model.memory import RankMemory
from pytest_clusterqual.model.workload import Layout, Workload
from pytest_clusterqual.rank.data import ByteData
from pytest_clusterqual.rank.job import Job
from pytest_clusterqual.rank.layouts import build
from pytest_clusterqual.rank.limits import cpu_limit, cuda_limit
from pytest_clusterqual.rank.training import global_losses

if TYPE_CHECKING:
    from pytest_clusterqual.rank.jobs import Context

STEP_NAME = "clusterqual.step"
SETTLE_SECONDS = 1.0
GLOO_THREAD = "pt_gloo_runloop"  # the kernel keeps 15 letters of it


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


def measure(ctx: Context, *, workload: dict[str, Any], layout: dict[str, Any], steps: int) -> Any:
    """Forward, backward and optimizer of `steps` steps; a `RankMemory` as JSON.

    Raises:
        MeasurementError: a loss is not finite, or the steps left no memory events.
        ClusterQualError: the job cannot be done on these ranks, or its data cannot be read.
    """
    work = from_json(Workload, workload, where="workload")
    limit = cuda_limit(ctx.device) if ctx.device.type == "cuda" else cpu_limit(ctx)
    data = ByteData.open(ctx, work)
    counter: Counter = CudaCounter(ctx.device) if ctx.device.type == "cuda" else CpuCounter()
    job = build(ctx, work, from_json(Layout, layout, where="layout"))
    if ctx.device.type == "cpu":
        settle(job)
    losses = []
    for step in range(1, steps + 1):
        ctx.report(step - 1, steps, "memory steps")
        batches = data.batches(step, rank=job.data_rank, world_size=job.data_ranks)
        losses.append(counter.step(job, batches).item())
    counter.finish()
    ctx.report(steps, steps, "memory steps")
    allocated, reserved = counter.peaks()
    return to_json(
        RankMemory(
            rank=ctx.rank,
            step_peaks=allocated,
            reserved_peaks=reserved,
            device_used=counter.device_used(),
            limit=limit.bytes,
            limit_from=limit.origin,
            counted=counter.counted,
            parts=job.parts(),
            losses=global_losses(ctx, [torch.tensor(loss, device=ctx.device) for loss in losses]),
            data_digest=data.digest,
        )
    )


class CpuCounter:
    """Every tensor that torch's CPU allocator made since this object was, from the profiler's events.

    Exact and repeatable, which the resident set is not: that also holds the interpreter, the
    libraries and whatever freed memory the C library keeps.
    """

    def __init__(self) -> None:
        self.counted = "bytes held by torch's CPU allocator (profiler memory events)"
        if not _count_on_all_threads():
            self.counted += "; what communication threads free counts as held"
        if not _reset_resident_peak():
            self.counted += "; the resident peak is since the process began"
        self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        self._profile.start()

    def step(self, job: Job, batches: Any) -> Tensor:
        with record_function(STEP_NAME):
            return job.step(batches)

    def finish(self) -> None:
        self._profile.stop()

    def peaks(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        results: Any = self._profile.profiler
        return step_peaks(results.kineto_results.experimental_event_tree()), ()

    def device_used(self) -> int:
        return resident_peak()


class CudaCounter:
    """CUDA's caching allocator, and the device's own free memory."""

    counted = "bytes allocated by torch's CUDA allocator (max_memory_allocated)"

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._allocated: list[int] = []
        self._reserved: list[int] = []
        self._used = 0

    def step(self, job: Job, batches: Any) -> Tensor:
        torch.cuda.reset_peak_memory_stats(self._device)
        loss = job.step(batches)
        torch.cuda.synchronize(self._device)
        free, total = torch.cuda.mem_get_info(self._device)
        self._used = max(self._used, total - free)
        self._allocated.append(torch.cuda.max_memory_allocated(self._device))
        self._reserved.append(torch.cuda.max_memory_reserved(self._device))
        return loss

    def finish(self) -> None:
        pass

    def peaks(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return tuple(self._allocated), tuple(self._reserved)

    def device_used(self) -> int:
        return self._used


class SettledAllGather(DefaultAllGather):
    """FSDP's own all-gather, left only when the communication thread has let go of the buffers.

    That thread answers a moment before it drops them. Whoever drops a buffer last frees it, so
    without this the peak would depend on a race: now and then it would hold one buffer more.
    """

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        super().__call__(output_tensor, input_tensor, group, async_op=False)
        wait_for_gloo()
        return None


class SettledReduceScatter(DefaultReduceScatter):
    """FSDP's own reduce-scatter, settled as the all-gather is."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> Any:
        super().__call__(output_tensor, input_tensor, group, op, async_op=False)
        wait_for_gloo()
        return None


def wait_for_gloo(tasks: Path = Path("/proc/self/task"), *, seconds: float = SETTLE_SECONDS) -> bool:
    """True once gloo's threads sleep: then they have dropped the buffers of all finished work."""
    deadline = time.monotonic() + seconds
    while any(_works_for_gloo(task / "stat") for task in tasks.iterdir()):
        if time.monotonic() > deadline:
            return False
        time.sleep(0)
    return True


def _works_for_gloo(stat: Path) -> bool:
    try:
        name, _bracket, numbers = stat.read_text().rpartition(")")
    except OSError:  # the thread has just ended
        return False
    return name.endswith(GLOO_THREAD) and numbers.split()[0] != "S"


def settle(job: Job) -> None:
    """Make what the job holds at a moment independent of when communication threads let go."""
    for module in job.model.modules():
        if isinstance(module, FSDPModule):
            module.set_custom_all_gather(SettledAllGather())
            module.set_custom_reduce_scatter(SettledReduceScatter())


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


def step_peaks(events: Any) -> tuple[int, ...]:
    """The most bytes held at any moment of each step, from the profiler's event tree.

    Raises:
        MeasurementError: the tree holds no step or no allocation.
    """
    steps: list[tuple[int, int]] = []
    totals: list[tuple[int, int]] = []
    for event in _all_events(events):
        if event.name == STEP_NAME:
            steps.append((event.start_time_ns, event.end_time_ns))
        elif event.tag.name == "Allocation":
            totals.append((event.start_time_ns, event.extra_fields.total_allocated))
    if not steps or not totals:
        raise MeasurementError(
            f"torch's profiler gave {len(steps)} steps and {len(totals)} memory events: memory cannot be counted here"
        )
    totals.sort(key=lambda item: item[0])  # a stable sort: equal times keep the profiler's order
    return tuple(_peak_between(totals, start, end) for start, end in sorted(steps))


def _peak_between(totals: list[tuple[int, int]], start: int, end: int) -> int:
    peak = 0
    for at, held in totals:
        if at > end:
            break
        peak = max(peak, held) if at >= start else held
    return peak


def _all_events(events: Any) -> Iterator[Any]:
    waiting = list(reversed(events))
    while waiting:
        event = waiting.pop()
        yield event
        waiting.extend(reversed(event.children))


def resident_peak(status: Path = Path("/proc/self/status")) -> int:
    """The largest resident set of this process so far, in bytes."""
    for line in status.read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise MeasurementError(f"{status}: no VmHWM line: the kernel does not tell the peak resident set")


def _reset_resident_peak() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True

"""Memory of one rank over whole optimizer steps of the exact job, in a fresh process."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Sequence
from contextlib import suppress
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
from pytest_clusterqual.rank.data import Batch, ByteData
from pytest_clusterqual.rank.job import Job
from pytest_clusterqual.rank.layouts import build, drawn, filled
from pytest_clusterqual.rank.limits import Limit, cpu_limit, cuda_limit, device_confined, proc_bytes, process_confined
from pytest_clusterqual.rank.memory_events import STEP, Timeline, mark_repeated, timeline
from pytest_clusterqual.rank.training import global_losses

if TYPE_CHECKING:
    from pytest_clusterqual.rank.jobs import Context

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

    def timeline(self) -> Timeline | None:
        """All allocations; None if torch's profiler saw none there."""


def measure(
    ctx: Context, *, workload: dict[str, Any], layout: dict[str, Any], steps: int, device_memory: int | None = None
) -> Any:
    """Forward, backward and optimizer of `steps` steps; a `RankMemory` as JSON.

    With `device_memory` this rank has that many bytes and no more, and fails where the job needs more. On a
    CPU that is tried before anything is counted: the profiler's own notes would be taken for the job's.

    Raises:
        MeasurementError: a loss is not finite, or the steps left no memory events.
        ClusterQualError: the job cannot be done on these ranks, or its data cannot be read.
    """
    work, spread = from_json(Workload, workload, where="workload"), from_json(Layout, layout, where="layout")
    on_cuda = ctx.device.type == "cuda"
    limit = _limit(ctx, device_memory)
    data = ByteData.open(ctx, work)
    if device_memory is not None and not on_cuda:
        _try_within(device_memory, ctx, work, spread, data, steps)
    counter: Counter = CudaCounter(ctx.device) if on_cuda else CpuCounter(confined=device_memory is not None)
    losses, held = [], []
    with device_confined(ctx.device, device_memory if on_cuda else None):
        job = build(ctx, work, spread)
        mark_repeated(job.model)
        if not on_cuda:
            settle(job)
        for step in range(1, steps + 1):
            ctx.report(step - 1, steps, "memory steps")
            losses.append(counter.step(job, _batches(data, step, job)).item())
            held.append(_addresses(job))
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
            parts=_parts(allocated, counter.timeline(), held),
            losses=global_losses(ctx, [torch.tensor(loss, device=ctx.device) for loss in losses]),
            data_digest=data.digest,
        )
    )


def _try_within(most: int, ctx: Context, work: Workload, layout: Layout, data: ByteData, steps: int) -> None:
    here, parts = drawn(ctx, work, layout)  # makes groups and their threads: they are no part of the job
    with process_confined(most) as only_tensors_count:
        job = filled(ctx, work, here, parts)
        settle(job)
        for step in range(1, steps + 1):
            only_tensors_count(sum(job.parts().values()))
            job.step(_batches(data, step, job))
    del job
    gc.collect()  # wrapped models refer to themselves


def _batches(data: ByteData, step: int, job: Job) -> Sequence[Batch]:
    return data.batches(step, rank=job.data_rank, world_size=job.data_ranks)


def _limit(ctx: Context, device_memory: int | None) -> Limit:
    if device_memory is not None:
        return Limit(bytes=device_memory, origin="memory.device_memory of the project file")
    return cuda_limit(ctx.device) if ctx.device.type == "cuda" else cpu_limit(ctx)


def _addresses(job: Job) -> dict[str, set[int]]:
    """Where what the job holds between its steps lies, by name."""
    return {name: {t.untyped_storage().data_ptr() for t in tensors} for name, tensors in job.held().items()}


def _parts(peaks: Sequence[int], seen: Timeline | None, held: Sequence[dict[str, set[int]]]) -> dict[str, int]:
    """What the peak of the fullest step is made of; all of it is `other` where nothing is known of it."""
    fullest = max(range(len(peaks)), key=peaks.__getitem__)
    if seen is None:
        return {"other": peaks[fullest]}
    return seen.parts(fullest, peaks[fullest], held[fullest])


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


def resident_peak(status: Path = Path("/proc/self/status")) -> int:
    """The largest resident set of this process so far, in bytes."""
    return proc_bytes(status, "VmHWM", "the kernel does not tell the peak resident set")


def _reset_resident_peak() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True

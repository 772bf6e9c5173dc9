"""Our reader of profiler traces against HolisticTraceAnalysis: ``python benchmarks/trace.py --hta-python PATH``.

Both read the same made trace in processes of their own, in turn. Printed are time (wall, and CPU, which other
work on the machine touches less), peak memory and the share of communication that computing hides.
HTA leaves the last profiler step out, and so is it left out here.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_clusterqual.model.trace import Activity, Trace

HTA = """
import json, sys
from hta.trace_analysis import TraceAnalysis
found = TraceAnalysis(trace_files={0: sys.argv[1]}).get_comm_comp_overlap(visualize=False)
print(json.dumps(float(found["comp_comm_overlap_pctg"][0])))
"""


def events(steps: int, kernels: int) -> Iterator[str]:
    """Steps of a data-parallel job in torch's own writing: operators, launches, arrows, kernels, all-reduces.

    All times are whole microseconds, for HTA cuts what is below.
    """
    draw = random.Random(1)
    now, link, free = 1_700_000_000_000, 200_000, {7: 0, 20: 0}  # streams: when they can take more
    for number in range(steps):
        began = now
        for place in range(kernels):
            yield from _operators(draw, now)
            stream = 20 if place % 50 == 49 else 7
            length = draw.randint(2000, 4000) if stream == 20 else draw.randint(5, 90)
            link, start = link + 1, max(now + 5, free[stream])
            free[stream] = start + length
            yield from _launched(link, now, start, length, stream, place)
            now += draw.randint(60, 90)
        now = max(now, *free.values())
        yield _event("user_annotation", f"ProfilerStep#{number}", 100, 100, began, now - began, {"External id": number})


def _operators(draw: random.Random, now: int) -> Iterator[str]:
    for depth, name in enumerate(("autograd::engine::evaluate_function: AddmmBackward0", "AddmmBackward0", "aten::mm")):
        yield _event(
            "cpu_op", name, 100, 101, now + depth, 40 - 2 * depth,
            {"External id": draw.randint(1, 10**6), "Record function id": 0, "Sequence number": draw.randint(1, 10**5),
             "Fwd thread id": 1, "Ev Idx": draw.randint(1, 10**6)},
        )  # fmt: skip


def _launched(link: int, now: int, start: int, length: int, stream: int, place: int) -> Iterator[str]:
    host = {"External id": link, "cbid": 211, "correlation": link}
    yield _event("cuda_runtime", "cudaStreamIsCapturing", 100, 101, now + 1, 1, {**host, "correlation": 0})
    yield _event("cuda_runtime", "cudaLaunchKernel", 100, 101, now + 3, 6, host)
    for phase, pid, tid, at in (("s", 100, 101, now + 3), ("f", 0, stream, start)):
        yield f"""  {{
    "ph": "{phase}", "id": {link}, "pid": {pid}, "tid": {tid}, "ts": {at}.000,
    "cat": "ac2g", "name": "ac2g", "bp": "e"
  }}"""
    device = {
        "External id": link, "queued": 0, "device": 0, "context": 1, "stream": stream, "correlation": link,
        "registers per thread": 32, "shared memory": 0, "blocks per SM": 1.5, "warps per SM": 6.25,
        "grid": [108 + place % 7, 1, 1], "block": [128, 1, 1], "est. achieved occupancy %": 9,
    }  # fmt: skip
    if stream == 20:
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        device |= {
            "Collective name": "allreduce", "In msg nelems": 6553600, "Out msg nelems": 6553600, "Group size": 8,
            "dtype": "Float", "Process Group Name": "0", "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]",
        }  # fmt: skip
    else:
        name = f"void at::native::vectorized_elementwise_kernel<{place % 13}, at::native::CUDAFunctor_add<float>, \
at::detail::Array<char*, 3> >(int, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3>)"
    yield _event("kernel", name, 0, stream, start, length, device)


def _event(category: str, name: str, pid: int, tid: int, start: int, length: int, args: dict[str, object]) -> str:
    return f"""  {{
    "ph": "X", "cat": "{category}", "name": "{name}", "pid": {pid}, "tid": {tid},
    "ts": {start}.000, "dur": {length}.000,
    "args": {{
      {json.dumps(args)[1:-1]}
    }}
  }}"""


def write(path: Path, megabytes: int) -> None:
    """Ten steps with as many kernels as the size asks for."""
    size = sum(len(text) + 2 for text in events(1, 1000)) / 1000
    with path.open("w") as file:
        file.write('{\n  "schemaVersion": 1,\n  "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}],\n')
        file.write('  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 8},\n  "traceEvents": [\n')
        for place, text in enumerate(events(10, round(megabytes * 1e5 / size))):
            file.write((",\n" if place else "") + text)
        file.write('\n  ],\n  "traceName": "made"\n}\n')


def ours(path: Path) -> float:
    """Percent of communication that computing hides, over the steps but the last."""
    from pytest_clusterqual.judge.exposed import step_parts
    from pytest_clusterqual.read.trace import read_trace

    trace = read_trace(path)
    overlap = step_parts(without_last_step(trace))[0].parts.overlap
    return 100 * overlap if overlap is not None else float("nan")


def without_last_step(trace: Trace) -> Trace:
    """As one whole, what was asked for in all steps but the last."""
    import numpy as np

    def chosen(work: Activity) -> Activity:
        step = np.asarray(work.step)
        kept = (step >= 0) & (step < len(trace.steps) - 1)
        return replace(
            work, **{name: np.asarray(getattr(work, name))[kept] for name in ("start", "end", "step", "kind")}
        )

    return replace(
        trace, steps=(), compute=chosen(trace.compute), communication=chosen(trace.communication),
        memory=chosen(trace.memory),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Run:
    """Seconds and MiB of one process from its start to its end, and what it printed."""

    wall: float
    cpu: float
    peak: float
    overlap: float


def measured(command: list[str]) -> Run:
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=out, stderr=err)
        _pid, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        if process.returncode:
            raise SystemExit(f"{command[:3]} ended with {process.returncode}:\n{err.read()[-2000:]}")
        last = out.read().split()[-1]
    return Run(wall=wall, cpu=used.ru_utime + used.ru_stime, peak=used.ru_maxrss / 1024, overlap=float(last))


def show(name: str, run: Run) -> None:
    took = f"wall {run.wall:6.2f} s  cpu {run.cpu:6.2f} s  peak {run.peak:6.0f} MiB"
    print(f"{name:<16} {took}  hidden {run.overlap:.2f} %", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hta-python", type=Path, help="a Python that has HolisticTraceAnalysis 0.5")
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--ours", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ours:
        print(ours(arguments.ours))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        write(path, arguments.megabytes)
        print(f"a made trace of {path.stat().st_size / 1e6:.0f} MB")
        mine = [sys.executable, __file__, "--ours", str(path)]
        runs = [measured(mine)]
        show("this package", runs[0])
        if arguments.hta_python is None or not arguments.hta_python.exists():
            print("HTA is not measured: give --hta-python")
            return
        other = measured([str(arguments.hta_python), "-c", HTA, str(path)])
        show("HTA", other)
        runs.append(measured(mine))
        show("this package", runs[1])
        slowest, largest = max(run.wall for run in runs), max(run.peak for run in runs)
        print(
            f"HTA / this package: wall x {other.wall / slowest:.1f}, cpu x "
            f"{other.cpu / max(run.cpu for run in runs):.1f}, memory x {other.peak / largest:.1f}"
        )


if __name__ == "__main__":
    main()

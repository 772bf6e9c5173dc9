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
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

OURS = """
import sys
from dataclasses import replace
from pathlib import Path
import numpy as np
from pytest_clusterqual.judge.step.exposed import step_parts
from pytest_clusterqual.read.trace import read_trace

def chosen(work):
    kept = (np.asarray(work.step) >= 0) & (np.asarray(work.step) < len(trace.steps) - 1)
    return replace(work, **{name: np.asarray(getattr(work, name))[kept] for name in ("start", "end", "step", "kind")})

trace = read_trace(Path(sys.argv[1]))
work = {name: chosen(getattr(trace, name)) for name in ("compute", "communication", "memory")}
print(100 * step_parts(replace(trace, steps=(), **work))[0].parts.overlap)
"""
HTA = """
import json, sys
from hta.trace_analysis import TraceAnalysis
found = TraceAnalysis(trace_files={0: sys.argv[1]}).get_comm_comp_overlap(visualize=False)
print(json.dumps(float(found["comp_comm_overlap_pctg"][0])))
"""


def events(steps: int, kernels: int) -> Iterator[str]:
    """Steps of a data-parallel job in torch's own writing: operators, then launches, arrows, kernels, all-reduces.

    All times are whole microseconds, for HTA cuts what is below.
    """
    # Made twice rather than kept: a child's peak memory begins with that of its parent.
    yield from (text for text, host in _events(steps, kernels) if host)
    yield from (text for text, host in _events(steps, kernels) if not host)


def _events(steps: int, kernels: int) -> Iterator[tuple[str, bool]]:
    """Each with whether it is of the host's part of the file."""
    draw = random.Random(1)
    now, link, free = 1_700_000_000_000, 200_000, {7: 0, 20: 0}  # streams: when they can take more
    for number in range(steps):
        began = now
        for place in range(kernels):
            yield from ((text, True) for text in _operators(draw, now))
            stream = 20 if place % 50 == 49 else 7
            length = draw.randint(2000, 4000) if stream == 20 else draw.randint(5, 90)
            link, start = link + 1, max(now + 5, free[stream])
            free[stream] = start + length
            yield from ((text, False) for text in _launched(link, now, start, length, stream, place))
            now += draw.randint(60, 90)
        now = max(now, *free.values())
        whole = {"External id": number}
        yield _event("user_annotation", f"ProfilerStep#{number}", 100, 100, began, now - began, whole), True


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
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        write(path, arguments.megabytes)
        print(f"a made trace of {path.stat().st_size / 1e6:.0f} MB")
        mine = [sys.executable, "-c", OURS, str(path)]
        runs = [measured(mine) for _ in range(3)]
        if arguments.hta_python is not None and arguments.hta_python.exists():
            other = measured([str(arguments.hta_python), "-c", HTA, str(path)])
            show("HTA", other)
        else:
            print("HTA is not measured: give --hta-python")
            other = None
        runs += [measured(mine) for _ in range(2)]
        for run in runs:
            show("this package", run)
        if other is not None:
            wall, cpu, peak = (
                statistics.median(getattr(run, name) for run in runs) for name in ("wall", "cpu", "peak")
            )
            print(
                f"HTA / this package: wall x {other.wall / wall:.1f}, cpu x {other.cpu / cpu:.1f}, "
                f"memory x {other.peak / peak:.1f}"
            )


if __name__ == "__main__":
    main()

"""Small traces in torch's own form, and traces without a file."""

from __future__ import annotations

import gzip
import json
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pytest_clusterqual.model.trace import Activity, Collective, Step, Trace

Event = dict[str, Any]
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def event(category: str, name: str, start: float, length: float, *, tid: int = 7, **args: Any) -> Event:
    return {
        "ph": "X", "cat": category, "name": name, "pid": 0, "tid": tid, "ts": start, "dur": length,
        "args": {"External id": 1, **args},
    }  # fmt: skip


def kernel(name: str, start: float, length: float, **args: Any) -> Event:
    return event("kernel", name, start, length, **{"device": 0, "grid": [1, 1, 1], "block": [32, 1, 1], **args})


def launch(correlation: int, start: float, name: str = "cudaLaunchKernel") -> Event:
    return event("cuda_runtime", name, start, 1, tid=100, correlation=correlation)


def step(number: int, start: float, length: float) -> Event:
    return event("user_annotation", f"ProfilerStep#{number}", start, length, tid=100)


def document(events: Iterable[Event], *, rank: int = 0, world: int = 2, backend: str = "nccl", **more: Any) -> Event:
    return {
        "schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}] if backend == "nccl" else [],
        "distributedInfo": {"backend": backend, "rank": rank, "world_size": world},
        "traceEvents": list(events), "traceName": "made", **more,
    }  # fmt: skip


def written(path: Path, made: Event | str, *, indent: int | None = 2) -> Path:
    text = made if isinstance(made, str) else json.dumps(made, indent=indent)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


Spans = Sequence[tuple[int, int]]


def activity(spans: Spans, steps: Sequence[int] | None = None, kinds: Sequence[int] | None = None) -> Activity:
    return Activity(
        start=array("q", [start for start, _end in spans]), end=array("q", [end for _start, end in spans]),
        step=array("q", steps if steps is not None else [0] * len(spans)),
        kind=array("q", kinds if kinds is not None else [0] * len(spans)),
    )  # fmt: skip


def trace(
    compute: Activity | Spans = (), communication: Activity | Spans = (), memory: Activity | Spans = (), *,
    steps: Sequence[tuple[int, int, int]] = (), rank: int | None = 0, world: int | None = 2, cpu: bool = False,
    collectives: Sequence[Collective] = (Collective(name="all_reduce", group="0 [0, 1]"),),
    sequence: Sequence[int] | None = None, problems: Sequence[str] = (),
) -> Trace:  # fmt: skip
    """Times are nanoseconds, steps are number, start and end."""
    work = [some if isinstance(some, Activity) else activity(some) for some in (compute, communication, memory)]
    return Trace(
        file=f"rank{rank}.json", rank=rank, world=world, cpu=cpu,
        steps=tuple(Step(number=number, start=start, end=end) for number, start, end in steps),
        compute=work[0], communication=work[1], memory=work[2], kernels=("gemm", "add"),
        collectives=tuple(collectives),
        sequence=array("q", sequence if sequence is not None else [-1] * len(work[1].start)),
        problems=tuple(problems),
    )  # fmt: skip

"""Output in the form of nccl-tests, of runs that never were: any collective, world, layout and flaw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pytest_clusterqual.model.busbw import busbw_factor

MIB = 1024 * 1024
SIZES = tuple(MIB * 2**i for i in range(5))
_SHARED = ("all_gather", "reduce_scatter", "all_to_all")
_REDUCING = ("all_reduce", "reduce_scatter", "reduce", "send_recv")
PROGRAMS = {"all_to_all": "alltoall", "send_recv": "sendrecv"}


def steady(size: int) -> float:
    """Seconds of one call at 100 GB/s algbw, with 20 us before it begins."""
    return 20e-6 + size / 100e9


def config(sizes: Sequence[int] = SIZES, validation: int = 1) -> str:
    return (
        f"# nThread 1 nGpus 1 minBytes {sizes[0]} maxBytes {sizes[-1]} step: 2(factor) warmup iters: 5 iters: 20 "
        f"agg iters: 1 validation: {validation} graph: 0\n#\n"
    )


def devices(nodes: int, local: int, device: str = "NVIDIA H100 80GB HBM3") -> str:
    lines = [
        f"#  Rank {node * local + rank:2} Group  0 Pid {4000 + rank:6} on gpu{node + 1:03} device {rank:2} "
        f"[0000:{rank:02x}:00] {device}"
        for node in range(nodes)
        for rank in range(local)
    ]
    return "\n".join(["# Using devices", *lines, ""])


def header(old: bool = False) -> str:
    kinds = "type   redop" if old else "type   redop    root"
    wrong = " error" if old else "#wrong"
    half = f"time   algbw   busbw {wrong}"
    return (
        f"#\n#       size         count      {kinds}     {half}     {half}\n#        (B)    (elements)   (us)  (GB/s)\n"
    )


def shown(us: float) -> str:
    """Four or five digits, as the tool gives its time column."""
    return f"{us:.2f}" if us < 100 else f"{us:.1f}" if us < 10_000 else f"{us:.0f}"


def row(
    collective: str, ranks: int, size: int, seconds: float, in_place: float | None = None, *,
    wrong: str = "0", wrong_in_place: str | None = None, element: str = "float", width: int = 4, old: bool = False,
) -> str:  # fmt: skip
    count = size // width // (ranks if collective in _SHARED else 1)
    redop = "sum" if collective in _REDUCING else "" if old else "none"
    root = "" if old else f"{0 if collective in ('broadcast', 'reduce') else -1:6}"
    factor = busbw_factor(collective, ranks) if ranks > 1 else 0.0
    halves = [
        f"{shown(s * 1e6):>8} {size / s / 1e9:7.2f} {size / s / 1e9 * factor:7.2f} {bad:>6}"
        for s, bad in ((seconds, wrong), (in_place or seconds, wrong if wrong_in_place is None else wrong_in_place))
    ]
    return f"{size:12} {count:13} {element:>9} {redop:>7} {root} {' '.join(halves)}"


def footer(out_of_bounds: int = 0) -> str:
    word = "FAILED" if out_of_bounds else "OK"
    return f"# Out of bounds values : {out_of_bounds} {word}\n# Avg bus bandwidth    : 93.1\n#\n"


def log(
    collective: str = "all_reduce", nodes: int = 2, local: int = 8, *, sizes: Sequence[int] = SIZES,
    seconds: Callable[[int], float] = steady, named: bool = True, listed: bool = True, out_of_bounds: int = 0,
    version: str = "2.29.3", **rows: Any,
) -> str:  # fmt: skip
    """A whole run."""
    program = f"{PROGRAMS.get(collective, collective)}_perf"
    start = f"# nccl-tests version 2.17.9 nccl-headers=22903\n# Collective test starting: {program}\n" if named else ""
    lines = [row(collective, nodes * local, size, seconds(size), **rows) for size in sizes]
    return "".join([
        start, config(sizes), devices(nodes, local) if listed else "", f"NCCL version {version}+cuda13.1\n",
        header(rows.get("old", False)), "\n".join([*lines, ""]), footer(out_of_bounds),
    ])  # fmt: skip


def runs(count: int, spread: float = 0.01, **how: Any) -> list[str]:
    """So many runs that differ a little, as runs do."""
    return [log(seconds=lambda size, i=i: steady(size) * (1 + spread * i), **how) for i in range(count)]  # type: ignore[misc]


def report(
    collective: str = "all_reduce", nodes: int = 2, local: int = 8, *, sizes: Sequence[int] = SIZES,
    seconds: Callable[[int], float] = steady, env: Sequence[str] = (), wrong: float | None = 0.0, **changes: Any,
) -> dict[str, Any]:  # fmt: skip
    """What -J writes: one process a node here, so that one device in `local` is listed."""
    factor = busbw_factor(collective, nodes * local)

    def half(size: int) -> dict[str, Any]:
        us = round(seconds(size) * 1e6, 6)
        algbw = round(size / us / 1e3, 6)
        return {"time": us, "alg_bw": algbw, "bus_bw": round(algbw * factor, 6), "nwrong": wrong}

    return {
        "version": 2, "start_time": "2026-11-30 01:48:24", "args": [f"/opt/{collective}_perf", "-J", "out.json"],
        "env": list(env), "nccl_version": 22903,
        "config": {
            "nthreads": 1, "ngpus": local, "minimum_bytes": sizes[0], "maximum_bytes": sizes[-1], "step_factor": 2,
            "validation": 1,
            "devices": [
                {"rank": node * local, "group": 0, "pid": 1, "hostname": f"gpu{node + 1:03}", "device": 0,
                 "device_hex": "0000:0f:00", "device_info": "NVIDIA H100 80GB HBM3"} for node in range(nodes)
            ],
        },
        "results": [
            {"size": size, "count": size // 4, "type": "float", "redop": "sum", "root": "    -1",
             "out_of_place": half(size), "in_place": half(size), "actual_iterations": 20} for size in sizes
        ],
        "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": 93.1, "okay": "unchecked"}, "errors": [], **changes,
    }  # fmt: skip

"""A stand-in for the programs of nccl-tests: it takes their options and prints in their form what was never measured.

FAKE_PERF makes it fail: wrong, alone, cut, crash, hang.
"""

from __future__ import annotations

import argparse
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

FAULT = os.environ.get("FAKE_PERF", "")


def lines(asked: argparse.Namespace, ranks: int) -> Iterator[str]:
    yield "# Collective test starting: all_reduce_perf"
    yield (
        f"# nThread 1 nGpus {asked.g} minBytes {asked.b} maxBytes {asked.e} step: {asked.f}(factor) warmup iters: "
        f"{asked.w} iters: {asked.n} agg iters: 1 validation: {asked.c} graph: 0"
    )
    for rank in range(ranks):
        yield f"#  Rank {rank:2} Group  0 Pid {os.getpid():6} on {socket.gethostname()} device {rank:2} [0x{rank}] Fake"
    yield "#       size         count      type   redop    root " + "    time   algbw   busbw #wrong " * 2
    size = asked.b
    while size <= asked.e:
        halves = []
        for _ in range(2):
            us = (10 + size / 1e5) * random.uniform(1.0, 1.02)
            algbw = size / us / 1e3
            wrong = 3 if FAULT == "wrong" else 0
            halves.append(f"{us:8.3f} {algbw:7.3f} {algbw * 2 * (ranks - 1) / ranks:7.3f} {wrong:6}")
        yield f"{size:12} {size // 4:13}     float     sum      -1 {' '.join(halves)}"
        size *= asked.f
    if FAULT != "cut":
        yield "# Out of bounds values : 0 OK"


def main() -> int:
    parser = argparse.ArgumentParser()
    for option in "befgwnc":
        parser.add_argument(f"-{option}", type=int, required=True)
    asked = parser.parse_args()
    if FAULT == "crash":
        print("fake: Test CUDA failure: out of memory", file=sys.stderr)
        return 3
    if FAULT == "hang":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
        time.sleep(1000)
    for line in lines(asked, 1 if FAULT == "alone" else asked.g):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())

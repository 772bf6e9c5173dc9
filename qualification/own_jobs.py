"""Functions that `test_own_example.py` runs on every rank."""

import time

import torch.distributed as dist


def barrier_seconds(ctx, calls):
    """Seconds of one barrier, averaged over `calls` of them."""
    began = time.perf_counter()
    for _ in range(calls):
        dist.barrier(group=ctx.group)
    return (time.perf_counter() - began) / calls

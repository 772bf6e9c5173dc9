"""Functions that `test_nodes.py` runs on one node at a time."""

import time

import torch


def multiply_seconds(ctx, calls):
    """Seconds of one multiplication of square matrices on this rank's device, averaged over `calls` of them."""
    size = 4096 if ctx.device.type == "cuda" else 512
    matrix = torch.rand(size, size, device=ctx.device)
    torch.mm(matrix, matrix)  # the first one loads what the others use
    ctx.synchronize()
    began = time.perf_counter()
    for _ in range(calls):
        torch.mm(matrix, matrix)
    ctx.synchronize()
    return (time.perf_counter() - began) / calls

"""Estimated ladders for the tests."""

from __future__ import annotations

from typing import Any

from pytest_clusterqual.model.estimate import Estimate, EstimatedLadder, EstimatedRung, Fits
from pytest_clusterqual.model.memory import Rung
from pytest_clusterqual.model.workload import Layout

GIB = 2**30
PARTS = {"parameters": 10, "gradients": 10, "optimizer": 20, "activations": 30, "other": 2}


def rung(name: str = "one device", *, nodes: int = 1, per_node: int = 1, impossible: str = "", **layout: Any) -> Rung:
    return Rung(
        name=name, kind="device", nodes=nodes, per_node=per_node, microbatch=1,
        layout=Layout(name=name.replace(" ", "-"), **layout), impossible=impossible,
    )  # fmt: skip


def estimate(**changed: Any) -> Estimate:
    """72 GiB on rank 0, by fake tensors."""
    parts = {part: size * GIB for part, size in PARTS.items()}
    given: dict[str, Any] = {"peak": sum(parts.values()), "parts": parts, "rank": 0, "method": "fake tensors"}
    return Estimate(**{**given, **changed})


def estimated(name: str, fits: Fits | None, **changed: Any) -> EstimatedRung:
    return EstimatedRung(rung=rung(name), estimate=estimate(**changed), fits=fits)


def ladder(*rungs: EstimatedRung, **changed: Any) -> EstimatedLadder:
    given: dict[str, Any] = {
        "nodes": 2, "nproc_per_node": 8, "device": "cuda", "rungs": rungs, "device_memory": 80.0 * GIB,
        "memory_from": "topology.gpu_memory", "headroom": 0.1, "unseen": ("the CUDA context", "fragmentation"),
    }  # fmt: skip
    return EstimatedLadder(**{**given, **changed})

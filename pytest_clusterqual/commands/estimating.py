"""The memory ladder without its hardware: asked of a program of its own, by arithmetic where that has no answer."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pytest_clusterqual.judge.memory.estimated import held_against
from pytest_clusterqual.launch.local import LocalLauncher
from pytest_clusterqual.launch.process import Dialogue, how_it_ended
from pytest_clusterqual.model.codec import from_json, to_json
from pytest_clusterqual.model.estimate import (
    Device,
    Estimate,
    EstimatedLadder,
    EstimatedRung,
    EstimateRequest,
    unseen,
)
from pytest_clusterqual.model.footprint import footprint
from pytest_clusterqual.model.memory import Rung
from pytest_clusterqual.model.project import Project
from pytest_clusterqual.model.rungs import rungs
from pytest_clusterqual.model.workload import Workload

PROGRAM = (sys.executable, "-m", "pytest_clusterqual.rank.estimate")
RUNG_SECONDS = 300.0  # one of a large model takes a minute


def estimated_ladder(project: Project, *, nodes: int, program: Sequence[str] = PROGRAM) -> EstimatedLadder:
    """The ladder of the file's own workload, held against the memory that the file gives a device."""
    workload, per_node, device = project.workload, project.launcher.nproc_per_node, _device(project)
    memory, memory_from = _device_memory(project)
    headroom = _headroom(project)
    ladder = rungs(workload, nodes=nodes, nproc_per_node=per_node)
    found = estimates(workload, [rung for rung in ladder if not rung.impossible], device, program)
    told = []
    for rung in ladder:
        estimate = None if rung.impossible else next(found)
        fits = held_against(estimate, memory, headroom)
        told.append(EstimatedRung(rung=rung, estimate=estimate, fits=fits))
    return EstimatedLadder(
        nodes=nodes, nproc_per_node=per_node, device=device, rungs=tuple(told), device_memory=memory,
        memory_from=memory_from, headroom=headroom, unseen=unseen(device, workload),
    )  # fmt: skip


def estimates(workload: Workload, ladder: Sequence[Rung], device: Device, program: Sequence[str]) -> Iterator[Estimate]:
    """One a rung, in order. A rung that takes too long is given up, and the program started anew for the rest."""
    rest = tuple(ladder)
    while rest:
        request = EstimateRequest(workload=workload, device=device, rungs=rest)
        dialogue = Dialogue(program, json.dumps(to_json(request)).encode() + b"\n")
        try:
            while rest and (text := _line(dialogue)) is not None:
                answer = json.loads(text)
                if "estimate" in answer:
                    yield from_json(Estimate, answer["estimate"], where="estimate")
                else:
                    yield by_arithmetic(workload, rest[0], reason=answer["problem"])
                rest = rest[1:]
        finally:
            code, complained = dialogue.end()
        given_up = rest[:1] if code is None else rest
        for rung in given_up:
            yield by_arithmetic(workload, rung, reason=_why(code, complained))
        rest = rest[len(given_up) :]


def by_arithmetic(workload: Workload, rung: Rung, *, reason: str) -> Estimate:
    """From the shapes of the job alone."""
    work = replace(workload, microbatch=rung.microbatch)
    found = footprint(work, rung.layout, world=rung.ranks, nproc_per_node=rung.per_node)
    parts = {name: round(size) for name, size in found.parts.items()}
    return Estimate(peak=sum(parts.values()), parts=parts, method="arithmetic", reason=reason)


def _line(dialogue: Dialogue) -> str | None:
    """The program's next answer; None if there will be none, or none in time."""
    deadline = time.monotonic() + RUNG_SECONDS
    while (text := dialogue.line(deadline)) is not None and not text.startswith("{"):
        pass  # what a library prints is no answer
    return text


def _why(code: int | None, complained: str) -> str:
    """Why there was no answer: the program was too slow (None), or ended."""
    if code is None:
        return f"no answer within {RUNG_SECONDS:g} s"
    if "No module named 'torch'" in complained:
        return "torch is not installed here"
    return (complained.strip().splitlines() or [f"the program {how_it_ended(code)}"])[-1]


def _device(project: Project) -> Device:
    """Where the job's tensors will be: a file that promises GPU memory means GPUs, whatever this machine has."""
    options = project.launcher
    if options.device != "auto":
        return options.device
    promised = project.topology is not None and project.topology.demand("gpu_memory") is not None
    if options.kind == "local" and not promised:
        return "cuda" if LocalLauncher().device == "cuda" else "cpu"
    return "cuda"


def _device_memory(project: Project) -> tuple[float | None, str]:
    """Bytes that each device has, and the key of the file that says so."""
    if project.memory is not None and project.memory.device_memory is not None:
        return float(project.memory.device_memory), "memory.device_memory"
    promise = project.topology.demand("gpu_memory") if project.topology is not None else None
    if promise is not None and promise.op in (">=", ">", "==") and not isinstance(promise.value, str):
        return promise.value, "topology.gpu_memory"
    return None, ""


def _headroom(project: Project) -> float:
    """The share that the file requires to stay free whatever the layout; 0 if it requires none."""
    required = project.memory.require if project.memory is not None else ()
    return max((r.value for r in required if r.quantity == "headroom" and r.layout is None), default=0.0)

"""Try every path that needs a GPU on one GPU, and print what came out: ``python benchmarks/gpu_check.py``.

It needs torch with CUDA and this package, and takes about a minute. What it cannot show with one
GPU: any collective between GPUs, and any bandwidth.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from pytest_clusterqual.judge.verdict import judge
from pytest_clusterqual.launch.local import LocalLauncher
from pytest_clusterqual.measure import full_run, rungs, training
from pytest_clusterqual.model.full_run import Checkpoints, Failure
from pytest_clusterqual.model.project import FullRunPlan, MemoryPlan, Project, ScalingPlan
from pytest_clusterqual.read.project import load_project
from pytest_clusterqual.session.session import Session

ROOT = Path(__file__).resolve().parents[1]


def paths(project: Project, session: Session, *, full: bool) -> list[tuple[str, Callable[[], object]]]:
    """Every path by name, for one precision."""
    precision = project.workload.precision
    found: list[tuple[str, Callable[[], object]]] = [
        (f"NCCL alone, {precision}", lambda: session.run("bare_jobs:nccl_alone")[0].value)
    ]
    if full:
        found.append(("survey, telemetry and rank map", lambda: devices(session)))
        found.append((f"memory ladder, {precision}", lambda: rungs.memory_ladder(session)))
        found.append((f"memory ladder of a device without memory, {precision}", lambda: starved(session)))
    for layout in project.layouts:
        name = f"{layout.name}, {precision}"
        found += [
            (f"memory of {name}", partial(training.memory, session, layout)),
            (f"fixed work of {name}", partial(training.scaling, session, layout, (1,), repeats=1)),
        ]
    if full:
        plan = project.full_run
        (saving,), (failure,) = plan.checkpoints, plan.failures
        run = partial(full_run.full_run, session, project.layouts[0], saving, failure, nodes=1)
        found.append((f"full run with {saving.mode} checkpoints, {precision}", run))
    return found


def devices(session: Session) -> dict[str, object]:
    """What the survey found by nvidia-smi, what NVML tells beside a job, and where the rank sits."""
    node = next(iter(session.hardware.values()))
    session.forget_samples()
    session.run("bare_jobs:busy", {"seconds": 3.0})
    place = session.rank_map().places[0]
    telemetry = session.telemetry()[0]
    if not node.gpus or "gpu_clock" not in telemetry.ranges:
        raise RuntimeError(f"no GPU in {node.gpus} or no figures of one in {telemetry.ranges}; {node.unread}")
    return {
        "gpu": node.gpus[0], "driver": node.driver, "nics": [nic.name for nic in node.nics], "unread": node.unread,
        "clock": telemetry.ranges["gpu_clock"], "power": telemetry.ranges.get("gpu_power"),
        "temperature": telemetry.ranges.get("gpu_temperature"), "throttle": telemetry.throttle,
        "seat": (place.device, place.numa, place.nics, place.nic_path),
    }  # fmt: skip


def starved(session: Session) -> dict[str, str]:
    """Who ran out of memory on each rung, where the device is said to have one byte."""
    project = session.project
    session.project = replace(project, memory=MemoryPlan(device_memory=1))
    try:
        climbed = rungs.memory_ladder(session)
    finally:
        session.project = project
    told = {result.rung.name: result.out_of_memory for result in climbed.rungs}
    if not all(told.values()):
        raise RuntimeError(f"some rungs fit into one byte: {told}")
    return told


def attempt(project: Project, what: str, call: Callable[[], object]) -> bool:
    try:
        result = call()
        told = result if isinstance(result, dict) else [f"{j.quantity} {j.value}" for j in judge(project, result)]
    except Exception as error:  # every path is to be tried
        print(f"FAIL  {what}: {type(error).__name__}: {error}", flush=True)
        return False
    print(f"ok    {what}: {told}", flush=True)
    return True


def main() -> int:
    import torch

    if not torch.cuda.is_available():
        print(f"no GPU is visible to torch {torch.__version__}")
        return 1
    project = load_project(ROOT / "qualification" / "clusterqual.yaml", nproc_per_node=1)
    folder = Path(tempfile.mkdtemp())
    (folder / "ranks").mkdir()
    outcomes = []
    for precision, mode in (("fp32", "sync"), ("bf16", "async"), ("fp16", None)):
        tried = replace(
            project, job=replace(project.workload, precision=precision), memory=MemoryPlan(budget=10.0),
            scaling=ScalingPlan(points=(1,)),
            full_run=FullRunPlan(
                steps=12, checkpoints=(Checkpoints(every=4, mode=mode or "sync"),),
                failures=(Failure(kind="kill_rank", step=7),),
            ),
        )  # fmt: skip
        launcher = LocalLauncher(device="cuda")
        session = Session(
            tried, launcher, launcher.nodes(1, 1), nproc_per_node=1, folder=folder,
            path=[str(ROOT / "benchmarks")], tell=lambda progress: None,
        )  # fmt: skip
        try:
            outcomes += [attempt(tried, what, call) for what, call in paths(tried, session, full=mode is not None)]
        finally:
            session.close()
    print(f"{outcomes.count(False)} of {len(outcomes)} paths failed")
    return 1 if False in outcomes else 0


if __name__ == "__main__":
    sys.exit(main())

"""Try every path that needs a GPU on one GPU, and print what came out: ``python benchmarks/gpu_check.py``.

It needs torch with CUDA and this package, and takes about a minute. What it cannot show with one
GPU: any collective between GPUs, and any bandwidth.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))


def main() -> int:
    import torch

    if not torch.cuda.is_available():
        print(f"no GPU is visible to torch {torch.__version__}")
        return 1
    from pytest_clusterqual.criteria import judge
    from pytest_clusterqual.launch.local import LocalLauncher
    from pytest_clusterqual.model.project import FullRunPlan, MemoryPlan, ScalingPlan
    from pytest_clusterqual.read.project import load_project
    from pytest_clusterqual.session import Session

    project = load_project(ROOT / "qualification" / "clusterqual.yaml", nodes=1, nproc_per_node=1)
    logs = Path(tempfile.mkdtemp()) / "ranks"
    logs.mkdir()
    failures = 0
    for precision in ("fp32", "bf16", "fp16"):
        tried = replace(
            project, workload=replace(project.workload, precision=precision), memory=MemoryPlan(),
            scaling=ScalingPlan(points=(1,)), full_run=FullRunPlan(steps=12, checkpoint_every=4, kill_rank=0, kill_step=7),
        )  # fmt: skip
        session = Session(
            tried, LocalLauncher(device="cuda"), nodes=1, nproc_per_node=1, logs=logs,
            path=[str(ROOT / "benchmarks")], tell=lambda progress: None,
        )  # fmt: skip
        steps = [(f"NCCL alone, {precision}", lambda: session.run("bare_jobs:nccl_alone")[0].value)]
        for layout in tried.layouts:
            name = f"{layout.name}, {precision}"
            steps += [
                (f"memory of {name}", lambda layout=layout: judge(tried, session.memory(layout))),
                (f"fixed work of {name}", lambda layout=layout: judge(tried, session.scaling(layout, (1,), repeats=1))),
            ]
        if precision == "fp32":
            for mode in ("sync", "async"):
                planned = replace(tried, full_run=replace(tried.full_run, checkpoint_mode=mode))

                def full(planned=planned):  # type: ignore[no-untyped-def]  # a script
                    session.project = planned
                    return judge(planned, session.full_run(planned.layouts[0]))

                steps.append((f"full run with {mode} checkpoints", full))
        try:
            for what, call in steps:
                try:
                    result = call()
                    told = result if isinstance(result, dict) else [f"{j.quantity} {j.value}" for j in result]
                    print(f"ok    {what}: {told}", flush=True)
                except Exception as error:  # every path is to be tried
                    failures += 1
                    print(f"FAIL  {what}: {type(error).__name__}: {error}", flush=True)
        finally:
            session.close()
    print(f"{failures} paths failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

"""What a job holds at a moment, made independent of when gloo's threads let go of its buffers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter

from pytest_clusterqual.rank.job import Job

SETTLE_SECONDS = 1.0
GLOO_THREAD = "pt_gloo_runloop"  # the kernel keeps 15 letters of it


class SettledAllGather(DefaultAllGather):
    """FSDP's own all-gather, left only when the communication thread has let go of the buffers.

    That thread answers a moment before it drops them. Whoever drops a buffer last frees it, so
    without this the peak would depend on a race: now and then it would hold one buffer more.
    """

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        super().__call__(output_tensor, input_tensor, group, async_op=False)
        wait_for_gloo()
        return None


class SettledReduceScatter(DefaultReduceScatter):
    """FSDP's own reduce-scatter, settled as the all-gather is."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> Any:
        super().__call__(output_tensor, input_tensor, group, op, async_op=False)
        wait_for_gloo()
        return None


def wait_for_gloo(tasks: Path = Path("/proc/self/task"), *, seconds: float = SETTLE_SECONDS) -> bool:
    """True once gloo's threads sleep: then they have dropped the buffers of all finished work."""
    deadline = time.monotonic() + seconds
    while any(_works_for_gloo(task / "stat") for task in tasks.iterdir()):
        if time.monotonic() > deadline:
            return False
        time.sleep(0)
    return True


def _works_for_gloo(stat: Path) -> bool:
    try:
        name, _bracket, numbers = stat.read_text().rpartition(")")
    except OSError:  # the thread has just ended
        return False
    return name.endswith(GLOO_THREAD) and numbers.split()[0] != "S"


def settle(job: Job) -> None:
    """Make what the job holds at a moment independent of when communication threads let go."""
    for module in job.model.modules():
        if isinstance(module, FSDPModule):
            module.set_custom_all_gather(SettledAllGather())
            module.set_custom_reduce_scatter(SettledReduceScatter())

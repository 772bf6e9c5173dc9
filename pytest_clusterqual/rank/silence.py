"""The same job a second time among groups that exchange nothing, for layouts whose communication cannot be replaced.

Each rank computes what it computes in the real job, on its own data in the place of what others would have
sent. Where experts lie on several ranks, each gets as many tokens as it sends away.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.nn.parallel import DistributedDataParallel

from pytest_clusterqual import units
from pytest_clusterqual.errors import ClusterQualError
from pytest_clusterqual.model.workload import Workload
from pytest_clusterqual.rank.control_groups import proc_bytes
from pytest_clusterqual.rank.elision import at_once
from pytest_clusterqual.rank.layouts import build
from pytest_clusterqual.rank.limits import cpu_limit
from pytest_clusterqual.rank.training import slowest

if TYPE_CHECKING:
    from pytest_clusterqual.rank.data import Batch
    from pytest_clusterqual.rank.job import Job
    from pytest_clusterqual.rank.jobs import Context


def silent_job(ctx: Context, workload: Workload, job: Job, batches: Sequence[Batch]) -> Job:
    """Another one beside `job`, which has done a step; a collective call of `ctx.group`.

    `batches` are for a first step of its own, where it needs one.

    Raises:
        ClusterQualError: there is no room for it on some rank.
    """
    held = sum(job.parts().values())
    if slowest(ctx, held / max(_room(ctx), 1)) > 1:
        raise ClusterQualError(
            f"layout {job.layout.name}: to do a step without communication it must be there twice, and on some rank "
            f"there is no room for another {units.show(held, units.BYTES)} of parameters, gradients and optimizer"
        )
    silent = build(ctx.silenced(), workload, job.layout)
    for module in silent.model.modules():
        if isinstance(module, DistributedDataParallel):
            # Its own sum needs an answer that no silent group gives.
            module.register_comm_hook(None, lambda _state, bucket: at_once(bucket.buffer()))
    if silent.pipeline is not None and job.pipeline is not None:
        # In their first step stages tell each other what they will send. What they get there is what they have
        # ever after.
        silence, silent.pipeline.group = silent.pipeline.group, job.pipeline.group
        silent.step(batches)
        silent.pipeline.group = silence
    return silent


def _room(ctx: Context) -> int:
    """Bytes that this rank may still use; a collective call of `ctx.group`."""
    if ctx.device.type == "cuda":
        free, _total = torch.cuda.mem_get_info(ctx.device)
        kept = torch.cuda.memory_reserved(ctx.device) - torch.cuda.memory_allocated(ctx.device)
        return int(free + kept)
    unknown = "it cannot be told whether the job fits twice"
    available = proc_bytes(Path("/proc/meminfo"), "MemAvailable", unknown) // ctx.ranks_on_host
    used = proc_bytes(Path("/proc/self/status"), "VmRSS", unknown)
    return min(available, cpu_limit(ctx).bytes - used)

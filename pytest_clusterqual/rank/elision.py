"""One training job with its communication replaced: left out, or by empty barriers, and back again.

The same job serves all of it, so that what is computed differs in nothing but the communication,
and no memory is needed twice. A step without communication updates each rank by its own data alone:
afterwards the parameters are no longer what training would have made of them. That costs no time
and spoils no timing, but such a job is good for nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from pytest_clusterqual.errors import ClusterQualError

if TYPE_CHECKING:
    from pytest_clusterqual.rank.job import Job
    from pytest_clusterqual.rank.jobs import Context

Mode = Literal["real", "none", "barrier"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchanged:
    """One collective of a step: elements that a rank gives to it and gets from it."""

    collective: Literal["all_reduce", "all_gather", "reduce_scatter"]
    given: int
    received: int
    dtype: torch.dtype


def irreplaceable(job: Job) -> str:
    """Why the communication of a job cannot be replaced; empty if it can."""
    if odd := job.layout.unreplaceable:
        return f"layout {job.layout.name}: the communication of {odd} cannot be left out of a step"
    if _sharded(job) and job.scaler.is_enabled():
        return (
            "precision fp16 with fsdp: the ranks also tell each other of gradients that overflow, which cannot be "
            "left out of a step; want bf16 or fp32"
        )
    if _sharded(job) or isinstance(job.model, DistributedDataParallel):
        return ""
    return f"{type(job.model).__name__}: its communication cannot be left out"


def _sharded(job: Job) -> list[FSDPModule]:
    return [module for module in job.model.modules() if isinstance(module, FSDPModule)]


class Communication:
    """What a job exchanges. `mode` is what happens from the next step on; the same on every rank.

    real: as ever. none: nothing, each rank goes its own way. barrier: where bytes are exchanged the
    ranks of the group meet, but exchange none. `exchanged` are the collectives since it was cleared.

    Raises:
        ClusterQualError: the job is spread in a way whose communication cannot be replaced.
    """

    def __init__(self, ctx: Context, job: Job) -> None:
        self.mode: Mode = "real"
        self.exchanged: list[Exchanged] = []
        self._group = ctx.group
        self._rank, self._size = ctx.rank, ctx.world_size
        self._token = torch.zeros(1, device=ctx.device)
        if reason := irreplaceable(job):
            raise ClusterQualError(reason)
        if isinstance(job.model, DistributedDataParallel):
            # DDP reads a hook's annotations, and those of this file are strings: a lambda has none.
            job.model.register_comm_hook(None, lambda _state, bucket: self._bucket(bucket))
        for module in _sharded(job):
            module.set_custom_all_gather(_Replaced(self._all_gather))  # type: ignore[arg-type]
            module.set_custom_reduce_scatter(_Replaced(self._reduce_scatter))  # type: ignore[arg-type]

    def _bucket(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        gradients = bucket.buffer()
        self._note("all_reduce", gradients, gradients)
        gradients.div_(self._size)
        work: dist.Work | None = None
        if self.mode == "real":
            work = dist.all_reduce(gradients, group=self._group, async_op=True)
        elif self.mode == "barrier":
            work = self._meet(async_op=True)
        if work is None:
            return at_once(gradients)
        done: torch.futures.Future[Tensor] = work.get_future().then(lambda _: gradients)
        return done

    def _all_gather(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        self._note("all_gather", input_tensor, output_tensor)
        if self.mode == "real":
            return dist.all_gather_into_tensor(output_tensor, input_tensor, group=group, async_op=async_op)
        for rank, part in enumerate(output_tensor.chunk(self._size)):
            if rank != self._rank:
                # Stands in for another rank's: what was never written may be slow to compute with.
                part.copy_(input_tensor)
        return self._meet(async_op=async_op) if self.mode == "barrier" else None

    def _reduce_scatter(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> dist.Work | None:
        self._note("reduce_scatter", input_tensor, output_tensor)
        if self.mode == "real":
            return dist.reduce_scatter_tensor(output_tensor, input_tensor, op=op, group=group, async_op=async_op)
        output_tensor.copy_(input_tensor.chunk(self._size)[self._rank])
        return self._meet(async_op=async_op) if self.mode == "barrier" else None

    def _meet(self, *, async_op: bool) -> dist.Work | None:
        return dist.all_reduce(self._token, group=self._group, async_op=async_op)

    def _note(self, collective: Any, given: Tensor, received: Tensor) -> None:
        self.exchanged.append(
            Exchanged(collective=collective, given=given.numel(), received=received.numel(), dtype=given.dtype)
        )


def at_once(gradients: Tensor) -> torch.futures.Future[Tensor]:
    """What a hook of DDP answers where nothing is exchanged."""
    answer: torch.futures.Future[Tensor] = torch.futures.Future()
    answer.set_result(gradients)
    return answer


class _Replaced:
    """A collective as FSDP wants it: with the memory for its result."""

    def __init__(self, call: Callable[..., dist.Work | None]) -> None:
        self._call = call

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, *args: Any, **kwargs: Any) -> dist.Work | None:
        return self._call(*args, **kwargs)


def payload(ctx: Context, exchanged: Sequence[Exchanged]) -> Callable[[], None]:
    """The same collectives one after the other, on memory of their own."""
    zeros = {
        dtype: [
            torch.zeros(max(getattr(each, side) for each in exchanged if each.dtype == dtype), device=ctx.device,
                        dtype=dtype)
            for side in ("given", "received")
        ]
        for dtype in {each.dtype for each in exchanged}
    }  # fmt: skip

    def exchange() -> None:
        for each in exchanged:
            given, received = zeros[each.dtype][0][: each.given], zeros[each.dtype][1][: each.received]
            if each.collective == "all_reduce":
                dist.all_reduce(given, group=ctx.group)
            elif each.collective == "all_gather":
                dist.all_gather_into_tensor(received, given, group=ctx.group)
            else:
                dist.reduce_scatter_tensor(received, given, group=ctx.group)

    return exchange

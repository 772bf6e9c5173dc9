"""Copies of a model or of its shards, and what keeps them alike: DDP, and FSDP2 of all kinds."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from pytest_clusterqual.rank.experts import MixtureOfExperts
from pytest_clusterqual.rank.meshes import Place

if TYPE_CHECKING:
    from pytest_clusterqual.rank.jobs import Context

LOW_PRECISION = {"bf16": torch.bfloat16, "fp16": torch.float16}


def replicate_plainly(ctx: Context, model: nn.Module, place: Place) -> nn.Module:
    """Wrap a model that is filled already."""
    if ctx.backend == "fake":
        return Bucketed(model)
    copied = DistributedDataParallel(
        model,
        device_ids=[ctx.device] if ctx.device.type == "cuda" else None,
        process_group=place.copies.get_group(),
        gradient_as_bucket_view=True,
    )
    copied.broadcast_buffers = False  # each rank keeps its own, as with FSDP2: a forward exchanges nothing
    return copied


class Bucketed(DistributedDataParallel):
    """What DDP holds, and nothing it does: its reducer is not Python and reads values, which fake tensors lack.

    The buckets are there for good. A gradient is made beside them, as any other, and moves into them when
    it is to be exchanged.
    """

    def __init__(self, model: nn.Module) -> None:
        nn.Module.__init__(self)
        self.module = model
        self.require_backward_grad_sync = True  # what `no_sync` takes away for a while
        self.reducer: Any = SimpleNamespace(prepare_for_backward=lambda _: None)
        for parameter in model.parameters():
            bucket = torch.empty_like(parameter, requires_grad=False)
            parameter.register_post_accumulate_grad_hook(partial(self._move, bucket))

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.module(*inputs, **named)

    def _move(self, bucket: Tensor, parameter: Tensor) -> None:
        if self.require_backward_grad_sync:
            bucket.copy_(parameter.grad)
            parameter.grad = bucket


def spread(model: nn.Module, blocks: Sequence[nn.Module], place: Place, precision: str) -> None:
    """Shard over the copies, or keep them whole, block by block; the model may be on the meta device.

    A model without any copy, and not to be sharded, stays as it is.
    """
    if not place.layout.fsdp and place.copies.size() == 1 and place.expert_copies is None:
        return
    low = LOW_PRECISION.get(precision)
    policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32) if low else MixedPrecisionPolicy()
    for block in blocks:
        if place.expert_copies is not None:
            _spread_experts(block.feed_forward, place, policy)
        _wrap(block, place.copies, place, policy)
    _wrap(model, place.copies, place, policy)


def _spread_experts(mixture: Any, place: Place, policy: MixedPrecisionPolicy) -> None:
    """Experts have copies of their own, and gradients that hold the tokens of all ranks that send them some."""
    assert isinstance(mixture, MixtureOfExperts) and place.expert_copies is not None
    _wrap(mixture.experts, place.expert_copies, place, policy)
    spread: Any = mixture.experts
    if place.expert_copies.size() != place.losses:
        spread.set_gradient_divide_factor(float(place.losses))
        # gloo cannot multiply while it sums. Where nothing is scattered torch divides in any case.
        spread.set_force_sum_reduction_for_comms(_shards(place.expert_copies) > 1)


def _shards(copies: DeviceMesh) -> int:
    names = enumerate(copies.mesh_dim_names or ())
    return next((copies.size(number) for number, name in names if name.startswith("shard")), 1)


def _wrap(module: nn.Module, copies: DeviceMesh, place: Place, policy: MixedPrecisionPolicy) -> None:
    if place.layout.fsdp:
        # torch's own default, None, leaves the root gathered: its backward follows at once.
        again = False if place.layout.fsdp == "grad-op" else None
        fully_shard(module, mesh=copies, reshard_after_forward=again, mp_policy=policy)
    else:
        replicate(module, mesh=copies, mp_policy=policy)


def synchronizing(model: nn.Module, *, last: bool) -> AbstractContextManager[None]:
    """Gradients are exchanged in the last microbatch only."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last)
    elif isinstance(model, DistributedDataParallel) and not last:
        held: AbstractContextManager[None] = model.no_sync()
        return held
    return nullcontext()

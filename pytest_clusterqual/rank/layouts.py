"""Spread the exact job over the ranks of one group.

Whatever the layout, one step updates the parameters as one rank with the whole global batch would.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from pytest_clusterqual.errors import ClusterQualError
from pytest_clusterqual.model.workload import Layout, Workload
from pytest_clusterqual.rank.data import Batch
from pytest_clusterqual.rank.transformer import Block, Transformer

if TYPE_CHECKING:
    from pytest_clusterqual.rank.jobs import Context

LOW_PRECISION = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Job:
    """One rank's share of the training job: the wrapped model, its optimizer, its step."""

    def __init__(self, model: nn.Module, workload: Workload, device: torch.device) -> None:
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=workload.optimizer.lr)
        self.scaler = torch.amp.GradScaler(device.type, enabled=workload.precision == "fp16")
        self._device = device
        self._autocast = LOW_PRECISION.get(workload.precision) if not isinstance(model, FSDPModule) else None

    def step(self, batches: Sequence[Batch]) -> Tensor:
        """One optimizer step over this rank's microbatches.

        Returns:
            The mean loss of this rank's microbatches, a detached scalar on the device. The mean of
            it over all ranks is the loss of the global batch.
        """
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self._device)
        for index, batch in enumerate(batches):
            with self._synchronizing(last=index == len(batches) - 1):
                # Gradients are averaged over ranks by the wrapper; the average over microbatches is ours.
                loss = self._loss(batch) / len(batches)
                self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return total

    def parts(self) -> dict[str, int]:
        """Bytes held on this rank by parameters, gradients and optimizer state; call it after a step."""
        parameters = list(self.model.parameters())
        states = [
            value for state in self.optimizer.state.values() for value in state.values() if isinstance(value, Tensor)
        ]
        return {
            "parameters": _local_bytes(parameters),
            "gradients": _local_bytes([p.grad for p in parameters if p.grad is not None]),
            "optimizer": _local_bytes(states),
        }

    def _loss(self, batch: Batch) -> Tensor:
        inputs, targets = batch
        with torch.autocast(self._device.type, dtype=self._autocast, enabled=self._autocast is not None):
            logits = self.model(inputs)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    def _synchronizing(self, *, last: bool) -> AbstractContextManager[None]:
        """Gradients are exchanged in the last microbatch only."""
        if isinstance(self.model, FSDPModule):
            self.model.set_requires_gradient_sync(last)
        elif isinstance(self.model, DistributedDataParallel) and not last:
            held: AbstractContextManager[None] = self.model.no_sync()
            return held
        return nullcontext()


def build(ctx: Context, workload: Workload, layout: Layout) -> Job:
    """Make the job on this rank; a collective call of `ctx.group`.

    Raises:
        ClusterQualError: this exact job cannot be done on that many ranks or with this model.
    """
    try:
        workload.accumulation(ctx.world_size)
    except ValueError as error:
        raise ClusterQualError(f"workload.{error}") from None
    torch.manual_seed(workload.seed)
    with torch.device("meta"):
        model = Transformer(workload.model, workload.sequence_length)
    if layout.activation_checkpointing == "full":
        apply_activation_checkpointing(
            model,
            checkpoint_wrapper_fn=lambda module: checkpoint_wrapper(module, preserve_rng_state=False),
            check_fn=lambda module: isinstance(module, Block),
        )
    if layout.fsdp == "full":
        _shard(ctx, model, workload)
    model.to_empty(device=ctx.device)
    model.initialize(workload.seed)
    return Job(model if layout.fsdp else _replicate(ctx, model), workload, ctx.device)


def _replicate(ctx: Context, model: Transformer) -> nn.Module:
    return DistributedDataParallel(
        model,
        device_ids=[ctx.device] if ctx.device.type == "cuda" else None,
        process_group=ctx.group,
        gradient_as_bucket_view=True,
    )


def _shard(ctx: Context, model: Transformer, workload: Workload) -> None:
    mesh = DeviceMesh.from_group(ctx.group, ctx.device.type)
    low = LOW_PRECISION.get(workload.precision)
    policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32) if low else MixedPrecisionPolicy()
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def _local_bytes(tensors: Sequence[Tensor]) -> int:
    local = [t.to_local() if isinstance(t, DTensor) else t for t in tensors]
    return sum(t.numel() * t.element_size() for t in local)

"""One rank's share of the training job, and its step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel

from pytest_clusterqual.model.training import PipelineTimes, Routing
from pytest_clusterqual.model.workload import Workload
from pytest_clusterqual.rank import data_parallel
from pytest_clusterqual.rank.data import Batch
from pytest_clusterqual.rank.data_parallel import LOW_PRECISION
from pytest_clusterqual.rank.experts import MixtureOfExperts
from pytest_clusterqual.rank.meshes import Place
from pytest_clusterqual.rank.pipeline import Pipeline
from pytest_clusterqual.rank.recipe import Recipe
from pytest_clusterqual.rank.reference import next_token_loss
from pytest_clusterqual.rank.transformer import own_part

if TYPE_CHECKING:
    from pytest_clusterqual.rank.jobs import Context


class Job:
    """One rank's share of the training job: the wrapped model, its optimizer, its step.

    Its data are those of rank `data_rank` out of `data_ranks`: ranks that work on one sequence read the same.
    """

    def __init__(
        self, ctx: Context, recipe: Recipe, parts: Sequence[nn.Module], workload: Workload, place: Place
    ) -> None:
        self.model = parts[0] if len(parts) == 1 else nn.ModuleList(parts)
        self.layout = place.layout
        self.data_rank, self.data_ranks = place.data_rank, place.shape.data
        self.optimizer = recipe.optimizer(list(self.model.parameters()))
        self.scaler = _scaler(ctx, place, enabled=workload.precision == "fp16")
        self._group, self._device, self._place = ctx.group, ctx.device, place
        self._workload, self._recipe = workload, recipe
        self._turns = workload.accumulation(place.shape.data)
        self._sharded = isinstance(parts[0], FSDPModule)
        self._autocast = None if self._sharded else LOW_PRECISION.get(workload.precision)
        self._total = torch.zeros((), device=ctx.device)
        self._pipeline = self._stages(parts) if place.pipeline is not None else None
        self.after_forward: Callable[[], None] = lambda: None  # called after the last forward pass of a step

    def step(self, batches: Sequence[Batch]) -> Tensor:
        """One optimizer step over this rank's microbatches.

        Returns:
            This rank's part in the loss, a detached scalar on the device. The mean of it over all
            ranks of the job is the loss of the global batch.
        """
        self.optimizer.zero_grad(set_to_none=True)
        self._total = torch.zeros((), device=self._device)
        if self._place.context is not None:
            batches = [[own_part(tokens, self._place.context, dim=1).contiguous() for tokens in b] for b in batches]
        with loss_parallel() if self._place.tensor is not None else nullcontext():
            if self._pipeline is not None:
                inputs, targets = (torch.cat(each) for each in zip(*batches, strict=True))
                with self._computing():
                    self._pipeline.run(inputs, targets)
            else:
                self._accumulate(batches)
        self._settle_gradients()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return self._total * self.layout.pipeline  # only the last stage has one

    def held(self) -> dict[str, list[Tensor]]:
        """This rank's parts of parameters, gradients and optimizer state; call it after a step."""
        parameters = list(self.model.parameters())
        states = [
            value for state in self.optimizer.state.values() for value in state.values() if isinstance(value, Tensor)
        ]
        gradients = [p.grad for p in parameters if p.grad is not None]
        return {"parameters": _local(parameters), "gradients": _local(gradients), "optimizer": _local(states)}

    def parts(self) -> dict[str, int]:
        """Bytes of what is `held`."""
        return {name: sum(t.numel() * t.element_size() for t in tensors) for name, tensors in self.held().items()}

    @property
    def otherwise(self) -> tuple[str, ...]:
        """What of the layout is done by other means than torch's own."""
        gathered = "context: keys and values of all tokens are gathered, for torch's ring attention cannot run on a CPU"
        return (gathered,) if self._place.context is not None else ()

    def routing(self) -> Routing | None:
        """Which experts all tokens so far went to, None without experts; a collective call of the job's ranks."""
        if not self._workload.experts:
            return None
        shape = self._workload.shape
        tokens = torch.zeros(shape.layers, shape.experts, dtype=torch.int64, device=self._device)
        for name, module in self.model.named_modules():
            if isinstance(module, MixtureOfExperts):
                tokens[int(name.split("blocks.")[1].split(".")[0])] = module.load
        dist.all_reduce(tokens, group=self._group)
        return Routing(degree=self._place.shape.expert, top_k=shape.top_k, tokens=tuple(map(tuple, tokens.tolist())))

    @property
    def pipeline(self) -> Pipeline | None:
        return self._pipeline

    def pipeline_times(self, steps: int) -> PipelineTimes | None:
        """How much of the last `steps` this rank's stages computed, None without a pipeline."""
        if self._pipeline is None:
            return None
        wholes, computing = self._pipeline.times()
        return PipelineTimes(
            stages=self.layout.pipeline, stages_per_rank=self.layout.stages_per_rank, microbatches=self._turns,
            schedule=self.layout.schedule, seconds=wholes[-steps:], computing=computing[-steps:],
        )  # fmt: skip

    def _accumulate(self, batches: Sequence[Batch]) -> None:
        for index, batch in enumerate(batches):
            with data_parallel.synchronizing(self.model, last=index == len(batches) - 1):
                with self._computing():
                    made = self._recipe.forward(self.model, batch)
                if index == len(batches) - 1:
                    self.after_forward()
                self._counted(self._recipe.loss(made, batch)).backward()

    def _settle_gradients(self) -> None:
        """Sum what tensor ranks have seen of the sequence, for parameters that all of them hold; FSDP2 has done so."""
        for parameter in self.model.parameters():
            gradient = parameter.grad
            if isinstance(gradient, DTensor) and gradient.placements != parameter.placements:
                parameter.grad = gradient.redistribute(placements=parameter.placements)

    def _counted(self, loss: Tensor) -> Tensor:
        """What the gradients of one microbatch are taken of. Copies average, the average over microbatches is ours."""
        loss = loss / self._turns
        if isinstance(loss, DTensor):
            loss = loss.to_local()
        self._total += loss.detach()
        return self.scaler.scale(loss)

    def _computing(self) -> AbstractContextManager[Any]:
        return torch.autocast(self._device.type, dtype=self._autocast, enabled=self._autocast is not None)

    def _stages(self, parts: Sequence[nn.Module]) -> Pipeline:
        work, shape = self._workload, self._place.shape
        sequence = work.sequence_length // shape.context
        passed = (work.microbatch, sequence // shape.tensor, work.shape.hidden)
        kind = LOW_PRECISION.get(work.precision, torch.float32) if self._sharded else torch.float32
        return Pipeline(
            self._place, parts, self._device,
            tokens=torch.empty(work.microbatch, sequence, dtype=torch.int64, device="meta"),
            hidden=torch.empty(passed, dtype=kind, device="meta", requires_grad=True),
            microbatches=self._turns,
            loss=lambda logits, targets: self._counted(next_token_loss(logits, targets)),
        )  # fmt: skip


def _scaler(ctx: Context, here: Place, *, enabled: bool) -> torch.amp.GradScaler:
    """Where ranks have parameters of their own, all must hear of a gradient that overflows in any of them."""
    if enabled and not (here.pipeline is None and here.tensor is None and here.expert_copies is None):
        scaler: torch.amp.GradScaler = ShardedGradScaler(ctx.device.type, process_group=ctx.group)
    else:
        scaler = torch.amp.GradScaler(ctx.device.type, enabled=enabled)
    scaler.scale(torch.zeros((), device=ctx.device))  # makes its state, also where no loss will be
    return scaler


def _local(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [t.to_local() if isinstance(t, DTensor) else t for t in tensors]

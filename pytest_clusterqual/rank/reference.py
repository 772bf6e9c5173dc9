"""The reference transformer as a job: on the bytes of a file, with AdamW, spread by every means there is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_clusterqual.model.workload import Workload
from pytest_clusterqual.rank import data_parallel, tensor_parallel
from pytest_clusterqual.rank.data import Batch, ByteData
from pytest_clusterqual.rank.meshes import Place
from pytest_clusterqual.rank.recompute import recompute
from pytest_clusterqual.rank.transformer import Attention, Block, FeedForward, Share, Transformer

if TYPE_CHECKING:
    from pytest_clusterqual.rank.jobs import Context

# Selective regions end at attention and feed-forwards: torch repeats them operation by operation, and would trip over
# the communication of a mixture of experts.
REPEATED: dict[str, tuple[type[nn.Module], ...]] = {"full": (Block,), "selective": (Attention, FeedForward)}


class Reference:
    """A `Recipe`."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload

    def data(self, ctx: Context) -> ByteData:
        return ByteData.open(ctx, self._workload)

    def drawn(self, here: Place) -> list[nn.Module]:
        """Those of the rank in a pipeline, else all of the model; on the meta device, without any memory."""
        return [self._stage(here, stage) for stage in here.layout.stages_of(here.stage)]

    def fill(self, stage: nn.Module, device: torch.device) -> None:
        assert isinstance(stage, Transformer)
        stage.to_empty(device=device)
        stage.initialize(self._workload.seed)

    def optimizer(self, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
        """Parameters on different meshes go in groups of their own: one operation cannot take both."""
        wanted = self._workload.optimizer
        assert wanted is not None  # every project file without a factory has one
        by_mesh: dict[Any, list[nn.Parameter]] = {}
        for parameter in parameters:
            by_mesh.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
        chosen: dict[str, Any] = {} if wanted.implementation == "default" else {wanted.implementation: True}
        return torch.optim.AdamW([{"params": each} for each in by_mesh.values()], lr=wanted.lr, **chosen)

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        inputs, _targets = batch
        logits: Tensor = model(inputs)
        return logits

    def loss(self, made: Tensor, batch: Batch) -> Tensor:
        _inputs, targets = batch
        return next_token_loss(made, targets)

    def _stage(self, here: Place, stage: int) -> Transformer:
        shape, layout = self._workload.shape, here.layout
        experts = shape.experts // layout.expert
        share = Share(
            layers=layout.layers_of(stage, shape.layers),
            experts=range(here.expert_rank * experts, (here.expert_rank + 1) * experts),
            expert_group=here.expert,
            context=here.context,
        )
        with torch.device("meta"):
            model = Transformer(shape, self._workload.sequence_length, share)
        if here.tensor is not None:
            tensor_parallel.split(model, here.tensor)
        kind = layout.activation_checkpointing
        recompute(model, kind, REPEATED.get(kind, ()))
        if not layout.bucketed:
            data_parallel.spread(model, list(model.blocks.values()), here, self._workload.precision)
        return model


def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean over all tokens, from logits of whatever precision."""
    with torch.autocast(logits.device.type, enabled=False):
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

"""Spread the exact job over the ranks of one group.

Whatever the layout, one step updates the parameters as one rank with the whole global batch would.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from pytest_clusterqual.errors import ClusterQualError
from pytest_clusterqual.model.groups import Mesh, mesh
from pytest_clusterqual.model.workload import Layout, Workload
from pytest_clusterqual.rank import data_parallel, tensor_parallel
from pytest_clusterqual.rank.job import Job
from pytest_clusterqual.rank.meshes import Place, place
from pytest_clusterqual.rank.recompute import recompute
from pytest_clusterqual.rank.transformer import Share, Transformer

if TYPE_CHECKING:
    from pytest_clusterqual.rank.jobs import Context


def build(ctx: Context, workload: Workload, layout: Layout) -> Job:
    """Make the job on this rank; a collective call of `ctx.group`.

    Raises:
        ClusterQualError: this exact job cannot be done on that many ranks or with this model.
    """
    return filled(ctx, workload, *drawn(ctx, workload, layout))


def drawn(ctx: Context, workload: Workload, layout: Layout) -> tuple[Place, list[Transformer]]:
    """This rank's place and its stages of the model, spread as the layout says; they hold no memory yet.

    Raises:
        ClusterQualError: as `build`.
    """
    shape = _shape(ctx, workload, layout)
    here = place(ctx, layout, shape, experts=workload.model.experts > 0)
    return here, [_part(workload, here, stage) for stage in layout.stages_of(here.stage)]


def filled(ctx: Context, workload: Workload, here: Place, parts: Sequence[Transformer]) -> Job:
    """The job of stages that are drawn: now they get their memory and their values."""
    torch.manual_seed(workload.seed)
    models: list[nn.Module] = []
    for part in parts:
        part.to_empty(device=ctx.device)
        part.initialize(workload.seed)
        models.append(data_parallel.replicate_plainly(ctx, part, here) if here.layout.bucketed else part)
    return Job(ctx, models, workload, here)


def _shape(ctx: Context, workload: Workload, layout: Layout) -> Mesh:
    """The layout's mesh on these ranks, into which the job fits."""
    try:
        shape = mesh(layout, ctx.world_size, ctx.nproc_per_node)
    except ValueError as error:
        raise ClusterQualError(str(error)) from None
    try:
        workload.accumulation(shape.data)
    except ValueError as error:
        raise ClusterQualError(f"workload.{error}") from None
    for key, text in layout.misfits(workload.model, workload.sequence_length):
        raise ClusterQualError(f"layout {layout.name}: {key}: {text}")
    return shape


def _part(workload: Workload, here: Place, stage: int) -> Transformer:
    """One stage of the model on the meta device, spread as the layout says; all of it where there is no pipeline."""
    shape, layout = workload.model, here.layout
    experts = shape.experts // layout.expert
    share = Share(
        layers=layout.layers_of(stage, shape.layers),
        experts=range(here.expert_rank * experts, (here.expert_rank + 1) * experts),
        expert_group=here.expert,
        context=here.context,
    )
    with torch.device("meta"):
        model = Transformer(shape, workload.sequence_length, share)
    if here.tensor is not None:
        tensor_parallel.split(model, here.tensor)
    recompute(model, layout.activation_checkpointing)
    if not layout.bucketed:
        data_parallel.spread(model, here, workload)
    return model

"""Spread the exact job over the ranks of one group.

Whatever the layout, one step updates the parameters as one rank with the whole global batch would.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from pytest_clusterqual.errors import ClusterQualError
from pytest_clusterqual.model.groups import Mesh, mesh
from pytest_clusterqual.model.workload import Layout, Workload
from pytest_clusterqual.rank.data_parallel import replicate_plainly
from pytest_clusterqual.rank.job import Job
from pytest_clusterqual.rank.meshes import Place, place
from pytest_clusterqual.rank.recipe import Recipe, recipe_of

if TYPE_CHECKING:
    from pytest_clusterqual.rank.jobs import Context


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawing:
    """A rank's place, and its stages of the model, spread as the layout says; not yet filled with values."""

    place: Place
    recipe: Recipe
    stages: list[nn.Module]


def build(ctx: Context, workload: Workload, layout: Layout) -> Job:
    """Make the job on this rank; a collective call of `ctx.group`.

    Raises:
        ClusterQualError: this exact job cannot be done on that many ranks or with this model.
    """
    return filled(ctx, workload, drawn(ctx, workload, layout))


def drawn(ctx: Context, workload: Workload, layout: Layout) -> Drawing:
    """The stages of the reference model hold no memory yet; what a factory makes may hold all of it.

    Raises:
        ClusterQualError: as `build`.
    """
    shape = _shape(ctx, workload, layout)
    here = place(ctx, layout, shape, experts=workload.experts > 0)
    recipe = recipe_of(workload)
    return Drawing(place=here, recipe=recipe, stages=recipe.drawn(here))


def filled(ctx: Context, workload: Workload, drawing: Drawing) -> Job:
    """The job of stages that are drawn: now they get their memory and their values."""
    torch.manual_seed(workload.seed)
    here, stages = drawing.place, []
    for stage in drawing.stages:
        drawing.recipe.fill(stage, ctx.device)
        stages.append(replicate_plainly(ctx, stage, here) if here.layout.bucketed else stage)
    return Job(ctx, drawing.recipe, stages, workload, here)


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
    for key, text in workload.misfits(layout):
        raise ClusterQualError(f"layout {layout.name}: {key}: {text}")
    return shape

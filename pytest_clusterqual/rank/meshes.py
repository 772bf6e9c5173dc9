"""Where a rank stands in its layout: whose data it reads, and the groups and meshes that it works in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch import Tensor, arange, tensor
from torch.distributed.device_mesh import DeviceMesh

from pytest_clusterqual.errors import ClusterQualError
from pytest_clusterqual.model.groups import Mesh
from pytest_clusterqual.model.workload import Layout

if TYPE_CHECKING:
    from pytest_clusterqual.rank.jobs import Context


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """One rank's place. Groups are None where they would have one rank only.

    `copies` are the ranks that hold the same parameters or shards of them: dimensions ``replicate`` and
    ``shard``, of which there may be one. `expert_copies` are the same for the experts, None where
    experts are spread like all else. `data_rank` counts among `shape.data` ranks with sequences of their own.
    """

    layout: Layout
    shape: Mesh
    data_rank: int
    stage: int
    expert_rank: int
    pipeline: dist.ProcessGroup | None
    expert: dist.ProcessGroup | None
    context: DeviceMesh | None
    tensor: DeviceMesh | None
    copies: DeviceMesh
    expert_copies: DeviceMesh | None

    @property
    def losses(self) -> int:
        """Ranks over whose own losses a mean is the loss of the global batch."""
        return self.shape.data * self.shape.context


def place(ctx: Context, layout: Layout, shape: Mesh, *, experts: bool) -> Place:
    """Make this rank's groups in the layout's mesh; a collective call of `ctx.group`. `experts`: the model has some.

    Raises:
        ClusterQualError: experts do not fit into nodes.
    """
    sizes = (shape.pipeline, shape.replicate, shape.shard, shape.context, shape.tensor)
    ranks = arange(ctx.world_size).view(sizes)
    stage, r, s, _, t = (int(at) for at in (ranks == ctx.rank).nonzero()[0])
    data_rank = r * shape.shard + s
    copies, tensor = _meshes(ctx, layout, ranks[stage])
    by_expert = ranks.view(shape.pipeline, -1, shape.expert, shape.context, shape.tensor)
    apart = experts and (shape.expert > 1 or shape.tensor > 1)
    return Place(
        layout=layout,
        shape=shape,
        data_rank=data_rank,
        stage=stage,
        expert_rank=data_rank % shape.expert,
        pipeline=_group(ctx, ranks.movedim(0, -1)),
        expert=_group(ctx, by_expert.movedim(2, -1)),
        context=_mesh(ctx, {"context": shape.context}, ranks[stage, r, s, :, t]) if shape.context > 1 else None,
        tensor=tensor,
        copies=copies,
        expert_copies=_expert_copies(ctx, layout, shape, by_expert[stage]) if apart else None,
    )


def _meshes(ctx: Context, layout: Layout, ranks: Tensor) -> tuple[DeviceMesh, DeviceMesh | None]:
    """Copies and tensor ranks of one stage, as parts of one mesh; `ranks` is (replicate, shard, context, tensor).

    Ranks of a context group hold the same parameters, so they are copies, too.
    """
    replicate, shard, context, split = ranks.shape
    dimensions = {"replicate": replicate, "shard": shard * context}
    if layout.fsdp is None:
        dimensions = {"replicate": replicate * shard * context}
    elif replicate == 1:
        dimensions = {"shard": shard * context}
    if split == 1:
        return _mesh(ctx, dimensions, ranks), None
    whole = _mesh(ctx, {**dimensions, "tensor": split}, ranks)
    return whole[tuple(_named(ctx, name) for name in dimensions)], whole[_named(ctx, "tensor")]


def _expert_copies(ctx: Context, layout: Layout, shape: Mesh, ranks: Tensor) -> DeviceMesh:
    """Ranks with the same experts; `ranks` is (copy, expert, context, tensor)."""
    (mine,) = (own for own in ranks.movedim(1, 0) if ctx.rank in own)
    return _mesh(ctx, expert_dimensions(layout, shape), mine)


def expert_dimensions(layout: Layout, shape: Mesh) -> dict[str, int]:
    """How many ranks have the same experts, by dimension; tensor ranks hold whole ones.

    Raises:
        ClusterQualError: groups of ranks with all experts, and those that share a node, cut across each other.
    """
    copies, alike = shape.data // shape.expert, shape.context * shape.tensor
    if layout.fsdp is None:
        return {"replicate": copies * alike}
    if shape.replicate == 1:
        return {"shard": copies * alike}
    if shape.shard % shape.expert and shape.expert % shape.shard:
        raise ClusterQualError(
            f"layout {layout.name}: the {shape.shard} data ranks that share a node are no multiple of "
            f"expert {shape.expert}, nor the other way round"
        )
    inner = max(shape.shard // shape.expert, 1)
    return {"replicate": copies // inner, "shard": inner * alike}


def _mesh(ctx: Context, dimensions: dict[str, int], ranks: Tensor) -> DeviceMesh:
    ranks = ranks.reshape(tuple(dimensions.values()))
    # What torch has found out about an operation on tensor parts it uses again for a mesh of the same ranks,
    # with the group it knows: that one must live on in the next job.
    groups = [
        ctx.own_group(_rows(ranks.movedim(dimension, -1)), kept=name == "tensor")
        for dimension, name in enumerate(dimensions)
    ]
    return DeviceMesh.from_group(
        [group for group in groups if group is not None],
        ctx.device.type,
        mesh=tensor(ctx.members)[ranks],
        mesh_dim_names=tuple(_named(ctx, name) for name in dimensions),
    )


def _named(ctx: Context, dimension: str) -> str:
    """Meshes of the same ranks and names are one and the same to torch, which keeps results by them."""
    return f"{dimension} in silence" if ctx.silent else dimension


def _group(ctx: Context, ranks: Tensor) -> dist.ProcessGroup | None:
    """That of this rank; the last dimension of `ranks` counts inside a group."""
    return ctx.own_group(_rows(ranks)) if ranks.shape[-1] > 1 else None


def _rows(ranks: Tensor) -> list[list[int]]:
    rows: list[list[int]] = ranks.reshape(-1, ranks.shape[-1]).tolist()
    return rows

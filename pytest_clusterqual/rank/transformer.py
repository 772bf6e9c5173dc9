"""The reference model: a decoder-only transformer exactly as `ModelShape` counts it.

RMSNorm, rotary positions, grouped-query attention, SwiGLU or a mixture of such experts, untied
embeddings, no biases.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from pytest_clusterqual.errors import ClusterQualError
from pytest_clusterqual.model.workload import ModelShape
from pytest_clusterqual.rank.experts import MixtureOfExperts

INIT_STD = 0.02
ROTARY_BASE = 10_000.0
WRAPPED = "_checkpoint_wrapped_module."  # what activation checkpointing puts into the names of parameters


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """What one module holds of the whole model, and with whom it works on one sequence or one layer.

    `layers` are its blocks; the first one brings the embedding, the last one the head. `experts` are those
    of each layer that lie here, `expert_group` the ranks that have the others. The ranks of `context`
    have the rest of the sequence, in their order.
    """

    layers: range
    experts: range = range(0)
    expert_group: dist.ProcessGroup | None = None
    context: DeviceMesh | None = None


class Attention(nn.Module):
    """Causal self-attention; each key/value head serves `heads / kv_heads` query heads.

    Where ranks share a sequence, keys and values of all of it are gathered first. Every rank then computes
    with the whole of them and masks what it must not see, so that none has more to do than others.
    """

    def __init__(self, shape: ModelShape, context: DeviceMesh | None) -> None:
        super().__init__()
        self._context = context
        self.head = shape.hidden // shape.heads
        self.query = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.key = nn.Linear(shape.hidden, shape.kv_heads * self.head, bias=False)
        self.value = nn.Linear(shape.hidden, shape.kv_heads * self.head, bias=False)
        self.output = nn.Linear(shape.hidden, shape.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        query, key, value = (
            proj(x).unflatten(-1, (-1, self.head)).transpose(1, 2) for proj in (self.query, self.key, self.value)
        )
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        seen = None
        if self._context is not None:
            key, value = gathered(torch.stack((key, value)), self._context).unbind()
            at = torch.arange(key.shape[-2], device=key.device)
            seen = at <= own_part(at, self._context)[:, None]
        mixed = F.scaled_dot_product_attention(
            query, key, value, attn_mask=seen, is_causal=seen is None, enable_gqa=query.shape[1] != key.shape[1]
        )
        result: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return result


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.hidden, shape.ffn, bias=False)
        self.up = nn.Linear(shape.hidden, shape.ffn, bias=False)
        self.down = nn.Linear(shape.ffn, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return result


class Block(nn.Module):
    """One layer; the unit of sharding and of activation checkpointing."""

    def __init__(self, shape: ModelShape, share: Share) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.hidden)
        self.attention = Attention(shape, share.context)
        self.feed_forward_norm = nn.RMSNorm(shape.hidden)
        self.feed_forward: nn.Module
        if shape.experts:
            here: dict[int, nn.Module] = {number: FeedForward(shape) for number in share.experts}
            self.feed_forward = MixtureOfExperts(shape, here, share.expert_group)
        else:
            self.feed_forward = FeedForward(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        result: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return result


class Transformer(nn.Module):
    """The whole model, or a share of it. Built on any device, the meta device included; `initialize` then fills it."""

    def __init__(self, shape: ModelShape, sequence_length: int, share: Share | None = None) -> None:
        super().__init__()
        _check(shape)
        self.shape = shape
        share = share or Share(layers=range(shape.layers), experts=range(shape.experts))
        first, last = 0 in share.layers, shape.layers - 1 in share.layers
        self.embedding = nn.Embedding(shape.vocab, shape.hidden) if first else None
        self.blocks = nn.ModuleDict({str(layer): Block(shape, share) for layer in share.layers})
        self.norm = nn.RMSNorm(shape.hidden) if last else None
        self.head = nn.Linear(shape.hidden, shape.vocab, bias=False) if last else None
        self._context = share.context
        self._angles = (sequence_length, shape.hidden // shape.heads // 2)
        # Not buffers: data parallel wrappers would send these constants around before every forward.
        self.cos: Tensor
        self.sin: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """What the layers before made of it, (batch, sequence, hidden), to what the next ones need.

        Before the first layer it is tokens, int64 (batch, sequence); after the last one logits,
        (batch, sequence, vocab). Ranks that share a sequence have a part of it each.
        """
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.blocks.values():
            x = block(x, self.cos, self.sin)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x))
        return x

    @torch.no_grad()
    def initialize(self, seed: int) -> None:
        """Fill parameters and rotary tables; the values depend on the seed and the device type only.

        A parameter that is spread gets its part of the same whole, and no more than one whole parameter
        exists at a time.
        """
        device = next(self.parameters()).device
        numbers = {name: number for number, name in enumerate(self.shape.shapes())}
        for name, parameter in self.named_parameters():
            if parameter.dim() == 1:
                parameter.fill_(1.0)
                continue
            number = numbers[name.replace(WRAPPED, "")]
            generator = torch.Generator(device).manual_seed(seed * 100_003 + number)
            whole = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
            whole.normal_(0.0, INIT_STD, generator=generator)
            if isinstance(parameter, DTensor):
                # No source rank: every rank holds the same whole, so nothing has to be sent.
                whole = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
            parameter.copy_(whole)
        for module in self.modules():
            if isinstance(module, MixtureOfExperts):
                module.load = torch.zeros_like(module.load, device=device)
        length, half = self._angles
        speeds = ROTARY_BASE ** (-torch.arange(half, dtype=torch.float64) / half)
        own = torch.arange(length, dtype=torch.float64)
        if self._context is not None:
            own = own_part(own, self._context)
        angles = torch.outer(own, speeds)
        self.cos, self.sin = angles.cos().float().to(device), angles.sin().float().to(device)


def gathered(part: Tensor, context: DeviceMesh) -> Tensor:
    """The whole of what each rank has (..., a part of the sequence, head); gradients go back to whose part it was."""
    spread = DTensor.from_local(part, context, [Shard(part.dim() - 2)])
    whole: Tensor = spread.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
    return whole


def own_part(sequence: Tensor, context: DeviceMesh, dim: int = 0) -> Tensor:
    """This rank's part of a whole sequence."""
    return sequence.chunk(context.size(), dim)[context.get_local_rank()]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn pairs (i, i + half) of the last dimension by the position's angles.

    `x` is (batch, heads, sequence, head); `cos` and `sin` are (positions, head / 2), of which a shorter
    sequence takes the first.
    """
    cos, sin = (table[: x.shape[-2]].to(x.dtype) for table in (cos, sin))
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


def _check(shape: ModelShape) -> None:
    if shape.experts and shape.top_k > shape.experts:
        raise ClusterQualError(f"workload.model.top_k: got {shape.top_k}, want at most experts = {shape.experts}")
    if shape.hidden % (2 * shape.heads):
        raise ClusterQualError(
            f"workload.model.hidden: got {shape.hidden}, want a multiple of 2 x heads = {2 * shape.heads}"
        )
    if shape.heads % shape.kv_heads:
        raise ClusterQualError(
            f"workload.model.heads: got {shape.heads}, want a multiple of kv_heads = {shape.kv_heads}"
        )

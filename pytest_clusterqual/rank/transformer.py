"""The reference model: a decoder-only transformer exactly as `ModelShape` counts it.

RMSNorm, rotary positions, grouped-query attention, SwiGLU, untied embeddings, no biases.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from pytest_clusterqual.errors import ClusterQualError
from pytest_clusterqual.model.workload import ModelShape

INIT_STD = 0.02
ROTARY_BASE = 10_000.0


class Attention(nn.Module):
    """Causal self-attention; each key/value head serves `heads / kv_heads` query heads."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
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
        mixed = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=query.shape[1] != key.shape[1]
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

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.hidden)
        self.attention = Attention(shape)
        self.feed_forward_norm = nn.RMSNorm(shape.hidden)
        self.feed_forward = FeedForward(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        result: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return result


class Transformer(nn.Module):
    """Built on any device, the meta device included; `initialize` then fills it."""

    def __init__(self, shape: ModelShape, sequence_length: int) -> None:
        super().__init__()
        _check(shape)
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab, shape.hidden)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden)
        self.head = nn.Linear(shape.hidden, shape.vocab, bias=False)
        self._angles = (sequence_length, shape.hidden // shape.heads // 2)
        # Not buffers: data parallel wrappers would send these constants around before every forward.
        self.cos: Tensor
        self.sin: Tensor

    def forward(self, tokens: Tensor) -> Tensor:
        """int64 (batch, sequence) to logits (batch, sequence, vocab)."""
        x = self.embedding(tokens)
        length = tokens.shape[1]
        for block in self.blocks:
            x = block(x, self.cos[:length], self.sin[:length])
        logits: Tensor = self.head(self.norm(x))
        return logits

    @torch.no_grad()
    def initialize(self, seed: int) -> None:
        """Fill parameters and rotary tables; the values depend on the seed and the device type only.

        A sharded parameter gets its part of the same whole, and no more than one whole parameter
        exists at a time.
        """
        for index, parameter in enumerate(self.parameters()):
            if parameter.dim() == 1:
                parameter.fill_(1.0)
                continue
            generator = torch.Generator(parameter.device).manual_seed(seed * 100_003 + index)
            whole = torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
            whole.normal_(0.0, INIT_STD, generator=generator)
            if isinstance(parameter, DTensor):
                # No source rank: every rank holds the same whole, so nothing has to be sent.
                whole = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
            parameter.copy_(whole)
        length, half = self._angles
        speeds = ROTARY_BASE ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.outer(torch.arange(length, dtype=torch.float64), speeds)
        device = self.head.weight.device
        self.cos, self.sin = angles.cos().float().to(device), angles.sin().float().to(device)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn pairs (i, i + half) of the last dimension by the position's angles.

    `x` is (batch, heads, sequence, head); `cos` and `sin` are (sequence, head / 2).
    """
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


def _check(shape: ModelShape) -> None:
    if shape.experts:
        raise ClusterQualError(f"workload.model.experts: got {shape.experts}, want 0: the reference model has none")
    if shape.hidden % (2 * shape.heads):
        raise ClusterQualError(
            f"workload.model.hidden: got {shape.hidden}, want a multiple of 2 x heads = {2 * shape.heads}"
        )
    if shape.heads % shape.kv_heads:
        raise ClusterQualError(
            f"workload.model.heads: got {shape.heads}, want a multiple of kv_heads = {shape.kv_heads}"
        )

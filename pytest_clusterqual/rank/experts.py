"""A mixture of experts in place of one feed-forward: every token goes to the experts that a router chooses.

No token is ever dropped and there is no balancing loss: what the router does to the load is there to be seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd

from pytest_clusterqual.model.workload import ModelShape

_counting: ContextVar[bool] = ContextVar("counting", default=True)


@contextmanager
def uncounted() -> Iterator[None]:
    """Tokens that are routed inside are not counted: a forward pass that is repeated for its gradient."""
    token = _counting.set(False)
    try:
        yield
    finally:
        _counting.reset(token)


class Experts(nn.Module):
    """Those experts that are on this rank, each under its number in the whole layer; the unit of their sharding."""

    def __init__(self, experts: dict[int, nn.Module]) -> None:
        super().__init__()
        for number, expert in experts.items():
            self.add_module(str(number), expert)

    def forward(self, *tokens: Tensor) -> list[Tensor]:
        """What each expert makes of its own (tokens, hidden); every one has a turn, if only with no token."""
        return [expert(own) for expert, own in zip(self.children(), tokens, strict=True)]


class MixtureOfExperts(nn.Module):
    """`top_k` of all experts for each token, weighted by the router's own probabilities.

    `group` are the ranks among which the experts lie, in order; None where all of them are here. `load`
    counts how many tokens of this rank each expert of the layer got.
    """

    def __init__(self, shape: ModelShape, experts: dict[int, nn.Module], group: dist.ProcessGroup | None) -> None:
        super().__init__()
        self.router = nn.Linear(shape.hidden, shape.experts, bias=False)
        self.experts = Experts(experts)
        self.group = group
        self._top_k = shape.top_k
        self._here = len(experts)
        self.load = torch.zeros(shape.experts, dtype=torch.int64)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sequence, hidden) to the same."""
        tokens = x.flatten(0, 1)
        weights, chosen = self.router(x).flatten(0, 1).float().softmax(-1).topk(self._top_k)
        order = chosen.flatten().argsort(stable=True)  # by expert, and so by the rank it is on
        token = order // self._top_k
        counts = chosen.flatten().bincount(minlength=len(self.load))
        if _counting.get():
            self.load += counts
        made = self._through_experts(tokens[token], counts) * weights.flatten()[order, None].to(x.dtype)
        return torch.zeros_like(tokens).index_add(0, token, made).view_as(x)

    def _through_experts(self, tokens: Tensor, counts: Tensor) -> Tensor:
        """`tokens` lie in the order of their experts, `counts[e]` of them for expert e; the results do, too."""
        if self.group is None:
            return torch.cat(self.experts(*tokens.split(counts.tolist())))
        sent = counts.view(-1, self._here)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self.group)
        to_ranks, from_ranks = sent.sum(1).tolist(), received.sum(1).tolist()
        arrived = all_to_all_single_autograd(tokens, from_ranks, to_ranks, self.group)
        # Those of one rank after the other, by expert: what an expert gets from all ranks belongs together.
        parts = arrived.split(received.flatten().tolist())
        made = self.experts(*(torch.cat(parts[expert :: self._here]) for expert in range(self._here)))
        by_rank = zip(*(each.split(got) for each, got in zip(made, received.T.tolist(), strict=True)), strict=True)
        back = torch.cat([part for parts in by_rank for part in parts])
        return all_to_all_single_autograd(back, to_ranks, from_ranks, self.group)

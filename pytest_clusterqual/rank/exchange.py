"""What one call of a collective moves, and whether it arrived.

Sizes are the whole array as nccl-tests counts it: the output of all_gather, the input of
reduce_scatter, the buffer of one rank otherwise. Elements are fp32.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor

from pytest_clusterqual.errors import MeasurementError

ELEMENT = 4
# Prime, so that a chunk that ends up at another place shows; below 2**24 / values ranks the sum is exact in fp32.
PERIOD = 8191
VALUES = 1021


def uneven_shares(elements: int, ranks: int) -> list[int]:
    """How many of its `elements` a rank keeps, then how many it sends to the rank one place after it, two, and so on.

    It keeps 1/n, as in an even exchange, so that (n-1)/n of an array leave every rank and as many
    reach it. The rank k places away gets k/(1 + 2 + ... + n-1) of that. Two ranks have only one
    peer each: between them the shares are even.
    """
    own = elements // ranks
    sent = [own * k * (k + 1) // ranks for k in range(ranks)]  # to the first k ranks together
    return [own, *(after - before for before, after in pairwise(sent))]


class Exchange:
    """One collective on one group with its buffers. `wrong` checks every element of one call.

    `elements` is a multiple of the group's size. broadcast sends from the group's first rank,
    send_recv to the next rank.
    """

    def __init__(self, collective: str, group: dist.ProcessGroup, elements: int, device: torch.device) -> None:
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self._group = group
        self._shares = uneven_shares(elements, self.size)
        whole, part = elements, elements // self.size
        makers: dict[str, tuple[int, int, Callable[[], object], Callable[[], Tensor]]] = {
            "all_reduce": (whole, 0, self._all_reduce, lambda: self._sum(0, whole)),
            "all_gather": (part, whole, self._all_gather, lambda: self._chunks(0, part)),
            "reduce_scatter": (whole, part, self._reduce_scatter, lambda: self._sum(self.rank * part, part)),
            "all_to_all": (whole, whole, self._all_to_all, lambda: self._chunks(self.rank * part, part)),
            "all_to_all_v": (whole, whole, self._all_to_all_v, self._uneven_chunks),
            "send_recv": (whole, whole, self._send_recv, lambda: self._own(self.rank - 1, 0, whole)),
            "broadcast": (whole, 0, self._broadcast, lambda: self._own(0, 0, whole)),
        }
        if collective not in makers:
            raise MeasurementError(f"collective: got {collective!r}, want one of {', '.join(makers)}")
        given, received, self.call, self._expected = makers[collective]
        # all_reduce works in place: zeros stay zeros however often they are summed.
        self._input = torch.zeros(given, device=device)
        self._output = torch.zeros(received, device=device) if received else self._input

    def wrong(self) -> int:
        """Wrong elements in the result of one call on a pattern that differs by rank and position."""
        if self._output is not self._input:
            self._output.fill_(float("nan"))
        self._input.copy_(self._own(self.rank, 0, len(self._input)))
        self.call()
        wrong = int((self._output != self._expected()).sum().item())
        self._input.zero_()
        return wrong

    def _own(self, rank: int, first: int, count: int) -> Tensor:
        """Elements `first` to `first + count - 1` of the pattern of `rank`."""
        return self._tile((torch.arange(PERIOD) * 31 + (rank % self.size) * 17) % VALUES, first, count)

    def _sum(self, first: int, count: int) -> Tensor:
        pattern = torch.arange(PERIOD) * 31
        table = torch.zeros(PERIOD, dtype=torch.int64)
        for rank in range(self.size):
            table += (pattern + rank * 17) % VALUES
        return self._tile(table, first, count)

    def _chunks(self, first: int, count: int) -> Tensor:
        return torch.cat([self._own(rank, first, count) for rank in range(self.size)])

    def _uneven_chunks(self) -> Tensor:
        splits = [self._sent_by(rank) for rank in range(self.size)]
        return torch.cat([
            self._own(rank, sum(split[: self.rank]), split[self.rank]) for rank, split in enumerate(splits)
        ])  # fmt: skip

    def _sent_by(self, rank: int) -> list[int]:
        """How many elements `rank` sends to each rank of the group."""
        turn = self.size - rank
        return self._shares[turn:] + self._shares[:turn]

    def _tile(self, table: Tensor, first: int, count: int) -> Tensor:
        turned = table.roll(-(first % PERIOD)).float().to(self._input.device)
        return turned.repeat(-(-count // PERIOD))[:count]

    def _all_reduce(self) -> object:
        return dist.all_reduce(self._input, group=self._group)

    def _all_gather(self) -> object:
        return dist.all_gather_into_tensor(self._output, self._input, group=self._group)

    def _reduce_scatter(self) -> object:
        return dist.reduce_scatter_tensor(self._output, self._input, group=self._group)

    def _all_to_all(self) -> object:
        return dist.all_to_all_single(self._output, self._input, group=self._group)

    def _all_to_all_v(self) -> object:
        received = [self._shares[(self.rank - rank) % self.size] for rank in range(self.size)]
        return dist.all_to_all_single(
            self._output, self._input, received, self._sent_by(self.rank), group=self._group
        )  # fmt: skip

    def _broadcast(self) -> object:
        return dist.broadcast(self._input, dist.get_global_rank(self._group, 0), group=self._group)

    def _send_recv(self) -> None:
        following = dist.get_global_rank(self._group, (self.rank + 1) % self.size)
        previous = dist.get_global_rank(self._group, (self.rank - 1) % self.size)
        operations = [
            dist.P2POp(dist.isend, self._input, following, self._group),
            dist.P2POp(dist.irecv, self._output, previous, self._group),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

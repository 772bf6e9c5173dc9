"""One collective at many message sizes: time and correctness.

Sizes are the whole array as nccl-tests counts it: the output of all_gather, the input of
reduce_scatter, the buffer of one rank otherwise. Elements are fp32.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.model.codec import to_json
from pytest_clusterqual.model.measurement import CollectiveTiming, RankFabric
from pytest_clusterqual.rank.training import meet

if TYPE_CHECKING:
    from pytest_clusterqual.rank.jobs import Context

ELEMENT = 4
SAMPLES = 3
WARMUP_CALLS = 2
TRIAL_CALLS = 3
# A sample is a mean, as nccl-tests reports it: of one call alone the median would flatter noisy machines.
LEAST_ITERATIONS, MOST_ITERATIONS = 4, 1000
# Prime, so that a chunk that ends up at another place shows; below 2**24 / values ranks the sum is exact in fp32.
PERIOD = 8191
VALUES = 1021


class Exchange:
    """One collective on one group with its buffers. `wrong` checks every element of one call."""

    def __init__(self, collective: str, group: dist.ProcessGroup, elements: int, device: torch.device) -> None:
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self._group = group
        self._elements = elements
        whole, part = elements, elements // self.size
        makers: dict[str, tuple[int, int, Callable[[], object], Callable[[], Tensor]]] = {
            "all_reduce": (whole, 0, self._all_reduce, lambda: self._sum(0, whole)),
            "all_gather": (part, whole, self._all_gather, lambda: self._chunks(0, part)),
            "reduce_scatter": (whole, part, self._reduce_scatter, lambda: self._sum(self.rank * part, part)),
            "all_to_all": (whole, whole, self._all_to_all, lambda: self._chunks(self.rank * part, part)),
            "send_recv": (whole, whole, self._send_recv, lambda: self._own(self.rank - 1, 0, whole)),
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

    def _send_recv(self) -> None:
        following = dist.get_global_rank(self._group, (self.rank + 1) % self.size)
        previous = dist.get_global_rank(self._group, (self.rank - 1) % self.size)
        operations = [
            dist.P2POp(dist.isend, self._input, following, self._group),
            dist.P2POp(dist.irecv, self._output, previous, self._group),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()


def sweep(ctx: Context, *, collective: str, group: str, sizes: list[int], seconds: float) -> Any:
    """One round over `sizes` (bytes) in all rank groups of one kind at once; a `RankFabric` as JSON.

    Every sample takes about `seconds`. A rank in no group reports group size 0, a rank alone in
    its group 1, both without timings; they keep in step with the others all the same.

    Raises:
        MeasurementError: there is no such collective.
    """
    mine = _join(ctx, group)
    members = 0 if mine is None else dist.get_world_size(mine)
    timings = []
    for index, size in enumerate(sizes):
        ctx.report(index, len(sizes), f"{collective} {group}")
        if mine is None or members < 2:
            _measure(ctx, None, 0, seconds)
            continue
        elements = max(size // (members * ELEMENT), 1) * members
        timings.append(_measure(ctx, Exchange(collective, mine, elements, ctx.device), elements * ELEMENT, seconds))
    ctx.report(len(sizes), len(sizes), f"{collective} {group}")
    return to_json(RankFabric(rank=ctx.rank, group_size=members, timings=tuple(timings)))


def _join(ctx: Context, kind: str) -> dist.ProcessGroup | None:
    mine = None
    for ranks in ctx.groups(kind):
        everyone = len(ranks) == ctx.world_size
        # Collective even for ranks outside: all of the job must ask for every group, in the same order.
        group = ctx.group if everyone else ctx.subgroup(ranks)
        mine = group if ctx.rank in ranks else mine
    return mine


def _measure(ctx: Context, exchange: Exchange | None, size: int, seconds: float) -> CollectiveTiming:
    call = exchange.call if exchange is not None else _nothing
    wrong = exchange.wrong() if exchange is not None else 0
    for _ in range(WARMUP_CALLS):
        call()
    trial = _timed(ctx, call, TRIAL_CALLS)
    wanted = int(seconds / max(_slowest(ctx, trial), 1e-9))
    iterations = min(max(wanted, LEAST_ITERATIONS), MOST_ITERATIONS)
    samples = tuple(_timed(ctx, call, iterations) for _ in range(SAMPLES))
    wrong += exchange.wrong() if exchange is not None else 0
    return CollectiveTiming(bytes=size, iterations=iterations, seconds=samples, wrong=wrong)


def _timed(ctx: Context, call: Callable[[], object], iterations: int) -> float:
    """Seconds of one call, averaged over `iterations` of them after all ranks of the job have met."""
    meet(ctx)
    start = time.perf_counter()
    for _ in range(iterations):
        call()
    ctx.synchronize()
    return (time.perf_counter() - start) / iterations


def _slowest(ctx: Context, seconds: float) -> float:
    worst = torch.tensor([seconds], dtype=torch.float64, device=ctx.device)
    dist.all_reduce(worst, op=dist.ReduceOp.MAX, group=ctx.group)
    return float(worst.item())


def _nothing() -> None:
    pass

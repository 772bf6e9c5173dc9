"""One collective at many message sizes: time and correctness."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from itertools import starmap
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.model.codec import to_json
from pytest_clusterqual.model.fabric import CollectiveTiming, RankFabric
from pytest_clusterqual.rank.clock import moment, seconds_between
from pytest_clusterqual.rank.exchange import ELEMENT, Exchange
from pytest_clusterqual.rank.training import meet, slowest

if TYPE_CHECKING:
    from pytest_clusterqual.rank.jobs import Context

SAMPLES = 3
WARMUP_CALLS = 2
TRIAL_CALLS = 3
# A sample is a mean, as nccl-tests reports it: of one call alone the median would flatter noisy machines.
LEAST_ITERATIONS, MOST_ITERATIONS = 4, 1000
# Single calls, to tell wait from transfer; all ranks together keep about so many of each size at most.
LEAST_INSTANCES, MOST_INSTANCES = 6, 16
INSTANCES_OF_ALL = 4096


def sweep(
    ctx: Context,
    *,
    collective: str,
    groups: Sequence[Sequence[int]],
    sizes: Sequence[int],
    seconds: float,
    alone: bool = False,
) -> Any:
    """One round over `sizes` (bytes) in all `groups` (ranks of this job) at once; a `RankFabric` as JSON.

    Every sample takes about `seconds`. `alone`: the groups take turns, and all others wait
    meanwhile. Sizes are rounded down to what every group can divide among its ranks. A rank in no
    group reports group size 0, a rank alone in its group 1, both without timings.

    Raises:
        MeasurementError: there is no such collective, or a rank is in two groups.
    """
    if len({rank for ranks in groups for rank in ranks}) < sum(map(len, groups)):
        raise MeasurementError(f"groups: got {[list(ranks) for ranks in groups]}, want no rank in two of them")
    group = ctx.own_group(groups)
    members = 0 if group is None else dist.get_world_size(group)
    at_work = group if members > 1 else None
    unit = math.lcm(*map(len, groups))
    elements = [max(size // (unit * ELEMENT), 1) * unit for size in sizes]
    timings = []
    if alone:
        for turn, ranks in enumerate(groups):
            ctx.report(turn, len(groups), f"{collective}, one group at a time")
            if at_work is not None and ctx.rank in ranks:
                timings = [_measure(ctx, collective, at_work, count, seconds, peers=at_work) for count in elements]
            meet(ctx)
    else:
        for index, count in enumerate(elements):
            ctx.report(index, len(elements), collective)
            timings.append(_measure(ctx, collective, at_work, count, seconds, peers=ctx.group))
    return to_json(RankFabric(rank=ctx.rank, group_size=members, timings=tuple(timings) if at_work else ()))


def _measure(
    ctx: Context,
    collective: str,
    group: dist.ProcessGroup | None,
    elements: int,
    seconds: float,
    *,
    peers: dist.ProcessGroup,
) -> CollectiveTiming:
    """One size in `group`, in step with `peers`; without a group this rank only keeps in step."""
    exchange = None if group is None else Exchange(collective, group, elements, ctx.device)
    call = exchange.call if exchange is not None else _nothing
    wrong = exchange.wrong() if exchange is not None else 0
    for _ in range(WARMUP_CALLS):
        call()
    wanted = int(seconds / max(slowest(ctx, _timed(ctx, peers, call, TRIAL_CALLS), peers), 1e-9))
    iterations = min(max(wanted, LEAST_ITERATIONS), MOST_ITERATIONS)
    samples = tuple(_timed(ctx, peers, call, iterations) for _ in range(SAMPLES))
    most = min(MOST_INSTANCES, INSTANCES_OF_ALL // ctx.world_size)
    instances = _instances(ctx, peers, call, max(min(wanted, most), LEAST_INSTANCES))
    wrong += exchange.wrong() if exchange is not None else 0
    return CollectiveTiming(
        bytes=elements * ELEMENT, iterations=iterations, seconds=samples, wrong=wrong, instances=instances
    )


def _timed(ctx: Context, peers: dist.ProcessGroup, call: Callable[[], object], iterations: int) -> float:
    """Seconds of one call, averaged over `iterations` of them after the `peers` have met."""
    meet(ctx, peers)
    start = time.perf_counter()
    for _ in range(iterations):
        call()
    ctx.synchronize()
    return (time.perf_counter() - start) / iterations


def _instances(ctx: Context, peers: dist.ProcessGroup, call: Callable[[], object], count: int) -> tuple[float, ...]:
    """Seconds of each of `count` calls in a row. They do not wait for the `peers` but inside a call.

    One more call, right after the meeting, is left out.
    """
    meet(ctx, peers)
    moments = []
    for _ in range(1 + count):
        begin = moment(ctx.device)
        call()
        moments.append((begin, moment(ctx.device)))
    ctx.synchronize()
    return tuple(starmap(seconds_between, moments[1:]))


def _nothing() -> None:
    pass

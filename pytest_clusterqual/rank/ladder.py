"""The step of a layout taken apart: without communication, with empty barriers, its bytes alone, and the real one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from pytest_clusterqual.model.codec import from_json, to_json
from pytest_clusterqual.model.fabric import RankLadder
from pytest_clusterqual.model.workload import Layout, Workload
from pytest_clusterqual.rank.data import ByteData
from pytest_clusterqual.rank.elision import Communication, Mode, payload
from pytest_clusterqual.rank.layouts import build
from pytest_clusterqual.rank.training import collector_at_rest, meet, slowest

if TYPE_CHECKING:
    from pytest_clusterqual.rank.data import Batch
    from pytest_clusterqual.rank.jobs import Context

WARMUP_STEPS = 3  # DDP settles its buckets in the second one; of three, the middle time is no rare one
ENOUGH_STEPS, MOST_STEPS = 8, 64
RUNG_SECONDS = 0.25  # a rank that is stopped now and then must compute long enough to be stopped in most rounds
RUNGS = ("compute", "barrier", "payload", "step")
MODES: dict[str, Mode] = {"compute": "none", "barrier": "barrier", "step": "real"}


def climb(
    ctx: Context,
    *,
    workload: dict[str, Any],
    layout: dict[str, Any],
    rounds: int,
    least: int,
    seconds: float,
    limit: float,
) -> Any:
    """`rounds` passes over the four rungs, each of so many steps that all take `seconds` at most.

    More steps than are needed are not done. Steps too long are done one a rung, in fewer rounds:
    `least`, or what `limit` seconds allow. On each rung of a round the ranks start together and
    step over the same data.

    Returns:
        A list with a `RankLadder` as JSON for each round.

    Raises:
        ClusterQualError: the job cannot be done on these ranks, or its communication cannot be replaced.
    """
    work = from_json(Workload, workload, where="workload")
    data = ByteData.open(ctx, work)
    job = build(ctx, work, from_json(Layout, layout, where="layout"))
    communication = Communication(ctx, job)
    fetch = partial(data.batches, rank=job.data_rank, world_size=job.data_ranks)

    def train(mode: Mode, batches: Sequence[Batch]) -> None:
        communication.mode = mode
        job.step(batches)

    warm: dict[str, list[float]] = {rung: [] for rung in RUNGS}
    for step in range(1, WARMUP_STEPS + 1):
        for rung, mode in MODES.items():
            communication.exchanged.clear()
            warm[rung] += _timed_each(ctx, [partial(train, mode, fetch(step))])
    exchange = payload(ctx, tuple(communication.exchanged))
    warm["payload"] += _timed_each(ctx, [exchange] * WARMUP_STEPS)
    typical = {rung: slowest(ctx, median(warm[rung])) for rung in RUNGS}
    rounds, steps = affordable(typical, rounds=rounds, least=least, seconds=seconds, limit=limit)
    made: list[RankLadder] = []
    with collector_at_rest():
        for number in range(rounds):
            ctx.report(number, rounds, "step taken apart")
            first = WARMUP_STEPS + 1 + number * steps
            batches = [fetch(step) for step in range(first, first + steps)]
            calls: dict[str, list[Callable[[], None]]] = {
                rung: [partial(train, mode, batch) for batch in batches] for rung, mode in MODES.items()
            }
            calls["payload"] = [exchange] * steps
            # Up and down in turn: slow drift of the machine then cancels between rungs.
            order = RUNGS if number % 2 == 0 else RUNGS[::-1]
            taken = {rung: _timed_each(ctx, calls[rung]) for rung in order}
            communication.exchanged.clear()
            made.append(RankLadder(rank=ctx.rank, **taken))
    ctx.report(rounds, rounds, "step taken apart")
    return to_json(made)


def affordable(
    typical: Mapping[str, float], *, rounds: int, least: int, seconds: float, limit: float
) -> tuple[int, int]:
    """Rounds, and steps of a rung, that take `seconds` in all at most; `typical` are those of one step by rung.

    No more than compute for RUNG_SECONDS, within bounds. Where not even one step a rung fits: the rounds
    that do, or `least` if `limit` seconds allow them.
    """
    once = sum(typical.values())
    if seconds >= once * rounds:
        enough = min(max(int(RUNG_SECONDS / typical["compute"]), ENOUGH_STEPS), MOST_STEPS)
        return rounds, min(int(seconds / (once * rounds)), enough)
    return max(int(seconds / once), min(least, int(limit / once)), 1), 1


def _timed_each(ctx: Context, calls: Sequence[Callable[[], None]]) -> tuple[float, ...]:
    """Seconds of each call after all ranks have met; nothing keeps them together from then on but the calls."""
    meet(ctx)
    taken = []
    start = time.perf_counter()
    for call in calls:
        call()
        ctx.synchronize()
        end = time.perf_counter()
        taken.append(end - start)
        start = end
    return tuple(taken)

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
from pytest_clusterqual.rank.elision import Communication, Mode, irreplaceable, payload
from pytest_clusterqual.rank.layouts import build
from pytest_clusterqual.rank.recipe import recipe_of
from pytest_clusterqual.rank.silence import silent_job
from pytest_clusterqual.rank.training import collector_at_rest, meet, slowest

if TYPE_CHECKING:
    from pytest_clusterqual.rank.data import Batch
    from pytest_clusterqual.rank.job import Job
    from pytest_clusterqual.rank.jobs import Context

    Step = Callable[[Sequence[Batch]], object]

WARMUP_STEPS = 3  # of three, the middle time is no rare one
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
    whole: bool = True,
) -> Any:
    """`rounds` passes over the four rungs, each of so many steps that all take `seconds` at most.

    There are two, compute and step, where communication can be left out but not replaced by barriers;
    `whole` refuses that. More steps than are needed are not done. Steps too long are done one a rung, in fewer rounds:
    `least`, or what `limit` seconds allow. On each rung of a round the ranks start together and
    step over the same data.

    Returns:
        A list with a `RankLadder` as JSON for each round.

    Raises:
        ClusterQualError: the job cannot be done on these ranks, or its communication cannot be replaced.
    """
    work = from_json(Workload, workload, where="workload")
    data = recipe_of(work).data(ctx)
    job = build(ctx, work, from_json(Layout, layout, where="layout"))
    fetch = partial(data.batches, rank=job.data_rank, world_size=job.data_ranks)
    rungs: dict[str, Step]
    if whole or not irreplaceable(job):
        rungs = _replaced(ctx, job, fetch(0))
    else:
        job.step(fetch(0))
        rungs = {"compute": silent_job(ctx, work, job, fetch(0)).step, "step": job.step}
    warm: dict[str, list[float]] = {rung: [] for rung in rungs}
    for number in range(1, WARMUP_STEPS + 1):
        for rung, step in rungs.items():
            warm[rung] += _timed_each(ctx, [partial(step, fetch(number))])
    typical = {rung: slowest(ctx, median(warm[rung])) for rung in rungs}
    rounds, steps = affordable(typical, rounds=rounds, least=least, seconds=seconds, limit=limit)
    made: list[RankLadder] = []
    with collector_at_rest():
        for number in range(rounds):
            ctx.report(number, rounds, "step taken apart")
            first = WARMUP_STEPS + 1 + number * steps
            batches = [fetch(step) for step in range(first, first + steps)]
            # Up and down in turn: slow drift of the machine then cancels between rungs.
            order = list(rungs) if number % 2 == 0 else list(reversed(rungs))
            taken = {rung: _timed_each(ctx, [partial(rungs[rung], batch) for batch in batches]) for rung in order}
            made.append(RankLadder(rank=ctx.rank, **{rung: taken.get(rung, ()) for rung in RUNGS}))
    ctx.report(rounds, rounds, "step taken apart")
    return to_json(made)


def _replaced(ctx: Context, job: Job, batches: Sequence[Batch]) -> dict[str, Step]:
    """The rungs of one job whose communication is replaced, in their order; `batches` are for its first steps."""
    communication = Communication(ctx, job)

    def train(mode: Mode, batches: Sequence[Batch]) -> None:
        communication.mode = mode
        communication.exchanged.clear()
        job.step(batches)

    for _ in range(2):  # DDP settles its buckets in the second one
        train("real", batches)
    exchange = payload(ctx, tuple(communication.exchanged))
    steps: dict[str, Step] = {rung: partial(train, mode) for rung, mode in MODES.items()}
    return {rung: steps.get(rung) or (lambda _batches: exchange()) for rung in RUNGS}


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


def _timed_each(ctx: Context, calls: Sequence[Callable[[], object]]) -> tuple[float, ...]:
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

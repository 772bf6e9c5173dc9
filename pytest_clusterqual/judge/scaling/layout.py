"""What a layout costs by its own nature: idle stages of a pipeline, experts with more tokens than others."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pytest_clusterqual import units
from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.model.training import PipelineTimes, Routing, ScalingRun


def pipeline_bubble(run: ScalingRun) -> float | None:
    """The share of the time in its schedule, 0 to 1, in which the idlest rank computed nothing.

    None without a pipeline.

    Raises:
        MeasurementError: a rank has no times, or computed longer than it was there.
    """
    found = [(rank.rank, rank.pipeline) for rank in run.ranks if rank.pipeline is not None]
    if not found:
        return None
    if len(found) < len(run.ranks):
        raise MeasurementError(f"pipeline: {len(found)} of {len(run.ranks)} ranks told how long their stages computed")
    return max(_idle(rank, times) for rank, times in found)


def _idle(rank: int, times: PipelineTimes) -> float:
    whole, computing = sum(times.seconds), sum(times.computing)
    if not (math.isfinite(whole) and 0 <= computing <= whole and whole > 0):
        raise MeasurementError(f"pipeline: rank {rank} computed {computing:g} s of {whole:g} s in its schedule")
    return 1 - computing / whole


def ideal_bubble(times: PipelineTimes) -> float:
    """The bubble of the schedule itself, of stages that all take the same time and messages that take none."""
    fill = times.stages - 1
    return fill / (times.stages_per_rank * times.microbatches + fill)


def expert_imbalance(run: ScalingRun) -> float | None:
    """Tokens of the busiest expert over what each would have if all had the same, in the worst layer.

    None without experts.

    Raises:
        MeasurementError: no token was routed in a layer.
    """
    routing = run.ranks[0].routing
    if routing is None:
        return None
    return max(_imbalance(layer, tokens) for layer, tokens in enumerate(routing.tokens))


def _imbalance(layer: int, tokens: tuple[int, ...]) -> float:
    if sum(tokens) <= 0:
        raise MeasurementError(f"experts: no token was routed in layer {layer}")
    return max(tokens) * len(tokens) / sum(tokens)


def notes(run: ScalingRun) -> Iterator[tuple[str, str]]:
    """Quantity -> what belongs beside it."""
    first = run.ranks[0]
    if (times := first.pipeline) is not None:
        stages = f"{times.stages * times.stages_per_rank} stages on {times.stages} ranks"
        share = units.show_share(ideal_bubble(times))
        yield "bubble", f"{times.schedule} schedule of {stages}, {times.microbatches} microbatches: {share} at best"
    if first.routing is not None:
        yield "imbalance", routed(first.routing)


def routed(routing: Routing) -> str:
    """Who routed what, in words."""
    experts = len(routing.tokens[0])
    spread = f"over {routing.degree} ranks" if routing.degree > 1 else "whole on every rank"
    layer, tokens = max(enumerate(routing.tokens), key=lambda item: _imbalance(*item))
    return f"{experts} experts {spread}, {routing.top_k} a token; layer {layer}: {', '.join(map(str, tokens))} tokens"

"""The runs of the fixed work on each number of nodes, checked, with the figures that are judged."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_clusterqual import units
from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.judgement import check_ranks
from pytest_clusterqual.judge.scaling.layout import ideal_bubble
from pytest_clusterqual.judge.statistics import median, slowest, steady_start
from pytest_clusterqual.model.training import RankTraining, ScalingMeasurement, ScalingRun, Unknown


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """All runs on one number of nodes, in the order they were made; one figure a run, in seconds.

    `step_times`, `data_times` and `bubbles` are medians of a run's steady steps on its slowest rank: the whole
    step, its wait for data, and what the pipeline's schedule idles at best. `work_times` span all steps.
    """

    nodes: int
    runs: tuple[ScalingRun, ...]
    step_times: tuple[float, ...]
    data_times: tuple[float, ...]
    bubbles: tuple[float, ...]
    work_times: tuple[float, ...]

    @property
    def label(self) -> str:
        return units.show_count(self.nodes, "node")

    @property
    def unknown(self) -> frozenset[Unknown]:
        """What could not be had of some run."""
        return frozenset(what for run in self.runs for rank in run.ranks for what in rank.unknown)

    @property
    def note(self) -> str:
        steps = len(self.runs[0].ranks[0].step_seconds)
        otherwise = "".join(f"; {means}" for means in self.runs[0].ranks[0].otherwise)
        return f"{len(self.runs)} runs of {steps} steps on {self.label}, slowest rank{otherwise}{self._launches}"

    @property
    def _launches(self) -> str:
        launches = [run.launch for run in self.runs]
        share = between_launches(self.work_times, launches)
        if share is None:
            return ""
        return f"; {units.show_share(share)} of their variance lies between {len(set(launches))} launches"

    def per_rank(self, seconds: Callable[[RankTraining], Sequence[float]]) -> dict[int, float]:
        """Rank -> the median of one figure of its steady steps, over all runs."""
        found: dict[int, list[float]] = {}
        for run in self.runs:
            start = _steady(run)
            for rank in run.ranks:
                found.setdefault(rank.rank, []).extend(seconds(rank)[start:])
        return {rank: median(figures) for rank, figures in sorted(found.items())}


def points_of(m: ScalingMeasurement) -> list[Point]:
    """The points by rising number of nodes.

    Raises:
        MeasurementError: a run, a rank, a step or a positive time is missing.
    """
    if not m.runs:
        raise MeasurementError("scaling: no run was made")
    by_nodes: dict[int, list[ScalingRun]] = {}
    for number, run in enumerate(m.runs, 1):
        _check(run, f"scaling: run {number} on {units.show_count(run.conditions.nodes, 'node')}")
        by_nodes.setdefault(run.conditions.nodes, []).append(run)
    return [
        Point(
            nodes=nodes,
            runs=tuple(runs),
            step_times=tuple(_typical(run, [rank.step_seconds for rank in run.ranks]) for run in runs),
            data_times=tuple(
                _typical(run, [rank.data_seconds or (0.0,) * len(rank.step_seconds) for rank in run.ranks])
                for run in runs
            ),
            bubbles=tuple(map(_bubble, runs)),
            work_times=tuple(max(rank.work_seconds for rank in run.ranks) for run in runs),
        )
        for nodes, runs in sorted(by_nodes.items())
    ]


def between_launches(figures: Sequence[float], launches: Sequence[int]) -> float | None:
    """The share of the variance of the logarithm of `figures` that lies between launches, 0 to 1.

    From the mean squares of a one-way analysis; None where one launch made all, or each made one.
    """
    by_launch: dict[int, list[float]] = {}
    for figure, launch in zip(figures, launches, strict=True):
        by_launch.setdefault(launch, []).append(math.log(figure))
    groups, count = list(by_launch.values()), len(figures)
    if len(groups) < 2 or count == len(groups):
        return None
    mean = sum(map(sum, groups)) / count
    centers = [sum(group) / len(group) for group in groups]
    between = sum(len(g) * (c - mean) ** 2 for g, c in zip(groups, centers, strict=True)) / (len(groups) - 1)
    within = sum((x - c) ** 2 for g, c in zip(groups, centers, strict=True) for x in g) / (count - len(groups))
    size = (count - sum(len(group) ** 2 for group in groups) / count) / (len(groups) - 1)
    launch_variance = max((between - within) / size, 0.0)
    return launch_variance / (launch_variance + within) if launch_variance else 0.0


def _check(run: ScalingRun, where: str) -> None:
    if not run.ranks or "ranks" not in run.ranks[0].unknown:
        check_ranks(run.conditions, [rank.rank for rank in run.ranks], where)
    first = run.ranks[0]
    if run.conditions.ranks != run.conditions.nodes * run.conditions.nproc_per_node:
        raise MeasurementError(
            f"{where}: {run.conditions.ranks} ranks are not {run.conditions.nodes} x {run.conditions.nproc_per_node}"
        )
    for rank in run.ranks:
        shape = _shape(rank)
        if shape != _shape(first):
            raise MeasurementError(
                f"{where}: rank {rank.rank} has {shape[0]} steps, {shape[1]} losses and {shape[2]} tokens per step, "
                f"rank {first.rank} {_shape(first)[0]}, {_shape(first)[1]} and {_shape(first)[2]}"
            )
        if not _is_whole(rank):
            raise MeasurementError(
                f"{where}: rank {rank.rank} has {shape[0]} steps, {shape[1]} losses and {shape[2]} tokens per step"
            )
        if not all(math.isfinite(seconds) and seconds > 0 for seconds in (*rank.step_seconds, rank.work_seconds)):
            raise MeasurementError(f"{where}: rank {rank.rank} has a time that is not above 0")
        data = rank.data_seconds
        if "data" not in rank.unknown and (len(data) != shape[0] or not all(0 <= each < math.inf for each in data)):
            raise MeasurementError(f"{where}: rank {rank.rank} has no time spent on data for each of its steps")
        for number, loss in enumerate(rank.losses, 1):
            if not math.isfinite(loss):
                raise MeasurementError(f"{where}: the loss of step {number} is {loss} on rank {rank.rank}")


def _shape(rank: RankTraining) -> tuple[int, int, int, int]:
    return len(rank.step_seconds), len(rank.losses), rank.tokens_per_step, rank.sequences_per_step


def _is_whole(rank: RankTraining) -> bool:
    """Everything is there that is not said to be unknown."""
    losses = bool(rank.losses) or "losses" in rank.unknown
    work = bool(rank.tokens_per_step or rank.sequences_per_step) or "work" in rank.unknown
    return bool(rank.step_seconds) and losses and work


def _steady(run: ScalingRun) -> int:
    return steady_start(slowest([rank.step_seconds for rank in run.ranks]))


def _typical(run: ScalingRun, seconds: Sequence[Sequence[float]]) -> float:
    return median(slowest(seconds)[_steady(run) :])


def _bubble(run: ScalingRun) -> float:
    """What the busiest rank's computing makes the others idle at best, in seconds of a step; 0 without a pipeline."""
    times = [rank.pipeline for rank in run.ranks if rank.pipeline is not None]
    if not times:
        return 0.0
    share = ideal_bubble(times[0])
    return max(median(each.computing) for each in times) * share / (1 - share)

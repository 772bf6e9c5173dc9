"""What is known of each rung of the memory ladder, checked, with the figures that are told of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.judgement import Case
from pytest_clusterqual.judge.memory import verdict as memory
from pytest_clusterqual.judge.scaling.runs import Point, points_of
from pytest_clusterqual.judge.scaling.verdict import different_regime
from pytest_clusterqual.judge.statistics import median
from pytest_clusterqual.model.memory import MemoryLadderMeasurement, MemoryMeasurement, Rung, RungResult
from pytest_clusterqual.model.requirement import Requirement
from pytest_clusterqual.model.training import ScalingMeasurement


@dataclass(frozen=True, kw_only=True, slots=True)
class Climbed:
    """One rung. `fits` is None if it was not tried, `why` in words; `point` is None if it was not timed.

    `memory` are its peak and its headroom, where its ranks told them.
    """

    rung: Rung
    fits: bool | None
    why: str
    memory: tuple[Case, ...] = ()
    point: Point | None = None

    @property
    def name(self) -> str:
        return self.rung.name

    @property
    def seconds(self) -> float:
        """The median time to the fixed work; nan if it was not timed."""
        return median(self.point.work_times if self.point else ())

    def fits_with(self, headroom: tuple[Requirement, ...]) -> bool:
        """True if it fits and leaves as much as is required."""
        return bool(self.fits) and all(each.met_by(self.memory[-1].value) for each in headroom)

    def not_alike(self, other: Climbed) -> list[str]:
        """What makes the work of two timed rungs another job; their layouts and numbers of ranks do not."""
        assert self.point and other.point
        first, base = self.point.runs[0], other.point.runs[0]
        alike = replace(
            first.conditions, layout=base.conditions.layout, nproc_per_node=base.conditions.nproc_per_node
        )  # fmt: skip
        return different_regime(base, replace(first, conditions=alike))


def climbed(m: MemoryLadderMeasurement) -> tuple[Climbed, ...]:
    """The rungs in order.

    Raises:
        MeasurementError: there is none, or of one that was tried a rank, a step or a time is missing.
    """
    if not m.rungs:
        raise MeasurementError("memory ladder: there is no rung")
    return tuple(_climbed(m, result) for result in m.rungs)


def _climbed(m: MemoryLadderMeasurement, result: RungResult) -> Climbed:
    rung = result.rung
    if rung.impossible or result.untried:
        return Climbed(rung=rung, fits=None, why=rung.impossible or result.untried)
    cases = memory.figures(_as_memory(m, result), rung.name) if result.ranks else ()
    if result.out_of_memory:
        return Climbed(rung=rung, fits=False, why=result.out_of_memory, memory=cases)
    if not cases:
        raise MeasurementError(f"memory ladder: {rung.name} was tried, and no rank told what it held")
    # On a smaller device there would be no room for what lies beside the tensors either.
    fits = all(rank.device_used <= rank.limit for rank in result.ranks)
    note = cases[-1].note
    return Climbed(
        rung=rung, fits=fits, why=note if fits else f"it ran only because there is more: {note}", memory=cases,
        point=_point(m, result),
    )  # fmt: skip


def _as_memory(m: MemoryLadderMeasurement, result: RungResult) -> MemoryMeasurement:
    rung = result.rung
    under = replace(
        m.conditions, nodes=rung.nodes, nproc_per_node=rung.per_node, ranks=rung.ranks, rank_nodes=result.rank_nodes,
        layout=rung.layout.name,
    )  # fmt: skip
    return MemoryMeasurement(conditions=under, ranks=result.ranks, started=m.started, seconds=m.seconds)


def _point(m: MemoryLadderMeasurement, result: RungResult) -> Point | None:
    if not result.runs:
        return None
    (point,) = points_of(
        ScalingMeasurement(conditions=result.runs[0].conditions, runs=result.runs, started=m.started, seconds=m.seconds)
    )
    return point

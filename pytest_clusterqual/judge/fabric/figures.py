"""The figures of one sweep, round by round, and what the project file asks of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_clusterqual.judge.fabric.findings import sweep_findings
from pytest_clusterqual.judge.fabric.level import Level, level_of
from pytest_clusterqual.judge.fabric.sweeps import GroupTimes, Size, sizes_of, sweep_groups
from pytest_clusterqual.judge.fabric.waits import EVERYBODY_WAITS, shared_waits
from pytest_clusterqual.judge.judgement import applicable
from pytest_clusterqual.judge.statistics import median
from pytest_clusterqual.model.busbw import busbw_factor
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.fabric import FabricMeasurement
from pytest_clusterqual.model.project import FabricPlan
from pytest_clusterqual.model.record import Finding
from pytest_clusterqual.model.requirement import Requirement

OF_A_SIZE = ("busbw", "algbw", "latency")
PART = 16  # bytes; every rank's part of an array is a whole number of elements, or with nccl-tests of so many bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """What all judgements of one sweep look at.

    `waited` is the shared wait of each group and round, `findings` what is said of a size: both by
    its bytes, and `waited` is empty where wait cannot be told apart. `levels` is by quantity. `told`
    says whose figures these are, `counted` what the rounds are called.
    """

    at: Conditions
    plan: FabricPlan
    sizes: tuple[Size, ...]
    levels: dict[str, Level]
    waited: dict[int, tuple[tuple[float, ...], ...]]
    findings: dict[int, tuple[Finding, ...]]
    told: str = "slowest rank"
    counted: str = "rounds"

    @property
    def collective(self) -> str:
        return self.at.collective or ""

    def rounds(self, size: Size, quantity: str, *, with_wait: bool = False) -> tuple[float, ...]:
        """The figure of each round: the median of its samples, each as bad as the worst group's.

        A group's time is that of its slowest rank, less the share that most of its ranks spent
        waiting for one that came late, for that is no property of the fabric.
        """
        waited = None if with_wait else self.waited.get(size.bytes)
        figures = []
        for r in range(len(size.groups[0].rounds)):
            kept = [1 - group[r] for group in waited] if waited else [1.0] * len(size.groups)
            samples = zip(*(group.rounds[r] for group in size.groups), strict=True)
            figures.append(median([self._worst(size, quantity, kept, sample) for sample in samples]))
        return tuple(figures)

    def figure(self, group: GroupTimes, quantity: str, seconds: float) -> float:
        """Seconds of one call as latency (s), algbw or busbw (B/s)."""
        if quantity == "latency":
            return seconds
        rate = group.bytes / seconds
        return rate * busbw_factor(self.collective, len(group.members)) if quantity == "busbw" else rate

    def required(self, quantity: str, size: Size | None = None) -> tuple[Requirement, ...]:
        """The requirements on one quantity; at one size, where it has any."""
        if size is None:
            return applicable(self.plan.require, "fabric", quantity, self.at)
        # Ranks round a size down to whole elements each; "from 1 MiB" still means what 1 MiB became.
        least, most = size.bytes, size.bytes + PART * size.members - 1
        return tuple(
            requirement
            for requirement in self.plan.require
            if applicable(
                (requirement,), "fabric", quantity, self.at, size=min(max(requirement.from_bytes or least, least), most)
            )
        )

    def _worst(self, size: Size, quantity: str, kept: Sequence[float], sample: Sequence[float]) -> float:
        figures = [
            self.figure(group, quantity, seconds * share)
            for group, share, seconds in zip(size.groups, kept, sample, strict=True)
        ]
        return max(figures) if quantity == "latency" else min(figures)


def sweep_of(m: FabricMeasurement, plan: FabricPlan) -> Sweep:
    """Check a measurement and reduce it.

    Raises:
        MeasurementError: as `sizes_of`.
    """
    at, groups, sizes = m.conditions, sweep_groups(m), sizes_of(m)
    waits = at.collective in EVERYBODY_WAITS and all(size.single_calls for size in sizes)
    waited = {size.bytes: tuple(map(shared_waits, size.groups)) for size in sizes} if waits else {}
    return Sweep(
        at=at,
        plan=plan,
        sizes=sizes,
        levels={quantity: level_of(at, groups, plan, found=m.links, quantity=quantity) for quantity in OF_A_SIZE},
        waited=waited,
        findings=sweep_findings(at, sizes, waited),
    )

"""What groups of one kind take from each other: all of them at once against each by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.fabric.sweeps import GroupTimes, Size, group_times
from pytest_clusterqual.judge.judgement import check_ranks
from pytest_clusterqual.judge.statistics import mapped, median, ratio_interval
from pytest_clusterqual.model.fabric import FabricMeasurement
from pytest_clusterqual.model.record import Interval


@dataclass(frozen=True, kw_only=True, slots=True)
class Contention:
    """The group that loses most at one size: `kappa` = its time among all / its time alone - 1.

    `pairs` are the same of each pair of rounds, `of_ranks` the kappa of the group that a rank is in.
    """

    size: Size
    members: tuple[int, ...]
    kappa: float
    interval: Interval | None
    pairs: tuple[float, ...]
    of_ranks: dict[int, float]


def contention(m: FabricMeasurement, sizes: Sequence[Size]) -> tuple[Contention, ...]:
    """For each size at which groups also worked alone, the worst group; rounds are pairs, so that drift cancels.

    Raises:
        MeasurementError: a rank, a size or a positive time is missing in the rounds alone.
    """
    alone = _alone(m, [group.members for group in sizes[0].groups])
    found = []
    for size in sizes:
        compared = [
            _compared(group, times)
            for group in size.groups
            for times in alone.get(group.members, ())
            if times.bytes == group.bytes
        ]
        if compared:
            found.append(_worst(size, compared))
    return tuple(found)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Compared:
    members: tuple[int, ...]
    at_once: tuple[float, ...]
    alone: tuple[float, ...]

    @property
    def kappa(self) -> float:
        return median(self.at_once) / median(self.alone) - 1


def _alone(m: FabricMeasurement, groups: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], list[GroupTimes]]:
    """The times of the groups that took turns; the others have none."""
    rounds = []
    for number, ranks in enumerate(m.alone, 1):
        check_ranks(m.conditions, [r.rank for r in ranks], f"fabric: round {number} of groups alone")
        rounds.append({r.rank: r for r in ranks})
    if not rounds:
        return {}
    took_turns = [group for group in groups if any(r[rank].timings for r in rounds for rank in group)]
    for number, ranks_ in enumerate(rounds, 1):
        if idle := [rank for group in took_turns for rank in group if not ranks_[rank].timings]:
            raise MeasurementError(f"fabric: round {number} of groups alone: rank {idle[0]} measured no size")
    return {group: group_times(group, rounds) for group in took_turns}


def _compared(at_once: GroupTimes, alone: GroupTimes) -> _Compared:
    # The first rounds were made in turn; later ones are more of all at once.
    pairs = list(zip(at_once.rounds, alone.rounds, strict=False))
    return _Compared(
        members=at_once.members,
        at_once=tuple(median(samples) for samples, _ in pairs),
        alone=tuple(median(samples) for _, samples in pairs),
    )


def _worst(size: Size, compared: Sequence[_Compared]) -> Contention:
    worst = max(compared, key=lambda group: group.kappa)
    ratio = ratio_interval(worst.at_once, worst.alone)
    return Contention(
        size=size,
        members=worst.members,
        kappa=worst.kappa,
        interval=mapped(ratio, lambda bound: bound - 1),
        pairs=tuple(a / b - 1 for a, b in zip(worst.at_once, worst.alone, strict=True)),
        of_ranks={rank: group.kappa for group in compared for rank in group.members},
    )

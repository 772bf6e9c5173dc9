"""A sweep over message sizes: whether it is a measurement at all, and its times group by group."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_clusterqual import units
from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.judgement import check_ranks
from pytest_clusterqual.judge.statistics import median, slowest
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.fabric import CollectiveTiming, FabricMeasurement, RankFabric
from pytest_clusterqual.model.groups import Groups, groups_of

Round = dict[int, RankFabric]
# One call as every rank of a group saw it: its seconds on each, in the order of the group.
Call = tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupTimes:
    """One message size (bytes) in one group; all times are seconds of one call.

    `rounds[r][s]` is sample s of round r on its slowest rank, `ranks` the median of each rank over
    rounds. `calls[r]` are the single calls of round r, none where they were not timed.
    """

    members: tuple[int, ...]
    bytes: int
    rounds: tuple[tuple[float, ...], ...]
    ranks: dict[int, float]
    calls: tuple[tuple[Call, ...], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """One message size over all groups. `bytes` is that of the largest array.

    Ranks have whole elements each, so groups of different sizes round differently.
    """

    bytes: int
    groups: tuple[GroupTimes, ...]

    @property
    def label(self) -> str:
        return size_label(self.bytes)

    @property
    def members(self) -> int:
        """Ranks of the largest group."""
        return max(len(group.members) for group in self.groups)

    @property
    def ranks(self) -> dict[int, float]:
        """Median seconds of each rank over the rounds."""
        return {rank: seconds for group in self.groups for rank, seconds in group.ranks.items()}

    @property
    def single_calls(self) -> bool:
        return any(map(any, (group.calls for group in self.groups)))


def sizes_of(m: FabricMeasurement) -> tuple[Size, ...]:
    """The sizes of a sweep in which all groups were at work, in the order they were measured.

    Raises:
        MeasurementError: a rank, a round, a size or a positive time is missing, or the groups are
            not those asked for; it names rank and size.
    """
    if not m.rounds:
        raise MeasurementError("fabric: no round was measured")
    groups = sweep_groups(m)
    rounds = [_by_rank(m.conditions, groups, number, ranks) for number, ranks in enumerate(m.rounds, 1)]
    if not rounds[0][groups[0][0]].timings:
        raise MeasurementError(f"fabric: rank {groups[0][0]} measured no size")
    times = [group_times(group, rounds) for group in groups]
    if len({len(sizes) for sizes in times}) > 1:
        raise MeasurementError("fabric: groups measured different numbers of sizes")
    return tuple(Size(bytes=max(g.bytes for g in groups), groups=groups) for groups in zip(*times, strict=True))


def sweep_groups(m: FabricMeasurement) -> Groups:
    """The ranks of every group that was at work.

    Raises:
        MeasurementError: there is no such group, it has one rank, or one that is not in the world.
    """
    at = m.conditions
    if at.collective is None or at.group is None:
        raise MeasurementError(f"fabric: got collective {at.collective!r} in group {at.group!r}")
    try:
        groups = m.groups or groups_of(at.group, at.rank_nodes, nproc_per_node=at.nproc_per_node)
    except ValueError as error:
        raise MeasurementError(f"fabric: collective {at.collective!r}: {error}") from None
    members = [rank for group in groups for rank in group]
    if not groups or any(len(group) < 2 for group in groups):
        raise MeasurementError(f"fabric: a group {at.group} of 1 rank has nobody to talk to")
    if len(set(members)) < len(members) or not set(members) <= set(range(at.ranks)):
        raise MeasurementError(f"fabric: the groups {at.group} are not made of different ranks of {at.ranks}")
    return groups


def group_times(group: tuple[int, ...], rounds: Sequence[Round]) -> list[GroupTimes]:
    """The times of one group, size by size.

    Raises:
        MeasurementError: a size, a sample, a call or a positive time is missing; it names rank and size.
    """
    reference = rounds[0][group[0]]
    for number, ranks in enumerate(rounds, 1):
        for rank in group:
            _check_timings(ranks[rank], reference, ranks[group[0]], number)
    return [
        _reduce(group, [[ranks[rank].timings[i] for rank in group] for ranks in rounds])
        for i in range(len(reference.timings))
    ]


def size_label(size: int) -> str:
    """``1 MiB``; the bare bytes where that would not say the size exactly."""
    text = units.show(size, units.BYTES)
    number, _, unit = text.partition(" ")
    exact = float(number) * {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "TiB": 1024**4}[unit]
    return text if exact == size else f"{size} B"


def _by_rank(conditions: Conditions, groups: Groups, number: int, ranks: Sequence[RankFabric]) -> Round:
    """The results of a round, every rank in a group as large as it should be."""
    check_ranks(conditions, [r.rank for r in ranks], f"fabric: round {number}")
    wanted = {rank: len(group) for group in groups for rank in group}
    for r in ranks:
        if r.group_size != wanted.get(r.rank, 0):
            raise MeasurementError(
                f"fabric: round {number}: rank {r.rank} was in a group of {r.group_size}, want "
                f"{wanted.get(r.rank, 0)}: this is not the world asked for"
            )
    return {r.rank: r for r in ranks}


def _check_timings(rank: RankFabric, reference: RankFabric, first: RankFabric, number: int) -> None:
    where = f"fabric: round {number}, rank {rank.rank}"
    sizes, wanted = [t.bytes for t in rank.timings], [t.bytes for t in reference.timings]
    if sizes != wanted:
        odd = next((s for s in (*sizes, *wanted) if sizes.count(s) != wanted.count(s)), None)
        about = "the order of sizes" if odd is None else f"the size {size_label(odd)}"
        raise MeasurementError(f"{where}: {about} differs from that of rank {reference.rank} in round 1")
    for timing, same, at_first in zip(rank.timings, first.timings, reference.timings, strict=True):
        at, samples = f"{where}, {size_label(timing.bytes)}", len(same.seconds)
        if len(timing.seconds) != samples or samples == 0:
            raise MeasurementError(f"{at}: got {len(timing.seconds)} samples, want {samples or 'some'}")
        calls = len(same.instances)
        if len(timing.instances) != calls or (calls == 0) != (not at_first.instances):
            raise MeasurementError(f"{at}: got {len(timing.instances)} single calls, want {calls or 'some'}")
        for seconds in (*timing.seconds, *timing.instances):
            if not math.isfinite(seconds) or seconds <= 0:
                raise MeasurementError(f"{at}: got a time of {seconds} s, want one above 0")
        if timing.bytes <= 0 or timing.wrong < 0:
            raise MeasurementError(f"{where}: got {timing.bytes} bytes and {timing.wrong} wrong elements")


def _reduce(group: tuple[int, ...], rounds: Sequence[Sequence[CollectiveTiming]]) -> GroupTimes:
    """`rounds[r][k]` is the timing of the group's k-th rank in round r, all at one size."""
    return GroupTimes(
        members=group,
        bytes=rounds[0][0].bytes,
        rounds=tuple(tuple(slowest([timing.seconds for timing in ranks])) for ranks in rounds),
        ranks={rank: median([median(ranks[k].seconds) for ranks in rounds]) for k, rank in enumerate(group)},
        calls=tuple(tuple(zip(*(timing.instances for timing in ranks), strict=True)) for ranks in rounds),
    )

"""One collective under several rank maps: how much of its time is the placement's, and whether the paths explain it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from pytest_clusterqual import units
from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.fabric.sweeps import size_label, sizes_of
from pytest_clusterqual.judge.judgement import Case, applicable, judge_each
from pytest_clusterqual.judge.statistics import LEVEL, chance, median, median_interval, minimum_samples
from pytest_clusterqual.model.fabric import FabricMeasurement, Placement, PlacementMeasurement
from pytest_clusterqual.model.hardware import PATH_CLASSES
from pytest_clusterqual.model.project import FabricPlan
from pytest_clusterqual.model.record import Finding, Interval, Judgement

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CHANCE = 0.01  # of any finding on a cluster where every map is as good, all sizes together
SLOWER = 1.05  # times the fastest map; less is worth a note only
DRAWS = 9999
MOST_RATIO = 1e6  # of variances; beyond it a share is 1 in all digits that are shown


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """One message size (bytes): map -> seconds of each pass under it, on the slowest rank of all groups."""

    bytes: int
    passes: dict[str, tuple[float, ...]]

    @property
    def fewest(self) -> int:
        return min(map(len, self.passes.values()))


def judge_placement(m: PlacementMeasurement, plan: FabricPlan) -> tuple[Judgement, ...]:
    """Judge at each size the share of the variance of log time that is the placement's (omega squared, 0 to 1).

    Findings name the slowest map where passes that are dealt to maps by chance would hardly differ
    as much. Each is held against the class of the path from the devices to their NICs.

    Raises:
        MeasurementError: fewer than two maps, wrong data, or a rank, a size or a positive time is missing.
    """
    sizes = _sizes(m)
    judged = (
        judge_each(
            _case(m, size, CHANCE / len(sizes)),
            applicable(plan.require, "fabric", "placement", m.conditions, size=size.bytes),
        )
        for size in sizes
    )
    return tuple(chain.from_iterable(judged))


def _sizes(m: PlacementMeasurement) -> list[Compared]:
    maps = list(dict.fromkeys(placement.rank_map for placement in m.placements))
    if len(maps) < 2:
        raise MeasurementError(f"placement: got {', '.join(maps) or 'no rank map'}, want two rank maps or more")
    found = [(placement.rank_map, _times(m, placement)) for placement in m.placements]
    if len({len(times) for _, times in found}) > 1:
        raise MeasurementError("placement: the passes measured different numbers of sizes")
    return [
        Compared(
            bytes=size,
            passes={name: tuple(times[index][1] for of, times in found if of == name) for name in maps},
        )
        for index, (size, _) in enumerate(found[0][1])
    ]  # fmt: skip


def _times(m: PlacementMeasurement, placement: Placement) -> list[tuple[int, float]]:
    """Bytes, and seconds of the slowest group, of each size of one pass."""
    where = f"placement: rank map {placement.rank_map}"
    if wrong := [rank.rank for rank in placement.ranks if any(timing.wrong for timing in rank.timings)]:
        raise MeasurementError(f"{where}: rank {wrong[0]} received wrong data, whose time says nothing")
    if len(placement.paths) != m.conditions.ranks:
        raise MeasurementError(f"{where}: got {len(placement.paths)} paths, want one of {m.conditions.ranks} ranks")
    sweep = FabricMeasurement(
        conditions=m.conditions, rounds=(placement.ranks,), groups=placement.groups, started=m.started,
        seconds=m.seconds,
    )  # fmt: skip
    return [(size.bytes, max(median(group.rounds[0]) for group in size.groups)) for size in sizes_of(sweep)]


def _case(m: PlacementMeasurement, size: Compared, chance_allowed: float) -> Case:
    import numpy as np

    logs = [np.log(seconds) for seconds in size.passes.values()]
    value, count = _share(logs), size.fewest
    without = [_share([np.delete(passes, i % len(passes)) for passes in logs]) for i in range(count)]
    typical = ", ".join(f"{name} {units.show(median(seconds), units.SECONDS)}" for name, seconds in size.passes.items())
    return Case(
        quantity="placement",
        label=size_label(size.bytes),
        value=value,
        unit=units.RATIO,
        interval=_share_interval(logs, value) if count >= minimum_samples() else None,
        timing=True,
        load=m.conditions.load,
        # What each pass contributes (jackknife): it tells how many more would decide.
        samples=tuple(count * value - (count - 1) * other for other in without),
        counted="passes under each map",
        findings=_slow_map(m, size, logs, chance_allowed) if count >= minimum_samples() else (_too_few(size),),
        note=f"{m.conditions.collective} of {size_label(size.bytes)} in {m.conditions.group}: {typical}; "
        f"{_moved(m.conditions.group or '')}",
    )


def _share(logs: Sequence[NDArray[np.float64]]) -> float:
    """Omega squared: the part of all variance that lies between maps, less what chance puts there; at least 0."""
    between, within, freedom = _variance(logs)
    if between + within <= 0:
        return 0.0
    noise = within / freedom
    return max(0.0, (between - (len(logs) - 1) * noise) / (between + within + noise))


def _share_interval(logs: Sequence[NDArray[np.float64]], value: float) -> Interval:
    """The shares with which a ratio of variances like this one is no rarity, by the non-central F distribution.

    Resampling six passes a map would enclose the share in four of five cases only.
    """
    from scipy.optimize import brentq
    from scipy.stats import f, ncf

    between, within, freedom = _variance(logs)
    count, groups = sum(map(len, logs)), len(logs) - 1
    ratio = min(between / groups * freedom / within, MOST_RATIO) if within > 0 else MOST_RATIO if between > 0 else 0.0

    def share(tail: float) -> float:
        if f.cdf(ratio, groups, freedom) <= tail:
            return 0.0
        most = 2.0 * (count + groups * ratio)
        while ncf.cdf(ratio, groups, freedom, most) > tail:
            most *= 2
        found = brentq(lambda excess: ncf.cdf(ratio, groups, freedom, excess) - tail, 0.0, most)
        return float(found / (found + count))

    low, high = share((1 + LEVEL) / 2), share((1 - LEVEL) / 2)
    return Interval(
        low=min(low, value), high=max(high, value), kind="variance", level=LEVEL, samples=min(map(len, logs))
    )


def _variance(logs: Sequence[NDArray[np.float64]]) -> tuple[float, float, int]:
    """Sums of squares between maps and within them, and the degrees of freedom of the latter."""
    import numpy as np

    everything = np.concatenate(logs)
    total = float(((everything - everything.mean()) ** 2).sum())
    within = float(sum(((passes - passes.mean()) ** 2).sum() for passes in logs))
    return max(total - within, 0.0), within, max(len(everything) - len(logs), 1)


def _slow_map(
    m: PlacementMeasurement, size: Compared, logs: Sequence[NDArray[np.float64]], chance_allowed: float
) -> tuple[Finding, ...]:
    by_chance = _dealt_by_chance(logs)
    if by_chance >= chance_allowed:
        return ()
    typical = {name: median(seconds) for name, seconds in size.passes.items()}
    slow, fast = max(typical, key=typical.__getitem__), min(typical, key=typical.__getitem__)
    ratio, interval = typical[slow] / typical[fast], _ratio(size.passes[slow], size.passes[fast])
    told, next_ = _held_against_paths(m.placements, slow, fast)
    return (
        Finding(
            suspect=f"rank map {slow}", kind="slow placement", level="suspect" if ratio >= SLOWER else "note",
            size=size.bytes, interval=interval,
            evidence=f"at {size_label(size.bytes)} {m.conditions.collective} in {m.conditions.group} takes "
            f"{ratio:.3g} x [{interval.low:.3g}, {interval.high:.3g}] as long as under {fast}; chance does this in "
            f"{units.show_share(by_chance)} of cases; {told}",
            check_next=next_,
        ),
    )  # fmt: skip


def _dealt_by_chance(logs: Sequence[NDArray[np.float64]]) -> float:
    """How often maps differ as much as here if all passes are dealt to them anew."""
    import numpy as np

    everything = np.concatenate(logs)
    everything = everything - everything.mean()
    counts = [len(passes) for passes in logs]
    dealt = np.random.default_rng(0).permuted(np.tile(everything, (DRAWS + 1, 1)), axis=1)
    dealt[0] = everything
    # The sum of squares between maps, up to a constant.
    sums = np.add.reduceat(dealt, np.cumsum([0, *counts[:-1]]), axis=1)
    between = (sums**2 / counts).sum(axis=1)
    return chance(float(between[0]), between[1:])


def _too_few(size: Compared) -> Finding:
    return Finding(
        suspect="rank maps", kind="placement", level="note", size=size.bytes,
        evidence=f"cannot be decided, because there are {size.fewest} passes under a map, want {minimum_samples()}",
        check_next="measure again with a larger fabric.budget",
    )  # fmt: skip


def _ratio(slow: Sequence[float], fast: Sequence[float]) -> Interval:
    above, below = median_interval(slow), median_interval(fast)
    assert above is not None and below is not None  # the passes are enough for one
    return Interval(
        low=above.low / below.high, high=above.high / below.low, kind="median", level=LEVEL,
        samples=min(len(slow), len(fast)),
    )  # fmt: skip


def _held_against_paths(placements: Sequence[Placement], slow: str, fast: str) -> tuple[str, str]:
    """What the static paths from devices to NICs say to it, and what to look at then."""
    far, near = (_farthest(next(each for each in placements if each.rank_map == name)) for name in (slow, fast))
    if far is None or near is None:
        return "paths are not known", "`nvidia-smi topo -m` on the nodes, then who shares a node under each map"
    if _distance(far) > _distance(near):
        return (
            f"this agrees with the topology: the farthest NIC is {far} away, under {fast} {near}",
            f"use {fast}, or another device order that keeps ranks near their NICs",
        )
    return (
        f"the topology does not explain it: the farthest NIC is {far} away, under {fast} {near}",
        "which ranks share nodes under each map, the order of NCCL's rings, and NUMA binding of the processes",
    )


def _farthest(placement: Placement) -> str | None:
    """The class of the longest path of any rank that took part; None if one of them is not known."""
    paths = [placement.paths[rank] for group in placement.groups for rank in group]
    known = [path for path in paths if path in PATH_CLASSES and path != "PCIE"]  # PCIE may be near or far
    return max(known, key=_distance) if len(known) == len(paths) else None


def _distance(path: str) -> int:
    return PATH_CLASSES.index(path)


def _moved(group: str) -> str:
    if group == "world":
        return "the map decides which neighbours in rank order share a node"
    if "." in group:
        return "the map decides which ranks of a group share a node"
    return "the map decides which ranks make a group"

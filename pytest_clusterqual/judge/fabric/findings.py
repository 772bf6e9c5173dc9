"""Whom the times of a sweep point at: a rank that is slow or late, a slow group, groups in each other's way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_clusterqual import units
from pytest_clusterqual.judge.fabric.contention import Contention
from pytest_clusterqual.judge.fabric.sweeps import GroupTimes, Size
from pytest_clusterqual.judge.fabric.waits import Late, late_nodes, late_ranks
from pytest_clusterqual.judge.judgement import rank_name
from pytest_clusterqual.judge.statistics import median, median_interval
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.record import Finding, Interval, Judgement, Verdict

SLOW = 1.5  # times the median of the others
LARGE = 0.1  # share of the time that is wait, and of time that groups cost each other, from which it is told
LEAST_SIZES = 2  # lateness does not depend on the size: at one of several it may be chance
Waited = Mapping[int, Sequence[Sequence[float]]]


def sweep_findings(at: Conditions, sizes: Sequence[Size], waited: Waited) -> dict[int, tuple[Finding, ...]]:
    """What is to be said of each size, by its bytes; `waited` is the shared wait by size, group and round."""
    found: dict[int, tuple[Finding, ...]] = {}
    worst = max(sizes, key=_slowness)
    said = [(worst.bytes, finding) for finding in (*_slow_rank(at, worst), *_slow_group(at, worst))]
    if waited:
        late = _late(at, sizes)
        said += late or _diffuse(sizes, waited)
    for size, finding in said:
        found[size] = (*found.get(size, ()), replace(finding, size=size))
    return found


def contended(at: Conditions, contention: Contention, judgement: Judgement) -> Judgement:
    """The judgement with what contention points at: a suspect where the file's tolerance is exceeded for sure."""
    interval = contention.interval
    exceeded = judgement.verdict is Verdict.FAIL
    if interval is None or not (exceeded or interval.low > LARGE):
        return judgement
    finding = Finding(
        suspect=f"what {_named(at, contention.members)} shares with the other groups",
        kind="contention",
        evidence=f"at {contention.size.label} it takes {units.show_share(contention.kappa)} longer while all "
        f"{len(contention.size.groups)} groups are at work [{units.show_share(interval.low)}, "
        f"{units.show_share(interval.high)}]",
        check_next="NICs, PCIe switches and uplinks that these groups have in common; which NIC each rank uses",
        level="suspect" if exceeded else "note",
        size=contention.size.bytes,
        interval=replace(interval, low=1 + interval.low, high=1 + interval.high),
    )
    return replace(judgement, findings=(*judgement.findings, finding))


def _late(at: Conditions, sizes: Sequence[Size]) -> list[tuple[int, Finding]]:
    """The nodes and ranks that are late at two sizes or more, each at the largest of these."""
    late = [(size, late) for size in sizes for group in size.groups for late in _late_in(at, group)]
    times = Counter(each.ranks for _, each in late)
    at_largest = {each.ranks: (size, each) for size, each in sorted(late, key=lambda pair: pair[0].bytes)}
    return [
        (size.bytes, _late_finding(at, size, each, times[ranks], len(sizes)))
        for ranks, (size, each) in at_largest.items()
        if times[ranks] >= min(LEAST_SIZES, len(sizes))
    ]


def _late_in(at: Conditions, group: GroupTimes) -> tuple[Late, ...]:
    """The late nodes, and the late ranks of other nodes."""
    nodes = late_nodes(group, at.rank_nodes) if at.rank_nodes else ()
    told = {rank for node in nodes for rank in node.ranks}
    return (*nodes, *(late for late in late_ranks(group) if told.isdisjoint(late.ranks)))


def _late_finding(at: Conditions, size: Size, late: Late, times: int, sizes: int) -> Finding:
    low, high = late.interval.low, late.interval.high
    together = len(late.ranks) > 1
    come = f"its {len(late.ranks)} ranks come" if together else "it comes"
    return Finding(
        suspect=at.rank_nodes[late.ranks[0]] if together else rank_name(at, late.ranks[0]),
        kind="late node" if together else "late rank",
        evidence=f"{come} {_seconds(late.seconds)} [{_seconds(low)}, {_seconds(high)}] later than the others to "
        f"calls of {size.label} that take {_seconds(late.transfer)}, last to {late.last} of {late.calls} "
        f"(by chance to about {late.by_chance:.0f}); late at {times} of {sizes} sizes",
        check_next="what holds it up before the call: other work on its cores, clocks, its process and node; "
        "the fabric carries the others' wait, not its cause",
        interval=replace(late.interval, low=1 + low / late.transfer, high=1 + high / late.transfer),
    )


def _diffuse(sizes: Sequence[Size], waited: Waited) -> list[tuple[int, Finding]]:
    """Large waits that nobody stands out in, at the size where their share is largest."""
    shares: list[tuple[Size, Interval]] = []
    for size in sizes:
        interval = median_interval([max(groups) for groups in zip(*waited[size.bytes], strict=True)])
        if interval is not None and interval.low > LARGE:
            shares.append((size, interval))
    if not shares:
        return []
    size, interval = max(shares, key=lambda pair: pair[1].low)
    note = Finding(
        suspect="no single rank",
        kind="diffuse waits",
        evidence=f"at {size.label} most ranks wait {units.show_share(interval.low)} to "
        f"{units.show_share(interval.high)} of the time for the last one, and that is now this rank, now that one",
        check_next="what holds up ranks in turn: shared cores, interrupts, other work on the nodes",
        level="note",
    )
    return [(size.bytes, note)]


def _slowness(size: Size) -> float:
    return max(_longest(size)[0], _slowest_group(size)[0])


def _longest(size: Size) -> tuple[float, int]:
    """How many times the median of the others in its group the longest duration is, and whose; of two, nobody's."""
    of = [
        (seconds / median([s for other, s in group.ranks.items() if other != rank]), rank)
        for group in size.groups
        if len(group.members) > 2
        for rank, seconds in [max(group.ranks.items(), key=lambda item: item[1])]
    ]
    return max(of, default=(0.0, -1))


def _slowest_group(size: Size) -> tuple[float, int]:
    """How many times the median of the other groups the slowest one takes, and its position; of two, nobody's."""
    times = [max(group.ranks.values()) for group in size.groups]
    slowest = max(range(len(times)), key=times.__getitem__)
    if len(times) < 3 or len({len(group.members) for group in size.groups}) > 1:
        return 0.0, slowest
    return times[slowest] / median([*times[:slowest], *times[slowest + 1 :]]), slowest


def _slow_rank(at: Conditions, size: Size) -> tuple[Finding, ...]:
    """One rank with much longer calls than its group: the others are done, it is not."""
    ratio, rank = _longest(size)
    if ratio < SLOW:
        return ()
    group = next(group.ranks for group in size.groups if rank in group.ranks)
    shortest = min(group, key=group.__getitem__)
    return (
        Finding(
            suspect=rank_name(at, rank),
            kind="slow rank",
            evidence=f"at {size.label} its calls are {ratio:.2g} x longer than the median of the others; "
            f"longest {_seconds(group[rank])} on {rank_name(at, rank)}, "
            f"shortest {_seconds(group[shortest])} on {rank_name(at, shortest)}",
            check_next="the link and the cores of this rank: the others are done before it is",
        ),
    )


def _slow_group(at: Conditions, size: Size) -> tuple[Finding, ...]:
    """One group that is much slower than its like, all of it: a node's inner links, or a rail."""
    ratio, slowest = _slowest_group(size)
    if ratio < SLOW:
        return ()
    group = size.groups[slowest]
    return (
        Finding(
            suspect=_named(at, group.members),
            kind="slow group",
            evidence=f"at {size.label} it takes {ratio:.2g} x as long as the median of {len(size.groups) - 1} other "
            f"groups: {_seconds(max(group.ranks.values()))}",
            check_next="what its ranks have in common: the links inside a node, or the NICs and switch of a rail",
        ),
    )


def _named(at: Conditions, members: Sequence[int]) -> str:
    """``the group on node3``, or of the ranks where it spans nodes."""
    nodes = {at.rank_nodes[rank] for rank in members} if at.rank_nodes else set()
    if len(nodes) == 1:
        return f"the group on {nodes.pop()}"
    return (
        f"the group of ranks {members[0]} to {members[-1]}"
        if len(members) > 4
        else (f"the group of ranks {', '.join(map(str, members))}")
    )


def _seconds(value: float) -> str:
    return units.show(value, units.SECONDS)

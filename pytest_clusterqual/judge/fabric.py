"""Fabric: one collective in one kind of rank group, judged at every message size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_clusterqual import units
from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.judgement import (
    Case,
    applicable,
    check_ranks,
    demand,
    judge_missing,
    judge_quantity,
    rank_name,
)
from pytest_clusterqual.judge.pairs import point_at_links
from pytest_clusterqual.judge.statistics import median, median_interval, slowest
from pytest_clusterqual.model.expected import Expected, expected_busbw
from pytest_clusterqual.model.measurement import Conditions, FabricMeasurement, RankFabric
from pytest_clusterqual.model.project import FabricPlan
from pytest_clusterqual.model.record import Finding, Interval, Judgement, Verdict
from pytest_clusterqual.model.requirement import QUANTITIES, Requirement
from pytest_clusterqual.model.topology import Links

SLOW = 1.5  # times the median of the other ranks
ELEMENT = 4  # bytes; every rank's part of an array is a whole number of elements
_NO_WRONG = Requirement(
    criterion="fabric",
    quantity="wrong_elements",
    op="<=",
    value=0.0,
    unit=units.RATIO,
    text="<= 0",
    source="always: wrong data is no bandwidth",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """One message size: seconds of each round (slowest rank) and of each rank (over the rounds)."""

    bytes: int
    members: int
    rounds: tuple[float, ...]
    ranks: dict[int, float]


def busbw_factor(collective: str, n: int) -> float:
    """What algbw is multiplied by to compare with a link's rate, for a group of `n` ranks.

    Raises:
        ValueError: an unknown collective, or a group of less than two.
    """
    if n < 2:
        raise ValueError(f"got a group of {n}, want at least 2 ranks")
    factors = {
        "all_reduce": 2 * (n - 1) / n,
        "all_gather": (n - 1) / n,
        "reduce_scatter": (n - 1) / n,
        "all_to_all": (n - 1) / n,
        "send_recv": 1.0,
    }
    if collective not in factors:
        raise ValueError(f"got collective {collective!r}, want one of {', '.join(factors)}")
    return factors[collective]


def judge_fabric(m: FabricMeasurement, plan: FabricPlan) -> tuple[Judgement, ...]:
    """Judge the correctness of the results, then every size: busbw and algbw (B/s), latency (s).

    A sample is as slow as the slowest rank of all groups; a round is the median of its samples,
    because only rounds are independent of each other. One judgement for each requirement and
    size in its range; a size that nothing is required of is MEASURED. Pairs of nodes, where they
    were asked for, say whose link is slow.

    Raises:
        MeasurementError: a rank, a round, a size or a positive time is missing; it names rank and size.
    """
    requirements, links = plan.require, plan.links
    sizes = _sizes(m)
    judgements = [_correctness(m)]
    worst = max(sizes, key=_slowness)
    for size in sizes:
        findings = _slow_rank(m.conditions, size) if size is worst else ()
        judgements.extend(_judge_size(m.conditions, size, requirements, links, findings))
    return point_at_links(m, judgements) if m.pairs else tuple(judgements)


def size_label(size: int) -> str:
    """``1 MiB``; the bare bytes where that would not say the size exactly."""
    text = units.show(size, units.BYTES)
    number, _, unit = text.partition(" ")
    exact = float(number) * {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "TiB": 1024**4}[unit]
    return text if exact == size else f"{size} B"


def _sizes(m: FabricMeasurement) -> list[Size]:
    if not m.rounds:
        raise MeasurementError("fabric: no round was measured")
    rounds = [_members(m.conditions, number, ranks) for number, ranks in enumerate(m.rounds, 1)]
    reference = rounds[0][0]
    if not reference.timings:
        raise MeasurementError(f"fabric: rank {reference.rank} measured no size")
    for number, ranks in enumerate(rounds, 1):
        for rank in ranks:
            _check_timings(rank, reference, len(ranks[0].timings[0].seconds) if ranks[0].timings else 0, number)
    return [_reduce(rounds, index) for index in range(len(reference.timings))]


def _members(conditions: Conditions, number: int, ranks: Sequence[RankFabric]) -> list[RankFabric]:
    """The ranks that took part in a round, each in a group of the size that the topology has."""
    check_ranks(conditions, [r.rank for r in ranks], f"fabric: round {number}")
    nodes, local = conditions.nodes, conditions.nproc_per_node
    world = conditions.ranks
    kinds = {"world": (world, world), "inter_node": (nodes, nodes), "intra_node": (local, world)}
    if conditions.group not in kinds or conditions.collective is None:
        raise MeasurementError(f"fabric: got collective {conditions.collective!r} in group {conditions.group!r}")
    size, count = kinds[conditions.group]
    members = [r for r in ranks if r.group_size]
    if size < 2:
        raise MeasurementError(f"fabric: a group {conditions.group} of {size} rank has nobody to talk to")
    for r in members:
        if r.group_size != size:
            raise MeasurementError(
                f"fabric: rank {r.rank} was in a group of {r.group_size}, want {size}: this is not the world asked for"
            )
    if len(members) != count:
        raise MeasurementError(
            f"fabric: round {number}: {len(members)} ranks were in a group {conditions.group}, want {count}"
        )
    return members


def _check_timings(rank: RankFabric, reference: RankFabric, samples: int, number: int) -> None:
    where = f"fabric: round {number}, rank {rank.rank}"
    sizes, wanted = [t.bytes for t in rank.timings], [t.bytes for t in reference.timings]
    if sizes != wanted:
        odd = next((s for s in (*sizes, *wanted) if sizes.count(s) != wanted.count(s)), None)
        about = "the order of sizes" if odd is None else f"the size {size_label(odd)}"
        raise MeasurementError(f"{where}: {about} differs from that of rank {reference.rank} in round 1")
    for timing in rank.timings:
        if len(timing.seconds) != samples or samples == 0:
            raise MeasurementError(
                f"{where}, {size_label(timing.bytes)}: got {len(timing.seconds)} samples, want {samples or 'some'}"
            )
        for seconds in timing.seconds:
            if not math.isfinite(seconds) or seconds <= 0:
                raise MeasurementError(
                    f"{where}, {size_label(timing.bytes)}: got a time of {seconds} s, want one above 0"
                )
        if timing.bytes <= 0 or timing.wrong < 0:
            raise MeasurementError(f"{where}: got {timing.bytes} bytes and {timing.wrong} wrong elements")


def _reduce(rounds: Sequence[Sequence[RankFabric]], index: int) -> Size:
    first = rounds[0][0]
    by_rank: dict[int, list[float]] = {rank.rank: [] for rank in rounds[0]}
    for rank in (rank for ranks in rounds for rank in ranks):
        by_rank[rank.rank].append(median(rank.timings[index].seconds))
    return Size(
        bytes=first.timings[index].bytes,
        members=first.group_size,
        rounds=tuple(median(slowest([rank.timings[index].seconds for rank in ranks])) for ranks in rounds),
        ranks={rank: median(seconds) for rank, seconds in by_rank.items()},
    )


def _judge_size(
    conditions: Conditions, size: Size, requirements: Sequence[Requirement], links: Links, findings: tuple[Finding, ...]
) -> list[Judgement]:
    judged = [
        _judge_one(conditions, size, requirement, links, findings)
        for quantity in QUANTITIES["fabric"]
        for requirement in requirements
        if _about(requirement, quantity, conditions, size)
    ]
    return judged or [judge_quantity(_case(conditions, size, "busbw", findings))]


def _about(requirement: Requirement, quantity: str, conditions: Conditions, size: Size) -> bool:
    # Ranks round a size down to whole elements each; "from 1 MiB" still means what 1 MiB became.
    asked = (size.bytes, size.bytes + ELEMENT * size.members - 1)
    at = min(max(requirement.from_bytes or asked[0], asked[0]), asked[1])
    return bool(applicable((requirement,), "fabric", quantity, conditions, size=at))


def _judge_one(
    conditions: Conditions, size: Size, requirement: Requirement, links: Links, findings: tuple[Finding, ...]
) -> Judgement:
    case = _case(conditions, size, requirement.quantity, findings)
    if not requirement.of_expected:
        return judge_quantity(case, requirement)
    expected = _expected(conditions, size, requirement.quantity, links)
    if expected.value is None:
        missing = judge_missing(case.quantity, case.label, case.unit, "", requirement)
        return replace(
            missing,
            value=case.value,
            interval=case.interval,
            samples=case.samples,
            per_rank=case.per_rank,
            findings=findings,
            requirement=demand(requirement, expected.why),
            reason=f"{requirement} cannot be judged: {expected.why}",
        )
    return judge_quantity(case, requirement.resolved(expected.value), expected_from=expected.why)


def _expected(conditions: Conditions, size: Size, quantity: str, links: Links) -> Expected:
    if quantity == "latency":
        return Expected(value=None, why="links promise a rate, no latency; give an absolute time")
    collective, group = conditions.collective or "", conditions.group or ""
    expected = expected_busbw(
        collective, group, nodes=conditions.nodes, nproc_per_node=conditions.nproc_per_node, links=links
    )
    if quantity == "busbw" or expected.value is None:
        return expected
    factor = busbw_factor(collective, size.members)
    return Expected(value=expected.value / factor, why=f"{expected.why}; algbw is busbw / {factor:.4g}")


def _case(conditions: Conditions, size: Size, quantity: str, findings: tuple[Finding, ...]) -> Case:
    factor = busbw_factor(conditions.collective or "", size.members)

    def figure(seconds: float) -> float:
        if quantity == "latency":
            return seconds
        return size.bytes / seconds * (factor if quantity == "busbw" else 1.0)

    rounds = tuple(figure(seconds) for seconds in size.rounds)
    return Case(
        quantity=quantity,
        label=size_label(size.bytes),
        value=median(rounds),
        unit=QUANTITIES["fabric"][quantity],
        interval=median_interval(rounds),
        timing=True,
        load=conditions.load,
        samples=rounds,
        counted="rounds",
        per_rank={str(rank): figure(seconds) for rank, seconds in size.ranks.items()},
        findings=findings,
        note=f"{conditions.collective} of {size_label(size.bytes)}, groups of {size.members} ranks, slowest rank",
    )


def _correctness(m: FabricMeasurement) -> Judgement:
    """FAIL by any wrong element; none is no PASS either, because nobody required a speed by that."""
    per_rank: dict[int, int] = {}
    sizes: set[int] = set()
    checks = sum(len(r.timings) for ranks in m.rounds for r in ranks)
    for r in (r for ranks in m.rounds for r in ranks if r.group_size):
        per_rank[r.rank] = per_rank.get(r.rank, 0) + sum(t.wrong for t in r.timings)
        sizes.update(t.bytes for t in r.timings if t.wrong)
    total = sum(per_rank.values())
    culprits = [rank for rank, wrong in sorted(per_rank.items()) if wrong]
    finding = Finding(
        suspect=", ".join(rank_name(m.conditions, rank) for rank in culprits),
        kind="wrong data",
        evidence=f"{total} wrong elements received, at {', '.join(size_label(size) for size in sorted(sizes))}",
        check_next="the senders of these ranks as well: memory errors, library versions, link error counters",
    )
    case = Case(
        quantity="wrong_elements",
        label="",
        value=float(total),
        unit=units.RATIO,
        timing=False,
        interval=Interval(low=total, high=total, kind="count", samples=checks),
        per_rank={str(rank): float(wrong) for rank, wrong in sorted(per_rank.items())},
        findings=(finding,) if total else (),
    )
    judgement = judge_quantity(case, _NO_WRONG)
    return (
        judgement
        if total
        else replace(
            judgement,
            verdict=Verdict.MEASURED,
            requirement=None,
            margin=None,
            reason=f"no wrong element was received in {checks} checked results",
        )
    )


def _slowness(size: Size) -> float:
    return max(_long(size)[0], _short(size)[0])


def _long(size: Size) -> tuple[float, int]:
    """The rank with the longest duration, and how many times the others' median that is."""
    rank = max(size.ranks, key=size.ranks.__getitem__)
    return size.ranks[rank] / _others(size, rank), rank


def _short(size: Size) -> tuple[float, int]:
    """The rank with the shortest duration, and how many times shorter than the others' median; of two, none."""
    rank = min(size.ranks, key=size.ranks.__getitem__)
    return (_others(size, rank) / size.ranks[rank] if len(size.ranks) > 2 else 0.0), rank


def _others(size: Size, rank: int) -> float:
    return median([seconds for other, seconds in size.ranks.items() if other != rank])


def _slow_rank(conditions: Conditions, size: Size) -> tuple[Finding, ...]:
    """A duration holds the wait for the others: a long one points at the rank, a short one at its lateness."""
    (long, longest), (short, shortest) = _long(size), _short(size)
    if max(long, short) < SLOW:
        return ()
    rank, kind, ratio, word = (
        (longest, "slow rank", long, "longer") if long >= short else (shortest, "late rank", short, "shorter")
    )
    seconds = {r: units.show(size.ranks[r], units.SECONDS) for r in (longest, shortest)}
    return (
        Finding(
            suspect=rank_name(conditions, rank),
            kind=kind,
            evidence=f"at {size_label(size.bytes)} its calls are {ratio:.2g} x {word} than the median of the others; "
            f"longest {seconds[longest]} on {rank_name(conditions, longest)}, "
            f"shortest {seconds[shortest]} on {rank_name(conditions, shortest)}",
            check_next=f"who arrives last waits least: see whether rank {shortest} is held up before the call, "
            f"then the link and the cores of rank {longest}",
        ),
    )

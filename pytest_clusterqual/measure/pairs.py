"""What pairs of nodes are asked: all of them at once within a budget, a few alone, and suspects alone once more.

No judging: whoever calls says which pairs are to be tried alone, and if there are enough repeats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TypeVar

from pytest_clusterqual.measure.fabric import links_of
from pytest_clusterqual.measure.parts import begin, conditions_of, parse, section
from pytest_clusterqual.model.fabric import FabricMeasurement, PairsMeasurement, PairTiming
from pytest_clusterqual.model.rank_map import Arrangement
from pytest_clusterqual.model.tournament import meetings, turns_for
from pytest_clusterqual.session.session import Session
from pytest_clusterqual.session.world import RankResult

M = TypeVar("M", FabricMeasurement, PairsMeasurement)
Pair = tuple[str, str, int]  # two nodes and a rail

_BYTES = (64 << 20, 16 << 20, 4 << 20, 1 << 20)  # the first that moves in `_SECONDS` at the pace of the links
_SECONDS = 0.25
_REPEATS = 6  # the fewest of which a median has an interval
_REPEATS_ALONE = 10  # few pairs, so each may be slow or fast by chance once without a word on the others
_PROBES = 3
# Enough partners for every node of a large cluster, and few enough for a slow one.
_MOST_PARTNERS, _LEAST_PARTNERS = 31, 3
_MOST_ALONE = 3
_LATE = 4  # times what a round should take: a slow node is met by all others, one after the other


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A round of all pairs: messages of `size` bytes, `partners` of each node, and pairs that are also tried alone.

    It should take so many `seconds`, if all links are as slow as the one that was seen.
    """

    size: int
    partners: int
    alone: tuple[Pair, ...]
    seconds: float = 0.0


def after_sweep(session: Session, m: FabricMeasurement, *, arrangement: Arrangement | None = None) -> FabricMeasurement:
    """The same measurement with what every pair of nodes can exchange.

    It should take no more than half of the job timeout: where the links are too slow or the nodes
    too many for that, each node meets some of the others only.
    """
    clock = begin(session, m)
    largest = [rank.timings[-1] for rank in m.rounds[-1] if rank.timings]
    pace = max(max(timing.seconds) / timing.bytes for timing in largest)
    plan = _plan(session, pace, session.project.launcher.job_timeout / 2, arrangement)
    pairs, _ = _exchanged(session, plan, arrangement=arrangement)
    return replace(m, pairs=pairs, seconds=clock.seconds)


def pairs(
    session: Session, *, arrangement: Arrangement | None = None, before: PairsMeasurement | None = None
) -> PairsMeasurement:
    """All pairs of nodes, or as many as a third of the budget allows, added to the repeats made `before`."""
    clock = begin(session, before)
    if before is None:
        seconds = min(section(session.project.fabric).budget / 3, session.project.launcher.job_timeout / 2)
        plan = _plan(session, _pace(session, arrangement), seconds, arrangement)
    else:
        plan = _same_plan(before)
    made, results = _exchanged(session, plan, arrangement=arrangement)
    conditions = conditions_of(session, results, before, bytes=plan.size)
    return PairsMeasurement(
        conditions=conditions,
        pairs=_joined(before.pairs, made) if before else made,
        started=clock.started,
        seconds=clock.seconds,
        links=links_of(session, conditions),
    )


def tried_alone(session: Session, m: M, alone: Sequence[Pair], *, arrangement: Arrangement | None = None) -> M:
    """The same measurement with what each of the pairs `alone` exchanges while all others are idle."""
    if not alone:
        return m
    clock = begin(session, m)
    plan = Plan(size=m.pairs[0].bytes, partners=0, alone=tuple(alone))
    made, _ = _exchanged(session, plan, arrangement=arrangement, repeats=_REPEATS_ALONE)
    return replace(m, pairs=m.pairs + made, seconds=clock.seconds)


def _plan(session: Session, pace: float, seconds: float, arrangement: Arrangement | None) -> Plan:
    """A round that takes so many `seconds` at a `pace` in seconds per byte."""
    names = _players(session, arrangement)
    size = next((size for size in _BYTES if size * pace <= _SECONDS), _BYTES[-1])
    rails = session.nproc_per_node if _on_rails(session) else 1
    turn = 2 * (_REPEATS + 1) * size * pace * rails  # both ways, and a warm-up
    partners = max(_LEAST_PARTNERS, min(int(seconds / turn), _MOST_PARTNERS))
    met = meetings(turns_for(partners, len(names))[0], len(names)) if len(names) > 1 else []
    alone = tuple((names[a], names[b], 0) for a, b in met[:: -(-len(met) // _MOST_ALONE)]) if len(met) > 1 else ()
    return Plan(size=size, partners=partners, alone=alone, seconds=(partners + len(alone)) * turn)


def _same_plan(before: PairsMeasurement) -> Plan:
    met = Counter(pair.receiver for pair in before.pairs if not pair.alone and pair.rail == 0)
    alone = dict.fromkeys(
        (min(pair.sender, pair.receiver), max(pair.sender, pair.receiver), pair.rail)
        for pair in before.pairs if pair.alone
    )  # fmt: skip
    return Plan(size=before.pairs[0].bytes, partners=min(met.values()), alone=tuple(alone))


def _players(session: Session, arrangement: Arrangement | None) -> list[str]:
    return list(dict.fromkeys(place.node for place in session.rank_map(arrangement).places))


def _pace(session: Session, arrangement: Arrangement | None) -> float:
    """Seconds per byte of the slowest of some pairs."""
    probe, _ = _exchanged(
        session, Plan(size=_BYTES[-1], partners=1, alone=()), arrangement=arrangement, repeats=_PROBES
    )
    return max(median(pair.seconds) / pair.bytes for pair in probe)


def _exchanged(
    session: Session, plan: Plan, *, arrangement: Arrangement | None, repeats: int = _REPEATS
) -> tuple[tuple[PairTiming, ...], list[RankResult]]:
    args = {
        "size": plan.size, "repeats": repeats, "partners": plan.partners, "rails": _on_rails(session),
        "alone": [list(pair) for pair in plan.alone],
    }  # fmt: skip
    results = session.run(
        "pytest_clusterqual.rank.pairs:exchange", args, arrangement=arrangement, what="pairs of nodes",
        timeout=max(session.project.launcher.job_timeout, _LATE * plan.seconds),
    )  # fmt: skip
    received = [parse(tuple[PairTiming, ...], result, session.places) for result in results]
    return tuple(timing for timings in received for timing in timings), results


def _on_rails(session: Session) -> bool:
    """Each GPU may have a NIC of its own; CPU ranks of a node share what there is."""
    return session.device == "cuda" and session.nproc_per_node > 1


def _joined(before: Sequence[PairTiming], now: Sequence[PairTiming]) -> tuple[PairTiming, ...]:
    """The repeats of both, pair by pair."""
    more = {(pair.sender, pair.receiver, pair.rail, pair.alone): pair.seconds for pair in now}
    return tuple(
        replace(pair, seconds=pair.seconds + more[pair.sender, pair.receiver, pair.rail, pair.alone]) for pair in before
    )

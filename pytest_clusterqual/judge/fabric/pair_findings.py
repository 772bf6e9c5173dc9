"""Whose link is slow, in words: what stands out among pairs of nodes, and what the second round says of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from pytest_clusterqual import units
from pytest_clusterqual.judge.fabric.confirming import Alone, times_slower, tried_alone
from pytest_clusterqual.judge.fabric.pair_causes import WAYS, Cause, rates, screen, sound
from pytest_clusterqual.model.fabric import PairTiming
from pytest_clusterqual.model.record import Finding, Interval

UNDECIDED = "cannot be decided"
_KINDS = {"nic": "slow NIC", "rail": "slow rail", "link": "slow link between two nodes"}
_CHECKS = {
    "nic": "the NIC of this rail there, its PCIe path, cable and switch port: width, speed, negotiated rate, errors",
    "rail": "the switch of this rail and its uplinks: firmware, settings, errors; then what else is on it",
    "link": "the way between these two, for each is fast with others: uplinks, routes, cables of the switches",
}
_OWN_LINK = "its NIC, cable and switch port: negotiated rate, duplex and errors, by `ethtool` or `ibstat` there"
_OWN_NODE = "what all its NICs share: PCIe, cores and their clocks, power limits, memory; then NICs and cables"


def suspects(pairs: Sequence[PairTiming], *, least: float) -> tuple[Finding, ...]:
    """Nodes, NICs, rails and links that are slow alone as well; colliding paths; what is not confirmed is a note.

    `least` is how much slower (0.05: 5 %) matters. Nothing stands out: no finding.
    """
    screening = screen(pairs, least=least)
    at_work = [pair for pair in pairs if not pair.alone]
    good = sound(screening.causes, at_work)
    tried = {cause: tried_alone(cause, screening, pairs) for cause in screening.causes}
    fast_alone = [cause for cause, (alone, _) in tried.items() if cause.kind == "link" and alone is Alone.FAST]
    crowds = _crowds(fast_alone)
    found = [_colliding(crowd, pairs, good) for crowd in crowds]
    open_links = [
        cause for cause, (alone, _) in tried.items() if alone is not Alone.SLOW and not any(cause in c for c in crowds)
    ]
    for cause, (alone, interval) in tried.items():
        if alone is Alone.SLOW or (cause in open_links and not screening.uneven):
            found.append(_finding(cause, alone, interval, pairs, good, _alike(cause, screening.causes)))
    if screening.uneven and open_links:
        found.append(_undecided(open_links, at_work))
    return tuple(found)


def _finding(
    cause: Cause, alone: Alone, interval: Interval | None, pairs: Sequence[PairTiming], good: Sequence[PairTiming],
    alike: Sequence[str],
) -> Finding:  # fmt: skip
    at_work = [pair for pair in pairs if not pair.alone]
    single = len({pair.rail for pair in at_work}) == 1
    kind, check = _KINDS.get(cause.kind, "slow node"), _CHECKS.get(cause.kind, _OWN_NODE)
    if cause.kind == "node" and single:
        kind, check = "slow link of a node", _OWN_LINK
    if cause.kind in ("node", "nic"):
        kind += {"both": "", "forth": ", sending", "back": ", receiving"}[cause.way]
    shared = f"; first what {', '.join(alike)} share, such as a switch" if len(alike) > 1 else ""
    evidence = f"{_seen(cause, at_work, good)}; {_second_round(cause, alone, pairs)}"
    return Finding(
        suspect=_name(cause),
        kind=kind,
        evidence=evidence,
        check_next=check + shared,
        level="suspect" if alone is Alone.SLOW else "note",
        size=pairs[0].bytes,
        interval=interval or times_slower([pair for pair in at_work if cause.covers(pair)], good),
    )


def _name(cause: Cause) -> str:
    if cause.kind == "rail":
        return f"rail {cause.rails[0]}"
    if cause.kind == "nic":
        return f"{cause.ends[0]}, rail {cause.rails[0]}"
    return cause.ends[0] if cause.kind == "node" else {"both": " - ", "forth": " -> "}[cause.way].join(cause.ends)


def _seen(cause: Cause, at_work: Sequence[PairTiming], good: Sequence[PairTiming]) -> str:
    size = units.show(at_work[0].bytes, units.BYTES)
    ways = [replace(cause, way=way) for way in WAYS]
    both, forth, back = (rates(pair for pair in at_work if way.covers(pair)).values() for way in ways)
    where = f" on rail {cause.rails[0]}" if cause.kind in ("nic", "link") and any(p.rail for p in at_work) else ""
    elsewhere = f"; elsewhere {show_range(rates(good).values())}" if good else ""
    if cause.kind == "rail":
        return f"{size} on rail {cause.rails[0]}: {show_range(both)}{elsewhere}"
    one = cause.ends[0]
    others = {pair.receiver for pair in at_work if pair.sender == one}
    other = cause.ends[1] if cause.kind == "link" else f"each of {len(others)} other nodes"
    if cause.way == "both":
        return f"{size} between {one} and {other}{where}: {show_range(both)}{elsewhere}"
    a, b = (one, other) if cause.way == "forth" else (other, one)
    slow, fast = (forth, back) if cause.way == "forth" else (back, forth)
    return f"{size} from {a} to {b}{where}: {show_range(slow)}, the other way {show_range(fast)}{elsewhere}"


def _second_round(cause: Cause, alone: Alone, pairs: Sequence[PairTiming]) -> str:
    tried = rates(pair for pair in pairs if pair.alone and cause.covers(pair))
    if not tried:
        return alone.value
    partners = sorted({end for sender, receiver, _ in tried for end in (sender, receiver)} - {*cause.ends})
    known = f" with {', '.join(partners)}" if cause.kind in ("node", "nic") else ""
    return f"alone{known}: {show_range(tried.values())} ({alone.value})"


def _alike(cause: Cause, causes: Iterable[Cause]) -> list[str]:
    """The names of all slow nodes, or all slow NICs of one rail, that this one is among."""
    if cause.kind not in ("node", "nic"):
        return []
    return [other.ends[0] for other in causes if other.kind == cause.kind and (other.rails == cause.rails)]


def _crowds(fast_alone: Sequence[Cause]) -> list[list[Cause]]:
    """Links that are fast alone, by the turn in which two or more of them were slow together; each once."""
    found: list[list[Cause]] = []
    for turn in sorted({turn for cause in fast_alone for turn in cause.turns}):
        together = [cause for cause in fast_alone if turn in cause.turns]
        if len(together) > 1:
            found.append(together)
    return found


def _colliding(crowd: Sequence[Cause], pairs: Sequence[PairTiming], good: Sequence[PairTiming]) -> Finding:
    together = [pair for pair in pairs if not pair.alone and any(cause.covers(pair) for cause in crowd)]
    alone = [pair for pair in pairs if pair.alone and any(cause.covers(pair) for cause in crowd)]
    names = ", ".join(map(_name, crowd))
    return Finding(
        suspect=names,
        kind="colliding paths",
        evidence=f"{units.show(pairs[0].bytes, units.BYTES)} at {show_range(rates(together).values())} while all of "
        f"{names} are at work, {show_range(rates(alone).values())} when each is alone",
        check_next="which paths the flows between these nodes are given: ECMP hashing and its seeds, adaptive routing, "
        "queue pairs per connection; then the uplinks of their switches",
        size=pairs[0].bytes,
        interval=times_slower(together, good),
    )


def _undecided(causes: Sequence[Cause], at_work: Sequence[PairTiming]) -> Finding:
    return Finding(
        suspect=f"{len(causes)} links or nodes",
        kind=UNDECIDED,
        evidence=f"because too many are slow for one to stand out, among them {', '.join(map(_name, causes[:4]))}; "
        f"all exchanges: {show_range(rates(at_work).values())}",
        check_next="what these have in common: a switch, a rack, the way between groups of nodes; then measure again",
        level="note",
        size=at_work[0].bytes,
    )


def show_range(values: Collection[float]) -> str:
    """``2.5 to 25 MB/s`` of rates in B/s; one figure where both ends show the same."""
    low, high = units.show(min(values), units.RATE), units.show(max(values), units.RATE)
    if low == high:
        return high
    same = low.partition(" ")[2] == high.partition(" ")[2]
    return f"{low.partition(' ')[0] if same else low} to {high}"

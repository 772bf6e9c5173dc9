"""From times between pairs of nodes to what stands out among them: a node, one of its rails, a rail, a link."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pytest_clusterqual.judge.fabric.two_way import TwoWay, Way, fit
from pytest_clusterqual.judge.statistics import median, spread
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.fabric import PairTiming

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LEAST_NODES = 3  # of two nodes, nobody says whose link is slow
FALSE_ALARMS = 0.001  # runs in which nothing is slow and something stands out all the same
UNEXPLAINED = 0.1  # the share of the others' pairs that may be slow as well
_ONE_SIDED_95 = 1.645
# How much slower than its peers matters. On CPUs the cores that serve the network differ by more than its links do.
_LEAST = {"cuda": 0.03}
_LEAST_ON_CPU = 0.25

WAYS: tuple[Way, ...] = ("both", "forth", "back")

Ends = tuple[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """What is slower than its peers. `ends`: a node, or the sender and the receiver of a link; nobody for a rail.

    `way` is what the node does slowly, or which way the link is slow. `slower` is the logarithm of
    how many times; `turns` are those of a link.
    """

    kind: Literal["node", "nic", "rail", "link"]
    ends: tuple[str, ...]
    rails: tuple[int, ...]
    slower: float
    way: Way = "both"
    turns: frozenset[int] = frozenset()

    def covers(self, pair: PairTiming) -> bool:
        """True if this is a pair in which the cause shows."""
        if pair.rail not in self.rails:
            return False
        if self.kind == "rail":
            return True
        if self.kind == "link":
            forth = (pair.sender, pair.receiver) == self.ends
            back = (pair.receiver, pair.sender) == self.ends
        else:
            forth, back = pair.sender == self.ends[0], pair.receiver == self.ends[0]
        return (forth and self.way != "back") or (back and self.way != "forth")


@dataclass(frozen=True, kw_only=True, slots=True)
class Screening:
    """Causes: rails, nodes, then links, the clearest first. `uneven` if so many links are slow that none stands out.

    `node_seen` and `link_seen` say how much slower (0.05: 5 %) a node or link must be to be seen in
    19 of 20 runs, at `FALSE_ALARMS`; infinite if there are too few nodes to tell.
    """

    causes: tuple[Cause, ...] = ()
    uneven: bool = False
    node_seen: float = math.inf
    link_seen: float = math.inf


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rail:
    """One rail: its pairs in the order of the fit's, the ends' names, which of them are slow, and what is not seen."""

    number: int
    pairs: Sequence[PairTiming]
    names: Sequence[str]
    fitted: TwoWay
    slow: NDArray[np.bool_]
    end_seen: float
    link_bar: float


def least_of(conditions: Conditions) -> float:
    """How much slower (0.05: 5 %) a node or link must be to matter under these conditions."""
    return _LEAST.get(conditions.device, _LEAST_ON_CPU)


def screen(pairs: Iterable[PairTiming], *, least: float) -> Screening:
    """What is at least `least` (0.05: 5 %) slower than its peers while others are at work, and no chance.

    A node is told by its pairs, against the median of all nodes: if half of them are slow, none is.
    A link is told by itself, so that all its repeats must be slow.
    """
    at_work = [pair for pair in pairs if not pair.alone]
    if len({pair.receiver for pair in at_work}) < LEAST_NODES:
        return Screening()
    rails = _rails(at_work, math.log1p(least))
    nodes, slow = _slow_ends(rails)
    links, others = _slow_links(rails, slow)
    odd = {(frozenset(link.ends), link.rails) for link in links}
    crowd = Counter(turn for link in links for turn in link.turns)
    links.sort(key=lambda link: (-max(crowd[turn] for turn in link.turns), -link.slower))
    return Screening(
        causes=(*_slow_rails(rails, math.log1p(least)), *nodes, *links),
        uneven=len(odd) > UNEXPLAINED * others and (len(odd) > 1 or bool(nodes)),
        node_seen=max(math.expm1(rail.end_seen) for rail in rails),
        link_seen=max(math.expm1(rail.link_bar + _ONE_SIDED_95 * rail.fitted.rest_error) for rail in rails),
    )


def _rails(pairs: Sequence[PairTiming], least: float) -> list[_Rail]:
    import numpy as np
    from scipy.special import stdtrit

    sorted_out: dict[int, list[PairTiming]] = {}
    for pair in pairs:
        sorted_out.setdefault(pair.rail, []).append(pair)
    ends = sum(len({pair.receiver for pair in on}) for on in sorted_out.values())
    found = []
    for number, on in sorted(sorted_out.items()):
        place = {name: at for at, name in enumerate(dict.fromkeys(pair.receiver for pair in on))}
        fitted = fit(
            np.array([place[pair.sender] for pair in on]), np.array([place[pair.receiver] for pair in on]),
            np.array([pair.seconds for pair in on]),
        )  # fmt: skip
        end_bar, link_bar = (
            -float(stdtrit(fitted.degrees, FALSE_ALARMS / 2 / tests)) for tests in (len(WAYS) * ends, len(pairs))
        )
        figures = [(fitted.effect(way), fitted.error(way)) for way in WAYS]
        found.append(_Rail(
            number=number, pairs=on, names=list(place), fitted=fitted,
            slow=np.any([effect > np.maximum(end_bar * error, least) for effect, error in figures], axis=0),
            end_seen=float(np.max(np.maximum(end_bar * figures[0][1], least) + _ONE_SIDED_95 * figures[0][1])),
            link_bar=max(link_bar * fitted.rest_error, least),
        ))  # fmt: skip
    return found


def _slow_ends(rails: Sequence[_Rail]) -> tuple[list[Cause], set[tuple[str, int]]]:
    """Nodes and single rails of nodes that are slow, the slowest first; and every slow (node, rail)."""
    slow: dict[str, list[tuple[int, float, float]]] = {}
    for rail in rails:
        for at in map(int, rail.slow.nonzero()[0]):
            figures = (rail.number, float(rail.fitted.sending[at]), float(rail.fitted.receiving[at]))
            slow.setdefault(rail.names[at], []).append(figures)
    causes = []
    for node, figures_of in slow.items():
        whole = len(figures_of) == len(rails)
        for part in [figures_of] if whole else [[figures] for figures in figures_of]:
            sending, receiving = (median([figures[way] for figures in part]) for way in (1, 2))
            causes.append(Cause(
                kind="node" if whole else "nic", ends=(node,), rails=tuple(figures[0] for figures in part),
                slower=max(sending, receiving), way=_way(sending, receiving),
            ))  # fmt: skip
    causes.sort(key=lambda cause: -cause.slower)
    return causes, {(node, figures[0]) for node, of in slow.items() for figures in of}


def _slow_links(rails: Sequence[_Rail], slow: set[tuple[str, int]]) -> tuple[list[Cause], int]:
    """Links that are slow while neither end is; and how many links have no slow end."""
    import numpy as np

    found: dict[tuple[Ends, int], list[tuple[Ends, float, int]]] = {}
    others: set[tuple[frozenset[str], int]] = set()
    for rail in rails:
        best = np.log([min(pair.seconds) / median(pair.seconds) for pair in rail.pairs]) + rail.fitted.rest
        for pair, rest, at_best in zip(rail.pairs, rail.fitted.rest, best, strict=True):
            if slow & {(pair.sender, rail.number), (pair.receiver, rail.number)}:
                continue
            others.add((frozenset((pair.sender, pair.receiver)), rail.number))
            if rest > rail.link_bar and at_best > rail.link_bar / 2:
                ends = (pair.sender, pair.receiver)
                key = (min(ends), max(ends))
                found.setdefault((key, rail.number), []).append((ends, float(rest), pair.turn))
    causes = []
    for (both, number), ways in found.items():
        causes.append(Cause(
            kind="link", ends=both if len(ways) > 1 else ways[0][0], rails=(number,),
            slower=max(rest for _, rest, _ in ways), way="both" if len(ways) > 1 else "forth",
            turns=frozenset(turn for _, _, turn in ways),
        ))  # fmt: skip
    return causes, len(others)


def _slow_rails(rails: Sequence[_Rail], least: float) -> list[Cause]:
    from scipy.special import stdtrit

    levels = [rail.fitted.level for rail in rails]
    usual = sorted(levels)[(len(levels) - 1) // 2]  # of two rails, the faster one
    apart = spread(levels) if len(levels) > 2 else 0.0
    found = []
    for rail in rails:
        bar = -float(stdtrit(rail.fitted.degrees, FALSE_ALARMS / len(rails)))
        slower = rail.fitted.level - usual
        if slower > max(least, bar * max(apart, rail.fitted.level_error)):
            found.append(Cause(kind="rail", ends=(), rails=(rail.number,), slower=slower))
    return found


def _way(forth: float, back: float) -> Way:
    """Both ways, if the faster one has at least half of what the slower one has."""
    if min(forth, back) >= max(forth, back) / 2:
        return "both"
    return "forth" if forth > back else "back"


def sound(causes: Iterable[Cause], pairs: Iterable[PairTiming]) -> list[PairTiming]:
    """The pairs in which none of the causes shows, nor which have an end that is slow by itself."""
    listed = list(causes)
    accused = {(cause.ends[0], rail) for cause in listed if cause.kind in ("node", "nic") for rail in cause.rails}
    links = {(frozenset(cause.ends), rail) for cause in listed if cause.kind == "link" for rail in cause.rails}
    rails = {rail for cause in listed if cause.kind == "rail" for rail in cause.rails}
    return [
        pair
        for pair in pairs
        if pair.rail not in rails
        and not accused & {(pair.sender, pair.rail), (pair.receiver, pair.rail)}
        and (frozenset((pair.sender, pair.receiver)), pair.rail) not in links
    ]


def rates(pairs: Iterable[PairTiming]) -> Mapping[tuple[str, str, int], float]:
    """B/s from a node to another on a rail: the median of the repeats."""
    return {(pair.sender, pair.receiver, pair.rail): pair.bytes / median(pair.seconds) for pair in pairs}

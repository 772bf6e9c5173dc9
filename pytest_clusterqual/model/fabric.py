"""What Fabric measures: sweeps, pairs of nodes, placements, steps taken apart, and what other tools report."""

from __future__ import annotations

from dataclasses import dataclass, field

from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.topology import Links


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveTiming:
    """One message size on one rank. `bytes` is the whole array as nccl-tests counts it.

    `seconds[i]` is sample i: the time of one collective, averaged over `iterations` back-to-back
    calls after a barrier. `instances[i]` is what single call i took; it is the same call on every
    rank of the group, and ranks come to it as they please. `wrong` counts wrong result elements
    over all checks.
    """

    bytes: int
    iterations: int
    seconds: tuple[float, ...]
    wrong: int
    instances: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class RankFabric:
    """`group_size` is the number of ranks in this rank's group; 0 if it is in none."""

    rank: int
    group_size: int
    timings: tuple[CollectiveTiming, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PairTiming:
    """Messages of `bytes` from a rank of one node to that of another: on both it is the `rail`-th, counted from 0.

    `seconds[i]` is repeat i, from when all ranks of the job had met until the receiver had it all.
    Pairs of the same `turn` were at work at the same time, but a pair that was `alone`.
    """

    sender: str
    receiver: str
    bytes: int
    seconds: tuple[float, ...]
    rail: int = 0
    turn: int = 0
    alone: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class FabricMeasurement:
    """`rounds[r]` is the r-th pass over all sizes, with the result of every rank.

    `groups` are the ranks of every group of the kind. All of them were at work at the same time; in
    `alone` they took turns, at some of the sizes. `pairs` are what pairs of nodes exchanged, both
    directions of each, where that was asked for, `without_pairs` why they could not be had. `links`
    is what the nodes themselves say.
    """

    conditions: Conditions
    rounds: tuple[tuple[RankFabric, ...], ...]
    started: float
    seconds: float
    groups: tuple[tuple[int, ...], ...] = ()
    alone: tuple[tuple[RankFabric, ...], ...] = ()
    pairs: tuple[PairTiming, ...] = ()
    without_pairs: str = ""
    links: Links = field(default_factory=Links)


@dataclass(frozen=True, kw_only=True, slots=True)
class PairsMeasurement:
    """What all pairs of nodes exchanged, both directions of each; `links` as in `FabricMeasurement`."""

    conditions: Conditions
    pairs: tuple[PairTiming, ...]
    started: float
    seconds: float
    links: Links = field(default_factory=Links)


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """One pass under one rank map. `paths[r]` is the class of the path from rank r's device to its nearest NIC."""

    rank_map: str
    groups: tuple[tuple[int, ...], ...]
    ranks: tuple[RankFabric, ...]
    paths: tuple[str | None, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacementMeasurement:
    """One collective under several rank maps, in random order and repeated."""

    conditions: Conditions
    placements: tuple[Placement, ...]
    started: float
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RankLadder:
    """Seconds of the steps of one rank, rung by rung; step i of a rung is the same on every rank.

    `compute`: the step without communication, each rank by itself. `barrier`: with an empty barrier
    where the step communicates. `payload`: with the bytes exchanged there, nothing else. `step`: the
    real one. Steps of a round follow each other.
    """

    rank: int
    compute: tuple[float, ...]
    barrier: tuple[float, ...]
    payload: tuple[float, ...]
    step: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SynchronizationMeasurement:
    """`rounds[r]` holds one pass over the ladder of every rank."""

    conditions: Conditions
    rounds: tuple[tuple[RankLadder, ...], ...]
    started: float
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportedTiming:
    """One line of another tool's table: seconds of one call, out of place and in place, None where not told.

    `wrong` is the number of wrong elements, None where they were not checked.
    """

    bytes: int
    seconds: float | None
    seconds_in_place: float | None
    wrong: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportedSweep:
    """One run of another tool over its sizes; `source` is the file and line it was read from.

    `out_of_bounds` is how many wrong values the tool counted in the whole run, `group` which of the
    groups ran it, counted from 0, where they ran side by side.
    """

    source: str
    timings: tuple[ReportedTiming, ...]
    out_of_bounds: int = 0
    group: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportedMeasurement:
    """One collective as another tool measured it, in one or several runs under the same conditions."""

    conditions: Conditions
    tool: str
    sweeps: tuple[ReportedSweep, ...]
    started: float
    seconds: float
    links: Links = field(default_factory=Links)

"""What Fabric asks of a session: sweeps over collectives, under one rank map or several, and steps taken apart.

No judging: whoever calls decides how many samples are enough, and passes what there is as `before`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import Random

from pytest_clusterqual.measure.parts import begin, conditions_of, map_name, parse, section, step_apart
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.fabric import (
    FabricMeasurement,
    Placement,
    PlacementMeasurement,
    RankFabric,
    SynchronizationMeasurement,
)
from pytest_clusterqual.model.groups import Groups, groups_of
from pytest_clusterqual.model.hardware import NodeHardware
from pytest_clusterqual.model.rank_map import Arrangement, Strategy, arrange
from pytest_clusterqual.model.topology import Links, found_links
from pytest_clusterqual.model.workload import Layout
from pytest_clusterqual.session.session import Session
from pytest_clusterqual.session.world import RankResult

SAMPLE_SECONDS = 0.01  # one fabric sample; long against the clock, short against the budget
_MOST_ALONE = 8  # groups of a kind that are also measured one at a time
_CALLS_ALONE = 30  # of one size, about


def sweep(
    session: Session,
    collective: str,
    group: str,
    *,
    sizes: Sequence[int],
    rounds: int,
    arrangement: Arrangement | None = None,
    before: FabricMeasurement | None = None,
) -> FabricMeasurement:
    """`rounds` passes over `sizes` (bytes) in all groups of one kind at once, added to those `before`.

    After each of the first ones, groups take turns at the largest size, so that both meet the same drift.
    """
    clock = begin(session, before)
    groups = groups_in(session, group, arrangement)
    everything: list[RankResult] = []

    def swept(at_work: Groups, sizes: Sequence[int], done: int, *, alone: bool = False) -> tuple[RankFabric, ...]:
        args = {
            "collective": collective, "groups": at_work, "sizes": list(sizes), "seconds": SAMPLE_SECONDS,
            "alone": alone,
        }  # fmt: skip
        results = session.run(
            "pytest_clusterqual.rank.collectives:sweep", args, arrangement=arrangement,
            what=f"{collective} in {group}", progress=(done, rounds),
        )  # fmt: skip
        everything.extend(results)
        return tuple(parse(RankFabric, result, session.places) for result in results)

    made, alone = [], []
    for done in range(rounds):
        made.append(swept(groups, sizes, done))
        if before is None and (turns := _turns(session, groups, made[0], rounds)):
            alone.append(swept(turns, [max(sizes)], done, alone=True))
    conditions = conditions_of(
        session, everything, before, collective=collective, group=group, rank_map=map_name(arrangement)
    )
    return FabricMeasurement(
        conditions=replace(conditions, algorithm=asked_algorithm(conditions.backend, session.hardware.values())),
        rounds=(before.rounds if before else ()) + tuple(made),
        started=clock.started,
        seconds=clock.seconds,
        groups=groups,
        alone=before.alone if before else tuple(alone),
        links=links_of(session, conditions),
    )


def placement(
    session: Session,
    collective: str,
    group: str,
    *,
    sizes: Sequence[int],
    rank_maps: Sequence[Strategy],
    repeats: int,
    before: PlacementMeasurement | None = None,
) -> PlacementMeasurement:
    """`repeats` passes over `sizes` (bytes) under each rank map, each in new processes, added to those `before`.

    Their order is random; it can be drawn again from the time at which the measurement started.
    """
    clock = begin(session, before)
    done = before.placements if before else ()
    order = list(rank_maps) * repeats
    Random(f"{clock.started} {len(done)}").shuffle(order)
    made: list[Placement] = []
    everything: list[RankResult] = []
    for rank_map in order:
        seats = arrange(rank_map, session.nodes, session.nproc_per_node, session.hardware)
        groups = groups_of(
            group, [seat.node for seat in seats], layouts=session.project.layouts,
            nproc_per_node=session.nproc_per_node,
        )  # fmt: skip
        args = {"collective": collective, "groups": groups, "sizes": list(sizes), "seconds": SAMPLE_SECONDS}
        results = session.run(
            "pytest_clusterqual.rank.collectives:sweep", args, arrangement=rank_map, fresh=True,
            what=f"{collective} in {group} under {rank_map}", progress=(len(made), len(order)),
        )  # fmt: skip
        everything += results
        made.append(
            Placement(
                rank_map=rank_map,
                groups=groups,
                ranks=tuple(parse(RankFabric, result, session.places) for result in results),
                paths=tuple(place.nic_path for place in session.rank_map(rank_map).places),
            )
        )
    return PlacementMeasurement(
        conditions=conditions_of(
            session, everything, before, collective=collective, group=group, rank_map=", ".join(rank_maps)
        ),
        placements=done + tuple(made),
        started=clock.started,
        seconds=clock.seconds,
    )


def synchronization(
    session: Session, layout: Layout, *, rounds: int, least: int, before: SynchronizationMeasurement | None = None
) -> SynchronizationMeasurement:
    """`rounds` passes over the rungs of a layout's step within half of the budget, added to those made `before`.

    Of long steps there are fewer, down to `least`; below that only where half of the job timeout is too short.
    """
    budget, limit = section(session.project.fabric).budget / 2, session.project.launcher.job_timeout / 2
    clock = begin(session, before)
    results, made = step_apart(session, layout, rounds=rounds, least=least, seconds=budget, limit=limit)
    return SynchronizationMeasurement(
        conditions=conditions_of(session, results, before, layout=layout.name),
        rounds=(before.rounds if before else ()) + made,
        started=clock.started,
        seconds=clock.seconds,
    )


def groups_in(session: Session, kind: str, arrangement: Arrangement | None = None) -> Groups:
    """All groups of one kind where the ranks really are; starts them if need be.

    Raises:
        ValueError: there is no such kind, or the layout does not fit.
    """
    nodes = [place.node for place in session.rank_map(arrangement).places]
    return groups_of(kind, nodes, layouts=session.project.layouts, nproc_per_node=session.nproc_per_node)


def links_of(session: Session, conditions: Conditions) -> Links:
    """What the nodes themselves say; simulated ones share a machine and use none of its NICs."""
    links = found_links(session.hardware.values())
    return Links(intra_node=links.intra_node) if conditions.simulated else links


def asked_algorithm(backend: str, hardware: Iterable[NodeHardware]) -> str | None:
    """What NCCL_ALGO asks NCCL for on the nodes; None where it is free to choose."""
    if backend != "nccl":
        return None
    asked = {node.told_nccl("NCCL_ALGO") for node in hardware}
    return None if asked == {None} else " / ".join(sorted(algorithm or "not set" for algorithm in asked))


def _turns(session: Session, groups: Groups, first: Sequence[RankFabric], rounds: int) -> Groups:
    """Those of several groups that are to be measured one at a time too, evenly chosen.

    They take no more than half of the budget, with one group at least, and none if one alone takes
    half of the job timeout.
    """
    slowest = max((max(rank.timings[-1].seconds) for rank in first if rank.timings), default=0.0)
    turn = max(_CALLS_ALONE * slowest, 5 * SAMPLE_SECONDS)
    limit = session.project.launcher.job_timeout / 2
    if len(groups) < 2 or turn > limit:
        return ()
    affordable = int(min(section(session.project.fabric).budget / 2 / rounds, limit) / turn)
    count = max(min(affordable, _MOST_ALONE), 1)
    return groups[:: -(-len(groups) // count)]

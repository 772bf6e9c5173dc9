"""What Fabric asks of a session: sweeps over collectives, exchanges between pairs of nodes.

No judging: whoever calls decides how many samples are enough, and passes what there is as `before`.
"""

from __future__ import annotations

from dataclasses import replace

from pytest_clusterqual.measuring import Clock, conditions_of, heavier, map_name, parse
from pytest_clusterqual.model.measurement import FabricMeasurement, PairTiming, RankFabric
from pytest_clusterqual.model.rank_map import Arrangement
from pytest_clusterqual.session import Session
from pytest_clusterqual.world import RankResult

_SAMPLE_SECONDS = 0.01  # one fabric sample; long against the clock, short against the budget
_PAIR_BYTES = (16 << 20, 4 << 20, 1 << 20)  # the first that moves in `_PAIR_SECONDS` at the collective's pace
_PAIR_SECONDS = 0.25
_PAIR_REPEATS = 5
# Enough partners for every node of a large cluster, and few enough for a slow one.
_MOST_PARTNERS, _LEAST_PARTNERS = 31, 3


def fabric(
    session: Session,
    collective: str,
    group: str,
    *,
    rounds: int,
    arrangement: Arrangement | None = None,
    before: FabricMeasurement | None = None,
) -> FabricMeasurement:
    """`rounds` passes over all sizes of one collective, added to those made `before`."""
    assert session.project.fabric is not None
    began = Clock()
    if before is None:
        session.forget_samples()
    args = {
        "collective": collective, "group": group, "sizes": list(session.project.fabric.sizes),
        "seconds": _SAMPLE_SECONDS,
    }  # fmt: skip
    made: list[tuple[RankFabric, ...]] = []
    everything: list[RankResult] = []
    for done in range(rounds):
        results = session.run(
            "pytest_clusterqual.rank.collectives:sweep", args, arrangement=arrangement,
            what=f"{collective} in {group}", progress=(done, rounds),
        )  # fmt: skip
        made.append(tuple(parse(RankFabric, result, session.places) for result in results))
        everything += results
    conditions = conditions_of(session, everything, collective=collective, group=group, rank_map=map_name(arrangement))
    return FabricMeasurement(
        conditions=heavier(conditions, before.conditions if before else None),
        rounds=(before.rounds if before else ()) + tuple(made),
        started=before.started if before else began.wall,
        seconds=began.seconds + (before.seconds if before else 0.0),
    )


def pairs(
    session: Session, measurement: FabricMeasurement, *, arrangement: Arrangement | None = None
) -> FabricMeasurement:
    """The same measurement with what every pair of nodes can exchange, each on its own.

    It should take no more than half of the job timeout: where the links are too slow or the nodes
    too many for that, each node meets some of the others only.
    """
    began = Clock()
    size, partners = _pair_plan(measurement, session.project.launcher.job_timeout / 2)
    args = {"size": size, "repeats": _PAIR_REPEATS, "partners": partners}
    results = session.run(
        "pytest_clusterqual.rank.pairs:exchange", args, arrangement=arrangement, what="pairs of nodes"
    )
    received = [parse(tuple[PairTiming, ...], result, session.places) for result in results]
    return replace(
        measurement,
        pairs=tuple(timing for timings in received for timing in timings),
        seconds=measurement.seconds + began.seconds,
    )


def _pair_plan(measurement: FabricMeasurement, seconds: float) -> tuple[int, int]:
    """Message size and number of partners with which pairs take so many `seconds`, at the pace of the collective."""
    largest = [rank.timings[-1] for rank in measurement.rounds[-1] if rank.timings]
    pace = max(max(timing.seconds) / timing.bytes for timing in largest)
    size = next((size for size in _PAIR_BYTES if size * pace <= _PAIR_SECONDS), _PAIR_BYTES[-1])
    messages = 2 * (_PAIR_REPEATS + 1)  # both ways, and a warm-up
    return size, max(_LEAST_PARTNERS, min(int(seconds / (messages * size * pace)), _MOST_PARTNERS))

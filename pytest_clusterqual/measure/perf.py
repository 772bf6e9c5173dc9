"""What Fabric asks of a session where nccl-tests is the engine: runs of its programs on the nodes."""

from __future__ import annotations

from dataclasses import replace

from pytest_clusterqual.measure.fabric import asked_algorithm, links_of
from pytest_clusterqual.measure.parts import Clock
from pytest_clusterqual.measure.reported_runs import together
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.fabric import ReportedMeasurement
from pytest_clusterqual.read.nccl_tests import read_nccl_tests
from pytest_clusterqual.read.reported import ReportedRun
from pytest_clusterqual.session.session import Session


def perf(
    session: Session, collective: str, group: str, *, rounds: int, before: ReportedMeasurement | None = None
) -> ReportedMeasurement:
    """`rounds` runs of a program, in all groups of one kind at once, added to those made `before`.

    Raises:
        ReadError: what a program printed is no whole run, or of another world than was asked for.
        LaunchError, JobError: as `perf_run`.
    """
    clock = Clock(before)
    done = sum(sweep.group == 0 for sweep in before.sweeps) if before else 0
    runs: list[list[ReportedRun]] = []  # of each group
    for number in range(done + 1, done + rounds + 1):
        printed = session.perf(collective, group, number=number, total=done + rounds)
        new = [read_nccl_tests(path.read_text(encoding="utf-8"), path.name, collective=collective) for path in printed]
        runs = [[*of_group, *of_run] for of_group, of_run in zip(runs or [[] for _ in new], new, strict=True)]
        made = [_of_one_group(session, group, of_group) for of_group in runs]  # a run that is none ends it here
    conditions = _conditions(session, [each.conditions for each in made])
    return ReportedMeasurement(
        conditions=conditions, tool=made[0].tool,
        sweeps=(before.sweeps if before else ()) + tuple(
            replace(sweep, group=index) for index, each in enumerate(made) for sweep in each.sweeps
        ),
        started=clock.started, seconds=clock.seconds, links=links_of(session, conditions),
    )  # fmt: skip


def _of_one_group(session: Session, group: str, runs: list[ReportedRun]) -> ReportedMeasurement:
    (measurement,) = together(
        runs, group=group, nodes=1 if group == "intra_node" else len(session.nodes),
        nproc_per_node=1 if group == "inter_node" else session.nproc_per_node, started=0.0, seconds=0.0,
    ).values()  # fmt: skip
    return measurement


def _conditions(session: Session, made: list[Conditions]) -> Conditions:
    """Of all groups; one that is a node was run where it was started."""
    at, topology = made[0], session.topology
    if at.group == "intra_node":
        at = replace(
            at, nodes=len(made), ranks=len(made) * at.nproc_per_node,
            hosts=tuple(dict.fromkeys(host for each in made for host in each.hosts)),
            rank_nodes=tuple(node for node in session.nodes for _ in range(at.nproc_per_node)),
        )  # fmt: skip
    algorithm = asked_algorithm(at.backend, session.hardware.values())
    return replace(at, simulated=topology.simulated, oversubscribed=topology.oversubscribed, algorithm=algorithm)

"""Runs of nccl-tests become measurements: one for each collective, of runs under the same conditions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from pytest_clusterqual.errors import ReadError
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.fabric import ReportedMeasurement
from pytest_clusterqual.model.project import COLLECTIVES
from pytest_clusterqual.read.reported import ReportedRun


def together(
    runs: Sequence[ReportedRun],
    *,
    group: str,
    nodes: int | None = None,
    nproc_per_node: int | None = None,
    started: float,
    seconds: float,
) -> dict[str, ReportedMeasurement]:
    """``all_reduce-world`` -> its measurement; what is not the usual about the runs (bfloat16, say) is in the name.

    `nodes` and `nproc_per_node` say what the runs do not.

    Raises:
        ReadError: a run must not be judged, the world is not known, or runs differ in their conditions.
    """
    problems = [problem for run in runs for problem in run.problems]
    problems += [
        f"{run.sweep.source}: {run.collective} is none of {', '.join(COLLECTIVES)}; leave this run out"
        for run in runs if run.collective not in (None, *COLLECTIVES)
    ]  # fmt: skip
    if problems or not runs:
        raise ReadError("\n".join(dict.fromkeys(problems)) or "no run was given")
    different = [difference for run in runs[1:] for difference in _differences(runs[0], run)]
    if different := different or list(_twice(runs)):
        raise ReadError("\n".join(different))
    rank_nodes = _rank_nodes(runs, nodes, nproc_per_node)
    found: dict[str, list[ReportedRun]] = {}
    for run in runs:
        found.setdefault("-".join(filter(None, (run.collective, group, run.variant))), []).append(run)
    return {
        name: ReportedMeasurement(
            conditions=_conditions(same[0], rank_nodes, group),
            tool=" ".join(filter(None, (same[0].tool, same[0].versions.get(same[0].tool), same[0].variant))),
            sweeps=tuple(run.sweep for run in same), started=started, seconds=seconds,
        )
        for name, same in found.items()
    }  # fmt: skip


def _differences(first: ReportedRun, run: ReportedRun) -> Iterator[str]:
    """What keeps two runs from being samples of the same thing."""
    what: dict[str, tuple[object, object]] = {
        "hosts": (", ".join(dict.fromkeys(first.hosts)), ", ".join(dict.fromkeys(run.hosts))),
        "devices": (first.device, run.device),
    }
    for name in sorted(first.versions.keys() | run.versions.keys()):
        what[f"{name} version"] = first.versions.get(name), run.versions.get(name)
    for name in sorted(first.variables.keys() | run.variables.keys()):
        if name.startswith("NCCL_"):
            what[name] = first.variables.get(name), run.variables.get(name)
    if first.fits[1] < run.fits[0] or run.fits[1] < first.fits[0]:
        what["number of ranks"] = _span(first.fits), _span(run.fits)
    for name, (wanted, got) in what.items():
        if wanted != got:
            yield (
                f"{run.sweep.source}: {name}: got {got or 'none told'}, {first.sweep.source} has "
                f"{wanted or 'none told'}: import what was measured under different conditions apart"
            )


def _twice(runs: Sequence[ReportedRun]) -> Iterator[str]:
    """Runs with the figures of another one: no two runs are alike to the last digit."""
    seen: dict[object, ReportedRun] = {}
    for run in runs:
        same = seen.setdefault((run.collective, run.variant, run.sweep.timings), run)
        if same is not run:
            yield f"{run.sweep.source}: this is the run of {same.sweep.source} again; give each run once"


def _rank_nodes(runs: Sequence[ReportedRun], nodes: int | None, nproc_per_node: int | None) -> tuple[str, ...]:
    """The node of every rank: as listed, or by the numbers that were given."""
    first = runs[0]
    counts = Counter(first.hosts)
    if len(set(counts.values())) > 1:
        held = ", ".join(f"{host} {count}" for host, count in counts.items())
        raise ReadError(f"{first.sweep.source}: nodes have different numbers of ranks ({held}); want as many on each")
    for what, told, listed in (
        ("nodes", nodes, len(counts)), ("ranks a node", nproc_per_node, len(first.hosts) // (len(counts) or 1)),
    ):  # fmt: skip
        if listed and told not in (None, listed):
            raise ReadError(f"{first.sweep.source}: it was run on {listed} {what} by its own list, told were {told}")
    if first.hosts:
        return first.hosts
    low, high = max(run.fits[0] for run in runs), min(run.fits[1] for run in runs)
    if nodes and low == high and low % nodes == 0:
        nproc_per_node = nproc_per_node or low // nodes
    if not nodes or not nproc_per_node:
        raise ReadError(
            f"{first.sweep.source}: it was run on {_span((low, high))} ranks, but not all are listed with their hosts: "
            "say how many nodes, and ranks on each, with --nodes N --nproc-per-node G"
        )
    if not low <= nodes * nproc_per_node <= high:
        raise ReadError(
            f"{first.sweep.source}: got {nodes} nodes x {nproc_per_node} ranks = {nodes * nproc_per_node} ranks, but "
            f"the figures are those of {_span((low, high))}; correct --nodes and --nproc-per-node"
        )
    return tuple(f"node{rank // nproc_per_node}" for rank in range(nodes * nproc_per_node))


def _span(fits: tuple[int, int]) -> str:
    return f"{fits[0]}" if fits[0] == fits[1] else f"{fits[0]} to {fits[1]}"


def _conditions(run: ReportedRun, rank_nodes: tuple[str, ...], group: str) -> Conditions:
    nodes = len(set(rank_nodes))
    return Conditions(
        nodes=nodes, nproc_per_node=len(rank_nodes) // nodes, ranks=len(rank_nodes),
        hosts=tuple(dict.fromkeys(run.hosts)), rank_nodes=rank_nodes, simulated=False, oversubscribed=False,
        device="cuda", device_name=run.device, backend="nccl", versions=run.versions, collective=run.collective,
        group=group, algorithm=run.variables.get("NCCL_ALGO"),
    )  # fmt: skip

"""Are the suspects right? Planted causes in simulated clusters: ``python benchmarks/detection.py [--quick]``.

Schedule, fit, second round and wording are the product's own. Prints what was found of each cause,
abstentions apart, and the bars; exit status 1 if one is missed.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import dataclass

import numpy as np
from simulated_cluster import Cause, Cluster, Kind, calls_with_a_late_rank

from pytest_clusterqual.judge.fabric.confirming import to_confirm
from pytest_clusterqual.judge.fabric.pair_causes import Screening, screen
from pytest_clusterqual.judge.fabric.pairs import judge_pairs
from pytest_clusterqual.judge.fabric.sweeps import GroupTimes
from pytest_clusterqual.judge.fabric.waits import late_ranks
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.fabric import PairsMeasurement, PairTiming
from pytest_clusterqual.model.project import FabricPlan
from pytest_clusterqual.model.record import Finding
from pytest_clusterqual.model.tournament import meetings, turns_for

KINDS: tuple[Kind, ...] = ("nothing", "node", "NIC", "rail", "link", "colliding paths", "contention")
NOISES = (0.003, 0.01, 0.03, 0.1)
PARTNERS = 31
LEAST = 0.03
CLASSES = {
    "slow link of a node": "node", "slow node": "node", "slow NIC": "NIC", "slow rail": "rail",
    "slow link between two nodes": "link", "colliding paths": "colliding paths", "contention": "contention",
}  # fmt: skip
# nodes -> runs of each cause and noise
FULL, QUICK = {8: 20, 16: 15, 64: 6, 256: 2, 1024: 1}, {8: 2, 16: 1}


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A cluster after both rounds. `contention` is the most that its interval leaves room for."""

    cause: Cause
    findings: tuple[Finding, ...]
    seen: Screening
    contention: float


def main(quick: bool) -> int:
    met = [
        causes(QUICK if quick else FULL),
        small_slowdowns(runs=20 if quick else 400),
        late(injections=40 if quick else 600),
        *([] if quick else [large()]),
    ]
    return 0 if all(met) else 1


def causes(runs: dict[int, int]) -> bool:
    """Each cause in clusters of each size and noise: the class that was named, where one was."""
    found: Counter[tuple[str, str]] = Counter()
    random = np.random.default_rng(7)
    for nodes, count in runs.items():
        for kind in KINDS:
            for noise in NOISES * count:
                found[kind, named(tried(planted(nodes, kind, noise, random)))] += 1
    columns = (*KINDS, "wrong suspect", "abstained")
    print("planted \\ named " + "".join(f"{column:>16}" for column in columns))
    for kind in KINDS:
        print(f"{kind:<16}" + "".join(f"{found[kind, column]:>16}" for column in columns))
    said = {pair: count for pair, count in found.items() if pair[1] != "abstained"}
    right = sum(count for (kind, column), count in said.items() if kind == column)
    abstained = found.total() - sum(said.values())
    print(f"abstained: {abstained} of {found.total()} (not confirmed, or smaller than what it said it would see)")
    return bar("right cause class", right / sum(said.values()), 0.95, f"of {sum(said.values())} that were said")


def planted(nodes: int, kind: Kind, noise: float, random: np.random.Generator) -> Cluster:
    rails = 4 if nodes <= 16 else 2 if nodes <= 64 or kind in ("rail", "NIC") else 1
    at = random.permutation(nodes)
    slower = float(np.exp(random.uniform(np.log(1.1), np.log(5.0))))
    rail = int(random.integers(rails))
    way = ("both", "forth", "back")[int(random.integers(3 if kind in ("node", "NIC") else 2))]
    ends: tuple[int, ...] = tuple(map(int, at[:1]))
    partners = min(PARTNERS, nodes - 1)
    if kind in ("link", "colliding paths"):  # among the pairs that meet at all
        together = meetings(int(random.choice(turns_for(partners, nodes))), nodes)
        crowd = 1 if kind == "link" else int(random.integers(2, 4))
        ends = tuple(end for k in random.permutation(len(together))[:crowd] for end in together[k])
    cause = Cause(kind=kind, slower=slower, nodes=ends, rail=rail, way=way)
    return Cluster(nodes=nodes, rails=rails, noise=noise, partners=partners, cause=cause, random=random)


def tried(cluster: Cluster) -> Tried:
    """Both rounds of one cluster, judged."""
    first = meetings(turns_for(cluster.partners, cluster.nodes)[0], cluster.nodes)
    pairs = cluster.tournament([(one, other, 0) for one, other in first[:3]])
    again = [(int(one[4:]), int(other[4:]), rail) for one, other, rail in to_confirm(pairs, least=LEAST)]
    pairs += cluster.tried_alone(again)
    judged = judge_pairs(measurement(cluster.nodes, cluster.rails, pairs), FabricPlan())
    contention = next(judgement.interval for judgement in judged if judgement.quantity == "contention")
    assert contention is not None
    return Tried(
        cause=cluster.cause, findings=judged[0].findings, seen=screen(pairs, least=LEAST), contention=contention.high
    )


def named(tried: Tried) -> str:
    """The class that was named: confirmed, or contention of all; nothing only where the product rules the cause out."""
    cause = tried.cause
    sure = [finding for finding in tried.findings if finding.level == "suspect"]
    sure = sure or [finding for finding in tried.findings if finding.kind == "contention"]
    if sure:
        classes = {CLASSES[finding.kind.partition(",")[0]] for finding in sure}
        if classes == {cause.kind}:
            return cause.kind if all(suspect_is_right(finding, cause) for finding in sure) else "wrong suspect"
        return next(iter(classes - {cause.kind}))
    pair = cause.kind in ("link", "colliding paths")
    visible = tried.contention if cause.kind == "contention" else tried.seen.link_seen if pair else tried.seen.node_seen
    return "abstained" if tried.findings or (cause.kind != "nothing" and cause.slower - 1 < visible) else "nothing"


def suspect_is_right(finding: Finding, cause: Cause) -> bool:
    ends = {f"node{end}" for end in cause.nodes}
    words = finding.suspect.replace(",", " ").split()
    if cause.kind == "contention":
        return True
    if cause.kind == "rail":
        return words == ["rail", str(cause.rail)]
    return {word for word in words if word.startswith("node")} <= ends


def small_slowdowns(runs: int) -> bool:
    """Healthy clusters, and the same with one node 5 % slower where the product says it would see that."""
    random = np.random.default_rng(11)
    alarms = accused = healthy = hits = could = 0
    for run in range(runs):
        nodes, noise = (8, 16, 64)[run % 3], NOISES[run % 4]
        for slower in (1.0, 1.05):
            cause = Cause(kind="node" if slower > 1 else "nothing", slower=slower, nodes=(int(random.integers(nodes)),))
            cluster = Cluster(nodes=nodes, rails=1, noise=noise, partners=31, cause=cause, random=random)
            result = tried(cluster)
            if slower == 1.0:
                healthy += 1
                alarms += bool(result.findings)
                accused += any(finding.level == "suspect" for finding in result.findings)
            elif result.seen.node_seen <= slower - 1:
                could += 1
                hits += any(finding.suspect == f"node{cause.nodes[0]}" for finding in result.findings)
    told = f"of {could} runs in which it said it would, of {runs}"
    return all(
        [
            bar("a 5 % slower node is seen", hits / could if could else 0.0, 0.95, told),
            bar(
                "healthy runs without any finding",
                1 - alarms / healthy,
                0.99,
                f"of {healthy}; {accused} accuse somebody",
            ),
        ]
    )


def late(injections: int) -> bool:
    """One rank that comes 5 to 200 ms late to collectives of 1 to 50 ms: is it the first one named?

    So the delay is a tenth of the transfer at least; by less than a twentieth nobody is named on purpose.
    """
    random = np.random.default_rng(13)
    right = silent = 0
    for run in range(injections):
        ranks, delay = (8, 64, 256, 1024)[run % 4], float(np.exp(random.uniform(np.log(5e-3), np.log(0.2))))
        at, transfer = int(random.integers(ranks)), float(np.exp(random.uniform(np.log(1e-3), np.log(0.05))))
        noise = NOISES[run // 4 % 4]
        calls = calls_with_a_late_rank(random, ranks=ranks, late=at, delay=delay, transfer=transfer, noise=noise)
        members = tuple(range(ranks))
        times = GroupTimes(members=members, bytes=1, rounds=(), ranks=dict.fromkeys(members, 1.0), calls=calls)
        named_ranks = late_ranks(times)
        silent += not named_ranks
        right += bool(named_ranks) and named_ranks[0].ranks == (at,)
    return bar("late rank named first", right / injections, 0.98, f"of {injections}; {silent} times nobody was named")


def large() -> bool:
    """1,024 nodes: schedule, fit and choice of the second round."""
    random = np.random.default_rng(17)
    cause = Cause(kind="node", slower=1.3, nodes=(777,))
    cluster = Cluster(nodes=1024, rails=1, noise=0.03, partners=PARTNERS, cause=cause, random=random)
    pairs = cluster.tournament([])
    began = time.perf_counter()
    for turn in turns_for(PARTNERS, 1024):
        meetings(turn, 1024)
    again = to_confirm(pairs, least=LEAST)
    took = time.perf_counter() - began
    right = sum("node777" in pair for pair in again) == 3
    print(f"1,024 nodes, {len(pairs)} exchanges: scheduled and fitted in {took:.2f} s")
    return bar("1,024 nodes in less than 5 s", float(took < 5 and right), 1.0, "")


def measurement(nodes: int, rails: int, pairs: tuple[PairTiming, ...]) -> PairsMeasurement:
    conditions = Conditions(
        nodes=nodes, nproc_per_node=rails, ranks=nodes * rails, hosts=(), simulated=False, oversubscribed=False,
        device="cuda", device_name="simulated", backend="nccl", versions={},
        rank_nodes=tuple(f"node{node}" for node in range(nodes) for _ in range(rails)),
    )  # fmt: skip
    return PairsMeasurement(conditions=conditions, pairs=pairs, started=0.0, seconds=0.0)


def bar(what: str, share: float, least: float, of: str) -> bool:
    met = share >= least
    print(f"{'met   ' if met else 'MISSED'} {what}: {share:.2%} {of}, at least {least:.0%}", flush=True)
    return met


if __name__ == "__main__":
    sys.exit(main("--quick" in sys.argv[1:]))

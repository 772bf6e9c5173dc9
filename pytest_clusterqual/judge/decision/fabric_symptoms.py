"""The symptoms of the fabric, and of ranks that others wait for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pytest_clusterqual import units
from pytest_clusterqual.judge.decision.candidates import FAILED
from pytest_clusterqual.judge.decision.evidence import NOTHING, Entry, Evidence, evidence
from pytest_clusterqual.model.record import Verdict

Sighting = tuple[str, Evidence]
FALLEN = 0.9  # of the best bus bandwidth, as where Fabric sees no plateau
_PAIRS = "[pairs]"
_RATES = ("busbw", "algbw", "plateau")
_STARTS = ("latency", "alpha")
# Counters of interfaces and RDMA ports that stand still on a healthy link.
_ERRORS = (
    "rx_errors", "tx_errors", "symbol_error", "link_downed", "link_error_recovery", "port_rcv_errors",
    "out_of_sequence", "local_ack_timeout_err",
)  # fmt: skip


def fabric_passed(seen: Evidence) -> Evidence:
    """What Fabric passed by; nothing if some of it did not, or nothing was demanded."""
    known = seen.about("fabric").having(lambda e: not e.accepted)
    late = known.with_verdict(*FAILED, Verdict.UNDECIDED, Verdict.BLOCKED)
    return NOTHING if late else known.with_verdict(Verdict.PASS)


def pointed_at(*kinds: str) -> Callable[[Evidence], Iterator[Sighting]]:
    """Findings of these kinds, whichever criterion has them, each suspect once."""

    def see(seen: Evidence) -> Iterator[Sighting]:
        told = set()
        for entry, finding in seen.findings:
            if finding.kind in kinds and finding.suspect not in told:
                told.add(finding.suspect)
                yield f"{finding.suspect} ({finding.kind}): {finding.evidence}", evidence(entry)

    return see


def _collective(entry: Entry) -> str:
    at = entry.record.conditions
    return (at.collective or "") if at else ""


def _group(entry: Entry) -> str:
    at = entry.record.conditions
    return (at.group or "") if at else ""


def _pairs_slow_in_a_good_world(seen: Evidence) -> Iterator[Sighting]:
    world = seen.about("fabric").having(lambda e: _group(e) == "world" and not e.record.test.endswith(_PAIRS))
    passed = world.with_verdict(Verdict.PASS)
    if not passed or world.with_verdict(*FAILED):
        return
    pairs = seen.about("fabric").having(lambda e: e.record.test.endswith(_PAIRS))
    for entry in pairs.of("pair_busbw").entries:
        suspects = [finding.suspect for finding in entry.judgement.findings if finding.level == "suspect"]
        if suspects or entry.verdict is Verdict.FAIL:
            told = f"collectives of all nodes pass, and {suspects[0] if suspects else 'the slowest pair'} is slow: "
            yield told + entry.figure, evidence(passed.first, entry)


def _exchanges_slow_in_a_good_group(seen: Evidence) -> Iterator[Sighting]:
    """All-to-all uses every path at once; all-reduce by a ring uses few."""
    fabric = seen.about("fabric")
    good = fabric.having(lambda e: _collective(e) == "all_reduce").by(_group)
    for entry in fabric.of(*_RATES).with_verdict(Verdict.FAIL).entries:
        reduced = good.get(_group(entry), NOTHING)
        passed = reduced.of(*_RATES).with_verdict(Verdict.PASS)
        if _collective(entry).startswith("all_to_all") and passed and not reduced.with_verdict(*FAILED):
            told = f"{entry.case}: {entry.figure} is too little where all_reduce passes in the same group"
            yield told, evidence(passed.first, entry)


def _only_small_ones_slow(seen: Evidence) -> Iterator[Sighting]:
    for test in seen.about("fabric").tests().values():
        slow, fast = test.of(*_STARTS).with_verdict(Verdict.FAIL), test.of(*_RATES)
        if slow and fast.with_verdict(Verdict.PASS) and not fast.with_verdict(*FAILED):
            told = f"small messages are slow, large ones pass: {slow.entries[0].judgement.quantity} of "
            yield f"{told}{slow.entries[0].case} {slow.entries[0].figure}", slow | evidence(fast.first)


def _falling_at_the_end(seen: Evidence) -> Iterator[Sighting]:
    for test in seen.about("fabric").tests().values():
        sizes = {size: e for e in test.of("busbw").entries if (size := _bytes(e)) and e.judgement.value}
        if len(sizes) < 3:
            continue
        largest, best = sizes[max(sizes)], max(sizes.values(), key=lambda e: e.judgement.value or 0)
        last, most = largest.judgement, best.judgement
        apart = last.interval and most.interval and last.interval.high < FALLEN * most.interval.low
        if apart:
            told = f"{largest.case} reaches {largest.figure}, less than {best.figure} at {best.judgement.label}"
            yield told, evidence(best, largest)


def _bytes(entry: Entry) -> float:
    try:
        return units.parse(entry.judgement.label, units.BYTES)
    except ValueError:
        return 0.0


def _counting_errors(seen: Evidence) -> Iterator[Sighting]:
    told = set()
    for entry, node in seen.telemetry:
        for name, count in node.counts.items():
            if name.rpartition(".")[2] in _ERRORS and (node.node, name) not in told:
                told.add((node.node, name))
                yield f"{name} of {node.node} grew by {count} while it was measured", evidence(entry)


FABRIC_RULES = (
    (pointed_at("above the bound"), "the promised links (GB/s or Gbit/s? how many NICs?) and the algorithm: on two "
     "nodes a tree may pass the rate of the NICs; hold it to NCCL_ALGO=Ring before the figure is called good or bad"),
    (_pairs_slow_in_a_good_world, "cable, port and switch of that link: a ring or a tree may pass it by, and another "
     "placement may not"),
    (_exchanges_slow_in_a_good_group, "rails and congestion: NCCL_CROSS_NIC, adaptive routing or ECMP, uplinks with "
     "less than the sum of their ports; all_reduce keeps to few paths and says nothing of them"),
    (_only_small_ones_slow, "what each message costs, not the link: protocol (NCCL_PROTO), power states of cores, "
     "interrupt moderation, hops, a proxy thread without a core of its own"),
    (_falling_at_the_end, "what large buffers meet: memory registration, BAR size and IOMMU, chunk and buffer sizes; "
     "the links carry more at smaller sizes"),
    (pointed_at("late rank", "late node", "slow rank"), "what holds that rank up before the call: other work on its "
     "cores, a quota, clocks, its NUMA node; the others' waiting is its consequence"),
    (pointed_at("common cause", "diffuse waits"), "what all ranks share: storage, power and cooling, daemons that wake "
     "on every node at once"),
    (pointed_at("contention", "colliding paths"), "NICs, PCIe switches and uplinks in common, and how flows are hashed "
     "onto paths"),
    (pointed_at("slow placement"), "the rank map: which ranks are neighbours, and which NIC each has nearest"),
    (_counting_errors, "cable, transceiver and port of that interface, and its MTU on both sides"),
    (pointed_at("wrong data"), "memory of the senders (ECC), library versions, error counters of the links"),
)  # fmt: skip

"""What is seen in the records, and what to check first: directions, no proofs.

A share or a factor in here marks what is worth a look; it is no threshold, and no verdict rests on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pytest_clusterqual import units
from pytest_clusterqual.judge.decision.candidates import FAILED, LEFT_OVER, PACE, Candidate, candidates
from pytest_clusterqual.judge.decision.evidence import NOTHING, Evidence, evidence, whole
from pytest_clusterqual.judge.decision.fabric_symptoms import FABRIC_RULES, fabric_passed, pointed_at
from pytest_clusterqual.judge.full_run.ledger import COMPUTING
from pytest_clusterqual.model.decision import Symptom
from pytest_clusterqual.model.record import Verdict

Sighting = tuple[str, Evidence]
Rule = tuple[Callable[[Evidence], Iterator[Sighting]], str]
_RECOVERING = ("detection", "restart", "rendezvous", "checkpoint_load")  # the parts of a recovery
WIDE = 0.2  # of a step time's interval to the step time itself


def symptoms(seen: Evidence) -> tuple[Symptom, ...]:
    """One for each rule that sees something; of several sightings the first one, and how many more."""
    found = []
    for see, check_first in RULES:
        if sightings := list(see(seen)):
            told, rests_on = sightings[0]
            more = f" (and {len(sightings) - 1} more)" if len(sightings) > 1 else ""
            found.append(Symptom(seen=told + more, check_first=check_first, records=rests_on.lines))
    return tuple(found)


# -- training steps ------------------------------------------------------------------------------


def _gaining_too_little(seen: Evidence) -> Iterator[tuple[Candidate, Evidence]]:
    """The candidates that fail by their pace, or are not sooner than fewer nodes."""
    for candidate in candidates(seen):
        failed = candidate.point.of(*PACE).with_verdict(*FAILED)
        speedup = candidate.point.number("speedup")
        if not failed and speedup and whole(speedup.judgement.interval, lambda value: value > 1) is False:
            failed = evidence(speedup)
        if failed.having(lambda e: e.judgement.value is not None):
            yield candidate, failed


def _computes_too_little(candidate: Candidate) -> Evidence:
    """The step times of a candidate that loses more of a step than it computes in it; else nothing."""
    step, before = candidate.point.number("step_time"), candidate.base.number("step_time")
    if step is None or before is None or step.judgement.value is None or before.judgement.value is None:
        return NOTHING
    computing = before.judgement.value * candidate.base_nodes / candidate.nodes
    return evidence(before, step) if step.judgement.value > 2 * computing else NOTHING


def _too_little_work(seen: Evidence) -> Iterator[Sighting]:
    if not (fabric := fabric_passed(seen)):
        return
    for candidate, _failed in _gaining_too_little(seen):
        if steps := _computes_too_little(candidate):
            before, step = steps.entries
            told = f"{candidate.name} take {step.figure} a step where {before.figure} is the whole of it on "
            told += f"{candidate.base_nodes}, while Fabric passes"
            yield told, steps | evidence(fabric.first)


def _loses_most_by(part: str) -> Callable[[Evidence], Iterator[Sighting]]:
    def see(seen: Evidence) -> Iterator[Sighting]:
        for candidate, failed in _gaining_too_little(seen):
            lost = candidate.point.number("lost_time")
            if lost is None or not lost.judgement.parts or (lost.judgement.value or 0) <= 0:
                continue
            parts = lost.judgement.parts
            if max(parts, key=parts.__getitem__) != part:
                continue
            if part == "exposed transfer" and _computes_too_little(candidate) and fabric_passed(seen):
                continue  # a fabric that does what it should is not the one to ask
            told = f"{candidate.name} gain too little, and most of the {lost.figure} lost in a step is {part}: "
            yield told + units.show(parts[part], units.SECONDS), failed | evidence(lost)

    return see


def _data_stalls(seen: Evidence) -> Iterator[Sighting]:
    for entry in (seen.about("scaling") | seen.about("full_run")).of("data_stall").with_verdict(Verdict.FAIL).entries:
        yield f"{entry.case} waits for data {entry.figure} of the time", evidence(entry)


def _wide_steps(seen: Evidence) -> Iterator[Sighting]:
    yield from pointed_at("jittering rank")(seen)
    for entry in seen.about("scaling").of("step_time").entries:
        interval, value = entry.judgement.interval, entry.judgement.value
        if interval and value and interval.high - interval.low > WIDE * value:
            yield f"the step time of {entry.case} varies from run to run: {entry.figure}", evidence(entry)


# -- what the nodes say of themselves ------------------------------------------------------------


def _throttled(seen: Evidence) -> Iterator[Sighting]:
    told: set[str] = set()
    for entry, node in seen.telemetry:
        for device, reasons in node.throttled.items():
            if (name := f"{device} of {node.node}") not in told:
                told.add(name)
                yield f"{name} was slowed down: {', '.join(reasons)}", evidence(entry)


def _loaded(seen: Evidence) -> Iterator[Sighting]:
    """Each node once, where it was loaded most."""
    loads = [(e.record.conditions.load, e) for e in seen.entries if e.record.conditions and e.record.conditions.load]
    told: set[str] = set()
    for load, entry in sorted(loads, key=lambda pair: -pair[0].other_cpu):
        if load.heavy and load.node not in told:
            told.add(load.node)
            share = units.show_share(load.other_cpu)
            yield f"other work took {share} of the cores' time on {load.node}", evidence(entry)


# -- memory and the full run ---------------------------------------------------------------------


def _layout_without_room(seen: Evidence) -> Iterator[Sighting]:
    tried = seen.about("memory").having(lambda e: bool(e.layout)).tests().values()
    roomy = [test for test in tried if test.with_verdict(Verdict.PASS) and not test.with_verdict(*FAILED)]
    for test in tried:
        if roomy and (failed := test.with_verdict(*FAILED)):
            told = f"{test.entries[0].layout} does not pass Memory on the nodes where {roomy[0].entries[0].layout} does"
            yield told, failed | roomy[0].with_verdict(Verdict.PASS)


def _slow_saves(seen: Evidence) -> Iterator[Sighting]:
    quantities = ("checkpoint_blocking", "checkpoint_completion")
    for entry in seen.about("full_run").of(*quantities).with_verdict(Verdict.FAIL).entries:
        yield f"{entry.judgement.quantity.replace('_', ' ')} of {entry.case}: {entry.figure}", evidence(entry)
    yield from _most_of_the_wall("checkpoint", "hook last save")(seen)


def _slow_recovery(longest: str) -> Callable[[Evidence], Iterator[Sighting]]:
    """Recovery that fails, where `longest` is the longest of the parts that are known."""

    def see(seen: Evidence) -> Iterator[Sighting]:
        for test in seen.about("full_run").tests().values():
            parts = {name: e for name in _RECOVERING if (e := test.number(name))}
            slow = test.of("recovery", *parts).with_verdict(Verdict.FAIL)
            if slow and parts and max(parts, key=lambda name: parts[name].judgement.value or 0) == longest:
                told = f"recovery of {slow.entries[0].case} is slow, most of it {longest.replace('_', ' ')}: "
                yield told + parts[longest].figure, slow | evidence(parts[longest])

    return see


def _most_of_the_wall(*categories: str) -> Callable[[Evidence], Iterator[Sighting]]:
    """A full run that keeps too little, where one of `categories` took the most beside the steps that count."""

    def see(seen: Evidence) -> Iterator[Sighting]:
        for test in seen.about("full_run").tests().values():
            short = test.of(*LEFT_OVER).with_verdict(Verdict.FAIL)
            spent = {
                e.judgement.label: e for e in test.of("time").entries
                if e.judgement.label not in COMPUTING and e.judgement.value is not None
            }  # fmt: skip
            most = max(spent, key=lambda name: spent[name].judgement.value or 0, default="")
            if short and most in categories:
                first = short.entries[0]
                told = f"{first.case} has {first.judgement.quantity} {first.figure}; what takes most beside its steps "
                yield f"{told}is {most}: {spent[most].figure}", short | evidence(spent[most])

    return see


RULES: tuple[Rule, ...] = (
    (_too_little_work, "the work of a rank between two exchanges: a larger microbatch or fewer ranks; do not look for "
     "a fault of the fabric first. A larger global batch would be another regime"),
    (_loaded, "what else runs on that node, and measure again when it is idle"),
    (_throttled, "temperature, fans and power limits of that device and of its neighbours in the rack"),
    (_loses_most_by("exposed transfer"), "the groups and sizes that this layout uses in Fabric (clusterqual plan): "
     "which interface NCCL took, GPUDirect, bucket sizes and prefetch that let transfers hide behind computing"),
    (_loses_most_by("wait"), "the rank that comes last: its cores and NUMA node, clocks, its part of the data; then "
     "uneven stages or experts"),
    (_loses_most_by("data stall"), "the storage and the loader of the ranks that wait: workers, read-ahead, one shared "
     "file system for all nodes"),
    (_loses_most_by("compute loss"), "why the same computing takes longer: smaller shapes for each rank, memory "
     "bandwidth or SMs shared with communication, clocks of the added nodes"),
    (_loses_most_by("pipeline bubble"), "microbatches of a replica: at a fixed global batch more replicas leave fewer; "
     "fewer stages or an interleaved schedule"),
    (_loses_most_by("host gaps"), "the host between kernels: Python, synchronizing calls, cores that ranks share"),
    (_loses_most_by("residual"), "the spread of single steps and the loads of the nodes; measure again"),
    (_data_stalls, "storage and loader: workers a rank, read-ahead, where the data lie for the added nodes; a stall "
     "every few steps points to too few workers"),
    (_wide_steps, "what comes and goes on the nodes: daemons, other jobs, power limits, collection of garbage; then "
     "more repeats"),
    *FABRIC_RULES,
    (_layout_without_room, "a layout that shards or recomputes, before more or larger nodes"),
    (pointed_at("memory imbalance"), "uneven shards or stages, and tensors that one rank alone keeps"),
    (pointed_at("growth"), "tensors kept from step to step, such as losses that are not detached; run more steps"),
    (_slow_saves, "the write rate of the checkpoint storage for all ranks at once, and asynchronous saves; then the "
     "steps right after a save, which staging may slow down"),
    (_slow_recovery("detection"), "time-outs: of the process group, the rendezvous, the scheduler's health check"),
    (_slow_recovery("restart"), "what ends the old processes and starts new ones: how long those that hang are waited "
     "for, the scheduler, containers"),
    (_slow_recovery("rendezvous"), "starting a rank: imports from a shared file system, compilation, the group"),
    (_slow_recovery("checkpoint_load"), "the read rate of the checkpoint storage for all ranks at once; resharding"),
    (_most_of_the_wall("init", "rendezvous", "restart", "teardown"), "starting and ending of the ranks; then a longer "
     "full run, in which they weigh as much as in the real one"),
    (_most_of_the_wall("warm-up", "re-warm-up"), "what the first steps do beyond the later ones: compilation, tuning, "
     "allocation; then a longer full run"),
    (_most_of_the_wall("lost", "detection", "reload"), "the checkpoint interval against how often failures are to be "
     "expected, and how soon they are noticed"),
    (_most_of_the_wall("data"), "storage and loader under the load of a whole run"),
)  # fmt: skip

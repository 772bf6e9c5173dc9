"""The worksheet above its conclusion: what was trained, how it was spread, on one node and on several."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pytest_clusterqual import units
from pytest_clusterqual.judge.decision.candidates import Assessment, Candidate
from pytest_clusterqual.judge.decision.evidence import NAMES, NOTHING, Entry, Evidence, evidence
from pytest_clusterqual.judge.decision.situation import Situation
from pytest_clusterqual.judge.scaling.projection import FURTHEST, project, why_not_projected
from pytest_clusterqual.model.decision import Line, Section
from pytest_clusterqual.model.projection import SizeTime
from pytest_clusterqual.model.record import worst

SMALLEST = 0.005  # of the largest part of the lost time; what is smaller is left out
_ANSWERS: dict[float | None, str] = {1.0: "fit", 0.0: "do not fit"}
_ON_ONE = ("step_time", "throughput", "time_to_fixed_work", "time_to_train")
_ON_SEVERAL = ("speedup", "efficiency", *_ON_ONE)
_PASSED = {
    "performance": "all as asked", "peak-only": "its full run keeps too little", "open": "something is missing",
    "fault": "did not run or fails", "slower": "gains too little", "out": "fails Memory",
}  # fmt: skip


def worksheet_lines(s: Situation) -> Iterator[Line]:
    """All sections but the last. Where the nodes were simulated, the first line says so."""
    yield from _identity(s.seen)
    yield from _parallelism(s)
    yield from _baseline(s)
    yield from _candidate(s)


def _line(section: Section, label: str, text: str, rests_on: Evidence) -> Line:
    return Line(section=section, label=label, text=text, records=rests_on.lines)


def _identity(seen: Evidence) -> Iterator[Line]:
    section: Section = "training identity"
    known = seen.having(lambda e: e.record.conditions is not None)
    if simulated := known.having(lambda e: e.record.conditions is not None and e.record.conditions.simulated):
        told = "all nodes are shares of one machine: this decides about the demonstration, not about a cluster"
        yield _line(section, "simulated", told, simulated)
    trained = known.about("scaling") | known.about("memory") | known.about("full_run")
    if (first := (trained or known).first) is None or (at := first.record.conditions) is None:
        return
    if at.workload:
        step, rate = seen.about("scaling").number("step_time"), seen.about("scaling").number("throughput")
        tokens = _tokens(step, rate) if step and rate else 0
        work = f", {tokens:,} tokens a step" if tokens else ""
        yield _line(section, "job", f"workload {at.workload}{work}", trained)
    hosts = dict.fromkeys(host for e in known.entries if e.record.conditions for host in e.record.conditions.hosts)
    shown = units.show_some(list(hosts), 4)
    yield _line(section, "hardware", f"{at.device_name} ({at.device}, {at.backend}); hosts {shown}", known)
    versions = ", ".join(f"{name} {version}" for name, version in sorted(at.versions.items()))
    yield _line(section, "software", versions, evidence(first))


def _tokens(step: Entry, rate: Entry) -> int:
    """Of one run, for medians of an even number of runs lie between two of them."""
    runs = zip(step.judgement.samples, rate.judgement.samples, strict=False)
    return next((round(seconds * tokens) for seconds, tokens in runs), 0)


def _parallelism(s: Situation) -> Iterator[Line]:
    """The verdicts of each layout, and the rungs of the memory ladder."""
    section: Section = "parallelism"
    known = s.seen.having(lambda e: bool(e.layout) and e.record.criterion in ("memory", "scaling", "full_run"))
    for layout, mine in known.by(lambda e: e.layout).items():
        told = [
            f"{NAMES[name]} {worst([entry.verdict for entry in group.entries])}"
            for name in ("memory", "scaling", "full_run")
            if (group := mine.about(name))
        ]
        yield _line(section, layout, ", ".join(told), mine)
    prices = {e.judgement.label: e.judgement.value for e in s.seen.ladder("price").entries}
    for answer, rungs in s.seen.ladder("fits").by(lambda e: _ANSWERS.get(e.judgement.value, "")).items():
        names = [e.judgement.label for e in rungs.entries]
        told = [f"{name} at {price:.3g} x the time" if (price := prices.get(name)) else name for name in names]
        yield _line(section, f"rungs that {answer or 'were not tried'}", "; ".join(told), rungs)


def _baseline(s: Situation) -> Iterator[Line]:
    section: Section = "single-node baseline"
    answer = {True: "the job fits inside one node", False: "no rung inside one node holds the job"}
    by = ""
    if s.fits_one and (first := s.fit_from.first):
        by = f": {first.layout or first.judgement.label}" + ("" if first.layout else ", on the memory ladder")
    told = answer.get(bool(s.fits_one), "") if s.fits_one is not None else "whether the job fits is not known"
    yield _line(section, "memory", told + by, s.fit_from)
    if fastest := s.fastest_on_one:
        test = s.seen.having(lambda e: e.record.test == fastest.record.test and e.point == 1)
        for quantity in _ON_ONE:
            if entry := test.number(quantity):
                yield _line(section, _words(quantity), f"{entry.figure}, {fastest.layout}", evidence(entry))


def _candidate(s: Situation) -> Iterator[Line]:
    """The layout that came furthest, with its figures; of the others how far they came."""
    section: Section = "multi-node candidate"
    if not s.assessed:
        yield _line(section, "none", "no layout was measured on several nodes by Training Scaling", NOTHING)
        return
    best, *others = s.assessed
    yield _line(section, best.candidate.name, _PASSED[best.standing], best.rests_on)
    for quantity in _ON_SEVERAL:
        if entry := best.candidate.point.number(quantity):
            yield _line(section, _words(quantity), entry.figure, evidence(entry))
    if lost := best.candidate.point.number("lost_time"):
        parts = lost.judgement.parts
        least = SMALLEST * max(map(abs, parts.values()), default=0.0)
        shown = [f"{name} {units.show(part, units.SECONDS)}" for name, part in parts.items() if abs(part) > least]
        told = " = ".join(filter(None, (lost.figure, ", ".join(shown))))
        yield _line(section, "lost in a step", told, evidence(lost))
    yield from _full_run(best.candidate)
    yield from _beyond(s.seen, best.candidate)
    yield from (_line(section, other.candidate.name, _told(other), other.rests_on) for other in others)


def _full_run(candidate: Candidate) -> Iterator[Line]:
    section: Section = "multi-node candidate"
    goodput, whole = candidate.full_run.number("goodput"), candidate.full_run.number("throughput")
    if goodput:
        yield _line(section, "goodput of the full run", goodput.figure, evidence(goodput))
    if gain := candidate.gain:
        told = f"{gain.figure}: so many times sooner than the same full run on one node, one run each"
        yield _line(section, "left of the gain", told, evidence(gain))
        return
    alone = candidate.base.number("throughput") if candidate.base_nodes == 1 else None
    if whole and alone and whole.judgement.value and alone.judgement.value:
        # One node pays for checkpoints and failures as well, and how much was not measured: this is the least.
        least = units.show(whole.judgement.value / alone.judgement.value, units.RATIO)
        told = f"at least {least} of what one node would make that loses nothing; its own full run was not measured"
        yield _line(section, "left of the gain", told, evidence(whole, alone))


def _beyond(seen: Evidence, candidate: Candidate) -> Iterator[Line]:
    """An estimate for twice as many nodes, or why there is none; it leads to no outcome."""
    times = seen.about("scaling").of("time_to_fixed_work").having(
        lambda e: e.layout == candidate.layout and e.point > 0 and e.judgement.value is not None
    )  # fmt: skip
    points = {entry.point: entry for entry in times.entries}
    if len(points) < 2:
        return
    sizes = [
        SizeTime(nodes=nodes, seconds=entry.judgement.value or math.nan, interval=entry.judgement.interval)
        for nodes, entry in sorted(points.items())
    ]
    nodes, rests_on = FURTHEST * max(points), evidence(*points.values())
    told = why_not_projected(sizes, nodes)
    if not told:
        envelope = project(sizes, nodes)
        low, high = (units.show(seconds, units.SECONDS) for seconds in (envelope.low, envelope.high))
        told = f"an estimate, no verdict: the fixed work in {low} to {high}, by {', '.join(envelope.models)}"
    yield _line("multi-node candidate", f"on {nodes} nodes", told, rests_on)


def _told(assessment: Assessment) -> str:
    return f"{_PASSED[assessment.standing]}: {assessment.why}"


def _words(quantity: str) -> str:
    return quantity.replace("_", " ")

"""The decision: does this exact job need several nodes? The rules in their order; the first one that holds decides.

`docs/decision.md` has them as a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from pytest_clusterqual.judge.decision.candidates import FAILED, NOT_YET
from pytest_clusterqual.judge.decision.evidence import LADDER, NAMES, NOTHING, Evidence
from pytest_clusterqual.judge.decision.lines import worksheet_lines
from pytest_clusterqual.judge.decision.situation import Situation, situation
from pytest_clusterqual.judge.decision.symptoms import symptoms
from pytest_clusterqual.model.decision import TITLES, Decision, Line, Outcome, Symptom
from pytest_clusterqual.model.project import DecisionPlan
from pytest_clusterqual.model.record import Judgement, Record, Verdict

_TRAINED = ("memory", "scaling", "full_run")


@dataclass(frozen=True, kw_only=True, slots=True)
class Ruling:
    """An outcome with its reason, and the records that it rests on."""

    outcome: Outcome
    why: str
    rests_on: Evidence
    missing: tuple[str, ...] = ()


def decide(records: Mapping[int, Record], plan: DecisionPlan | None) -> Decision:
    """What the records of a run, each under its line in ``records.jsonl``, say about the need for several nodes.

    Only verdicts and intervals of what was measured lead to an outcome; estimates do not.
    """
    seen = Evidence.of_run(records)
    case = situation(seen, plan or DecisionPlan())
    ruling = next(found for rule in RULES if (found := rule(case)) is not None)
    noticed = symptoms(seen)
    return Decision(
        outcome=ruling.outcome,
        why=ruling.why,
        lines=(*worksheet_lines(case), *_conclusion(case, ruling, noticed)),
        missing=ruling.missing,
        symptoms=noticed,
    )


def judge_decision(decision: Decision, plan: DecisionPlan) -> Judgement:
    """The outcome against the one that the file expects; MEASURED if it expects none."""
    told, verdict = f"{TITLES[decision.outcome]}: {decision.why}", Verdict.MEASURED
    if plan.expect is not None:
        told += f" (expected: {TITLES[plan.expect]}, {plan.source})"
        verdict = Verdict.UNDECIDED if decision.outcome == "undecided" else Verdict.FAIL
        verdict = Verdict.PASS if decision.outcome == plan.expect else verdict
    return Judgement(
        quantity="outcome", label=decision.outcome, value=None, unit="1", interval=None, verdict=verdict, reason=told,
    )  # fmt: skip


# -- the rules -----------------------------------------------------------------------------------


def _cluster_at_fault(s: Situation) -> Ruling | None:
    for name in ("nodes", "fabric"):
        if failed := s.counted(name).with_verdict(*FAILED):
            return _not_qualified(failed)
    # What one layout has no room for may fit another.
    tried = list(s.counted("memory").tests().values())
    if tried and all(test.with_verdict(*FAILED) for test in tried):
        return _not_qualified(s.counted("memory").with_verdict(*FAILED))
    return None


def _nothing_measured(s: Situation) -> Ruling | None:
    if s.seen.about("memory") or s.seen.about("scaling") or s.seen.ladder("fits"):
        return None
    return _undecided("neither Memory nor Training Scaling was measured", "records of them", s.seen)


def _several_jobs(s: Situation) -> Ruling | None:
    """Records of different jobs, or made on different hardware, answer no common question."""
    told = s.seen.having(
        lambda e: e.record.criterion in _TRAINED and not e.record.test.endswith(LADDER)
        and e.record.conditions is not None and e.record.conditions.workload is not None
    )  # fmt: skip
    for field, what in (("workload", "job"), ("device_name", "kind of device"), ("backend", "backend")):
        kinds = told.by(attrgetter(f"record.conditions.{field}"))
        if len(kinds) > 1:
            which = ", ".join(f"{kind} in {_criteria(found)}" for kind, found in kinds.items())
            why = f"what was measured is not one and the same {what}: {which}"
            return _undecided(why, f"all criteria measured with one {what}", told)
    return None


def _replicas(s: Situation) -> Ruling | None:
    if s.plan.goal != "throughput" or s.one_node_does is not True:
        return None
    why = "one node does the job, and more such jobs are wanted: give each a node of its own"
    return Ruling(outcome="replicas", why=why, rests_on=s.fit_from | s.time_from)


def _cluster_open(s: Situation) -> Ruling | None:
    """Without a verdict of Fabric nothing is said of several nodes, nor why they gain too little."""
    for name in ("nodes", "fabric"):
        if late := s.counted(name).with_verdict(*NOT_YET):
            worst = late.worst()
            why = f"{NAMES[name]} has no verdict: {worst.case}: {worst.judgement.reason}"
            return _undecided(why, f"a verdict of {NAMES[name]}", late)
    known = s.seen.about("fabric")
    if known.having(lambda e: e.verdict is Verdict.PASS or e.accepted):
        return None
    why = "nothing is demanded of the fabric" if known else "Fabric was not run"
    return _undecided(f"{why}, so several nodes cannot be judged", "a verdict of Fabric", known or s.fit_from)


def _memory_driven(s: Situation) -> Ruling | None:
    if s.fits_one is not False:
        return None
    rungs = s.seen.ladder("fits").having(lambda e: e.point > 1 and e.judgement.value is not None)
    fit = rungs.having(lambda e: e.judgement.value == 1.0)
    if not rungs:  # the memory of all devices together holds nothing that cannot be cut into it
        why = "the job does not fit inside one node, and whether several hold it was not measured"
        return _undecided(why, "rungs of memory.ladder on several nodes", s.fit_from)
    if not fit:
        most = max(entry.point for entry in rungs.entries)
        return _not_qualified(s.fit_from | rungs, f"Memory: the job fits neither inside one node nor on {most} nodes")
    full_runs = list(s.seen.about("full_run").tests().values())
    if full_runs and all(test.with_verdict(*FAILED) for test in full_runs):
        return _not_qualified(s.seen.about("full_run").with_verdict(*FAILED))
    why = f"no rung inside one node holds the job, and {fit.entries[0].judgement.label} do"
    return Ruling(outcome="memory", why=why, rests_on=s.fit_from | rungs)


def _best_candidate(s: Situation) -> Ruling | None:
    """The layout that came furthest decides; if all of them gain too little, one node is looked at again."""
    if not s.assessed or s.assessed[0].standing == "slower":
        return None
    best = s.assessed[0]
    if best.standing == "open":
        missing = tuple(assessment.why for assessment in s.assessed if assessment.standing == "open")
        return Ruling(outcome="undecided", why=best.why, rests_on=best.rests_on, missing=missing)
    if best.standing in ("fault", "out"):
        return _not_qualified(best.rests_on, f"{_criteria(best.rests_on)}: {best.why}")
    return Ruling(
        outcome="performance" if best.standing == "performance" else "peak-only", why=best.why, rests_on=best.rests_on
    )


def _not_scaled(s: Situation) -> Ruling | None:
    if s.assessed:
        return None
    if s.fits_one:
        return _undecided("Training Scaling was not run", "records of Training Scaling", s.fit_from)
    why = "whether the job fits inside one node was not measured"
    if s.fit_from:
        why += ": that it has no room so far says nothing of a smaller microbatch, recomputation or shards there"
    missing = "all rungs of memory.ladder, or a point of 1 node in scaling.points"
    return _undecided(why, missing, s.fit_from or s.seen.about("memory"))


def _one_node(s: Situation) -> Ruling:
    """All candidates were measured, and none of them gains as asked."""
    short = [assessment for assessment in s.assessed if assessment.standing == "slower"]
    rests_on, best = s.fit_from | s.time_from, short[0].why
    for assessment in short:
        rests_on |= assessment.rests_on
    if s.one_node_does is None:
        why = f"{best}; whether one node does the job in time is not known"
        return _undecided(why, "time_to_train on one node, for certain enough", rests_on)
    if s.one_node_does is False:
        return _not_qualified(rests_on, f"Training Scaling: {best}; one node does not do it in time either")
    why = f"one node does the job, and more do not shorten it as asked: {best}"
    return Ruling(outcome="one-node", why=why, rests_on=rests_on)


RULES: tuple[Callable[[Situation], Ruling | None], ...] = (
    _cluster_at_fault, _nothing_measured, _several_jobs, _replicas, _cluster_open, _memory_driven, _best_candidate,
    _not_scaled, _one_node,
)  # fmt: skip


# -- the last section of the worksheet -----------------------------------------------------------


def _conclusion(s: Situation, ruling: Ruling, seen: Sequence[Symptom]) -> Iterator[Line]:
    def line(label: str, text: str, rests_on: Evidence) -> Line:
        return Line(section="decision", label=label, text=text, records=rests_on.lines)

    yield line("outcome", f"{TITLES[ruling.outcome]}: {ruling.why}", ruling.rests_on)
    from_candidates = {assessment.why: assessment.rests_on for assessment in s.assessed}
    for missing in ruling.missing:
        if missing != ruling.why:  # said already
            yield line("missing", missing, from_candidates.get(missing, ruling.rests_on))
    if s.time_from:
        answer = {True: "meets that", False: "does not meet that", None: "was not seen to meet that"}[s.in_time]
        asked = dict.fromkeys(
            f"{e.judgement.quantity.replace('_', ' ')} {e.judgement.requirement.text}"
            for e in s.time_from.entries if e.judgement.requirement is not None
        )  # fmt: skip
        yield line("time asked", f"{', '.join(asked)}; one node {answer}", s.time_from)
    if ruling.outcome not in ("performance", "memory", "replicas"):
        yield from _check_first(ruling.rests_on, seen)
    if s.plan.expect is not None:
        told = "as expected" if s.plan.expect == ruling.outcome else f"another was expected: {TITLES[s.plan.expect]}"
        yield line("expected", f"{told} ({s.plan.source})", NOTHING)


def _check_first(rests_on: Evidence, seen: Sequence[Symptom]) -> Iterator[Line]:
    """The first suspect of the records that decided; where they accuse nobody, the first symptom seen in them."""
    for entry, finding in rests_on.findings:
        if finding.level == "suspect":
            told = f"{finding.suspect} ({finding.kind}): {finding.check_next}"
            yield Line(section="decision", label="check first", text=told, records=(entry.line,))
            return
    for symptom in seen:
        if set(symptom.records) & set(rests_on.lines):
            yield Line(section="decision", label="check first", text=symptom.check_first, records=symptom.records)
            return


def _criteria(found: Evidence) -> str:
    return " and ".join(dict.fromkeys(NAMES[entry.record.criterion] for entry in found.entries))


def _undecided(why: str, missing: str, rests_on: Evidence) -> Ruling:
    return Ruling(outcome="undecided", why=why, rests_on=rests_on, missing=(missing,))


def _not_qualified(failed: Evidence, why: str = "") -> Ruling:
    worst = failed.worst()
    told = why or f"{NAMES[worst.record.criterion]}: {worst.case}: {worst.judgement.reason}"
    return Ruling(outcome="not-qualified", why=told, rests_on=failed)

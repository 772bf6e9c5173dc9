"""What the decision looks at: does the job fit inside one node, in time, and how far did the layouts come?"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from pytest_clusterqual.judge.decision.candidates import NOT_YET, PACE, Assessment, assess, fastest_on_one
from pytest_clusterqual.judge.decision.evidence import NOTHING, Entry, Evidence, evidence, whole
from pytest_clusterqual.model.project import DecisionPlan
from pytest_clusterqual.model.record import Demand, Verdict

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Situation:
    """`fits_one` and `in_time` are None where no record tells; the Evidence beside them is what tells."""

    seen: Evidence
    plan: DecisionPlan
    assessed: tuple[Assessment, ...]
    fits_one: bool | None
    fit_from: Evidence
    in_time: bool | None
    time_from: Evidence

    @property
    def one_node_does(self) -> bool | None:
        """True if one node does the job, as fast as the file asks of it; None where that is not known."""
        answers = {self.fits_one, self.in_time}
        return False if False in answers else None if None in answers else True

    @property
    def fastest_on_one(self) -> Entry | None:
        return fastest_on_one(self.seen)

    def counted(self, criterion: str) -> Evidence:
        """The records of a criterion but for failures that the file accepts by name, as the gates do."""
        return self.seen.about(criterion).having(lambda e: not e.accepted)


def situation(seen: Evidence, plan: DecisionPlan) -> Situation:
    fits_one, fit_from = _fits_one_node(seen)
    in_time, time_from = _one_node_in_time(seen)
    return Situation(
        seen=seen, plan=plan, assessed=assess(seen), fits_one=fits_one, fit_from=fit_from, in_time=in_time,
        time_from=time_from,
    )  # fmt: skip


def _fits_one_node(seen: Evidence) -> tuple[bool | None, Evidence]:
    """Yes if it was trained there, or a rung inside a node holds it with the headroom that the file requires.

    No only if the last rungs there were tried.
    """
    if trained := fastest_on_one(seen):
        return True, evidence(trained)
    inside = seen.ladder("fits").having(lambda e: e.point < 2 and e.judgement.value is not None)
    first, fit = seen.ladder("first_fit"), inside.having(lambda e: e.judgement.value == 1.0)
    roomy = not first or first.having(lambda e: e.judgement.value == 1.0)
    if fit and roomy:
        return True, evidence(first.first or fit.first)
    tried = {entry.judgement.label for entry in inside.entries}
    return (False if inside and tried >= _last_rungs(inside) else None), inside | first


def _last_rungs(inside: Evidence) -> set[str]:
    """The rungs that use all there is on one device, and all there is on one node."""
    at = inside.first.record.conditions if inside.first else None
    several = at is not None and at.nproc_per_node > 1
    return {"recompute full", "shard, recompute"} if several else {"recompute full"}


def _one_node_in_time(seen: Evidence) -> tuple[bool | None, Evidence]:
    """Whether some layout is as fast on one node as is demanded there, and trains the target as soon as anywhere."""
    scaling = seen.about("scaling")
    targets = scaling.of("time_to_train").having(lambda e: e.judgement.requirement is not None)
    demands = [entry.judgement.requirement for entry in targets.entries if entry.judgement.requirement is not None]
    on_one = scaling.of(*PACE).having(lambda e: e.point == 1)
    asked = on_one.having(lambda e: e.judgement.requirement is not None)
    if not demands and not asked:
        return True, NOTHING
    answers = [_in_time(test, demands) for test in on_one.tests().values()]
    answer = True if True in answers else False if answers and None not in answers else None
    return answer, on_one.of("time_to_train") | targets | asked


def _in_time(test: Evidence, demands: Sequence[Demand]) -> bool | None:
    """Of one layout, by its records on one node."""
    times = [entry.judgement.interval for entry in test.of("time_to_train").entries]
    met = [whole(interval, partial(_meets, demand)) for demand in demands for interval in times or [None]]
    if False in met or test.with_verdict(Verdict.FAIL):
        return False
    return None if None in met or test.with_verdict(Verdict.ERROR, *NOT_YET) else True


def _meets(demand: Demand, value: float) -> bool:
    return _OPERATORS[demand.op](value, demand.value)

"""A figure against the level that the topology gives at most: shares of it, and what lies above it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pytest_clusterqual import units
from pytest_clusterqual.judge.judgement import Case, demand, judge_missing, judge_quantity
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.expected import Algorithm, Expected, as_algbw, expected_busbw, recorded_algorithm
from pytest_clusterqual.model.groups import Groups
from pytest_clusterqual.model.project import FabricPlan
from pytest_clusterqual.model.record import Finding, Interval, Judgement, Verdict
from pytest_clusterqual.model.requirement import Requirement
from pytest_clusterqual.model.topology import Links

ALLOWED = 1.02  # times the bound: clocks and rounded link rates
_NAMES: dict[Algorithm, str] = {"ring": "a ring", "tree": "a tree", "nvls": "NVLS", "sharp": "SHARP"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Level:
    """The most that one quantity can be, and what other algorithms could make of it (B/s)."""

    expected: Expected
    others: dict[Algorithm, float] = field(default_factory=dict)


def level_of(at: Conditions, groups: Groups, plan: FabricPlan, *, found: Links, quantity: str) -> Level:
    """The level of busbw or plateau (the same), or algbw; there is none of a time.

    The algorithm is the one that the run was held to, else the file's. Simulated nodes have no
    links of their own: for them only what the file promises counts.
    """
    if quantity not in ("busbw", "algbw", "plateau"):
        return Level(expected=Expected(value=None, why="links promise a rate, no latency; give an absolute time"))
    collective, used = at.collective or "", recorded_algorithm(at.algorithm, plan.algorithm)
    if at.simulated:
        found = Links()

    def most(algorithm: Algorithm) -> Expected:
        level = expected_busbw(collective, groups, at.rank_nodes, promised=plan.links, found=found, algorithm=algorithm)
        return as_algbw(level, collective, groups) if quantity == "algbw" else level

    others = {algorithm: most(algorithm).value for algorithm in _NAMES if algorithm != used}
    return Level(expected=most(used), others={name: value for name, value in others.items() if value is not None})


def judge_at_level(case: Case, requirement: Requirement | None, level: Level, *, seen: Interval | None) -> Judgement:
    """Judge a case by a requirement, which may be a share of the level; above the level nothing passes.

    `seen` is the interval of what was really moved, without deductions. If all of it lies above the
    level, then the level, the figure or the way it went is not what it is taken for: a question,
    with a finding that names likely answers.
    """
    most = level.expected.value
    judged = _judged(case, requirement, level.expected)
    if most is not None:
        judged = replace(judged, expected=most, expected_why=level.expected.why)
    if most is None or seen is None or not seen.low > ALLOWED * most:
        return judged
    low, bound = units.show(seen.low, case.unit), units.show(most, case.unit)
    causes = _causes(level, seen)
    finding = Finding(
        suspect="the promised links, or what was measured", kind="above the bound",
        evidence=f"{case.quantity}{case.label and f' at {case.label}'} is {low} or more, above the bound {bound} "
        f"({level.expected.why})",
        check_next=causes,
    )  # fmt: skip
    judged = replace(judged, findings=(finding, *judged.findings))
    if judged.verdict is not Verdict.PASS:
        return judged
    return replace(
        judged, verdict=Verdict.UNDECIDED,
        reason=f"{judged.reason}, but at least {low} is more than the topology gives, {bound}: {causes}",
    )  # fmt: skip


def _judged(case: Case, requirement: Requirement | None, expected: Expected) -> Judgement:
    if requirement is None or not requirement.of_expected:
        return judge_quantity(case, requirement)
    if expected.value is not None:
        return judge_quantity(case, requirement.resolved(expected.value), expected_from=expected.why)
    return replace(
        judge_missing(case.quantity, case.label, case.unit, "", requirement),
        value=case.value,
        interval=case.interval,
        samples=case.samples,
        per_rank=case.per_rank,
        findings=case.findings,
        requirement=demand(requirement, expected.why),
        reason=f"{requirement} cannot be judged: {expected.why}",
    )


def _causes(level: Level, seen: Interval) -> str:
    most = level.expected.value or 0.0
    able = {name: value for name, value in level.others.items() if value > most and seen.low <= ALLOWED * value}
    if able:
        reach = " and ".join(f"{_NAMES[name]} up to {units.show(value, units.RATE)}" for name, value in able.items())
        return (
            f"{reach} would explain it; hold the run to one algorithm by NCCL_ALGO (Ring), "
            "or say in fabric.algorithm which one it is"
        )
    return (
        "the link rates of the file (GB/s or Gbit/s? how many NICs?), traffic that never left the node, "
        "or a result that came from a cache"
    )

"""One test held against the same test of a known good run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from pytest_clusterqual import units
from pytest_clusterqual.judge.comparison import unlike
from pytest_clusterqual.model.baseline import Baseline
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.project import Project
from pytest_clusterqual.model.record import Judgement, Verdict
from pytest_clusterqual.model.requirement import QUANTITIES


def demanding(project: Project, conditions: Conditions | None) -> Project:
    """The project with what its baseline demands of the test that is judged beside its own requirements.

    The baseline is that of this one test (`Project.of_test`). It demands nothing under other conditions than its own.
    """
    if project.baseline is None or conditions is None or _differences(project.baseline, conditions):
        return project
    (held,) = project.baseline.tests
    changed = {}
    for criterion in QUANTITIES:
        plan, more = getattr(project, criterion), tuple(each for each in held.require if each.criterion == criterion)
        if plan is not None and more:
            changed[criterion] = replace(plan, require=plan.require + more)
    return replace(project, **changed)


def not_held(
    baseline: Baseline | None, conditions: Conditions | None, judged: Sequence[Judgement]
) -> tuple[Judgement, ...]:
    """What is said of a baseline beside the judgements by it: ERROR if it is of something else, which of its figures
    are not among `judged`.
    """
    if baseline is None or conditions is None:
        return ()
    if differences := _differences(baseline, conditions):
        told = f"not held against the baseline {baseline.run}, which is of something else: {'; '.join(differences)}"
        return (_without_number(Verdict.ERROR, f"{told}; make a baseline of this very job, software and machine"),)
    (held,) = baseline.tests
    missing = Counter((each.quantity, each.text, each.source) for each in held.require)
    missing -= Counter((j.quantity, j.requirement.text, j.requirement.source) for j in judged if j.requirement)
    if not missing:
        return ()
    names = Counter(quantity for quantity, _, _ in missing.elements())
    shown = ", ".join(f"{name} ({count})" if count > 1 else name for name, count in names.items())
    return (_without_number(Verdict.MEASURED, f"figures of the baseline {baseline.run} that are not here: {shown}"),)


def _differences(baseline: Baseline, conditions: Conditions) -> list[str]:
    (held,) = baseline.tests
    return [_told(what, held.conditions, conditions) for what in unlike(held.conditions, conditions)]


def _told(what: str, before: Conditions, after: Conditions) -> str:
    """A fingerprint alone helps nobody: what has changed in the software, which is a part of it, is told."""
    told = f"{what} was {_shown(getattr(before, what))}, is {_shown(getattr(after, what))}"
    if what != "workload":
        return told
    names = sorted(before.versions.keys() | after.versions.keys())
    versions = [(name, before.versions.get(name), after.versions.get(name)) for name in names]
    changed = [f"{name} was {_shown(old)}, is {_shown(new)}" for name, old, new in versions if old != new]
    return f"{told} ({', '.join(changed) or 'the software is the same: the job, its data or its script is not'})"


def _shown(value: object) -> object:
    return "none" if value is None else value


def _without_number(verdict: Verdict, reason: str) -> Judgement:
    return Judgement(
        quantity="baseline", label="", value=None, unit=units.RATIO, interval=None, verdict=verdict, reason=reason
    )

"""Which criteria must have passed before another one means anything."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from pytest_clusterqual.model.record import GOOD, SEVERITY, Verdict

KEEP_GOING = "--qual-keep-going"


class Outcome(NamedTuple):
    """How one test ended: its id, its criterion, its parameters and its verdict."""

    test: str
    criterion: str
    params: Mapping[str, object]
    verdict: Verdict


def gate(criterion_needs: Iterable[str], outcomes: Sequence[Outcome], params: Mapping[str, object]) -> str | None:
    """Say why a test with `params` must not run yet, or None if nothing stands in its way.

    A needed criterion is fulfilled by at least one PASS and nothing worse, among its tests that
    are about the same layout or about none in particular.
    """
    for criterion in criterion_needs:
        relevant = [o for o in outcomes if o.criterion == criterion and _same_layout(o.params, params)]
        if obstacle := _obstacle(criterion, relevant):
            return obstacle
    return None


def not_run(
    criterion_needs: Sequence[str],
    known: Collection[tuple[str, Mapping[str, object]]],
    params: Mapping[str, object],
) -> tuple[str, ...]:
    """The needed criteria that nobody asked for: of none of their tests is anything `known`.

    `known` has criterion and parameters of each test that was selected or has ended. Such a gate did not fail; it is
    said of whoever goes through it that it was not run.
    """
    return tuple(
        needed for needed in criterion_needs
        if not any(criterion == needed and _same_layout(of_test, params) for criterion, of_test in known)
    )  # fmt: skip


def _same_layout(one: Mapping[str, object], other: Mapping[str, object]) -> bool:
    return "layout" not in one or "layout" not in other or one["layout"] == other["layout"]


def _obstacle(criterion: str, relevant: Sequence[Outcome]) -> str | None:
    if not relevant:
        return f"{criterion} was asked for and has no record: see why it was skipped, or use {KEEP_GOING}"
    culprits = [o for o in relevant if o.verdict not in GOOD]
    if culprits:
        culprit = max(culprits, key=lambda o: SEVERITY.index(o.verdict))
        more = f", and {len(culprits) - 1} more" if len(culprits) > 1 else ""
        return f"{criterion} did not pass: {culprit.test.rsplit('::', 1)[-1]} is {culprit.verdict}{more}"
    if all(o.verdict is Verdict.MEASURED for o in relevant):
        return f"{criterion} reached no verdict: no requirement in the project file"
    return None

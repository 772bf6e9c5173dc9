"""Requirements as the project file makes them, and a short look at judgements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pytest_clusterqual.model.project import FabricPlan
from pytest_clusterqual.model.record import Judgement, Verdict
from pytest_clusterqual.model.requirement import QUANTITIES, Requirement, parse_bound
from pytest_clusterqual.model.topology import Links


def require(criterion: str, quantity: str, text: str, **selectors: Any) -> Requirement:
    op, value, of_expected = parse_bound(text, criterion, quantity)
    return Requirement(
        criterion=criterion,
        quantity=quantity,
        op=op,
        value=value,
        unit=QUANTITIES[criterion][quantity],
        text=text,
        source="clusterqual.yaml:7",
        of_expected=of_expected,
        **selectors,
    )


def fabric_plan(required: Sequence[Requirement] = (), links: Links | None = None, **more: Any) -> FabricPlan:
    return FabricPlan(require=tuple(required), links=links or Links(), **more)


def the(judgements: Iterable[Judgement], quantity: str, label: str = "") -> Judgement:
    """The only judgement of a quantity."""
    (found,) = [j for j in judgements if j.quantity == quantity and j.label == label]
    return found


def verdicts(judgements: Iterable[Judgement]) -> dict[tuple[str, str], Verdict]:
    return {(j.quantity, j.label): j.verdict for j in judgements}

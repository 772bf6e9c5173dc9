"""A run that is known to be good, turned into requirements: nothing may be worse than it was, beyond a tolerance."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace

from pytest_clusterqual import units
from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.model.baseline import Baseline, BaselineTest
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.record import GOOD, Record, by_test
from pytest_clusterqual.model.requirement import QUANTITIES, Op, Requirement, small_is_good

_SIZES = 0.005  # labels tell a message size with three digits
_SAME = 1e-6  # of a bound: what is lost by writing it down
_NOTHING = "{} is no baseline: it has no figure that could be required"


@dataclass(frozen=True, kw_only=True, slots=True)
class Selector:
    """The cases that a requirement is about, as `Requirement` names them; None selects nothing."""

    layout: str | None = None
    nodes: int | None = None
    collective: str | None = None
    group: str | None = None
    from_bytes: float | None = None
    to_bytes: float | None = None

    def given(self) -> dict[str, object]:
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}


def baseline_of(records: Sequence[Record], *, tolerance: float, run: str) -> Baseline:
    """What `run` demands of a later one: no figure of a test worse than it was, by more than `tolerance` (a share).

    Raises:
        MeasurementError: see `baseline_requirements`.
    """
    _check(records, run)
    measured = (record for record in records if record.conditions is not None and record.measurement is not None)
    tests = [
        BaselineTest(test=test, conditions=_lasting(those[0].conditions), require=required)
        for test, those in by_test(measured).items()
        if (required := tuple(_demands(those, tolerance, run)))
    ]
    if not tests:
        raise MeasurementError(_NOTHING.format(run))
    return Baseline(run=run, tolerance=tolerance, tests=tuple(tests))


def baseline_requirements(records: Sequence[Record], *, tolerance: float, run: str) -> list[Requirement]:
    """One requirement a figure that could be required, `tolerance` (a share) worse than its value in `run`.

    Where several tests give the same figure, such as full runs that save in other ways, the loosest holds for all. A
    figure of zero has no share that it could be worse by, and is left out.

    Raises:
        MeasurementError: the run has a test that did not pass, or no figure at all: it is no baseline.
    """
    _check(records, run)
    if not (required := _demands(records, tolerance, run)):
        raise MeasurementError(_NOTHING.format(run))
    return required


def _lasting(conditions: Conditions | None) -> Conditions:
    """What must be the same, and the versions; not what a thousand nodes said of themselves."""
    assert conditions is not None
    return replace(conditions, hosts=(), rank_nodes=(), load=None, telemetry=())


def _check(records: Sequence[Record], run: str) -> None:
    bad = [record for record in records if record.judgement.verdict not in GOOD and record.criterion != "decision"]
    if bad:
        first = bad[0]
        raise MeasurementError(
            f"{run} is no baseline: {first.test} ended {first.judgement.verdict}: {first.judgement.reason}"
        )


def _demands(records: Iterable[Record], tolerance: float, run: str) -> list[Requirement]:
    """The loosest requirement for each figure of the records."""
    loosest: dict[tuple[str, str, Selector], Requirement] = {}
    for record in records:
        judgement = record.judgement
        unit = QUANTITIES.get(record.criterion, {}).get(judgement.quantity)
        if unit is None or judgement.value is None or not 0 < judgement.value < math.inf:
            continue
        key = (record.criterion, judgement.quantity, _selector(record))
        found = _requirement(key, judgement.value, unit, tolerance, run)
        known = loosest.get(key)
        if known is None or known.met_by(found.value) is False:
            loosest[key] = found
    return list(loosest.values())


def _requirement(key: tuple[str, str, Selector], value: float, unit: str, tolerance: float, run: str) -> Requirement:
    criterion, quantity, selector = key
    small = small_is_good(quantity, unit)
    op: Op = "<=" if small else ">="
    # Of a share of time, such as a wait of 1 %, the tolerance is in points: a twentieth of it is less than chance.
    reach = tolerance * (max(value, 1.0) if small and unit == units.RATIO else value)
    bound = value + reach if small else value - reach
    shown = units.show(bound, unit)
    rounded = units.parse(shown, unit) / bound
    if rounded < 1 - _SAME if small else rounded > 1 + _SAME:  # to what is stricter
        shown = _loosened(bound, unit, up=small)
    return Requirement(
        criterion=criterion, quantity=quantity, op=op, value=units.parse(shown, unit), unit=unit, text=f"{op} {shown}",
        source=f"baseline {run}: {units.show(value, unit)}", **selector.given(),  # type: ignore[arg-type]
    )  # fmt: skip


def _loosened(bound: float, unit: str, *, up: bool) -> str:
    """With four digits, rounded to what is less strict by a thousandth at most."""
    _, blank, name = units.show(bound, unit).partition(" ")
    value = bound / units.parse(f"1{blank}{name}", unit)
    step = 10.0 ** (math.floor(math.log10(abs(value))) - 3)
    count = value / step
    whole = math.ceil(count - _SAME) if up else math.floor(count + _SAME)
    return f"{whole * step:.9g}{blank}{name}"


def _selector(record: Record) -> Selector:
    conditions, label = record.conditions, record.judgement.label
    if conditions is None or record.criterion == "full_run":
        return Selector()
    if record.criterion == "memory":
        return Selector(layout=conditions.layout)
    if record.criterion == "scaling":
        return Selector(layout=conditions.layout, nodes=_nodes(label) or conditions.nodes)
    size = _size(label)
    return Selector(
        collective=conditions.collective, group=conditions.group,
        from_bytes=None if size is None else float(int(size * (1 - _SIZES))),
        to_bytes=None if size is None else float(int(size * (1 + _SIZES)) + 1),
    )  # fmt: skip


def _nodes(label: str) -> int | None:
    """Of a label such as ``2 nodes``."""
    number, _, what = label.partition(" ")
    return int(number) if number.isdecimal() and what in ("node", "nodes") else None


def _size(label: str) -> float | None:
    """Of a label such as ``4 MiB``."""
    try:
        return units.parse(label, units.BYTES)
    except ValueError:
        return None

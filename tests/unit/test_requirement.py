"""Requirements: how a bound is read, which numbers meet it, and which cases it is about."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_clusterqual import units
from pytest_clusterqual.model.measurement import CRITERIA
from pytest_clusterqual.model.requirement import QUANTITIES, Op, Requirement, parse_bound

BUSBW = Requirement(
    criterion="fabric", quantity="busbw", op=">=", value=0.8, unit="B/s", text=">= 80 % of expected",
    source="clusterqual.yaml:27", of_expected=True, collective="all_reduce", group="world", from_bytes=1024.0,
    to_bytes=4096.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "criterion", "quantity", "expected"),
    [
        ("<= 2 GiB", "memory", "peak", ("<=", 2.0 * 2**30, False)),
        (">=10%", "memory", "headroom", (">=", 0.1, False)),
        (" < 100 us ", "fabric", "latency", ("<", 1e-4, False)),
        ("> 300 GB/s", "fabric", "busbw", (">", 3e11, False)),
        (">= 80 % of expected", "fabric", "busbw", (">=", 0.8, True)),
        (">= 0.8 of  expected", "fabric", "algbw", (">=", 0.8, True)),
        (">= 1.3", "scaling", "speedup", (">=", 1.3, False)),
        (">= 5e4 tokens/s", "full_run", "throughput", (">=", 5e4, False)),
    ],
)
def test_a_bound_is_read(text: str, criterion: str, quantity: str, expected: tuple[Op, float, bool]) -> None:
    op, value, of_expected = parse_bound(text, criterion, quantity)
    assert (op, pytest.approx(value), of_expected) == expected


FORM = 'want "<op> <number> <unit>" with <=, >=, < or > and'


@pytest.mark.parametrize(
    ("text", "criterion", "quantity", "message"),
    [
        ("2 GiB", "memory", "peak", f"got '2 GiB', {FORM} a size such as 64 MiB"),
        ("== 2 GiB", "memory", "peak", f"got '== 2 GiB', {FORM} a size such as 64 MiB"),
        ("<", "memory", "peak", f"got '<', {FORM} a size such as 64 MiB"),
        (3, "scaling", "speedup", f"got 3, {FORM} a share or ratio such as 80 % or 0.8"),
        (None, "fabric", "busbw", f"got None, {FORM} a rate such as 300 GB/s"),
        ("<= 2", "memory", "peak", "got '2', want a size such as 64 MiB (the unit is missing)"),
        ("=> 2 GiB", "memory", "peak", f"got '=> 2 GiB', {FORM} a size such as 64 MiB"),
        (">= 300GB", "fabric", "busbw", "got '300GB', want a rate such as 300 GB/s"),
        (">= 300 GB/s of expected", "fabric", "busbw", "got '300 GB/s', want a share or ratio such as 80 % or 0.8"),
        (">= 80 % of expected", "scaling", "efficiency", "got '>= 80 % of expected': only fabric quantities have an "
         "expected level; want a share or ratio such as 80 % or 0.8"),
        (">= of expected", "fabric", "busbw", "got 'of expected', want a rate such as 300 GB/s"),
    ],
)  # fmt: skip
def test_what_is_no_bound_is_refused(text: object, criterion: str, quantity: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"^got") as caught:
        parse_bound(text, criterion, quantity)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("op", "below", "equal", "above", "upper"),
    [("<=", True, True, False, True), ("<", True, False, False, True),
     (">=", False, True, True, False), (">", False, False, True, False)],
)  # fmt: skip
def test_each_operator_draws_its_line(op: Op, below: bool, equal: bool, above: bool, upper: bool) -> None:
    demand = replace(BUSBW, op=op, value=2.0)
    assert [demand.met_by(value) for value in (1.0, 2.0, 3.0)] == [below, equal, above]
    assert demand.upper_bound is upper
    assert not demand.met_by(float("nan"))


@given(value=st.floats(allow_nan=False), bound=st.floats(allow_nan=False, allow_infinity=False))
def test_opposite_operators_never_agree(value: float, bound: float) -> None:
    met = {op: replace(BUSBW, op=op, value=bound).met_by(value) for op in ("<=", ">", "<", ">=")}
    assert met["<="] is not met[">"]
    assert met["<"] is not met[">="]


def test_a_share_of_the_expected_level_becomes_absolute_once() -> None:
    absolute = BUSBW.resolved(4e11)
    assert (absolute.value, absolute.unit, absolute.of_expected) == (3.2e11, units.RATE, False)
    assert absolute.resolved(2.0) == absolute
    assert absolute.text == BUSBW.text


@pytest.mark.parametrize(
    ("changes", "applies"),
    [
        ({}, True),
        ({"collective": "all_gather"}, False),
        ({"group": "intra_node"}, False),
        ({"size": 1024}, True),
        ({"size": 1023}, False),
        ({"size": 4096}, True),
        ({"size": 4097}, False),
        ({"size": None}, False),
        ({"nodes": 7}, True),
    ],
)
def test_selectors_choose_the_cases(changes: dict[str, object], applies: bool) -> None:
    case: dict[str, object] = {"nodes": 2, "collective": "all_reduce", "group": "world", "size": 2048}
    assert BUSBW.applies(**{**case, **changes}) is applies  # type: ignore[arg-type]


def test_a_requirement_without_selectors_is_about_every_case() -> None:
    goodput = Requirement(
        criterion="full_run", quantity="goodput", op=">=", value=0.4, unit="1", text=">= 40 %", source="q.yaml:1"
    )
    assert goodput.applies(nodes=1)
    assert goodput.applies(nodes=8, layout="fsdp")
    assert replace(goodput, nodes=2).applies(nodes=2)
    assert not replace(goodput, nodes=2).applies(nodes=1)
    assert not replace(goodput, layout="ddp").applies(nodes=2, layout="fsdp")
    assert str(goodput) == "goodput >= 40 %"


def test_every_criterion_has_quantities_in_units_that_can_be_read() -> None:
    # Nodes are held against the section topology, the decision against an outcome.
    assert ("nodes", *QUANTITIES, "decision") == CRITERIA
    for criterion, quantities in QUANTITIES.items():
        for quantity, unit in quantities.items():
            example = units.example(unit).split("such as ")[1].split(" or ")[0]
            assert parse_bound(f"> {example}", criterion, quantity) == (">", units.parse(example, unit), False)

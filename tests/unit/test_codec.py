"""Dataclasses to JSON and back: nothing lost, nothing guessed, and the place of every fault named."""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import pytest
from full_run_made import quiet
from hypothesis import given
from hypothesis import strategies as st

from pytest_clusterqual.model.codec import from_json, to_json
from pytest_clusterqual.model.conditions import Conditions, Load
from pytest_clusterqual.model.fabric import CollectiveTiming, FabricMeasurement, RankFabric
from pytest_clusterqual.model.full_run import Checkpoints, Failure, FullRun, FullRunMeasurement, RankRun
from pytest_clusterqual.model.probe import Line, ProbedProcess, ProbeStart
from pytest_clusterqual.model.record import Demand, Finding, Interval, Judgement, Record, Verdict, worst


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, kw_only=True, slots=True)
class Inner:
    size: int
    kind: Literal["a", "b"] = "a"


@dataclass(frozen=True, kw_only=True, slots=True)
class Outer:
    inner: Inner
    colour: Colour
    many: tuple[Inner, ...] = ()
    nested: tuple[tuple[float, ...], ...] = ()
    maybe: str | None = None
    flag: bool = False
    share: float = 0.0
    named: dict[str, float] = field(default_factory=dict)
    mapped: Mapping[str, Inner] = field(default_factory=dict)
    anything: Any = None


WHOLE = Outer(
    inner=Inner(size=3, kind="b"), colour=Colour.BLUE, many=(Inner(size=1), Inner(size=2)), nested=((1.0, 2.5), ()),
    maybe="x", flag=True, share=math.inf, named={"0": 1.5}, mapped={"k": Inner(size=4)}, anything=[1, {"a": None}],
)  # fmt: skip
PLAIN = {
    "inner": {"size": 3, "kind": "b"}, "colour": "blue",
    "many": [{"size": 1, "kind": "a"}, {"size": 2, "kind": "a"}], "nested": [[1.0, 2.5], []], "maybe": "x",
    "flag": True, "share": "inf", "named": {"0": 1.5}, "mapped": {"k": {"size": 4, "kind": "a"}},
    "anything": [1, {"a": None}],
}  # fmt: skip


def test_a_dataclass_becomes_plain_json_and_comes_back() -> None:
    assert to_json(WHOLE) == PLAIN
    assert from_json(Outer, json.loads(json.dumps(PLAIN, allow_nan=False))) == WHOLE


def test_what_has_a_default_may_be_left_out() -> None:
    assert from_json(Outer, {"inner": {"size": 1}, "colour": "red"}) == Outer(inner=Inner(size=1), colour=Colour.RED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Small:
    JSON_SPARSE: ClassVar[bool] = True

    size: int
    kind: Literal["a", "b"] = "a"
    share: float | None = None
    many: tuple[float, ...] = ()


def test_a_class_of_which_there_are_many_says_what_is_not_as_usual_only() -> None:
    assert to_json((Small(size=0), Small(size=1, kind="b", share=0.0, many=(1.0,)))) == [
        {"size": 0}, {"size": 1, "kind": "b", "share": 0.0, "many": [1.0]},
    ]  # fmt: skip
    assert from_json(Small, {"size": 0}) == Small(size=0)
    with pytest.raises(ValueError, match=r"^value: the field 'size' is missing$"):
        from_json(Small, {})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_lacks_survive(value: float) -> None:
    text = json.dumps(to_json({"x": value}), allow_nan=False)
    back = from_json(dict[str, float], json.loads(text))["x"]
    assert back == value or (math.isnan(back) and math.isnan(value))


def test_a_whole_number_is_read_as_a_float_where_one_is_wanted() -> None:
    value = from_json(dict[str, float], {"x": 2})["x"]
    assert (value, type(value)) == (2.0, float)


def changed(**changes: Any) -> dict[str, Any]:
    return {**PLAIN, **changes}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (changed(extra=1), "value: got unknown field 'extra', want inner, colour, many, nested, maybe, flag, share, "
         "named, mapped, anything"),
        ({"colour": "red"}, "value: the field 'inner' is missing"),
        ([], "value: got [], want Outer"),
        (None, "value: got None, want Outer"),
        (changed(inner={"size": 1.0}), "value.inner.size: got 1.0, want int"),
        (changed(inner={"size": True}), "value.inner.size: got True, want int"),
        (changed(inner={"size": "1"}), "value.inner.size: got '1', want int"),
        (changed(inner={"size": None}), "value.inner.size: got None, want int"),
        (changed(inner={"size": 1, "kind": "c"}), "value.inner.kind: got 'c', want Literal"),
        (changed(colour="green"), "value.colour: got 'green', want Colour"),
        (changed(many={"size": 1}), "value.many: got {'size': 1}, want tuple"),
        (changed(many=[{"size": 1}, {}]), "value.many[1]: the field 'size' is missing"),
        (changed(nested=[[1.0], ["1"]]), "value.nested[1][0]: got '1', want float"),
        (changed(maybe=3), "value.maybe: got 3, want str"),
        (changed(flag=1), "value.flag: got 1, want bool"),
        (changed(share="NaN"), "value.share: got 'NaN', want float"),
        (changed(share=True), "value.share: got True, want float"),
        (changed(named=[]), "value.named: got [], want dict"),
        (changed(named={"0": None}), "value.named.0: got None, want float"),
        (changed(mapped={"k": 1}), "value.mapped.k: got 1, want Inner"),
        ("x" * 200, f"value: got '{'x' * 76}..., want Outer"),
    ],
)  # fmt: skip
def test_a_fault_is_named_with_its_place(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=r"^value") as caught:
        from_json(Outer, value)
    assert str(caught.value) == message


def test_the_place_can_be_named_by_the_caller() -> None:
    with pytest.raises(ValueError, match=r"^rank 3: the field 'size' is missing$"):
        from_json(Inner, {}, where="rank 3")


@pytest.mark.parametrize("value", [{1, 2}, b"x", object(), Inner])
def test_what_has_no_json_form_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="has no JSON form"):
        to_json({"deep": [value]})


FLOATS = st.floats(allow_nan=False)
NAMES = st.text(max_size=5)
CONDITIONS = st.builds(
    Conditions, hosts=st.lists(NAMES, max_size=2).map(tuple), bytes=st.none() | st.integers(), layout=st.none() | NAMES,
    versions=st.dictionaries(NAMES, NAMES, max_size=2), load=st.none() | st.builds(Load, other_cpu=FLOATS, node=NAMES),
)  # fmt: skip
TIMINGS = st.builds(CollectiveTiming, seconds=st.lists(FLOATS, max_size=3).map(tuple))
RANK_FABRICS = st.builds(RankFabric, timings=st.lists(TIMINGS, max_size=2).map(tuple))
ROUNDS = st.lists(st.lists(RANK_FABRICS, max_size=2).map(tuple), max_size=2).map(tuple)
FABRICS = st.builds(FabricMeasurement, conditions=CONDITIONS, rounds=ROUNDS, started=FLOATS, seconds=FLOATS)
LINES = st.builds(
    Line, at=FLOATS, seconds=FLOATS, own=st.none() | FLOATS, tokens=st.none() | st.integers(), name=NAMES,
    nested=st.booleans(), value=st.none() | FLOATS,
)  # fmt: skip
STARTS = st.builds(ProbeStart, began=FLOATS, at=FLOATS, wall=FLOATS)
PROCESSES = st.builds(ProbedProcess, start=STARTS, lines=st.lists(LINES, max_size=3).map(tuple))
RANK_RUNS = st.builds(RankRun, began=FLOATS, ended=FLOATS, processes=st.lists(PROCESSES, max_size=2).map(tuple))
RUNS = st.builds(
    FullRun, conditions=CONDITIONS, ranks=st.lists(RANK_RUNS, max_size=2).map(tuple),
    checkpoints=st.builds(Checkpoints, folder=st.none() | NAMES), failure=st.none() | st.builds(Failure),
)  # fmt: skip
FULL_RUNS = st.builds(
    FullRunMeasurement, conditions=CONDITIONS, run=RUNS, started=FLOATS, seconds=FLOATS, alone=st.none() | RUNS,
    apart=st.just(()),
)  # fmt: skip
INTERVALS = st.builds(Interval, low=FLOATS, high=FLOATS, level=st.none() | FLOATS)
JUDGEMENTS = st.builds(
    Judgement, value=st.none() | FLOATS, interval=st.none() | INTERVALS, margin=st.none() | FLOATS,
    requirement=st.none() | st.builds(Demand, value=FLOATS), samples=st.lists(FLOATS, max_size=3).map(tuple),
    per_rank=st.dictionaries(NAMES, FLOATS, max_size=2), findings=st.lists(st.builds(Finding), max_size=2).map(tuple),
)  # fmt: skip
RECORDS = st.builds(Record, judgement=JUDGEMENTS, conditions=st.none() | CONDITIONS, started=FLOATS, seconds=FLOATS)


@given(value=FABRICS | FULL_RUNS | RECORDS)
def test_what_is_measured_and_judged_survives_a_year_on_disk(
    value: FabricMeasurement | FullRunMeasurement | Record,
) -> None:
    text = json.dumps(to_json(value), allow_nan=False)
    assert from_json(type(value), json.loads(text)) == value


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(sorted(PLAIN)) | st.text(max_size=4), inner, max_size=4)
    ),
)


@given(key=st.sampled_from(sorted(PLAIN)), value=JSON)
def test_no_json_raises_anything_but_a_value_error(key: str, value: Any) -> None:
    try:
        back = to_json(from_json(Outer, changed(**{key: value})))
    except ValueError:
        return
    assert set(back) == set(PLAIN)


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        ([], Verdict.ERROR),
        ([Verdict.PASS], Verdict.PASS),
        ([Verdict.PASS, Verdict.MEASURED], Verdict.PASS),
        ([Verdict.MEASURED], Verdict.MEASURED),
        ([Verdict.PASS, Verdict.BLOCKED], Verdict.BLOCKED),
        ([Verdict.UNDECIDED, Verdict.PASS, Verdict.BLOCKED], Verdict.UNDECIDED),
        ([Verdict.FAIL, Verdict.UNDECIDED], Verdict.FAIL),
        ([Verdict.ERROR, Verdict.FAIL], Verdict.ERROR),
    ],
)
def test_a_whole_is_as_good_as_its_worst_part(parts: list[Verdict], whole: Verdict) -> None:
    assert worst(parts) is whole
    assert worst(tuple(reversed(parts))) is whole


def test_a_long_full_run_is_no_large_record() -> None:
    """5,000 steps on 16 ranks are 80,000 of these, and far from hundreds of MB."""
    rank = quiet(0, 500, at=123456.789012, data=0.000123, step=0.123457)
    size = len(json.dumps(to_json(rank))) / 500
    assert 150 < size < 250
    assert from_json(type(rank), json.loads(json.dumps(to_json(rank)))) == rank


@pytest.mark.parametrize(("figures", "expected"), [
    ({"0": 1.5, "1": 2}, {"0": 1.5, "1": 2.0}),
    ({"0": 1.5, "1": "nan"}, {"0": 1.5, "1": pytest.approx(math.nan, nan_ok=True)}),
    ({}, {}),
])  # fmt: skip
def test_figures_of_several_kinds_become_floats(figures: dict[str, Any], expected: dict[str, Any]) -> None:
    read = from_json(Outer, {**PLAIN, "named": figures}).named
    assert read == expected
    assert {type(value) for value in read.values()} <= {float}


@pytest.mark.parametrize(("key", "wrong", "where"), [
    ("named", {"0": 1.5, "1": True}, "value.named.1: got True, want float"),
    ("named", {"0": 1.5, "1": "2"}, "value.named.1: got '2', want float"),
    ("nested", [[1.0, True]], r"value.nested\[0\]\[1\]: got True, want float"),
])  # fmt: skip
def test_one_wrong_figure_among_many_is_named(key: str, wrong: Any, where: str) -> None:
    with pytest.raises(ValueError, match=where):
        from_json(Outer, {**PLAIN, key: wrong})


def test_equal_names_of_many_figures_are_the_same_strings() -> None:
    one, two = (from_json(dict[str, float], json.loads('{"rank seventeen": 1.5}')) for _ in range(2))
    assert next(iter(one)) is next(iter(two))

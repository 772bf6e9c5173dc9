"""The regular expressions that see lines of a log: no line, however hostile, can be tried in very many ways."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

_parser: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
MODULES = ("log_lines", "log_families", "log_bars", "log_facts", "log_pattern")
ALL = frozenset(map(chr, range(128)))
WIDE = 100  # a repeat up to so many characters is short
REPEATS = ("MAX_REPEAT", "MIN_REPEAT")


@dataclass
class Ends:
    """Whether a part may be empty, and the characters of the wide repeats that it may begin and end with."""

    empty: bool
    first: list[frozenset[str]]
    last: list[frozenset[str]]
    faults: int = 0


def characters(pattern: Any) -> frozenset[str] | None:
    """What a part of one character may be; None if it is none such."""
    items = [(str(op), value) for op, value in pattern if str(op) not in ("ASSERT", "ASSERT_NOT", "AT")]
    if len(items) != 1:
        return None
    op, value = items[0]
    if op == "ANY":
        return ALL
    if op in ("LITERAL", "NOT_LITERAL"):
        return frozenset({chr(value)}) if op == "LITERAL" else ALL - {chr(value)}
    if op == "IN":
        return frozenset(char for char in ALL if re.fullmatch(_source(value), char))
    return None


def _source(items: Any) -> str:
    """A set of characters as it is written."""
    text = ""
    for op, value in items:
        text += {
            "NEGATE": lambda value: "^", "LITERAL": lambda value: re.escape(chr(value)),
            "RANGE": lambda value: f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}",
            "CATEGORY": lambda value: {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}[str(value).rpartition("_")[2]],
        }[str(op)](value)  # fmt: skip
    return f"[{text}]"


def ends_of(pattern: Any) -> Ends:
    """Of parts in a row: a fault is where a wide repeat may follow another that takes the same characters."""
    whole = Ends(True, [], [])
    for part in map(_part, pattern):
        whole.faults += part.faults + sum(bool(one & other) for one in whole.last for other in part.first)
        whole.first += part.first if whole.empty else []
        whole.last = part.last + (whole.last if part.empty else [])
        whole.empty &= part.empty
    return whole


def _part(item: tuple[Any, Any]) -> Ends:
    op, value = str(item[0]), item[1]
    if op in REPEATS:
        least, most, inside = value
        if most <= WIDE:
            body = ends_of(inside)
            return Ends(body.empty or not least, body.first, body.last, body.faults)
        if (taken := characters(inside)) is not None:
            return Ends(not least, [taken], [taken])
        body = ends_of(inside)
        again = body.empty or any(one & other for one in body.last for other in body.first)
        return Ends(body.empty or not least, body.first, body.last, body.faults + again)
    if op == "SUBPATTERN":
        return ends_of(value[-1])
    if op == "BRANCH":
        each = [ends_of(branch) for branch in value[1]]
        return Ends(
            any(e.empty for e in each), [f for e in each for f in e.first], [f for e in each for f in e.last],
            sum(e.faults for e in each),
        )  # fmt: skip
    return Ends(op in ("ASSERT", "ASSERT_NOT", "AT"), [], [])


def patterns(value: object) -> Iterator[re.Pattern[str]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, dict):
        yield from patterns(tuple(value.values()))
    elif isinstance(value, tuple):
        for each in value:
            yield from patterns(each)
    elif hasattr(value, "begins") and not isinstance(value, type):
        yield from patterns((value.begins, value.whole))


@pytest.mark.parametrize("module", MODULES)
def test_no_wide_repeat_follows_one_that_takes_the_same(module: str) -> None:
    loaded = importlib.import_module(f"pytest_clusterqual.read.{module}")
    found = [each for value in vars(loaded).values() for each in patterns(value)]
    assert found, "a module without an expression is none to look at"
    assert [each.pattern for each in found if ends_of(_parser.parse(each.pattern, each.flags)).faults] == []


@pytest.mark.parametrize(
    ("pattern", "faults"),
    [
        (r"a*a*", 1), (r"[^|]*:?[ :]*x", 1), (r"\d[\d,]*\.?\d*", 1), (r"(?:a+)+", 1), (r"(?:a?)*", 1),
        (r"(\s+|b) *c", 1), (r"<[\d:?]+(?P<rest>[^\]]*)\]", 1),
        (r"a*b*", 0), (r"a*xa*", 0), (r"(?:,\d{3})*", 0), (r"(?:(?!x).)*?x *", 0), (r"a{0,9}a*", 0),
    ],
)  # fmt: skip
def test_what_is_a_fault(pattern: str, faults: int) -> None:
    assert ends_of(_parser.parse(pattern)).faults == faults

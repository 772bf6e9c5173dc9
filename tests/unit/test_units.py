"""Quantities with units: what is read, what is refused, and that printing and reading agree."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_clusterqual import units

WISHES = {
    units.BYTES: "a size such as 64 MiB",
    units.SECONDS: "a time such as 20 s",
    units.RATE: "a rate such as 300 GB/s",
    units.TOKEN_RATE: "a token rate such as 5e4 tokens/s",
    units.FLOP_RATE: "a rate such as 989 TFLOP/s",
    units.RATIO: "a share or ratio such as 80 % or 0.8",
}


@pytest.mark.parametrize(
    ("number", "nouns", "shown"),
    [
        (0, ("node",), "0 nodes"),
        (1, ("node",), "1 node"),
        (2, ("node",), "2 nodes"),
        (1, ("batch", "batches"), "1 batch"),
        (1_234_567, ("batch", "batches"), "1234567 batches"),
    ],
)
def test_a_count_of_things(number: int, nouns: tuple[str, ...], shown: str) -> None:
    assert units.show_count(number, *nouns) == shown


@pytest.mark.parametrize(
    ("count", "shown"), [(0, ""), (1, "0"), (2, "0, 1"), (3, "0, 1 and 1 more"), (9, "0, 1 and 7 more")]
)
def test_the_first_of_many_names(count: int, shown: str) -> None:
    assert units.show_some(range(count), 2) == shown


@pytest.mark.parametrize(
    ("value", "low", "high", "shown"),
    [
        ("410 MB/s", "390 MB/s", "430 MB/s", "[390, 430]"),
        ("410 MB/s", "390 MB/s", "1.1 GB/s", "[390 MB/s, 1.1 GB/s]"),
        ("1 GB/s", "990 MB/s", "999 MB/s", "[990 MB/s, 999 MB/s]"),
        ("1.9", "1.8", "2", "[1.8, 2]"),
        ("3 odd of 8 nodes", "2 odd of 8 nodes", "4 odd of 8 nodes", "[2, 4]"),
    ],
)
def test_an_interval_has_its_unit_once_where_it_is_that_of_the_value(
    value: str, low: str, high: str, shown: str
) -> None:
    assert units.show_interval(value, low, high) == shown


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("64 MiB", units.BYTES, 64 * 1024**2),
        ("64MiB", units.BYTES, 64 * 1024**2),
        (" 4  KiB ", units.BYTES, 4096),
        ("1 kB", units.BYTES, 1000),
        ("2 TiB", units.BYTES, 2 * 1024**4),
        ("8 bit", units.BYTES, 1),
        ("1.5e3 B", units.BYTES, 1500),
        ("40 h", units.SECONDS, 144_000),
        ("2 min", units.SECONDS, 120),
        ("1 d", units.SECONDS, 86_400),
        ("100 us", units.SECONDS, 1e-4),
        ("100 µs", units.SECONDS, 1e-4),
        ("100 μs", units.SECONDS, 1e-4),
        (".5 ms", units.SECONDS, 5e-4),
        ("-3 s", units.SECONDS, -3),
        ("300 GB/s", units.RATE, 3e11),
        ("400 Gbit/s", units.RATE, 5e10),
        ("1 GiB/s", units.RATE, 1024**3),
        ("5e4 tokens/s", units.TOKEN_RATE, 5e4),
        ("3 tokens/min", units.TOKEN_RATE, 0.05),
        ("989 TFLOP/s", units.FLOP_RATE, 989e12),
        ("2 PFLOP/s", units.FLOP_RATE, 2e15),
        ("80 %", units.RATIO, 0.8),
        ("80%", units.RATIO, 0.8),
        ("0.8", units.RATIO, 0.8),
        (0.8, units.RATIO, 0.8),
        (2, units.RATIO, 2.0),
    ],
)
def test_what_is_read(text: str | float, unit: str, value: float) -> None:
    assert units.parse(text, unit) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("300GB", units.RATE),
        ("40 GiB", units.SECONDS),
        ("20 s", units.BYTES),
        ("20 parsec", units.BYTES),
        ("GiB", units.BYTES),
        ("", units.BYTES),
        ("1 2 GiB", units.BYTES),
        ("1,5 GiB", units.BYTES),
        ("nan s", units.SECONDS),
        ("1e999 s", units.SECONDS),
        ("1 s/B", units.RATE),
        ("1 GB/s/s", units.RATE),
        ("989 TFLOPS", units.FLOP_RATE),
        ("989 TFLOP", units.FLOP_RATE),
        ("1 FLOP/B", units.FLOP_RATE),
        ("1 __import__('os')", units.BYTES),
        ("1 B**2", units.BYTES),
        (20, units.SECONDS),
        (True, units.RATIO),
        (math.nan, units.RATIO),
        (math.inf, units.RATIO),
        (None, units.RATIO),
        ([1], units.BYTES),
        ("80 % of expected", units.RATIO),
        ("0.8 s", units.RATIO),
    ],
)
def test_what_is_refused_says_what_was_got_and_what_is_wanted(text: str, unit: str) -> None:
    with pytest.raises(ValueError, match=r"^got") as caught:
        units.parse(text, unit)
    assert str(caught.value) == f"got {text!r}, want {WISHES[unit]}"


@pytest.mark.parametrize("unit", [unit for unit in WISHES if unit != units.RATIO])
def test_a_number_without_a_unit_is_told_so(unit: str) -> None:
    with pytest.raises(ValueError, match=r"^got") as caught:
        units.parse("20", unit)
    assert str(caught.value) == f"got '20', want {WISHES[unit]} (the unit is missing)"


@pytest.mark.parametrize("unit", WISHES)
def test_the_example_is_one(unit: str) -> None:
    example = units.example(unit).split("such as ")[1]
    assert units.example(unit) == WISHES[unit]
    for text in example.split(" or "):
        assert units.parse(text, unit) > 0


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, units.BYTES, "0 B"),
        (1023, units.BYTES, "1023 B"),
        (1024, units.BYTES, "1 KiB"),
        (1536, units.BYTES, "1.5 KiB"),
        (1024**2 - 1, units.BYTES, "1 MiB"),
        (2.0 * 1024**5, units.BYTES, "2048 TiB"),
        (3.2e11, units.RATE, "320 GB/s"),
        (999.6e6, units.RATE, "1 GB/s"),
        (12.34e9, units.RATE, "12.3 GB/s"),
        (52345.0, units.TOKEN_RATE, "52345 tokens/s"),
        (1.5e6, units.TOKEN_RATE, "1.5e+06 tokens/s"),
        (989e12, units.FLOP_RATE, "989 TFLOP/s"),
        (0, units.SECONDS, "0 s"),
        (1e-4, units.SECONDS, "100 us"),
        (0.02, units.SECONDS, "20 ms"),
        (61.5, units.SECONDS, "61.5 s"),
        (144_000, units.SECONDS, "40 h"),
        (-0.5, units.SECONDS, "-500 ms"),
        (0.8, units.RATIO, "0.8"),
        (math.nan, units.RATE, "nan"),
        (math.inf, units.SECONDS, "inf"),
        (3, "steps", "3 steps"),
    ],
)
def test_what_is_printed(value: float, unit: str, text: str) -> None:
    assert units.show(value, unit) == text


def test_a_share_is_printed_as_a_percentage() -> None:
    assert [units.show_share(value) for value in (0.8, 0.1234, 1, 0)] == ["80 %", "12.3 %", "100 %", "0 %"]


def test_sizes_as_data_sheets_have_them_and_numbers_without_a_unit() -> None:
    assert [units.show_decimal(value) for value in (140e9, 999.6e6, 50.33e6, 0)] == ["140 GB", "1 GB", "50.3 MB", "0 B"]
    assert [units.show_number(value) for value in (2.5e6, 12.5, 0)] == ["2,500,000", "12.5", "0"]


@given(value=st.floats(1e-5, 1e15), unit=st.sampled_from(sorted(WISHES)))
def test_what_is_printed_is_read_back_to_three_digits(value: float, unit: str) -> None:
    assert units.parse(units.show(value, unit), unit) == pytest.approx(value, rel=5.1e-3)


@given(value=st.floats(1e-9, 1e9))
def test_a_printed_share_is_read_back_to_three_digits(value: float) -> None:
    assert units.parse(units.show_share(value), units.RATIO) == pytest.approx(value, rel=5.1e-3)


SYMBOLS = [
    (name, unit)
    for unit, names in {
        units.BYTES: ["B", "kB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB", "bit", "Gbit"],
        units.SECONDS: ["ns", "us", "ms", "s", "min", "h", "d"],
        units.RATE: ["B/s", "GB/s", "GiB/s", "Gbit/s", "MB/ms"],
        units.TOKEN_RATE: ["tokens/s", "tokens/h"],
        units.FLOP_RATE: ["FLOP/s", "GFLOP/s", "TFLOP/s", "PFLOP/s"],
        units.RATIO: ["%"],
    }.items()
    for name in names
]


@given(value=st.floats(-1e12, 1e12), symbol=st.sampled_from(SYMBOLS))
def test_reading_is_linear_in_the_number(value: float, symbol: tuple[str, str]) -> None:
    name, unit = symbol
    assert units.parse(f"{value!r} {name}", unit) == pytest.approx(value * units.parse(f"1 {name}", unit), rel=1e-12)


@given(text=st.text(), unit=st.sampled_from(sorted(WISHES)))
def test_no_text_raises_anything_but_a_value_error(text: str, unit: str) -> None:
    try:
        value = units.parse(text, unit)
    except ValueError as error:
        message = str(error)
        value = 0.0
        assert message.startswith(f"got {text!r}, want {WISHES[unit]}")
    assert math.isfinite(value)


def test_importing_units_does_not_load_pint() -> None:
    code = "import sys, pytest_clusterqual.units; print('pint' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False\n"

"""The one place where quantities with units are read and printed.

Inside the package every quantity is a float in its canonical unit: bytes ``B``, seconds ``s``,
bytes per second ``B/s``, tokens per second ``tokens/s``, operations per second ``FLOP/s``, and ``1``
for shares and ratios.
GB/s means 1e9 B/s; KiB, MiB and GiB are powers of 1024.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pint

BYTES, SECONDS, RATE, TOKEN_RATE, RATIO = "B", "s", "B/s", "tokens/s", "1"
FLOP_RATE = "FLOP/s"
NODES = "nodes"  # a count, never read from a file

_DEFINITIONS = (
    "byte = [information] = B",
    "bit = byte / 8 = b",
    "second = [time] = s",
    "minute = 60 * second = min",
    "hour = 60 * minute = h",
    "day = 24 * hour = d",
    "token = [token] = _ = tokens",
    "operation = [operation] = FLOP",
    "percent = 0.01 = %",
    "nano- = 1e-9 = n-",
    "micro- = 1e-6 = u- = µ- = μ-",
    "milli- = 1e-3 = m-",
    "kilo- = 1e3 = k-",
    "mega- = 1e6 = M-",
    "giga- = 1e9 = G-",
    "tera- = 1e12 = T-",
    "peta- = 1e15 = P-",
    "kibi- = 1024 = Ki-",
    "mebi- = 1048576 = Mi-",
    "gibi- = 1073741824 = Gi-",
    "tebi- = 1099511627776 = Ti-",
)
_EXAMPLES = {
    BYTES: "a size such as 64 MiB",
    SECONDS: "a time such as 20 s",
    RATE: "a rate such as 300 GB/s",
    TOKEN_RATE: "a token rate such as 5e4 tokens/s",
    FLOP_RATE: "a rate such as 989 TFLOP/s",
    RATIO: "a share or ratio such as 80 % or 0.8",
}
_QUANTITY = re.compile(r"\s*(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(?P<unit>\S.*?)?\s*")
# Only what a unit can be made of: nothing else is handed to the unit parser.
_UNIT = re.compile(r"%|[A-Za-zµμ]+(?:/[A-Za-z]+)?")


@functools.cache
def _registry() -> pint.UnitRegistry[float]:
    import pint  # loaded on first use: a run that selects no qualification test must not pay for it

    registry: pint.UnitRegistry[float] = pint.UnitRegistry(None, cache_folder=None)
    for definition in _DEFINITIONS:
        registry.define(definition)
    return registry


def example(unit: str) -> str:
    """Say in words what a quantity of canonical `unit` looks like."""
    return _EXAMPLES[unit]


def parse(text: str | float, unit: str) -> float:
    """Read `text` as a finite quantity in the canonical `unit`.

    A bare number is accepted for ratios only: everything else must say its unit.

    Raises:
        ValueError: the message says what was got and what is wanted.
    """
    wanted = f"got {text!r}, want {_EXAMPLES[unit]}"
    if isinstance(text, bool) or not isinstance(text, (str, int, float)):
        raise ValueError(wanted)
    if isinstance(text, (int, float)):
        if unit != RATIO or not math.isfinite(text):
            raise ValueError(wanted)
        return float(text)
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(wanted)
    number, name = float(match["number"]), match["unit"]
    if name is None:
        if unit != RATIO:
            raise ValueError(f"{wanted} (the unit is missing)")
        return number
    if not _UNIT.fullmatch(name):
        raise ValueError(wanted)
    import pint

    registry = _registry()
    try:
        factor = registry.Quantity(1.0, registry.parse_units(name)).to(_canonical(unit)).magnitude
    except (pint.errors.PintError, AttributeError, TypeError, ValueError):
        raise ValueError(wanted) from None
    value = number * float(factor)
    if not math.isfinite(value):
        raise ValueError(wanted)
    return value


def _canonical(unit: str) -> pint.Unit:
    registry = _registry()
    if unit == RATIO:
        return registry.parse_units("")
    names = {
        BYTES: "byte", SECONDS: "second", RATE: "byte/second", TOKEN_RATE: "token/second",
        FLOP_RATE: "operation/second",
    }  # fmt: skip
    return registry.parse_units(names[unit])


def show(value: float, unit: str) -> str:
    """Print a canonical quantity for people, with three or four significant digits."""
    if not math.isfinite(value):
        return f"{value}"
    if unit == BYTES:
        return _scaled(value, 1024.0, ("B", "KiB", "MiB", "GiB", "TiB"))
    if unit == RATE:
        return _scaled(value, 1000.0, ("B/s", "kB/s", "MB/s", "GB/s", "TB/s"))
    if unit == FLOP_RATE:
        return _scaled(value, 1000.0, ("FLOP/s", "kFLOP/s", "MFLOP/s", "GFLOP/s", "TFLOP/s", "PFLOP/s"))
    if unit == TOKEN_RATE:
        return f"{_digits(value)} tokens/s"
    if unit == SECONDS:
        magnitude = abs(value)
        if magnitude >= 7200:
            return f"{_digits(value / 3600)} h"
        # 0.9995 s already prints as 1 s, never as "1000 ms".
        if magnitude >= 0.9995 or magnitude == 0:
            return f"{_digits(value)} s"
        return f"{_digits(value * 1e3)} ms" if magnitude >= 0.9995e-3 else f"{_digits(value * 1e6)} us"
    if unit == RATIO:
        return _digits(value)
    return f"{_digits(value)} {unit.removesuffix('s') if value == 1 else unit}"


def show_share(value: float) -> str:
    """Print a ratio as a percentage."""
    return f"{_digits(value * 100)} %"


def show_interval(value: str, low: str, high: str) -> str:
    """Print the bounds of a shown `value`, themselves shown: ``[390, 430]``, without a unit where all have the same."""
    (_, unit), *bounds = (shown.partition(" ")[::2] for shown in (value, low, high))
    if all(of_bound == unit for _, of_bound in bounds):
        low, high = (number for number, _ in bounds)
    return f"[{low}, {high}]"


def show_count(number: int, noun: str, plural: str = "") -> str:
    """Print how many there are of something: ``1 node``, ``2 nodes``; `plural` where an s does not make it."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def show_some(names: Sequence[object], most: int) -> str:
    """Print the first names of a list and the number of the others: ``node0, node1 and 6 more``."""
    shown = ", ".join(map(str, names[:most]))
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def show_number(value: float) -> str:
    """Print a number that has no unit, such as a price, with its digits in groups of three."""
    return f"{value:,.10g}"


def show_decimal(size: float) -> str:
    """Print bytes in powers of 1000, as data sheets do."""
    return _scaled(size, 1000.0, ("B", "kB", "MB", "GB", "TB"))


def _scaled(value: float, step: float, names: tuple[str, ...]) -> str:
    index = 0
    # 0.9995 of the next unit already prints as the next unit, never as "1000 MB/s".
    while abs(value) >= step * 0.9995 and index < len(names) - 1:
        value, index = value / step, index + 1
    return f"{_digits(value)} {names[index]}"


def _digits(value: float) -> str:
    """Three significant digits, never fewer than all whole ones below a million."""
    if not 1e-4 <= abs(value) < 1e6:
        return "0" if value == 0 else f"{value:.3g}"
    rounded = float(f"{value:.3g}") if abs(value) < 999.5 else round(value)
    return f"{rounded:.10f}".rstrip("0").rstrip(".")

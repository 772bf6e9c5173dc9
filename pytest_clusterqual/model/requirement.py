"""What the project file demands, one quantity at a time."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from pytest_clusterqual import units

Op = Literal["<=", ">=", "<", ">"]

# Every quantity that can be required, by criterion, with its canonical unit.
QUANTITIES: dict[str, dict[str, str]] = {
    "memory": {"peak": units.BYTES, "headroom": units.RATIO},
    "fabric": {
        "busbw": units.RATE,
        "algbw": units.RATE,
        "latency": units.SECONDS,
        "alpha": units.SECONDS,
        "plateau": units.RATE,
        "wait": units.RATIO,
        "contention": units.RATIO,
        "pair_busbw": units.RATE,
        "placement": units.RATIO,
        "amplification": units.RATIO,
    },
    "scaling": {
        "speedup": units.RATIO,
        "efficiency": units.RATIO,
        "step_time": units.SECONDS,
        "throughput": units.TOKEN_RATE,
        "time_to_fixed_work": units.SECONDS,
        "bubble": units.RATIO,
        "imbalance": units.RATIO,
        "time_to_train": units.SECONDS,
        "exposed_communication": units.RATIO,
        "waiting": units.RATIO,
        "data_stall": units.RATIO,
    },
    "full_run": {
        "gain": units.RATIO,
        "goodput": units.RATIO,
        "throughput": units.TOKEN_RATE,
        "ettr": units.RATIO,
        "checkpoint_blocking": units.SECONDS,
        "checkpoint_completion": units.SECONDS,
        "checkpoint_inflation": units.RATIO,
        "checkpoint_rate": units.RATE,
        "checkpoint_memory": units.BYTES,
        "checkpoint_load": units.SECONDS,
        "detection": units.SECONDS,
        "restart": units.SECONDS,
        "rendezvous": units.SECONDS,
        "recovery": units.SECONDS,
        "steps_lost": units.RATIO,
        "data_stall": units.RATIO,
        "drift": units.RATIO,
    },
}

# Shares of which less is better; of all others, and of rates, more is. Of seconds and bytes less always is.
_SMALL_SHARES = {
    "wait", "contention", "placement", "amplification", "bubble", "imbalance", "exposed_communication", "waiting",
    "data_stall", "checkpoint_inflation", "steps_lost", "drift",
}  # fmt: skip

_FORM = re.compile(r"\s*(<=|>=|<(?!=)|>(?!=))\s*(.+?)\s*")
_OF_EXPECTED = re.compile(r"(.+?)\s+of\s+expected")


def small_is_good(quantity: str, unit: str) -> bool:
    """True of a quantity of which less is better."""
    return unit in (units.SECONDS, units.BYTES) or quantity in _SMALL_SHARES


@dataclass(frozen=True, kw_only=True, slots=True)
class Requirement:
    """One demand, e.g. ``>= 80 % of expected`` on the busbw of all_reduce in the world group.

    `value` is in the canonical `unit`; with `of_expected` it is a share of the level that the
    topology should give. A selector that is None applies to every case.
    """

    criterion: str
    quantity: str
    op: Op
    value: float
    unit: str
    text: str
    source: str
    of_expected: bool = False
    collective: str | None = None
    group: str | None = None
    from_bytes: float | None = None
    to_bytes: float | None = None
    nodes: int | None = None
    layout: str | None = None

    @property
    def upper_bound(self) -> bool:
        """True where small is good."""
        return self.op in ("<=", "<")

    def met_by(self, value: float) -> bool:
        """Compare one number. Not a verdict: a verdict needs an interval (see `judge`)."""
        return {
            "<=": value <= self.value,
            ">=": value >= self.value,
            "<": value < self.value,
            ">": value > self.value,
        }[self.op]

    def resolved(self, expected: float) -> Requirement:
        """The absolute form of a requirement that is a share of the `expected` level."""
        return replace(self, value=self.value * expected, of_expected=False) if self.of_expected else self

    def applies(
        self,
        *,
        nodes: int,
        layout: str | None = None,
        collective: str | None = None,
        group: str | None = None,
        size: float | None = None,
    ) -> bool:
        """True if this requirement is about the given case."""
        return (
            self.nodes in (None, nodes)
            and self.layout in (None, layout)
            and self.collective in (None, collective)
            and self.group in (None, group)
            and (self.from_bytes is None or (size is not None and size >= self.from_bytes))
            and (self.to_bytes is None or (size is not None and size <= self.to_bytes))
        )

    def __str__(self) -> str:
        return f"{self.quantity} {self.text}"


def parse_bound(text: object, criterion: str, quantity: str) -> tuple[Op, float, bool]:
    """Read ``"<op> <number> <unit>"`` as (operator, canonical value, share of expected?).

    Raises:
        ValueError: the message says what was got and what is wanted.
    """
    unit = QUANTITIES[criterion][quantity]
    op, rest = _split(text, unit)
    share = _OF_EXPECTED.fullmatch(rest)
    if share is None:
        return op, units.parse(rest, unit), False
    if criterion != "fabric":
        raise ValueError(f"got {text!r}: only fabric quantities have an expected level; want {units.example(unit)}")
    return op, units.parse(share[1], units.RATIO), True


def own_requirement(quantity: str, text: str, unit: str, *, source: str) -> Requirement:
    """A requirement of a user's own test on a quantity of their own, in canonical `unit`.

    Raises:
        ValueError: the message says what was got and what is wanted.
    """
    op, rest = _split(text, unit)
    return Requirement(
        criterion="own", quantity=quantity, op=op, value=units.parse(rest, unit), unit=unit, text=text, source=source
    )


def _split(text: object, unit: str) -> tuple[Op, str]:
    match = _FORM.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f'got {text!r}, want "<op> <number> <unit>" with <=, >=, < or > and {units.example(unit)}')
    return match[1], match[2]  # type: ignore[return-value]  # the pattern allows these four only

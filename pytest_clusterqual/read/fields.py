"""The kinds of values a project file holds, strict: no number is read from text, no unit is guessed."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Callable, Iterator
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from pytest_clusterqual import units
from pytest_clusterqual.errors import ClusterQualError
from pytest_clusterqual.model.rank_map import STRATEGIES, Arrangement
from pytest_clusterqual.read.hosts import expand_hosts
from pytest_clusterqual.read.messages import shown
from pytest_clusterqual.read.yaml_lines import Where

Fault = tuple[Where, str]
LONGEST = 365 * 86400.0  # seconds; the clocks of what waits know no time without an end
_MOST = 100_000


def quantity(unit: str) -> Callable[[object], float]:
    """What reads a quantity above zero in canonical `unit`."""

    def read(value: object) -> float:
        number = units.parse(value, unit)  # type: ignore[arg-type]  # refuses every other type itself
        if number <= 0:
            raise ValueError(f"got {shown(value)}, want more than zero, {units.example(unit)}")
        return number

    return read


def _duration(value: object) -> float:
    seconds = quantity(units.SECONDS)(value)
    if seconds > LONGEST:
        raise ValueError(f"got {shown(value)}, want at most {LONGEST / 86400:g} d, {units.example(units.SECONDS)}")
    return seconds


def _whole_bytes(size: float) -> float:
    if size != int(size):
        raise ValueError(f"got {size:g} B, want a whole number of bytes")
    return size


def _date(value: object) -> datetime.date:
    try:
        return datetime.datetime.strptime(str(value), "%Y-%m-%d").date()
    except ValueError:
        raise ValueError(f"got {shown(value)}, want a date such as 2027-03-01") from None


def _name(value: str) -> str:
    if not value.strip() or not value.isprintable():
        raise ValueError(f"got {shown(value)}, want a text of printable characters on one line")
    return value


def _identifier(value: str) -> str:
    if not (value.isascii() and value.replace("-", "").replace("_", "").replace(".", "").isalnum()):
        raise ValueError(f"got {shown(value)}, want a short name of letters, digits, - _ and . (it names tests)")
    return value


def _word(value: str) -> str:
    if not value.isprintable() or not value.strip() or value.startswith("-") or any(c.isspace() for c in value):
        raise ValueError(f"got {shown(value)}, want one word that does not begin with -")
    return value


def _interface(value: str) -> str:
    if len(value) > 15 or "/" in value or _word(value) != value:
        raise ValueError(
            f"got {shown(value)}, want the name of a network interface such as ib0, of at most 15 characters"
        )
    return value


def _address(value: str) -> str:
    try:
        return str(ipaddress.IPv4Address(value))
    except ValueError:
        raise ValueError(f"got {shown(value)}, want an IPv4 address of this machine such as 10.0.0.1") from None


def _arrangement(value: object) -> object:
    """A strategy, or (node, device) of every rank; the words are told together, as no union of types would."""
    if value in STRATEGIES:
        return value
    pairs = value if isinstance(value, list) else None
    if not pairs or not all(
        isinstance(pair, list) and len(pair) == 2 and all(type(number) is int and number >= 0 for number in pair)
        for pair in pairs
    ):
        raise ValueError(f"got {shown(value)}, want {', '.join(STRATEGIES)}, or [node, device] of each rank, from 0")
    return tuple((pair[0], pair[1]) for pair in pairs)


def _host_list(value: object) -> object:
    given = value if isinstance(value, list) else [value]
    names = [name for name in given if isinstance(name, str)]
    if len(names) < len(given):
        raise ValueError(f"got {shown(value)}, want hosts such as gpu[001-016], or a list of them")
    try:
        return expand_hosts(",".join(names), where="the list") if names else ()
    except ClusterQualError as error:
        raise ValueError(str(error)) from None


def one_or_more(value: object) -> object:
    """A list where one entry may also stand by itself."""
    return [value] if isinstance(value, dict) else value


Positive = Annotated[int, Field(ge=1)]
Times = Annotated[int, Field(ge=1, le=_MOST)]  # how often something is done
Natural = Annotated[int, Field(ge=0)]
Number = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Minutes = Annotated[float, Field(gt=0, le=LONGEST / 60, allow_inf_nan=False)]
Seconds = Annotated[float, BeforeValidator(_duration)]
Span = Annotated[float, BeforeValidator(quantity(units.SECONDS))]  # between two events; nobody waits for it
Rate = Annotated[float, BeforeValidator(quantity(units.RATE))]
Size = Annotated[float, BeforeValidator(quantity(units.BYTES)), AfterValidator(_whole_bytes)]
Date = Annotated[datetime.date, BeforeValidator(_date)]
Name = Annotated[str, AfterValidator(_name)]
Identifier = Annotated[str, AfterValidator(_identifier)]
HostNames = Annotated[tuple[str, ...], BeforeValidator(_host_list)]
RankMap = Annotated[Arrangement, BeforeValidator(_arrangement)]
Word = Annotated[str, AfterValidator(_word)]
Interface = Annotated[str, AfterValidator(_interface)]
Address = Annotated[str, AfterValidator(_address)]


class Section(BaseModel):
    """A mapping of the file. `faults` are checked once every key of it is what it should be."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    def faults(self) -> Iterator[Fault]:
        yield from ()

    @model_validator(mode="after")
    def _consistent(self) -> Section:
        if found := list(self.faults()):
            raise PydanticCustomError("inconsistent", "see problems", {"problems": found})
        return self

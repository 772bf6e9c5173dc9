"""Dataclasses to JSON and back, strictly: a field that is missing or of another type is an error.

This is how per-rank results, measurements and records cross a process or a year; nothing is
ever unpickled or evaluated.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar, Union

from pytest_clusterqual.model.figures import Figures

T = TypeVar("T")
_PLAIN = (str, int, float, bool)
_MANY = 64  # figures by name; fewer are a dict


def to_json(value: Any) -> Any:
    """Turn dataclasses, enums, tuples and mappings into plain JSON values.

    Of a class whose `JSON_SPARSE` is true, fields that have their default are left out.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = ((f, getattr(value, f.name)) for f in dataclasses.fields(value))
        sparse = getattr(value, "JSON_SPARSE", False)
        return {f.name: to_json(item) for f, item in items if not sparse or item != f.default}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no NaN; `from_json` reads these three words back as floats
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"{type(value).__name__} has no JSON form")


def from_json(kind: type[T], value: Any, *, where: str = "value") -> T:
    """Read `value` as `kind`; unknown fields are refused.

    Raises:
        ValueError: the message names the place, what was got and what is wanted.
    """
    return typing.cast(T, _read(kind, value, where))


@functools.cache
def _fields(kind: type) -> dict[str, tuple[Any, bool]]:
    """Field -> its type, and whether it must be there."""
    hints, none = typing.get_type_hints(kind), dataclasses.MISSING
    return {f.name: (hints[f.name], f.default is none and f.default_factory is none) for f in dataclasses.fields(kind)}


@functools.cache
def _taken_apart(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """Origin and arguments, which `typing` looks for anew each time."""
    return typing.get_origin(kind), typing.get_args(kind)


@functools.lru_cache(maxsize=8)
def _places(names: tuple[str, ...]) -> dict[str, int]:
    """Name -> its place; one for all that are equal: thousands of records tell a figure of the same thousand ranks."""
    return {name: place for place, name in enumerate(names)}


def _read(kind: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _read_dataclass(kind, value, where)
    if kind is Any or kind is object:
        return value
    origin, arguments = _taken_apart(kind)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        return _read(next(o for o in arguments if o is not type(None)), value, where)
    if origin is typing.Literal:
        return _require(value in arguments, kind, value, where)
    if origin is tuple:
        item = arguments[0]
        _require(isinstance(value, (list, tuple)), kind, value, where)
        if item in _PLAIN and set(map(type, value)) == {item}:
            return tuple(value)  # a million samples: looked at once, not one by one
        return tuple(_read(item, v, f"{where}[{i}]") for i, v in enumerate(value))
    if origin is not None and issubclass(origin, Mapping):
        return _read_mapping(kind, value, where)
    if issubclass(kind, enum.Enum):
        _require(value in [member.value for member in kind], kind, value, where)
        return kind(value)
    if kind is float:
        if value in ("nan", "inf", "-inf"):
            return float(value)
        _require(isinstance(value, (int, float)) and not isinstance(value, bool), kind, value, where)
        return float(value)
    _require(isinstance(value, kind) and (kind is bool or not isinstance(value, bool)), kind, value, where)
    return value


def _read_mapping(kind: Any, value: Any, where: str) -> Mapping[str, Any]:
    item = _taken_apart(kind)[1][1]
    _require(isinstance(value, Mapping), kind, value, where)
    if not value:
        return {}
    if item not in _PLAIN or set(map(type, value.values())) != {item}:
        return {str(k): _read(item, v, f"{where}.{k}") for k, v in value.items()}
    places = _places(tuple(value))
    many = item is float and len(places) > _MANY
    return Figures(places, value.values()) if many else dict(zip(places, value.values(), strict=True))


def _read_dataclass(kind: Any, value: Any, where: str) -> Any:
    _require(isinstance(value, Mapping), kind, value, where)
    fields = _fields(kind)
    if value.keys() != fields.keys():
        _check_names(fields, value, where)
    return kind(**{
        name: item if type(item) in _PLAIN and type(item) is fields[name][0]
        else _read(fields[name][0], item, f"{where}.{name}")
        for name, item in value.items()
    })  # fmt: skip


def _check_names(fields: Mapping[str, tuple[Any, bool]], value: Mapping[str, Any], where: str) -> None:
    if unknown := sorted(value.keys() - fields.keys()):
        raise ValueError(f"{where}: got unknown field {unknown[0]!r}, want {', '.join(fields)}")
    if missing := [name for name, (_, needed) in fields.items() if needed and name not in value]:
        raise ValueError(f"{where}: the field {missing[0]!r} is missing")


def _require(condition: bool, kind: Any, value: Any, where: str) -> Any:
    if not condition:
        shown = repr(value)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        raise ValueError(f"{where}: got {shown}, want {getattr(kind, '__name__', kind)}")
    return value

"""A user's own regular expression for the lines of a log, checked before a line is read with it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from pytest_clusterqual.errors import ReadError
from pytest_clusterqual.model.log import LoggedStep
from pytest_clusterqual.read.log_limit import BUDGET, Limited
from pytest_clusterqual.read.log_lines import SINCE_BEFORE, Line, head, number
from pytest_clusterqual.read.messages import shown

# Name of a group -> the field of a step, and what a value is multiplied with to be in its unit.
_FIELDS: dict[str, tuple[str, float]] = {
    "seconds": ("seconds", 1.0), "milliseconds": ("seconds", 1e-3), "minutes": ("seconds", 60.0),
    "mean_seconds": ("seconds", 1.0), "mean_milliseconds": ("seconds", 1e-3),
    "tokens": ("tokens", 1.0), "samples": ("samples", 1.0),
    "tokens_per_second_per_device": ("device_rate", 1.0), "loss": ("loss", 1.0),
    "memory_gib": ("memory", 1024.0**3), "memory_mib": ("memory", 1024.0**2), "memory_gb": ("memory", 1e9),
    "memory_mb": ("memory", 1e6), "memory_bytes": ("memory", 1.0),
}  # fmt: skip
# Those that need more than a factor.
_OTHERS = ("step", "steps_per_second", "tokens_per_second", "rank")
GROUPS = (*_OTHERS[:1], *_FIELDS, *_OTHERS[1:])
# What tells a time; a line that is a mean since the line before says so by its name.
_TIMES = ("seconds", "milliseconds", "minutes", "mean_seconds", "mean_milliseconds", "steps_per_second")
_LONGEST_PATTERN = 500
# Each can take what the other takes, in as many ways as there are characters.
_IN_A_ROW = re.compile(r"(\\.|[^\\()\[\]])[*+]\??(?:\1[*+]\??)+")
_GREATEST = 10**12
_EXAMPLE = r"'step (?P<step>\d+) .* (?P<seconds>[\d.]+)s'"
Reader = Callable[[Line], LoggedStep | None]


def reader(pattern: str, key: str = "--pattern") -> Reader:
    """What reads a step from a line that `pattern` is found in; `over` is SINCE_BEFORE for a mean.

    Raises:
        ReadError: no such expression, a group that means nothing, none for the step, or a repeat of a repeat, which
            can take for ever on a line of some dozen characters.
    """
    if len(pattern) > _LONGEST_PATTERN:
        raise ReadError(f"{key}: got {len(pattern)} characters, at most {_LONGEST_PATTERN} are read")
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ReadError(f"{key}: got {shown(pattern)}, want a regular expression such as {_EXAMPLE}: {error}") from None
    names = tuple(compiled.groupindex)
    if unknown := [name for name in names if name not in GROUPS]:
        raise ReadError(f"{key}: the group {unknown[0]} means nothing here; want some of {', '.join(GROUPS)}")
    if "step" not in names:
        raise ReadError(f"{key}: there is no group step; want one such as in {_EXAMPLE}")
    for field in ("seconds", "memory"):
        same = [name for name in names if _field(name) == field]
        if len(same) > 1:
            raise ReadError(f"{key}: {' and '.join(same)} are the same figure; want one of them")
    if "tokens_per_second" in names and not set(names) & set(_TIMES):
        raise ReadError(f"{key}: tokens_per_second alone does not tell the work of a step; add a group of its time")
    if place := _repeat_of_repeat(pattern):
        raise ReadError(
            f"{key}: {shown(pattern[:place])} repeats what repeats itself, which can take for ever; "
            "want no * + or {} after a group that holds one or an alternative, and no .* or \\s+ after another"
        )
    limited = Limited(compiled)
    return lambda line: _step(limited, line, key)


def _field(name: str) -> str:
    return "seconds" if name in _TIMES else _FIELDS.get(name, (name,))[0]


def _repeat_of_repeat(pattern: str) -> int | None:
    """Where a group is repeated that repeats or chooses inside, or ``.*`` follows another; None where neither is."""
    open_groups: list[bool] = [False]  # does the group repeat or choose inside?
    at = 0
    while at < len(pattern):
        char = pattern[at]
        repeated = bool(re.match(r"[*+]|\{\d*,\d*\}|\{\d{2,}\}", pattern[at + 1 :]))
        if in_a_row := _IN_A_ROW.match(pattern, at):
            return in_a_row.end()
        if char == "\\":
            at += 1
        elif char == "[":
            at = _end_of_set(pattern, at)
        elif char == "(":
            open_groups.append(False)
        elif char == ")" and len(open_groups) > 1:
            inside = open_groups.pop()
            if inside and repeated:
                return at + 2
            open_groups[-1] |= inside
        elif char in "*+|" or re.match(r"\{\d*,\d*\}", pattern[at:]):
            open_groups[-1] = True
        at += 1
    return None


def _end_of_set(pattern: str, at: int) -> int:
    at += 2 if pattern[at + 1 : at + 2] == "^" else 1
    at += pattern[at : at + 1] == "]"  # the first is a character of the set
    while at < len(pattern) and pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return at


def _step(pattern: Limited, line: Line, key: str) -> LoggedStep | None:
    where = f"{line.place.file}:{line.place.line}"
    try:
        match = pattern.search(head(line.text))
    except TimeoutError:
        raise ReadError(
            f"{key}: {where}: to look for {shown(pattern.text)} in lines such as this took {BUDGET:g} s and was ended; "
            "want fewer .* + or {}, each ended by what cannot stand in it, and ^ in front if lines begin so"
        ) from None
    if match is None:
        return None
    found = {name: text for name, text in match.groupdict().items() if text is not None}
    rank = found.pop("rank", "").strip()
    try:
        values = {name: number(text.strip()) for name, text in found.items()}
        step = int(values["step"])
        if abs(values["step"]) >= _GREATEST or values["step"] != step:
            raise ValueError(f"got step {values['step']:g}")
    except (KeyError, ValueError, OverflowError) as error:
        raise ReadError(f"{key}: {where}: want numbers in all groups but rank, and a step: {error}") from None
    fields: dict[str, Any] = {
        _FIELDS[name][0]: value * _FIELDS[name][1] for name, value in values.items() if name in _FIELDS
    }
    if rate := values.get("steps_per_second"):
        fields["seconds"] = 1 / rate
    if (rate := values.get("tokens_per_second")) and "seconds" in fields:
        fields.setdefault("tokens", rate * fields["seconds"])
    printer = " ".join(filter(None, (line.printer, rank and f"rank {rank}")))
    return LoggedStep(
        place=line.place, step=step, over=SINCE_BEFORE if any(name.startswith("mean_") for name in found) else 1,
        moment=line.moment_at(match.start()), printer=printer, **fields,
    )  # fmt: skip

"""A line of a log before anything is read from it: without terminal codes and prefixes, with its moment."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from pytest_clusterqual.model.log import Moment, Place

# No line that tells of a step is longer; a repeat in a pattern never sees more than this.
_LONGEST = 4000
_LONGEST_PIECE = 65536
# `over` of a step whose line tells a mean since the line before, until that line is known.
SINCE_BEFORE = -1
# Repeats that may follow each other are bounded: a hostile line would be tried in too many ways.
_THOUSANDS = r"[1-9]\d{0,2}(?:,\d{3}){1,6}(?!\d)"
WHOLE = rf"(?:{_THOUSANDS}|\d{{1,16}})"
NUMBER = (
    rf"[-+]?(?:(?:{_THOUSANDS}|\d{{1,40}})(?:\.\d{{0,40}})?|\.\d{{1,40}})(?:[eE][-+]?\d{{1,4}})?"
    r"|[-+]?(?i:nan|inf(?:inity)?)"
)
_COMMAS = re.compile(rf"[-+]?{_THOUSANDS}(?:\.\d*)?(?:[eE][-+]?\d+)?")
_TO_START = re.compile(r"\x1b\[[01]?G")  # what some bars write in place of a carriage return
_CODE = re.compile(r"\x1b(?:\[[0-9;?]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?)|\x08")
# Who printed a line: srun --label, mpirun --tag-output, torchrun, a pod. Ray names a process, which changes
# when the job is started again, so its prefix is only taken off.
_PREFIX = re.compile(
    r"\s*(?:(?P<task>\d{1,6}): |\[(?:[^\[\]\s,]{1,200}@)?\d{1,9},(?P<mpi>\d{1,6})\]<std(?:out|err)>: ?"
    r"|\[(?:rank|default)(?P<rank>\d{1,6})\]: ?"
    r"|\[pod/(?P<pod>[^\]\s]{1,200})\] |\([^()]{0,200}(?:pid|ip)=[^()]{0,200}\) ?)"
)
_DATE = re.compile(r"\b(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")
_TIME = re.compile(r"\s*\[?(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?\b")
_DAY = 86400.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """`text` has no prefix any more. `moment` is of the date or time of day that the line begins with."""

    place: Place
    printer: str
    text: str
    moment: Moment | None

    def moment_at(self, start: int, cut: int | None = None) -> Moment | None:
        """That of what begins at `start`: it may be glued to another line, which was cut off behind `cut`."""
        dates = list(_DATE.finditer(self.text, cut or 0, start))
        if dates:
            return _moment(dates[-1][0])
        return self.moment if cut is None else None


def pieces(raw: str, place: Place, *, numbered: bool = False) -> Iterator[Line]:
    """The lines that one line of a file is: a progress bar writes over itself with carriage returns.

    Those that are `numbered` begin with a number of their own, which looks like the label of a task.
    """
    for piece in _CODE.sub("", _TO_START.sub("\r", raw)).split("\r"):
        printer, text = _without_prefix(piece, numbered)
        for start in range(0, len(text), _LONGEST_PIECE):
            part = text[start : start + _LONGEST_PIECE]
            if part.strip():
                yield Line(place=place, printer=printer, text=part, moment=_moment(part[:200]))


def head(text: str) -> str:
    """What is looked at of a text; a number that is cut there is left out, for it would be read as another one."""
    return text if len(text) <= _LONGEST else text[:_LONGEST].rstrip("0123456789.,+-eE")


def joined(first: Line, second: Line, between: str) -> Line:
    """One line of two that were wrapped, at a width or `between` words."""
    return replace(first, text=f"{first.text}{between}{second.text}")


def number(text: str) -> float:
    """A number as logs write it, also ``1,234`` and ``nan``.

    Raises:
        ValueError: it is none, or a comma in it does not part thousands.
    """
    if "," in text and not _COMMAS.fullmatch(text):
        raise ValueError(f"got {text[:40]}, want a point before decimals, and commas between thousands only")
    return float(text.replace(",", ""))


def _without_prefix(text: str, numbered: bool) -> tuple[str, str]:
    names: list[str] = []
    for _ in range(4):  # srun's label before torchrun's, and such
        match = _PREFIX.match(text)
        if match is None or (numbered and match["task"] and not _PREFIX.match(text, match.end())):
            break
        names += [f"{kind} {name}" for kind, name in match.groupdict().items() if name is not None]
        text = text[match.end() :]
    return " ".join(names), text


def _moment(text: str) -> Moment | None:
    if date := _DATE.search(text):
        year, month, day, hour, minute, second = map(int, date.groups()[:6])
        try:
            since = datetime(year, month, day, hour, minute, second) - datetime(1970, 1, 1)
        except ValueError:
            return None
        return Moment(clock="date", at=since.total_seconds() + _part(date[7]), tick=_tick(date[7]))
    if time := _TIME.match(text):
        hour, minute, second = map(int, time.groups()[:3])
        return Moment(
            clock="time of day", at=hour * 3600.0 + minute * 60 + second + _part(time[4]), tick=_tick(time[4])
        )
    return None


def after(moment: Moment, before: Moment) -> Moment:
    """`moment` in the days of `before`: a time of day that is hours earlier is of the next day."""
    if moment.clock == "time of day" == before.clock:
        days = round((before.at - moment.at) / _DAY)
        return replace(moment, at=moment.at + max(days, 0) * _DAY)
    return moment


def _part(digits: str | None) -> float:
    return int(digits) / 10 ** len(digits) if digits else 0.0


def _tick(digits: str | None) -> float:
    return 10.0 ** -len(digits) if digits else 1.0

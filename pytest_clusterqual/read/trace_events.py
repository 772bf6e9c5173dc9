"""The events of a trace file, a block at a time: traces of gigabytes are read in a few megabytes of memory.

A trace is one JSON object with a long list of small objects under ``traceEvents``. The text is cut
between these. Blocks without anything needed are dropped unread: torch writes what the host did
before what the device did, and it is most of the file.
"""

from __future__ import annotations

import gzip
import math
import re
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from pytest_clusterqual.errors import ReadError

# What becomes of so much text stays in the processor's cache.
_BLOCK = 64 * 1024
_LONGEST_HEAD = 64 * 1024 * 1024
_LONGEST_EVENT = 16 * 1024 * 1024
_HEAD = re.compile(rb'"traceEvents"\s*:\s*\[\s*')
_FIRST_KEY = re.compile(rb'\s*\{\s*"([^"]*)"')
_BETWEEN = re.compile(rb'\}\s*(,)\s*\{\s*"([^"]*)"')
_LAST = re.compile(rb"\}\s*(\])\s*[,}]")
_ADVICE = "a trace that was cut off or changed by hand is not read: export it again"


# The fields stand in the order in which torch writes them, where they are found fastest.
class Args(msgspec.Struct, frozen=True, gc=False):
    """What is read of an event's arguments."""

    device: int | str | None = None
    correlation: int | str = -1
    grid: tuple[int | str, ...] = ()
    block: tuple[int | str, ...] = ()
    collective: Any = msgspec.field(default=None, name="Collective name")
    group: Any = msgspec.field(default=None, name="Process Group Name")
    ranks: Any = msgspec.field(default=None, name="Process Group Ranks")
    number: Any = msgspec.field(default=-1, name="Seq")


class Event(msgspec.Struct, gc=False):
    """Start and length are µs, NaN where the event does not have them."""

    category: str = msgspec.field(default="", name="cat")
    name: str = ""
    thread: int | str = msgspec.field(default=-1, name="tid")
    start: float = msgspec.field(default=math.nan, name="ts")
    length: float = msgspec.field(default=math.nan, name="dur")
    args: Args = Args()


_DECODER = msgspec.json.Decoder(list[Event])


def scan_events(path: Path, take: Callable[[list[Event]], None], *, needless: Iterable[str]) -> dict[str, Any]:
    """Hand events to `take`, some at a time, and return what stands beside them in the file.

    `path` is JSON, plain or compressed by gzip. Events of the `needless` categories may be left out.

    Raises:
        ReadError: the file cannot be opened, is no JSON, is cut off, or holds no list of events.
    """
    try:
        with path.open("rb") as raw:
            compressed = raw.peek(2)[:2] == b"\x1f\x8b"
            with cast(BinaryIO, gzip.open(raw)) if compressed else raw as file:
                return _scan(file, take, re.compile(rb'"cat"\s*:\s*"(?!(?:%b)")' % "|".join(needless).encode()))
    except ReadError as error:
        raise ReadError(f"{path}: {error}") from None
    except (EOFError, zlib.error) as error:
        raise ReadError(f"{path}: not whole as a gzip file ({error}); copy it again") from None
    except OSError as error:
        raise ReadError(f"{path}: {error.strerror or error}") from None


def _scan(file: BinaryIO, take: Callable[[list[Event]], None], needed: re.Pattern[bytes]) -> dict[str, Any]:
    head, text = _beginning(file)
    key = _FIRST_KEY.match(text)
    read = len(head) + len(text)
    while block := file.read(_BLOCK):
        text, read = text + block, read + len(block)
        key = key or _FIRST_KEY.match(text)
        between = _last_between(text)
        if between and (events := _events(text, between, key, needed)) is not None:
            take(events)
            text = text[between.end(1) :]
        elif len(text) > _LONGEST_EVENT:
            break
    events, tail = _ending(text, f"not valid JSON from byte {read - len(text)} on; {_ADVICE}")
    take(events)
    try:
        return cast("dict[str, Any]", msgspec.json.decode(head + b"]" + tail))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ReadError(f"not valid JSON around the events ({error}); {_ADVICE}") from None


def _beginning(file: BinaryIO) -> tuple[bytes, bytes]:
    """The text up to the first event, and what was read from there on."""
    text = b""
    while block := file.read(_BLOCK):
        text += block
        if found := _HEAD.search(text):
            return text[: found.end()], text[found.end() :]
        if len(text) > _LONGEST_HEAD:
            break
    raise ReadError('no list "traceEvents", want a trace of the PyTorch profiler (.json or .json.gz)')


def _last_between(text: bytes) -> re.Match[bytes] | None:
    """Where the last object begins; events are short, so it is looked for near the end first."""
    for begin in (max(0, len(text) - 4096), 0):
        if found := list(_BETWEEN.finditer(text, begin)):
            return found[-1]
    return None


def _events(
    text: bytes, between: re.Match[bytes], key: re.Match[bytes] | None, needed: re.Pattern[bytes]
) -> list[Event] | None:
    """The events before the cut, None if it is inside one, which can hold a list of objects.

    What is cut there is no JSON, and an object in it has another first key than events have.
    """
    cut = between.start(1)
    if key and between[2] == key[1] and not needed.search(text, 0, cut):
        return []
    return _decoded(text[:cut])


def _ending(text: bytes, complaint: str) -> tuple[list[Event], bytes]:
    """The last events, and the text behind the bracket that closes their list."""
    ends = [text.index(b"]")] if text.lstrip().startswith(b"]") else [end.start(1) for end in _LAST.finditer(text)]
    for end in ends:
        if (events := _decoded(text[:end])) is not None:
            return events, text[end + 1 :]
    raise ReadError(complaint)


def _decoded(text: bytes) -> list[Event] | None:
    """The events of this part of their list, None if it is no JSON."""
    whole = b"[" + text + b"]"
    try:
        return _DECODER.decode(whole)
    except msgspec.ValidationError:
        pass
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    try:
        return [_event(raw) for raw in msgspec.json.decode(whole)]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _event(raw: Any) -> Event:
    """One among events of which at least one has a value of another type: that one keeps its category only."""
    try:
        return msgspec.convert(raw, Event)
    except msgspec.ValidationError:
        category = raw.get("cat") if isinstance(raw, dict) else None
        return Event(category=category if isinstance(category, str) else "")

"""Lines of JSON on disk: appended whole or not at all, read strictly.

A killed process loses at most the line it was writing; a full disk never tears one.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeVar

from pytest_clusterqual.errors import RunFolderError
from pytest_clusterqual.model.codec import from_json
from pytest_clusterqual.model.record import SCHEMA

T = TypeVar("T")
_HEAD = 1 << 16  # bytes of a long line that are looked at to find the next one
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Line:
    """One line as it stands in the file (without its end), and where it is: ``file:line``."""

    raw: bytes
    where: str

    @functools.cached_property
    def value(self) -> dict[str, Any]:
        """What it holds.

        Raises:
            RunFolderError: it is not a JSON object of our schema.
        """
        return checked(self.raw, self.where)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a line lies that is not kept in memory: `size` bytes from `begin` on, without its end."""

    path: Path
    begin: int
    size: int
    where: str

    def read(self) -> Line:
        """The line; what it holds is not checked yet.

        Raises:
            RunFolderError: it cannot be read.
        """
        try:
            with open(self.path, "rb") as file:
                return Line(_at(file, self.begin, self.size), self.where)
        except OSError as error:
            raise RunFolderError(f"{self.path}: cannot be read: {error.strerror}") from error

    def blocks(self) -> Iterator[bytes]:
        """Its bytes with its end, piece by piece; OSError if they cannot be read."""
        with open(self.path, "rb") as file:
            file.seek(self.begin)
            left = self.size
            while block := file.read(min(left, _BLOCK)):
                left -= len(block)
                yield block
        yield b"\n"


def encode(value: Any) -> bytes:
    """`value` as one line, without its end."""
    return json.dumps(value, allow_nan=False).encode()


def append(path: Path, line: bytes) -> int:
    """Append a line, or several, by one write, and say where that begins; on any failure (OSError) the file is as it
    was before.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        _end_last_line(descriptor, path)
        size = os.fstat(descriptor).st_size
        try:
            if os.write(descriptor, line + b"\n") <= len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(descriptor)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, size)
            raise
        return size
    finally:
        os.close(descriptor)


def _end_last_line(descriptor: int, path: Path) -> None:
    """Complete a last line that lacks only its end; set a torn one aside in ``<file>.torn``."""
    size = os.fstat(descriptor).st_size
    if size == 0 or os.pread(descriptor, 1, size - 1) == b"\n":
        return
    content = path.read_bytes()
    last = content[content.rfind(b"\n") + 1 :]
    if is_json(last):
        os.write(descriptor, b"\n")
        return
    set_aside(path, last)
    os.ftruncate(descriptor, size - len(last))


def set_aside(path: Path, torn: bytes) -> None:
    """Keep what is no line of `path` in ``<file>.torn``."""
    with open(path.with_name(f"{path.name}.torn"), "ab") as aside:
        aside.write(torn + b"\n")


def each(path: Path, torn: Callable[[Line], None]) -> Iterator[Line]:
    """The lines one after the other, so that a large file is never in memory as a whole, none of them checked yet;
    `torn` is told the last one if a kill has cut it short.

    Raises:
        RunFolderError: it cannot be read.
    """
    try:
        with _opened(path) as file:
            for number, raw in enumerate(file, 1):
                line = Line(raw.removesuffix(b"\n"), f"{path}:{number}")
                if line.raw == raw and not is_json(raw):
                    return torn(line)
                yield line
    except FileNotFoundError:
        return  # nothing was measured, or nothing judged, before the run ended
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read: {error.strerror}") from error


def places(path: Path, claimed: Callable[[bytes], int], torn: Callable[[Line], None]) -> Iterator[tuple[bytes, Place]]:
    """The heads of the lines, one after the other, each with the place of its line; as `each`, but of long lines only
    the head is read where `claimed` finds in it how many bytes the whole line has (0 if it is not told).

    Raises:
        RunFolderError: the file cannot be read.
    """
    try:
        with _opened(path) as file:
            begin, number = 0, 1
            while head := _at(file, begin, _HEAD):
                where = f"{path}:{number}"
                size = _size(file, begin, head, claimed(head))
                if size is None:
                    last = Line(_at(file, begin, -1), where)
                    if not is_json(last.raw):
                        return torn(last)
                    size = len(last.raw)
                yield head[:size], Place(path, begin, size, where)
                begin, number = begin + size + 1, number + 1
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read: {error.strerror}") from error


def _opened(path: Path) -> BinaryIO:
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no file")  # a pipe would be waited for
    return open(path, "rb")


def _at(file: BinaryIO, begin: int, size: int) -> bytes:
    file.seek(begin)
    return file.read(size)


def _size(file: BinaryIO, begin: int, head: bytes, claimed: int) -> int | None:
    """How long the line at `begin` is without its end; None if it has none. A claim counts where it leads to an end."""
    if (end := head.find(b"\n")) >= 0:
        return end
    if claimed and _at(file, begin + claimed, 1) == b"\n":
        return claimed
    file.seek(begin)
    line = file.readline()
    return len(line) - 1 if line.endswith(b"\n") else None


def replace(path: Path, content: bytes | Iterable[bytes]) -> None:
    """Write `content` so that a reader sees the old file or the new one, also after a power loss."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            file.writelines([content] if isinstance(content, bytes) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def replace_json(path: Path, value: Mapping[str, Any]) -> None:
    """`replace` with one JSON object, indented for people."""
    replace(path, json.dumps(value, indent=1, allow_nan=False).encode() + b"\n")


def sync_folder(path: Path) -> None:
    """Force the names in a folder out of the system's cache."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _parse(line: bytes) -> Any:
    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not JSON")

    import msgspec

    try:
        return msgspec.json.decode(line)  # three times as fast, and equal keys of all lines are one string
    except (msgspec.DecodeError, RecursionError):  # the other one says what is wrong in words that help
        return json.loads(line.decode(), parse_constant=refuse)


def is_json(line: bytes) -> bool:
    """Whether it can be read, whatever it says."""
    try:
        _parse(line)
    except (ValueError, RecursionError):
        return False
    return True


def checked(line: bytes, where: str) -> dict[str, Any]:
    """One line as a JSON object of our schema.

    Raises:
        RunFolderError: it is none; the message begins with `where`.
    """
    try:
        value = _parse(line)
    except (ValueError, RecursionError) as error:
        remedy = "restore the file, or remove this line" if ".jsonl:" in where else "restore the file"
        raise RunFolderError(f"{where}: not JSON ({error}); {remedy}") from None
    if not isinstance(value, dict):
        raise RunFolderError(f"{where}: got {type(value).__name__}, want a JSON object; restore the file")
    if value.get("schema") != SCHEMA or isinstance(value["schema"], bool):
        raise RunFolderError(
            f"{where}: got schema {value.get('schema')!r}, want {SCHEMA}; "
            "read this run with the version of pytest-clusterqual that wrote it"
        )
    return value


def strictly(kind: type[T], value: Any, where: str) -> T:
    """`value` as `kind`.

    Raises:
        RunFolderError: a field is missing, unknown or of another type; the message begins with `where`.
    """
    try:
        return from_json(kind, value, where=where)
    except (ValueError, OverflowError) as error:  # a whole number of 400 digits is no float
        text = str(error) if str(error).startswith(where) else f"{where}: {error}"
        raise RunFolderError(f"{text}; restore the file") from None


def quickly(kind: type[T], text: memoryview) -> T | None:
    """JSON as `kind` ten times as fast as `strictly`, which is for pictures: unknown fields are passed over. None if it
    cannot be read like that.
    """
    import msgspec

    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, RecursionError):  # NaN is a word in our files, which only `strictly` understands
        return None

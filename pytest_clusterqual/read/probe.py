"""Folders that `pytest_clusterqual.probe` wrote: line by line, so that the length of a run does not matter."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Annotated

import msgspec

from pytest_clusterqual.errors import ReadError
from pytest_clusterqual.model.probe import Line, ProbedProcess, ProbeStart, ProbeWhat

_VERSION = 1
_LONGEST = 64 * 1024  # bytes of a line: names are the script's own
_MOST = 256 * 2**20  # bytes of lines that a measurement holds: nine times as many in memory while it is written
_NAME = re.compile(r"rank(\d{1,18})-attempt(\d{1,18})\.jsonl")
_START = msgspec.json.Decoder(ProbeStart)
_Whole = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_ROUNDED = 1e-3  # seconds: by so much may times of one process contradict each other


class FastLine(msgspec.Struct, kw_only=True, gc=False):
    """A `ProbeLine`. There are hundreds of millions in a day of many ranks; a dataclass takes eight times as long."""

    what: ProbeWhat
    at: float
    seconds: float = 0.0
    own: float | None = None
    step: _Whole = 0
    tokens: _Count | None = None
    sequences: _Count | None = None
    name: str = ""
    error: str = ""
    nested: bool = False
    background: bool = False
    value: float | None = None
    host_peak: int | None = None
    device_peak: int | None = None


_LINE = msgspec.json.Decoder(FastLine)


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeFile:
    """One process of the run."""

    path: Path
    start: ProbeStart


def probe_files(folder: Path, tell: Callable[[str], None]) -> dict[int, tuple[ProbeFile, ...]]:
    """rank -> its processes, first to last. `tell` hears of files that a kill left without a first line, or that lack.

    Raises:
        ReadError: there are no such files, or one is not what its name says.
    """
    try:
        named = sorted((int(match[1]), int(match[2]), path) for path in folder.iterdir()
                       if (match := _NAME.fullmatch(path.name)))  # fmt: skip
    except OSError as error:
        raise ReadError(f"{folder}: cannot be read: {error.strerror}; want the folder that a probe wrote") from error
    found: dict[int, tuple[ProbeFile, ...]] = {}
    for rank, attempt, path in named:
        with _opened(path) as file:
            first = file.readline(_LONGEST)
        if not first.endswith(b"\n"):
            tell(f"{path}: the process was killed before its first line was whole; left out")
            continue
        try:
            start = _START.decode(first)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _refused(f"{path}:1", error) from None
        if start.probe != _VERSION:
            raise ReadError(f"{path}:1: probe: got {start.probe}, want {_VERSION}: another version wrote it")
        if (start.rank, start.attempt) != (rank, attempt):
            raise ReadError(f"{path}:1: got rank {start.rank}, attempt {start.attempt}, want those of the file's name")
        if not 0 <= start.world < 2**63:
            raise ReadError(f"{path}:1: world: got {start.world}, want a number of ranks")
        if start.began > start.at + _ROUNDED:
            raise ReadError(f"{path}:1: began: got {start.began:g} s, want no time after this line, {start.at:g} s")
        found[rank] = (*found.get(rank, ()), ProbeFile(path=path, start=start))
    if not found:
        raise ReadError(f"{folder}: no file rank0-attempt0.jsonl or the like; want the folder that a probe wrote")
    _tell_lacking(folder, [(rank, attempt) for rank, attempt, _ in named], tell)
    return found


def _tell_lacking(folder: Path, named: list[tuple[int, int]], tell: Callable[[str], None]) -> None:
    for rank, mine in itertools.groupby(named, lambda each: each[0]):
        there = {attempt for _, attempt in mine}
        if lacking := max(there) + 1 - len(there):
            first = next(attempt for attempt in itertools.count() if attempt not in there)
            tell(
                f"{folder}: {lacking} of the {max(there) + 1} files of rank {rank} are not there, first "
                f"rank{rank}-attempt{first}.jsonl: their time counts as an outage and their steps as never done; "
                "put all files of a run into one folder"
            )


def probe_lines(file: ProbeFile, tell: Callable[[str], None]) -> Iterator[FastLine]:
    """All lines after the first, as they come from the disk. `tell` hears of a last one that a kill cut short.

    Raises:
        ReadError: another line is not of a probe.
    """
    with _opened(file.path) as lines:
        lines.readline(_LONGEST)
        for number, raw in enumerate(iter(partial(lines.readline, _LONGEST), b""), 2):
            try:
                line = _LINE.decode(raw)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                if raw.endswith(b"\n") or len(raw) == _LONGEST:
                    raise _refused(f"{file.path}:{number}", error) from None
                tell(f"{file.path}:{number}: the last line was cut off by a kill and is left out")
                return
            if (least := line.seconds if line.own is None else min(line.seconds, line.own)) < 0:
                raise ReadError(f"{file.path}:{number}: got {least:g} seconds, want none below 0")
            if line.own is not None and line.own > line.seconds + _ROUNDED:
                raise ReadError(f"{file.path}:{number}: own: got {line.own:g} of {line.seconds:g} seconds")
            yield line


def probed_processes(folder: Path) -> dict[int, tuple[ProbedProcess, ...]]:
    """rank -> its processes with all their lines, of a run that fits into memory.

    Raises:
        ReadError: as `probe_files` and `probe_lines`; or it does not fit.
    """
    found = probe_files(folder, lambda _torn: None)
    if (size := sum(file.path.stat().st_size for files in found.values() for file in files)) > _MOST:
        raise ReadError(
            f"{folder}: the probes of {len(found)} ranks wrote {size / 2**20:.0f} MiB, more than the "
            f"{_MOST / 2**20:.0f} MiB that a measurement can hold: let the command do fewer steps here; of the long "
            "run itself `clusterqual import probe` makes the ledger, whatever its size"
        )
    return {
        rank: tuple(
            ProbedProcess(
                start=file.start,
                lines=tuple(Line(**msgspec.structs.asdict(line)) for line in probe_lines(file, lambda _torn: None)),
            )
            for file in files
        )
        for rank, files in found.items()
    }


def _opened(path: Path) -> BufferedReader:
    try:
        return path.open("rb")
    except OSError as error:
        raise ReadError(f"{path}: cannot be read: {error.strerror}") from error


def _refused(where: str, error: Exception) -> ReadError:
    return ReadError(f"{where}: is no line of a probe: {error}")

"""The run folder: every measurement and record on disk at once, one JSON line each.

A killed process loses at most the line it was writing. One process writes a run folder; any
number may read it. Layout: ``environment.json``, ``measurements.jsonl``, ``records.jsonl``.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NoReturn

from pytest_clusterqual.errors import RunFolderError
from pytest_clusterqual.model.codec import from_json, to_json
from pytest_clusterqual.model.measurement import MEASUREMENTS, Measurement
from pytest_clusterqual.model.record import SCHEMA, Record

ENVIRONMENT, MEASUREMENT_LINES, RECORD_LINES = "environment.json", "measurements.jsonl", "records.jsonl"

_RECORDED_VARIABLES = ("NCCL_", "GLOO_", "TORCH_", "CUDA_", "SLURM_", "OMP_")
_SECRET_NAME = re.compile(r"TOKEN|SECRET|KEY|PASSW|PASSPHRASE|JWT|CREDENTIAL", re.IGNORECASE)
_PASSWORD_IN_URL = re.compile(r"://[^/\s@]*:[^/\s@]*@")
_ELSEWHERE = "give another folder with --qual-run-dir"
_REMEDIES = {
    errno.ENOSPC: f"free some space, or {_ELSEWHERE}",
    errno.EDQUOT: f"free some of the quota, or {_ELSEWHERE}",
    errno.EROFS: f"the file system is read-only: {_ELSEWHERE}",
    errno.EACCES: f"{_ELSEWHERE} that this user may write",
    errno.EPERM: f"{_ELSEWHERE} that this user may write",
    errno.ENOENT: "the folder was removed or renamed meanwhile: put it back",
    errno.ENOTDIR: f"a part of the path is not a folder: {_ELSEWHERE}",
    errno.EEXIST: f"there is a file of that name: {_ELSEWHERE}",
}


class RunFolder:
    """What one run measured and concluded. Made by `create` or `open`."""

    def __init__(self, path: Path, environment: dict[str, Any]) -> None:
        self.path = path
        self._environment = environment
        self._records: list[Record] = []
        self._measurements: dict[str, tuple[str, str, Measurement]] = {}
        self._unsaved: list[tuple[str, bytes]] = []
        self._torn: list[str] = []

    @classmethod
    def create(cls, path: Path | str, *, run: str, environment: Mapping[str, Any], simulated: bool) -> RunFolder:
        """Make the folder and its ``environment.json``; an empty folder may be there already.

        Raises:
            RunFolderError: the folder holds a run or other files, or cannot be written.
        """
        path = Path(path)
        described = {"schema": SCHEMA, "run": run, "simulated": simulated, **to_json(environment)}
        described.update(schema=SCHEMA, run=run, simulated=simulated)
        folder = cls(path, described)
        try:
            path.mkdir(mode=0o755, parents=True, exist_ok=True)
            _refuse_what_is_not_empty(path)
            _claim(path)
        except OSError as error:
            _cannot_write(path, error)
        try:
            _replace(path / ENVIRONMENT, described)
            _sync_folder(path.parent)
        except OSError as error:
            for name in (MEASUREMENT_LINES, RECORD_LINES):
                with contextlib.suppress(OSError):
                    (path / name).unlink()
            _cannot_write(path / ENVIRONMENT, error)
        return folder

    @classmethod
    def open(cls, path: Path | str) -> RunFolder:
        """Read a run folder, all of it, strictly; only a last line cut short by a kill is let pass.

        Raises:
            RunFolderError: not a run folder, another schema, or a malformed line (``file:line``).
        """
        path = Path(path)
        folder = cls(path, _read_environment(path / ENVIRONMENT))
        for where, value in folder._lines(MEASUREMENT_LINES):
            _add_unique(folder._measurements, where, value)
        for where, value in folder._lines(RECORD_LINES):
            folder._records.append(_strictly(Record, value, where))
        return folder

    @property
    def run(self) -> str:
        return str(self._environment["run"])

    @property
    def simulated(self) -> bool:
        return bool(self._environment["simulated"])

    @property
    def environment(self) -> dict[str, Any]:
        """What ``environment.json`` says."""
        return dict(self._environment)

    @property
    def torn(self) -> tuple[str, ...]:
        """Where a last line was found cut short when the folder was opened, as ``file:line``."""
        return tuple(self._torn)

    @property
    def unsaved(self) -> int:
        """Number of lines that are in memory but could not be written; the next append tries again."""
        return len(self._unsaved)

    @property
    def attempt(self) -> int:
        """1, and one more each time the run was resumed."""
        return int(self._environment.get("attempts", 1))

    def begin_attempt(self) -> None:
        """Go on with this run: what is recorded from now on replaces the earlier records of the same test.

        Raises:
            RunFolderError: ``environment.json`` could not be replaced.
        """
        self.update_environment({"attempts": self.attempt + 1})

    def records(self) -> list[Record]:
        """The records of each test's last attempt, in the order they were added; all lines stay in the file."""
        last = {record.test: record.attempt for record in self._records}
        return [record for record in self._records if record.attempt == last[record.test]]

    def measurements(self) -> dict[str, tuple[str, str, Measurement]]:
        """Measurement id -> (test, criterion, measurement), in the order they were added."""
        return dict(self._measurements)

    def add_measurement(self, criterion: str, test: str, measurement: Measurement) -> str:
        """Keep a measurement, on disk before this returns. The id is like ``m0001``.

        Raises:
            RunFolderError: it could not be written; it is still in `measurements`.
        """
        identity = f"m{max((int(i[1:]) for i in self._measurements), default=0) + 1:04d}"
        line = {
            "schema": SCHEMA,
            "id": identity,
            "test": test,
            "criterion": criterion,
            "measurement": to_json(measurement),
        }
        self._measurements[identity] = (test, criterion, measurement)
        self._append(MEASUREMENT_LINES, line)
        return identity

    def add_record(self, record: Record) -> None:
        """Keep a record, on disk before this returns.

        Raises:
            RunFolderError: it could not be written; it is still in `records`.
        """
        self._records.append(record)
        self._append(RECORD_LINES, to_json(record))

    def update_environment(self, more: Mapping[str, Any]) -> None:
        """Add what became known later (hosts, versions); schema, run and simulated stay.

        Raises:
            RunFolderError: ``environment.json`` could not be replaced; the old one is intact.
        """
        fixed = {key: self._environment[key] for key in ("schema", "run", "simulated")}
        self._environment = {**self._environment, **to_json(more), **fixed}
        try:
            _replace(self.path / ENVIRONMENT, self._environment)
        except OSError as error:
            _cannot_write(self.path / ENVIRONMENT, error)

    def _append(self, name: str, value: Any) -> None:
        self._unsaved.append((name, json.dumps(value, allow_nan=False).encode() + b"\n"))
        while self._unsaved:
            name, line = self._unsaved[0]
            try:
                _append_line(self.path / name, line)
            except OSError as error:
                _cannot_write(self.path / name, error)
            del self._unsaved[0]

    def _lines(self, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
        path = self.path / name
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return  # nothing was measured, or nothing judged, before the run ended
        except OSError as error:
            raise RunFolderError(f"{path}: cannot be read: {error.strerror}") from error
        *whole, last = content.split(b"\n")
        for number, line in enumerate(whole, 1):
            yield f"{path}:{number}", _checked(line, f"{path}:{number}")
        if last:
            where = f"{path}:{len(whole) + 1}"
            if _is_json(last):
                yield where, _checked(last, where)
            else:
                self._torn.append(where)


def environment_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that steer communication, threads and the allocation, without secrets."""
    return {
        name: value
        for name, value in sorted(environ.items())
        if name.startswith(_RECORDED_VARIABLES) and not _SECRET_NAME.search(name) and not _PASSWORD_IN_URL.search(value)
    }


def default_path(base: Path | str, now: datetime) -> Path:
    """A folder in `base` named by the time in UTC, with a suffix if there is one already."""
    stem = now.astimezone(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    path, count = Path(base) / stem, 1
    while path.exists():
        count += 1
        path = Path(base) / f"{stem}-{count}"
    return path


def _cannot_write(path: Path, error: OSError) -> NoReturn:
    remedy = _REMEDIES.get(error.errno or 0, f"check the file system, or {_ELSEWHERE}")
    raise RunFolderError(f"{path}: cannot be written: {error.strerror}; {remedy}") from error


def _refuse_what_is_not_empty(path: Path) -> None:
    names = sorted(entry.name for entry in path.iterdir())
    if any(name in names for name in (ENVIRONMENT, MEASUREMENT_LINES, RECORD_LINES)):
        raise RunFolderError(f"{path}: already holds a run; {_ELSEWHERE}, or move this one away")
    if names:
        raise RunFolderError(
            f"{path}: is not empty (it holds {names[0]!r}) and not a run folder; {_ELSEWHERE}, new or empty"
        )


def _claim(path: Path) -> None:
    """Of two runs that start at once in one folder only one gets past here."""
    for name in (RECORD_LINES, MEASUREMENT_LINES):
        try:
            os.close(os.open(path / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
        except FileExistsError:
            raise RunFolderError(f"{path}: already holds a run; {_ELSEWHERE}, or move this one away") from None


def _replace(path: Path, value: Mapping[str, Any]) -> None:
    """Write `value` so that a reader sees the old file or the new one, also after a power loss."""
    content = json.dumps(value, indent=1, allow_nan=False).encode() + b"\n"
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _append_line(path: Path, line: bytes) -> None:
    """Append one line by one write; on any failure the file is as it was before."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        _end_last_line(descriptor, path)
        size = os.fstat(descriptor).st_size
        try:
            if os.write(descriptor, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(descriptor)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)


def _end_last_line(descriptor: int, path: Path) -> None:
    """Complete a last line that lacks only its end; set a torn one aside in ``<file>.torn``."""
    size = os.fstat(descriptor).st_size
    if size == 0 or os.pread(descriptor, 1, size - 1) == b"\n":
        return
    content = path.read_bytes()
    last = content[content.rfind(b"\n") + 1 :]
    if _is_json(last):
        os.write(descriptor, b"\n")
        return
    with open(path.with_name(f"{path.name}.torn"), "ab") as aside:
        aside.write(last + b"\n")
    os.ftruncate(descriptor, size - len(last))


def _parse(line: bytes) -> Any:
    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not JSON")

    return json.loads(line.decode(), parse_constant=refuse)


def _is_json(line: bytes) -> bool:
    try:
        _parse(line)
    except (ValueError, RecursionError):
        return False
    return True


def _checked(line: bytes, where: str) -> dict[str, Any]:
    """One line as a JSON object of our schema."""
    try:
        value = _parse(line)
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"{where}: not JSON ({error}); restore the file, or remove this line") from None
    if not isinstance(value, dict):
        raise RunFolderError(f"{where}: got {type(value).__name__}, want a JSON object; restore the file")
    if value.get("schema") != SCHEMA or isinstance(value["schema"], bool):
        raise RunFolderError(
            f"{where}: got schema {value.get('schema')!r}, want {SCHEMA}; "
            "read this run with the version of pytest-clusterqual that wrote it"
        )
    return value


def _read_environment(path: Path) -> dict[str, Any]:
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise RunFolderError(
            f"{path.parent}: is not a run folder ({path.name} is missing); give the folder that a run has written"
        ) from None
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read: {error.strerror}") from error
    line = next((n for n, text in enumerate(content.split(b"\n"), 1) if b'"schema"' in text), 1)
    value = _checked(content, f"{path}:{line}")
    for key, kind in (("run", str), ("simulated", bool)):
        if not isinstance(value.get(key), kind):
            raise RunFolderError(f"{path}: {key}: got {value.get(key)!r}, want {kind.__name__}; restore the file")
    return value


def _add_unique(into: dict[str, tuple[str, str, Measurement]], where: str, value: dict[str, Any]) -> None:
    names = [value.get(key) for key in ("id", "test", "criterion")]
    if set(value) != {"schema", "id", "test", "criterion", "measurement"} or not all(isinstance(n, str) for n in names):
        raise RunFolderError(
            f"{where}: got the fields {', '.join(value)}, "
            "want schema, id, test, criterion, measurement; restore the file"
        )
    identity, test, criterion = map(str, names)
    if not re.fullmatch(r"m\d{4,9}", identity) or identity in into:
        raise RunFolderError(f"{where}: id: got {identity!r}, want an id such as 'm0001' that no other line has")
    if criterion not in MEASUREMENTS:
        raise RunFolderError(f"{where}: criterion: got {criterion!r}, want {', '.join(MEASUREMENTS)}")
    measurement = _strictly(MEASUREMENTS[criterion], value["measurement"], f"{where}: measurement")
    into[identity] = (test, criterion, measurement)


def _strictly(kind: type, value: Any, where: str) -> Any:
    try:
        return from_json(kind, value, where=where)
    except (ValueError, OverflowError) as error:  # a whole number of 400 digits is no float
        text = str(error) if str(error).startswith(where) else f"{where}: {error}"
        raise RunFolderError(f"{text}; restore the file") from None

"""The run folder: every measurement and record on disk at once, one JSON line each.

A killed process loses at most the line it was writing. Layout: ``environment.json``,
``measurements.jsonl``, ``records.jsonl``; ``tests.json`` says what was selected. Of several
processes that write one run, each opens the folder as a *part* and appends to files of its own,
such as ``records-gw0.jsonl``, which `merge` brings together at the end. Any number may read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NoReturn

from pytest_clusterqual import lines
from pytest_clusterqual.errors import RunFolderError
from pytest_clusterqual.lines import Line
from pytest_clusterqual.model.codec import from_json, to_json
from pytest_clusterqual.model.measurement import CRITERIA, KINDS, MEASUREMENTS, Measurement
from pytest_clusterqual.model.record import SCHEMA, Record

ENVIRONMENT, MEASUREMENT_LINES, RECORD_LINES = "environment.json", "measurements.jsonl", "records.jsonl"
TESTS = "tests.json"
_CONDITIONS, _NO_CONDITIONS = b'"conditions": ', b'"conditions": null'
_KINDS = {kind: name for name, kind in MEASUREMENTS.items()}

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Selected:
    """A test that this run was asked for, as far as it is known before it runs.

    `node` is the one node it has for itself, if it may run at any time; `inapplicable` says why it
    is left out.
    """

    criterion: str
    layout: str = ""
    node: str = ""
    inapplicable: str = ""


class RunFolder:
    """What one run measured and concluded. Made by `create` or `open`."""

    def __init__(self, path: Path, environment: dict[str, Any], part: str = "") -> None:
        self.path = path
        self._environment = environment
        self._part = part
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
            lines.replace_json(path / ENVIRONMENT, described)
            lines.sync_folder(path.parent)
        except OSError as error:
            for name in (MEASUREMENT_LINES, RECORD_LINES):
                with contextlib.suppress(OSError):
                    (path / name).unlink()
            _cannot_write(path / ENVIRONMENT, error)
        return folder

    @classmethod
    def open(cls, path: Path | str, *, part: str = "") -> RunFolder:
        """Read a run folder, all of it, strictly; only a last line cut short by a kill is let pass.

        With `part`, such as ``gw0``, what is added goes to files of that name.

        Raises:
            RunFolderError: not a run folder, another schema, or a malformed line (``file:line``).
        """
        path = Path(path)
        folder = cls(path, _read_environment(path / ENVIRONMENT), part)
        for line in folder._lines(MEASUREMENT_LINES):
            _add_unique(folder._measurements, line.where, line.value)
        folder._records = list(folder._read_records())
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

    @property
    def tests(self) -> dict[str, Selected]:
        """The tests this run was asked for, in all its attempts, by their ids."""
        path = self.path / TESTS
        if not path.exists():
            return {}
        value = lines.checked(path.read_bytes(), str(path))
        return _strictly(dict[str, Selected], value.get("tests"), f"{path}: tests")  # type: ignore[no-any-return]

    def select(self, tests: Mapping[str, Selected]) -> None:
        """Note which tests this run is asked for, beside those of earlier attempts.

        Raises:
            RunFolderError: ``tests.json`` could not be replaced.
        """
        everything = {"schema": SCHEMA, "tests": to_json({**self.tests, **tests})}
        try:
            lines.replace_json(self.path / TESTS, everything)
        except OSError as error:
            _cannot_write(self.path / TESTS, error)

    def records(self) -> list[Record]:
        """The records of each test's last attempt, in the order they were added; all lines stay in the file."""
        return list(self.numbered().values())

    def numbered(self) -> dict[int, Record]:
        """As `records`, each under its line in ``records.jsonl``, counted from 1."""
        last: dict[str, int] = {}
        for record in self._records:
            last[record.test] = max(record.attempt, last.get(record.test, 0))
        return {line: record for line, record in enumerate(self._records, 1) if record.attempt == last[record.test]}

    def refresh(self) -> None:
        """Read what the other parts have recorded meanwhile; nothing to do for who writes the folder alone."""
        if self._part:
            unsaved = [line for name, line in self._unsaved if name == self._file(RECORD_LINES)]
            waiting = [_strictly(Record, lines.checked(line, "unsaved"), "unsaved") for line in unsaved]
            self._records = [*self._read_records(), *waiting]

    def measurements(self) -> dict[str, tuple[str, str, Measurement]]:
        """Measurement id -> (test, criterion, measurement), in the order they were added."""
        return dict(self._measurements)

    def add_measurement(self, criterion: str, test: str, measurement: Measurement) -> str:
        """Keep a measurement, on disk before this returns. The id is like ``m0001``, of a part ``gw0-m0001``.

        Raises:
            RunFolderError: it could not be written; it is still in `measurements`.
        """
        prefix = f"{self._part}-m" if self._part else "m"
        used = [int(i.removeprefix(prefix)) for i in self._measurements if i.startswith(prefix)]
        identity = f"{prefix}{max(used, default=0) + 1:04d}"
        line = {
            "schema": SCHEMA,
            "id": identity,
            "test": test,
            "criterion": criterion,
            "kind": _KINDS[type(measurement)],
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
            lines.replace_json(self.path / ENVIRONMENT, self._environment)
        except OSError as error:
            _cannot_write(self.path / ENVIRONMENT, error)

    def add_text(self, name: str, text: str) -> None:
        """Put a text for people into the folder, whole or not at all.

        Raises:
            RunFolderError: it could not be written.
        """
        try:
            lines.replace(self.path / name, text.encode())
        except OSError as error:
            _cannot_write(self.path / name, error)

    def merge(self) -> None:
        """Bring the lines of all parts into the two main files; nobody may be writing any more.

        Raises:
            RunFolderError: a part is malformed, or a file could not be written; no line is lost.
        """
        for name in (MEASUREMENT_LINES, RECORD_LINES):
            main, parts = self.path / name, self._parts(name)
            if not parts:
                continue
            whole = b"".join(line.raw + b"\n" for line in self._lines(name))
            try:
                for torn in filter(None, (lines.read(path)[1] for path in (main, *parts))):
                    lines.set_aside(main, torn)
                lines.replace(main, whole)
                for part in parts:
                    part.unlink()
            except OSError as error:
                _cannot_write(main, error)

    def _file(self, name: str) -> str:
        return name.replace(".", f"-{self._part}.") if self._part else name

    def _parts(self, name: str) -> list[Path]:
        return sorted(self.path.glob(name.replace(".", "-gw*.")))

    def _append(self, name: str, value: Any) -> None:
        self._unsaved.append((self._file(name), lines.encode(value)))
        while self._unsaved:
            name, line = self._unsaved[0]
            try:
                lines.append(self.path / name, line)
            except OSError as error:
                _cannot_write(self.path / name, error)
            del self._unsaved[0]

    def _lines(self, name: str) -> Iterable[Line]:
        """The lines of the main file; where there are parts, theirs among them in the order of time."""
        if not self._parts(name):
            return self._read(self.path / name)
        whole = list(self._read(self.path / name))
        known = {line.raw for line in whole}  # a merge that was cut short leaves lines in both places
        apart = [line for part in self._parts(name) for line in self._read(part) if line.raw not in known]
        return sorted([*whole, *apart], key=_when) if apart else whole

    def _read(self, path: Path) -> Iterator[Line]:
        torn: list[Line] = []
        yield from lines.each(path, torn.append)
        self._torn += [line.where for line in torn if line.where not in self._torn]

    def _read_records(self) -> Iterator[Record]:
        """Records of one measurement share its conditions: those of a thousand nodes are larger than all else."""
        text, shared = b"", None
        for line in self._lines(RECORD_LINES):
            before, found, after = line.raw.partition(text) if shared else (b"", b"", b"")
            if found:
                value = lines.checked(before + _NO_CONDITIONS + after, line.where)
                yield replace(_strictly(Record, value, line.where), conditions=shared)
            else:
                record = _strictly(Record, line.value, line.where)
                text, shared = _CONDITIONS + lines.encode(line.value["conditions"]), record.conditions
                yield record


def _when(line: Line) -> tuple[float, float]:
    """Attempt and time of a line; what is no number is refused later, by name."""
    made = line.value.get("measurement")
    attempt, started = line.value.get("attempt"), (made if isinstance(made, dict) else line.value).get("started")
    return attempt if isinstance(attempt, int) else 0, started if isinstance(started, (int, float)) else 0


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
    value = lines.checked(content, f"{path}:{line}")
    for key, kind in (("run", str), ("simulated", bool)):
        if not isinstance(value.get(key), kind):
            raise RunFolderError(f"{path}: {key}: got {value.get(key)!r}, want {kind.__name__}; restore the file")
    return value


def _add_unique(into: dict[str, tuple[str, str, Measurement]], where: str, value: dict[str, Any]) -> None:
    names = [value.get(key) for key in ("id", "test", "criterion")]
    wanted = {"schema", "id", "test", "criterion", "kind", "measurement"}
    if set(value) not in (wanted, wanted - {"kind"}) or not all(isinstance(name, str) for name in names):
        raise RunFolderError(
            f"{where}: got the fields {', '.join(value)}, "
            "want schema, id, test, criterion, kind, measurement; restore the file"
        )
    identity, test, criterion = map(str, names)
    if not re.fullmatch(r"(?:gw\d+-)?m\d{4,9}", identity) or identity in into:
        raise RunFolderError(f"{where}: id: got {identity!r}, want an id such as 'm0001' that no other line has")
    if criterion not in CRITERIA:
        raise RunFolderError(f"{where}: criterion: got {criterion!r}, want {', '.join(CRITERIA)}")
    kind = value.get("kind", criterion)  # the first version had one kind a criterion
    kinds = KINDS.get(criterion, (criterion,))
    if kind not in kinds:
        raise RunFolderError(f"{where}: kind: got {kind!r}, want {', '.join(kinds)}")
    measurement = _strictly(MEASUREMENTS[kind], value["measurement"], f"{where}: measurement")
    into[identity] = (test, criterion, measurement)


def _strictly(kind: type, value: Any, where: str) -> Any:
    try:
        return from_json(kind, value, where=where)
    except (ValueError, OverflowError) as error:  # a whole number of 400 digits is no float
        text = str(error) if str(error).startswith(where) else f"{where}: {error}"
        raise RunFolderError(f"{text}; restore the file") from None

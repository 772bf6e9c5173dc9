"""The run folder: every measurement and record on disk at once, one JSON line each.

A killed process loses at most what it was writing: a measurement, or the records of a test.
Layout: ``environment.json``, ``measurements.jsonl``, ``records.jsonl``; ``tests.json`` says what was
selected. Of several processes that write one run, each opens the folder as a *part* and appends to files of its own,
such as ``records-gw0.jsonl``, which `merge` brings together at the end. Any number may read.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_clusterqual.errors import RunFolderError
from pytest_clusterqual.folder import lines, samples
from pytest_clusterqual.folder.lines import Line, Place, strictly
from pytest_clusterqual.folder.places import ENVIRONMENT, MEASUREMENT_LINES, RECORD_LINES, cannot_write, take
from pytest_clusterqual.folder.record_lines import SAID_ONCE, records_of, when
from pytest_clusterqual.folder.samples import Measurements, Stored
from pytest_clusterqual.model.codec import to_json
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.measurement import Measurement
from pytest_clusterqual.model.record import SCHEMA, Record

TESTS = "tests.json"
_COUNTS = frozenset({"nodes", "nproc_per_node", "attempts"})  # in the environment, as soon as they are known
_KINDS: dict[str, Any] = {
    "variables": dict[str, str], "hosts": tuple[str, ...], "named_hosts": tuple[str, ...],
    "merged": dict[str, dict[str, Any]],
}  # fmt: skip


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
    """What one run measured and concluded. Made by `create` or `open`; else it knows only what it was asked."""

    def __init__(self, path: Path, environment: dict[str, Any], part: str = "") -> None:
        self.path = path
        self._environment = environment
        self._part = part
        self._records: list[Record] = []
        self._added: Counter[tuple[str, int, int]] = Counter()  # records by test, attempt and `of`
        self._stored: dict[str, Stored] = {}
        self._said: dict[str, Conditions] = {}  # in the last record of each measurement
        self._unsaved: list[tuple[str, bytes, str]] = []  # file, lines added together, and id of a measurement
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
            take(path)
        except OSError as error:
            cannot_write(path, error)
        try:
            lines.replace_json(path / TESTS, {"schema": SCHEMA, "tests": {}})
            lines.replace_json(path / ENVIRONMENT, described)
            lines.sync_folder(path.parent)
        except OSError as error:
            for name in (MEASUREMENT_LINES, RECORD_LINES, TESTS):
                with contextlib.suppress(OSError):
                    (path / name).unlink()
            cannot_write(path / ENVIRONMENT, error)
        return folder

    @classmethod
    def open(cls, path: Path | str, *, part: str = "") -> RunFolder:
        """Read a run folder strictly; only a last line cut short by a kill is let pass.

        Measurements are found and left where they are. With `part`, such as ``gw0``, what is added goes to files of
        that name.

        Raises:
            RunFolderError: not a run folder, another schema, or a malformed line (``file:line``).
        """
        path = Path(path)
        folder = cls(path, read_environment(path / ENVIRONMENT), part)
        main = path / MEASUREMENT_LINES
        folder._stored = samples.find(main, folder._parts(MEASUREMENT_LINES), folder._note_torn)
        folder._keep(records_of(folder._record_lines(folder._note_torn)))
        _ = folder.tests  # what cannot be read is told now, not at the end of a run
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
        """Number of appends that are in memory but could not be written; the next one tries again."""
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
        value = self._asked()
        return strictly(dict[str, Selected], value["tests"], f"{self.path / TESTS}: tests") if value else {}

    @property
    def ended(self) -> bool:
        """Whether the last attempt came to its end, and pytest found nothing wrong."""
        return self._asked().get("ended") is True

    def end(self) -> None:
        """Note that this attempt came to its end, and pytest found nothing wrong.

        Raises:
            RunFolderError: as `select`.
        """
        if told := self._asked():  # a file that was lost meanwhile is not made anew
            self._ask({**told, "ended": True})

    @property
    def lost(self) -> str:
        """What it lacks to say whether it is complete, for people; evidence from elsewhere was asked for nothing."""
        if "imported" in self._environment or os.path.lexists(self.path / TESTS):
            return ""
        return f"{TESTS}: is missing, so nobody knows what was asked of this run; restore the file"

    def select(self, tests: Mapping[str, Selected]) -> None:
        """Note which tests this run is asked for, beside those of earlier attempts.

        Raises:
            RunFolderError: ``tests.json`` could not be replaced.
        """
        self._ask({"schema": SCHEMA, "tests": to_json({**self.tests, **tests})})

    def records(self) -> list[Record]:
        """The records of each test's last attempt, in the order they were added; all lines stay in the file.

        Of records that were added together and of which a kill has left only some, there is none.
        """
        return list(self.numbered().values())

    def history(self) -> list[Record]:
        """As `records`, with those of earlier attempts."""
        return [record for record in self._records if self._is_whole(record)]

    def numbered(self) -> dict[int, Record]:
        """As `records`, each under its line in ``records.jsonl``, counted from 1."""
        whole = {line: record for line, record in enumerate(self._records, 1) if self._is_whole(record)}
        last: dict[str, int] = {}
        for record in whole.values():
            last[record.test] = max(record.attempt, last.get(record.test, 0))
        return {line: record for line, record in whole.items() if record.attempt == last[record.test]}

    def refresh(self) -> None:
        """Read what the other parts have recorded meanwhile; nothing to do for who writes the folder alone."""
        if self._part:
            unsaved = [added for name, added, _ in self._unsaved if name == self._file(RECORD_LINES)]
            waiting = [Line(line, "unsaved") for added in unsaved for line in added.split(b"\n")]
            records = list(records_of([*self._record_lines(self._note_torn), *waiting]))
            self._records.clear()
            self._added.clear()
            self._keep(records)

    def measurements(self, *, quick: bool = False) -> Measurements:
        """Id -> test, criterion and measurement, each read from disk when it is asked for; `quick` as there."""
        return Measurements(self._stored, quick=quick)

    def add_measurement(self, criterion: str, test: str, measurement: Measurement) -> str:
        """Keep a measurement, on disk before this returns. The id is like ``m0001``, of a part ``gw0-m0001``.

        Raises:
            RunFolderError: it could not be written; it is still in `measurements`.
        """
        prefix = f"{self._part}-m" if self._part else "m"
        used = [int(i.removeprefix(prefix)) for i in self._stored if i.startswith(prefix)]
        identity, kind = f"{prefix}{max(used, default=0) + 1:04d}", samples.kind_of(measurement)
        stored = Stored(identity=identity, test=test, criterion=criterion, kind=kind, held=measurement)
        self._stored[identity] = stored
        self._append(MEASUREMENT_LINES, samples.line_of(stored, measurement), identity)
        return identity

    def add_record(self, record: Record) -> None:
        """As `add_records` with one."""
        self.add_records([record])

    def add_records(self, records: Sequence[Record]) -> None:
        """Keep what a test has made, on disk before this returns: all of it, or for who reads it nothing.

        Raises:
            RunFolderError: they could not be written; they are still in `records`.
        """
        if records:
            made = [replace(record, of=len(records)) for record in records]
            told = b"\n".join(lines.encode(self._told(record)) for record in made)
            self._keep(made)
            self._append(RECORD_LINES, told)

    def _keep(self, records: Iterable[Record]) -> None:
        for record in records:
            self._records.append(record)
            self._added[record.test, record.attempt, record.of] += 1

    def _is_whole(self, record: Record) -> bool:
        return self._added[record.test, record.attempt, record.of] % max(record.of, 1) == 0

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
            cannot_write(self.path / ENVIRONMENT, error)

    def add_text(self, name: str, text: str) -> None:
        """Put a text for people into the folder, whole or not at all.

        Raises:
            RunFolderError: it could not be written.
        """
        try:
            lines.replace(self.path / name, text.encode())
        except OSError as error:
            cannot_write(self.path / name, error)

    def merge(self) -> None:
        """Bring the lines of all parts into the two main files; nobody may be writing any more.

        Raises:
            RunFolderError: a part is malformed, or a file could not be written; no line is lost.
        """
        for name in (MEASUREMENT_LINES, RECORD_LINES):
            main, parts = self.path / name, self._parts(name)
            if not parts:
                continue
            torn: list[Line] = []
            if name == MEASUREMENT_LINES:
                found = [stored.place for stored in samples.find(main, parts, torn.append).values() if stored.place]
                whole: Iterable[bytes] = (block for place in found for block in place.blocks())
            else:
                whole = [line.raw + b"\n" for line in self._record_lines(torn.append)]
            try:
                for line in torn:
                    lines.set_aside(main, line.raw)
                lines.replace(main, whole)
                for part in parts:
                    part.unlink()
            except OSError as error:
                cannot_write(main, error)

    def _asked(self) -> dict[str, Any]:
        path = self.path / TESTS
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise RunFolderError(f"{path}: cannot be read: {error.strerror}; restore the file") from error
        return {"tests": None, **lines.checked(content, str(path))}

    def _ask(self, value: dict[str, Any]) -> None:
        try:
            lines.replace_json(self.path / TESTS, value)
        except OSError as error:
            cannot_write(self.path / TESTS, error)

    def _file(self, name: str) -> str:
        return name.replace(".", f"-{self._part}.") if self._part else name

    def _parts(self, name: str) -> list[Path]:
        return sorted(self.path.glob(name.replace(".", "-gw*.")))

    def _append(self, name: str, line: bytes, identity: str = "") -> None:
        self._unsaved.append((self._file(name), line, identity))
        while self._unsaved:
            name, line, identity = self._unsaved[0]
            path = self.path / name
            try:
                begin = lines.append(path, line)
            except OSError as error:
                cannot_write(path, error)
            del self._unsaved[0]
            if identity:
                place = Place(path, begin, len(line), f"{path}: {identity}")
                self._stored[identity] = replace(self._stored[identity], place=place, held=None)

    def _told(self, record: Record) -> dict[str, Any]:
        """A record as its line has it: without what this process has said already in one of the same measurement."""
        name, at = record.measurement or "", record.conditions
        if not name or at is None or self._said.get(name) != at:
            self._said |= {name: at} if at is not None else {}
            return dict(to_json(record))
        told = dict(to_json(replace(record, conditions=replace(at, rank_nodes=(), telemetry=()))))
        told["conditions"] = {name: value for name, value in told["conditions"].items() if name not in SAID_ONCE}
        return told

    def _record_lines(self, torn: Callable[[Line], None]) -> Iterable[Line]:
        """The lines of the main file; where there are parts, theirs among them in the order of time."""
        main, parts = self.path / RECORD_LINES, self._parts(RECORD_LINES)
        if not parts:
            return lines.each(main, torn)
        whole = list(lines.each(main, torn))
        known = {line.raw for line in whole}  # a merge that was cut short leaves lines in both places
        apart = [line for part in parts for line in lines.each(part, torn) if line.raw not in known]
        return sorted([*whole, *apart], key=when) if apart else whole

    def _note_torn(self, line: Line) -> None:
        if line.where not in self._torn:
            self._torn.append(line.where)


def read_environment(path: Path) -> dict[str, Any]:
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise RunFolderError(
            f"{path.parent}: is not a run folder ({path.name} is missing); give the folder that a run has written"
        ) from None
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read: {error.strerror}") from error
    line = next((n for n, text in enumerate(content.split(b"\n"), 1) if b'"schema"' in text), 1)
    value = lines.checked(content, f"{path}:{line}" if lines.is_json(content) else str(path))
    for key, kind in (("run", str), ("simulated", bool)):
        if not isinstance(value.get(key), kind):
            raise RunFolderError(f"{path}: {key}: got {value.get(key)!r}, want {kind.__name__}; restore the file")
    for key in _COUNTS & value.keys():
        if type(value[key]) is not int or value[key] < 1:  # true is no count
            raise RunFolderError(f"{path}: {key}: got {value[key]!r}, want a positive whole number; restore the file")
    for key in _KINDS.keys() & value.keys():
        strictly(_KINDS[key], value[key], f"{path}: {key}")
    return value

"""The measurements of a run folder: found when it is opened, read one at a time when they are asked for.

Of a thousand nodes a single one has a hundred megabytes, so none is kept in memory once it is on disk. Its line says
first whose it is and how large, so that the next one is found without reading it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pytest_clusterqual.errors import RunFolderError
from pytest_clusterqual.folder import lines
from pytest_clusterqual.folder.lines import Line, Place
from pytest_clusterqual.model.codec import to_json
from pytest_clusterqual.model.measurement import CRITERIA, KINDS, MEASUREMENTS, Measurement
from pytest_clusterqual.model.record import SCHEMA

_BODY = b'"measurement": '
_SIZE = re.compile(rb'"size": (\d{1,15}), ' + _BODY)  # of the body; neither can stand like that inside a text
_FIELDS, _MORE_FIELDS = {"schema", "id", "test", "criterion", "measurement"}, {"kind", "started", "size"}
_NAMES = {kind: name for name, kind in MEASUREMENTS.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """One measurement: at its `place` on disk, or `held` in memory while it could not be written."""

    identity: str
    test: str
    criterion: str
    kind: str
    place: Place | None = None
    held: Measurement | None = None

    def read(self, *, quick: bool = False) -> Measurement:
        """The measurement; `quick` as in `Measurements`.

        Raises:
            RunFolderError: the line is malformed (``file:line``), or the file was replaced meanwhile.
        """
        if self.place is None:
            assert self.held is not None
            return self.held
        kind, line = MEASUREMENTS[self.kind], self.place.read()
        begin = line.raw.find(_BODY) + len(_BODY)
        if quick and (made := lines.quickly(kind, memoryview(line.raw)[begin:-1])) is not None:
            return cast(Measurement, made)
        if _checked(line.value, self.place) != self:
            raise RunFolderError(f"{line.where}: is not {self.identity} any more: the file was replaced; open it again")
        return cast(Measurement, lines.strictly(kind, line.value["measurement"], f"{line.where}: measurement"))


class Measurements(Mapping[str, tuple[str, str, Measurement]]):
    """Id -> test, criterion and measurement, in the order they were added; read from disk each time it is asked for.

    `quick` is for pictures: several times as fast, and fields that this release does not know are passed over. No
    verdict may rest on it.
    """

    def __init__(self, stored: Mapping[str, Stored], *, quick: bool = False) -> None:
        self._stored = dict(stored)
        self._quick = quick

    def __getitem__(self, identity: str) -> tuple[str, str, Measurement]:
        found = self._stored[identity]
        return found.test, found.criterion, found.read(quick=self._quick)

    def __contains__(self, identity: object) -> bool:
        return identity in self._stored  # without reading it, as a Mapping would

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)

    def tests(self) -> dict[str, str]:
        """Id -> test, without reading any."""
        return {identity: found.test for identity, found in self._stored.items()}


def line_of(stored: Stored, measurement: Measurement) -> bytes:
    """The line of a measurement."""
    body = lines.encode(to_json(measurement))
    head = lines.encode({
        "schema": SCHEMA, "id": stored.identity, "test": stored.test, "criterion": stored.criterion,
        "kind": stored.kind, "started": measurement.started, "size": len(body),
    })  # fmt: skip
    return head[:-1] + b", " + _BODY + body + b"}"


def kind_of(measurement: Measurement) -> str:
    """How a run folder calls a kind of measurement."""
    return _NAMES[type(measurement)]


def find(main: Path, parts: Sequence[Path], torn: Callable[[Line], None]) -> dict[str, Stored]:
    """All measurements of a run by their ids; where there are `parts`, theirs among those of `main` in the order of
    time. Of each the head is checked, and all else when it is read.

    Raises:
        RunFolderError: a head is malformed, or its id is taken (``file:line``).
    """
    heads = list(_heads(main, torn))
    known = [head for head, _ in heads]  # a merge that was cut short leaves lines in both places
    apart = [(head, place) for part in parts for head, place in _heads(part, torn) if head not in known]
    found: dict[str, Stored] = {}
    for head, place in sorted([*heads, *apart], key=_started) if apart else heads:
        stored = _checked(head, place)
        if not re.fullmatch(r"(?:gw\d+-)?m\d{4,9}", stored.identity) or stored.identity in found:
            raise RunFolderError(
                f"{place.where}: id: got {stored.identity!r}, want an id such as 'm0001' that no other line has"
            )
        found[stored.identity] = stored
    return found


def _heads(path: Path, torn: Callable[[Line], None]) -> Iterator[tuple[dict[str, Any], Place]]:
    """What each line says before its measurement; one that does not say how large that is, is read as a whole."""
    for head, place in lines.places(path, _claimed, torn):
        match = _SIZE.search(head)
        value = lines.checked(head[: match.end()] + b"null}" if match else place.read().raw, place.where)
        yield {**value, "measurement": None} if "measurement" in value else value, place


def _claimed(head: bytes) -> int:
    """The size of a line, as its head has it."""
    match = _SIZE.search(head)
    return match.end() + int(match[1]) + len(b"}") if match else 0


def _started(of: tuple[dict[str, Any], Place]) -> float:
    """When a measurement began; what is no number is refused later, by name."""
    head, place = of
    if "started" not in head:  # older lines say it only inside
        inside = place.read().value.get("measurement")
        head = inside if isinstance(inside, dict) else {}
    started = head.get("started")
    return started if isinstance(started, (int, float)) else 0


def _checked(head: dict[str, Any], place: Place) -> Stored:
    names = [head.get(key) for key in ("id", "test", "criterion")]
    if not head.keys() >= _FIELDS or head.keys() - _FIELDS - _MORE_FIELDS or not all(isinstance(n, str) for n in names):
        raise RunFolderError(
            f"{place.where}: got the fields {', '.join(head)}, "
            "want schema, id, test, criterion, kind, started, size, measurement; restore the file"
        )
    identity, test, criterion = map(str, names)
    if criterion not in CRITERIA:
        raise RunFolderError(f"{place.where}: criterion: got {criterion!r}, want {', '.join(CRITERIA)}")
    kind = head.get("kind", criterion)  # the first version had one kind a criterion
    kinds = KINDS.get(criterion, (criterion,))
    if kind not in kinds:
        raise RunFolderError(f"{place.where}: kind: got {kind!r}, want {', '.join(kinds)}")
    return Stored(identity=identity, test=test, criterion=criterion, kind=kind, place=place)

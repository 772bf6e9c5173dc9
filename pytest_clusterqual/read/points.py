"""Scaling points that were measured elsewhere, from a table with a header: CSV, a line a run."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_clusterqual.errors import ReadError
from pytest_clusterqual.model.points import EVIDENCE, Point, Work, converted
from pytest_clusterqual.read.captured import beginning, plain
from pytest_clusterqual.read.messages import shown
from pytest_clusterqual.read.points_columns import (
    CLEAR,
    Figure,
    condition_of,
    figure_in,
    figure_of,
    is_beside,
    is_vague,
    plain_name,
)

_LIMIT = 4 * 1024 * 1024
_MOST_POINTS = 400  # each is held against every other
_MOST_PROBLEMS = 20
_SAME_FIGURE = 1.1  # two figures of one run may be rounded, and averaged in another order
_FINEST: tuple[Work, ...] = ("tokens", "samples", "steps")
# MLPerf calls its systems so: ``eos n8``, ``Dell 8n``.
_NODES_IN_NAME = re.compile(r"\b(?:n([1-9]\d{0,5})|([1-9]\d{0,5})n(?:odes?)?)\b", re.IGNORECASE)


@dataclass(kw_only=True, slots=True)
class _Row:
    """One line as it is being read; the names of `told` are those of CONDITIONS."""

    where: str
    told: dict[str, int] = field(default_factory=dict)
    run: str = ""
    figures: list[tuple[str, Figure, float]] = field(default_factory=list)
    rate: tuple[Work, float] | None = None
    identity: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def problem(self, column: str, text: str) -> None:
        self.problems.append(f"{self.where}: {column}: {text}")


def read_points(file: Path, same: Sequence[tuple[str, str]] = ()) -> tuple[Point, ...]:
    """The points in the order of the file; lines under the same conditions are runs of one point.

    `same` are columns that the file lacks, with the one cell that holds for all its lines.

    Raises:
        ReadError: names file, line and column of everything that cannot be read, and what would be clear.
    """
    try:
        text = plain(file.read_text(encoding="utf-8-sig"), str(file), limit=_LIMIT)
    except OSError as error:
        raise ReadError(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ReadError(f"{file}: want CSV in UTF-8, got {error.reason} at byte {error.start}") from None
    try:
        (_number, header), *lines = list(_lines(text)) or [(1, [])]
    except csv.Error as error:
        raise ReadError(f"{file}: want CSV, got what is none: {error}") from None
    columns = [plain_name(name) for name in header]
    problems = list(_header_problems(str(file), header, columns, same, beginning(text)))
    if problems:
        raise ReadError("\n".join(problems))
    rows = [_row(f"{file}:{number}", columns, cells, same) for number, cells in lines]
    problems = [problem for row in rows for problem in row.problems] or list(_unlike(rows))
    if not rows:
        problems = [f"{file}: there is a header and no line below it"]
    if len(problems) > _MOST_PROBLEMS:
        problems[_MOST_PROBLEMS:] = [f"{file}: and {len(problems) - _MOST_PROBLEMS} problems more"]
    if problems:
        raise ReadError("\n".join(problems))
    points = _points(rows)
    if len(points) > _MOST_POINTS:
        raise ReadError(
            f"{file}: got {len(points)} points, at most {_MOST_POINTS} are read; is a column that changes from run to "
            "run taken for a part of the job?"
        )
    return points


def _lines(text: str) -> Iterator[tuple[int, list[str]]]:
    """Number and cells of every line that is neither empty nor a comment."""
    head = next((line for line in text.split("\n") if line.strip() and not line.startswith("#")), "")
    reader = csv.reader(text.split("\n"), delimiter=max(",;\t", key=head.count))
    for cells in reader:
        if any(cell.strip() for cell in cells) and not cells[0].startswith("#"):
            yield reader.line_num, [cell.strip() for cell in cells]


def _header_problems(
    file: str, header: Sequence[str], columns: Sequence[str], same: Sequence[tuple[str, str]], first: str
) -> Iterator[str]:
    names = [*columns, *(plain_name(name) for name, _ in same)]
    if len(columns) < 2 or not all(columns):
        yield f"{file}: got {first}, want CSV with a header that names every column, such as nodes,global_batch,..."
        return
    meant = [condition_of(name) or name for name in names]
    for name in sorted({name for name in meant if meant.count(name) > 1}):
        as_written = " and ".join(written for written, what in zip(names, meant, strict=True) if what == name)
        yield f"{file}: {name} is there twice, as {as_written}"
    if not any(figure_of(name) or is_vague(name) for name in columns):
        yield f"{file}: no column is a figure; clear are {CLEAR}; got {', '.join(map(shown, header[:20]))}"


def _row(where: str, columns: Sequence[str], cells: Sequence[str], same: Sequence[tuple[str, str]]) -> _Row:
    row = _Row(where=where)
    if len(cells) != len(columns):
        row.problems.append(f"{where}: got {len(cells)} cells, the header names {len(columns)}")
        return row
    for column, cell in (*zip(columns, cells, strict=True), *((plain_name(name), cell) for name, cell in same)):
        if cell and not is_beside(column):
            _cell(row, column, cell)
    if row.problems:
        return row
    _world(row)
    if not row.figures:
        row.problems.append(f"{where}: no figure is given; clear are {CLEAR}")
    elif not row.problems:
        row.rate = _rate(row)
    return row


def _cell(row: _Row, column: str, cell: str) -> None:
    condition = condition_of(column)
    if condition == "run":
        row.run = cell
    elif condition is not None:
        if re.fullmatch(r"[0-9]{1,12}(?:\.0*)?", cell) and float(cell) >= 1:
            row.told[condition] = int(float(cell))
        else:
            row.problem(column, f"got {shown(cell)}, want a whole number from 1")
    elif is_vague(column) or figure_of(column):
        try:
            row.figures.append((column, *figure_in(cell, figure_of(column))))
        except ValueError as error:
            row.problem(column, str(error))
    else:
        row.identity[column] = cell


def _world(row: _Row) -> None:
    """Nodes and devices from whatever two of them tell the third."""
    told = row.told
    for column in [name for name in row.identity if EVIDENCE["hardware"].fullmatch(name)]:
        match = _NODES_IN_NAME.search(row.identity[column])
        if match and told.setdefault("nodes", int(match[1] or match[2])) == int(match[1] or match[2]):
            row.identity[column] = " ".join(_NODES_IN_NAME.sub("", row.identity[column], count=1).split())
    nodes, devices, each = (told.get(name) for name in ("nodes", "devices", "devices_per_node"))
    if devices and each and not nodes:
        nodes = told["nodes"] = max(devices // each, 1)
        each = min(each, devices)
    if nodes and each and not devices:
        devices = told["devices"] = nodes * each
    if not nodes and not devices:
        row.problem("nodes", "neither nodes nor ranks are told; want at least one of the columns nodes, ranks")
    elif nodes and devices and (devices % nodes or (each and nodes * each != devices)):
        row.problem(
            "ranks", f"got {devices} on {nodes} nodes{f' of {each}' if each else ''}, want as many on each node"
        )


def _points(rows: Sequence[_Row]) -> tuple[Point, ...]:
    found: dict[object, list[_Row]] = {}
    for row in rows:
        found.setdefault(_conditions(row), []).append(row)
    return tuple(map(_point, found.values()))


def _conditions(row: _Row) -> object:
    told = {name: value for name, value in row.told.items() if name not in ("devices_per_node", "samples_to_converge")}
    return tuple(sorted(told.items())), tuple(sorted(row.identity.items()))


def _point(rows: Sequence[_Row]) -> Point:
    told = rows[0].told
    rates = [row.rate for row in rows if row.rate is not None]
    return Point(
        nodes=told.get("nodes"), devices=told.get("devices"), global_batch=told.get("global_batch"),
        sequence_length=told.get("sequence_length"), microbatches=told.get("microbatches"), identity=rows[0].identity,
        work=rates[0][0] if rates else None, rates=tuple(rate for _, rate in rates),
        times_to_train=tuple(
            value * figure.scale for row in rows for _, figure, value in row.figures if figure.work is None
        ),
        samples_to_converge=tuple(
            float(row.told["samples_to_converge"]) for row in rows if "samples_to_converge" in row.told
        ),
        sources=tuple(row.where for row in rows),
    )  # fmt: skip


def _rate(row: _Row) -> tuple[Work, float] | None:
    """What the run did a second, all devices together, counted as finely as the line allows."""
    devices = row.told.get("devices")
    known = {"global_batch": row.told.get("global_batch"), "sequence_length": row.told.get("sequence_length")}
    rates: list[tuple[str, Work, float]] = []
    for column, figure, value in row.figures:
        if figure.per_device and not devices:
            row.problem(column, "it is of one device, and how many there are is not told; add the column ranks")
        elif figure.work is not None:
            rate = 1 / (value * figure.scale) if figure.inverse else value * figure.scale
            rates.append((column, figure.work, rate * (devices or 1) if figure.per_device else rate))
    if not rates:
        return None
    column, work, rate = rates[0]
    for other, its_work, its_rate in rates[1:]:
        factor = converted(its_work, work, **known)
        if factor is not None and not 1 / _SAME_FIGURE < its_rate * factor / rate < _SAME_FIGURE:
            row.problem(
                f"{column} and {other}",
                f"they contradict each other: {rate:.4g} and {its_rate * factor:.4g} {work} a second of all devices; "
                "is one of them of one device, or it/s where s/it was meant?",
            )
    for finest in _FINEST:
        if factor := converted(work, finest, **known):
            return finest, rate * factor
    return work, rate


def _unlike(rows: Sequence[_Row]) -> Iterator[str]:
    """Lines that cannot stand beside each other: sizes told in part, other counts of one point, a run given again."""
    for what, column in (("nodes", "nodes"), ("devices", "ranks")):
        silent = [row for row in rows if what not in row.told]
        if 0 < len(silent) < len(rows):
            yield f"{silent[0].where}: {column}: it is told on other lines and not here; want it on all or on none"
    seen: dict[object, str] = {}
    counted: dict[object, _Row] = {}
    for row in rows:
        if row.rate and (other := counted.setdefault(_conditions(row), row)).rate and other.rate[0] != row.rate[0]:
            yield (
                f"{row.where}: it counts {row.rate[0]}, line {other.where.rpartition(':')[2]} of the same point "
                f"{other.rate[0]}; give all runs in the same column"
            )
        if row.run and (first := seen.setdefault((_conditions(row), row.run), row.where)) != row.where:
            yield f"{row.where}: run {shown(row.run)} of this point is in line {first.rpartition(':')[2]} already"

"""Square tables of devices, as `nvidia-smi topo` and `rocm-smi --showtopo` print them, out of any text.

A header line names the columns, and each row begins with the name of a column. Lines around and
between the rows are skipped. A row with too few cells gives none: where a text is cut, the last
cell may be cut as well, and ``NV1`` was perhaps ``NV18``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pytest_clusterqual import units
from pytest_clusterqual.errors import ReadError
from pytest_clusterqual.read.messages import shown

_OWN = ("X", "0")  # what stands where a device meets itself
_MOST_DEVICES = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """`cells` under the device columns, `rest` behind them (tabs keep empty cells there)."""

    label: str
    cells: tuple[str, ...]
    rest: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """`title` is the line above the header, `tail` what follows the device columns in the header."""

    title: str
    labels: tuple[str, ...]
    tail: str
    own: str
    rows: tuple[Row, ...]

    def pairs(self, is_known: Callable[[str], object]) -> tuple[dict[tuple[str, str], str], list[str]]:
        """One cell for each two devices, in the order of the columns, and what is wrong with the rows.

        A row with a cell that is not known gives none, as its cells may be shifted; rows that
        contradict each other give none for the two.
        """
        place = {label: index for index, label in enumerate(self.labels)}
        found: dict[tuple[str, str], str] = {}
        torn: list[tuple[str, str]] = []
        problems = []
        for row in self.rows:
            if problem := self._fault(row, place[row.label], is_known):
                problems.append(problem)
                continue
            for label, cell in zip(self.labels, row.cells, strict=True):
                pair = (row.label, label) if place[row.label] < place[label] else (label, row.label)
                if label != row.label and found.setdefault(pair, cell) != cell:
                    torn.append(pair)
        if torn:
            problems.append(f"rows contradict each other: {names(['-'.join(pair) for pair in torn])}")
        present = {row.label for row in self.rows}
        if missing := [label for label in self.labels if label not in present]:
            problems.append(f"rows are missing: {names(missing)}")
        kept = sorted(found.keys() - torn, key=lambda pair: (place[pair[0]], place[pair[1]]))
        return {pair: found[pair] for pair in kept}, problems

    def _fault(self, row: Row, index: int, is_known: Callable[[str], object]) -> str | None:
        count = len(row.cells)
        # A whole table ends in the cell of its last device with itself.
        if count < len(self.labels) or (row is self.rows[-1] and not row.rest and row.cells[-1] != self.own):
            return f"row {row.label} is cut after {count} of {len(self.labels)} cells"
        if row.cells[index] != self.own:
            return f"row {row.label} has no {self.own} under {row.label}: its cells are not in their columns"
        strange = [cell for i, cell in enumerate(row.cells) if i != index and not is_known(cell)]
        return f"row {row.label} has a cell {shown(strange[0])}, which is no link" if strange else None


def names(labels: Sequence[str]) -> str:
    """Names for a message, at most eight."""
    return units.show_some([label[:40] for label in labels], 8)


def tables(text: str) -> list[Table]:
    """All tables of a text, in order.

    Raises:
        ReadError: a table has more columns than any machine has devices.
    """
    lines = [line for line in text.split("\n") if line.strip()]
    starts = [index for index in range(len(lines) - 1) if _is_header(lines[index].split(), lines[index + 1].split())]
    return [
        _table(lines[start - 1] if start else "", lines[start], lines[start + 1 : end])
        for start, end in itertools.pairwise([*starts, len(lines)])
    ]


def _is_header(words: list[str], below: list[str]) -> bool:
    # The header may have lost its leading blanks: only the row below tells it from a row.
    first = words[0]
    return (
        first.startswith("GPU")
        and first[3:4].isdigit()
        and len(below) > 1
        and below[0] == first
        and below[1] in _OWN
        and (len(words) == 1 or words[1] not in _OWN)
    )


def _table(title: str, header: str, lines: Sequence[str]) -> Table:
    words = header.split()
    end = next((i for i in range(len(words)) if words[i : i + 2] == ["CPU", "Affinity"]), len(words))
    labels = tuple(words[:end])
    if len(labels) > _MOST_DEVICES:
        raise ReadError(f"a table of {len(labels)} devices, at most {_MOST_DEVICES} are read")
    if len(set(labels)) < len(labels):
        twice = [label for index, label in enumerate(labels) if label in labels[:index]]
        raise ReadError(f"the header names {names(twice)} twice")
    own = lines[0].split()[1]
    return Table(title=title, labels=labels, tail=" ".join(words[end:]), own=own, rows=tuple(_rows(labels, lines)))


def _rows(labels: tuple[str, ...], lines: Sequence[str]) -> Iterator[Row]:
    waiting, count = set(labels), len(labels)
    for line in lines:
        label = line.split(maxsplit=1)[0]
        if label in labels[:1] and label not in waiting:  # the rows of a table whose header was not recognised
            return
        if label in waiting:
            waiting.remove(label)
            fields = [field.strip() for field in line.strip().split("\t")]
            cells = tuple(fields[1:] if len(fields) > count else line.split()[1:])
            yield Row(label=label, cells=cells[:count], rest=cells[count:])

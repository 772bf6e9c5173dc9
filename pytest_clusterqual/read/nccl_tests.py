"""What the programs of nccl-tests and rccl-tests print, and their JSON, as runs with rows.

Old and new column layouts are told apart by the row alone: after size, count and type come an
operation and a root, or not, then the same four (or, with the per-iteration report, eight) figures
out of place and in place. Headers may be lost, and every line may carry the tag of a rank.
"""

from __future__ import annotations

import re
from decimal import Decimal

from pytest_clusterqual.errors import ReadError
from pytest_clusterqual.read.captured import beginning, plain
from pytest_clusterqual.read.nccl_tests_json import read_json
from pytest_clusterqual.read.reported import Raw, ReportedRun, finish, nccl_version, program_in, sizes_asked
from pytest_clusterqual.read.reported_ranks import WIDTHS, Half, Row, factor_range

_LIMIT = 64 * 1024 * 1024  # with NCCL_DEBUG=INFO a large run prints megabytes
_TAG = re.compile(r"\[\d+(?:,\d+)?\](?:<std(?:out|err)>:?)?")
_ROW = re.compile(rf"(?:^|[\s:])(\d+)\s+(\d+)\s+({'|'.join(WIDTHS)})\s+(\S.*)")
_ROOT = re.compile(r"-?[0-9]{1,9}")
_STAMP = re.compile(r"\s\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\s*$")
_FIGURES = (8, 16)
_NONE = "N/A"
_COLUMNS = re.compile(r"\bsize\s+count\b.*\bbusbw\b")
_CONFIG = re.compile(
    r"nThread \d+ nGpus \d+ minBytes (\d+) maxBytes (\d+) step: (\d+)\((factor|bytes)\)"
)  # what follows differs from version to version
_REDUCED = re.compile(r"Reducing maxBytes to (\d+)")
_RANK = re.compile(r"\bRank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s*(.*)")
_VERSIONS = {
    "nccl": re.compile(r"\bNCCL version\s*:?\s*(\d[\w.]*)"),
    "rccl": re.compile(r"\bRCCL version\s*:?\s*(\d\S*)"),
    "nccl-tests": re.compile(r"\bnccl-tests version (\S+)"),
    "rccl-tests": re.compile(r"\brccl-tests: Version (\S+)"),
}
_LIBRARY = re.compile(r"\bnccl-library=(\d+)")
_STARTING = re.compile(r"Collective test starting: (\S+)")
_CONCLUDED = re.compile(r"Collective test concluded: (\S+)")
_END = re.compile(r"Out of bounds values\s*:\s*(\d+)\s+(?:OK|FAILED)")


def read_nccl_tests(text: str, source: str, *, collective: str | None = None) -> tuple[ReportedRun, ...]:
    """All runs of one file, one after the other, whichever of the forms it has.

    `source` is the name of the file, `collective` what it is of where its text does not say.

    Raises:
        ReadError: there is no table in it, or JSON of another form.
    """
    text = plain(text, source, limit=_LIMIT)
    raws = [read_json(text, source)] if text.lstrip().startswith("{") else _Log(source).read(text)
    if not raws:
        raise ReadError(
            f"{source}: got {beginning(text)}, want what all_reduce_perf or another program of nccl-tests prints, or "
            "its JSON (-J)"
        )
    return tuple(run for raw in raws for run in finish(raw, collective))


class _Log:
    """Reads line by line; a run begins with its first header line, or with its first row where that is lost."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._runs: list[Raw] = []
        self._mentioned = ""  # a program that a command line named, for the run that follows
        self._asked: tuple[int, int, bool] | None = None  # the least size, the step, and whether it is a factor
        self._columns = False
        self._versions: dict[str, str] = {}  # told before the run that they are of

    def read(self, text: str) -> list[Raw]:
        for number, line in enumerate(text.split("\n"), 1):
            self._line(line, f"{self._source}:{number}")
        return self._runs

    def _run(self, where: str, *, row: bool = False) -> Raw:
        """The run that a line of a header or a row belongs to."""
        last = self._runs[-1] if self._runs else None
        if last is None or last.out_of_bounds is not None or (last.rows and not row):
            self._asked, self._columns = None, False
            self._runs.append(Raw(where=where, versions=self._versions))
            self._versions = {}
        return self._runs[-1]

    def _line(self, line: str, where: str) -> None:
        if row := _ROW.search(_TAG.sub(" ", line)):
            self._row(row, where)
        elif member := _RANK.search(line):
            self._member(member, where)
        elif config := _CONFIG.search(line):
            run = self._run(where)
            if self._asked:
                run.mixed(where, "a second run begins before the first has a row")
            self._asked = (int(config[1]), int(config[3]), config[4] == "factor")
            run.sizes = self._sizes(int(config[2]))
        elif (reduced := _REDUCED.search(line)) and self._asked:
            self._run(where).sizes = self._sizes(int(reduced[1]))
        elif _COLUMNS.search(line):
            run = self._run(where)
            if self._columns:
                run.mixed(where, "a second table begins before the first has a row")
            self._columns = True
        elif end := _END.search(line):
            self._end(int(end[1]), where)
        elif starting := _STARTING.search(line):
            self._run(where).program = program_in(starting[1])
        elif (concluded := _CONCLUDED.search(line)) and self._runs:
            self._runs[-1].program = self._runs[-1].program or program_in(concluded[1])
        else:
            self._mentioned = program_in(line) or self._mentioned
        self._version(line)

    def _sizes(self, most: int) -> int | None:
        least, step, by_factor = self._asked or (0, 0, False)
        return sizes_asked(least, most, step, by_factor=by_factor)

    def _row(self, match: re.Match[str], where: str) -> None:
        size, count, element, rest = int(match[1]), int(match[2]), match[3], _STAMP.sub("", match[4]).split()
        run = self._run(where, row=True)
        run.program, self._mentioned = run.program or self._mentioned, ""
        redop = rest.pop(0) if rest[0].isalpha() else ""
        root = int(rest.pop(0)) if len(rest) % 2 and _ROOT.fullmatch(rest[0]) else -1
        half = len(rest) // 2
        try:
            if len(rest) not in _FIGURES:
                raise ValueError(f"it has {len(rest)} figures, want 8 or 16")
            halves = (_half(rest[:4], size), _half(rest[half : half + 4], size))
        except ValueError as error:
            run.problems.append(f"{where}: the row of size {size} B cannot be read: {error}; the log is damaged or cut")
            return
        run.rows.append(
            Row(where=where, bytes=size, count=count, element=element, redop=redop, root=root, halves=halves)
        )

    def _member(self, match: re.Match[str], where: str) -> None:
        run = self._run(where)
        rank, group, host, device = int(match[1]), match[2], match[3], match[4].strip()
        if rank in run.members:
            run.mixed(where, f"rank {rank} is listed twice")
        if int(group or 0):
            run.problems.append(f"{where}: rank {rank} is in group {group}: runs in several groups are not read")
        run.members[rank] = (host, device)

    def _end(self, wrong: int, where: str) -> None:
        run = self._runs[-1] if self._runs else self._run(where)
        if run.out_of_bounds is not None:
            run.mixed(where, "the table ends a second time")
        run.out_of_bounds = wrong

    def _version(self, line: str) -> None:
        found = {name: match[1] for name, pattern in _VERSIONS.items() if (match := pattern.search(line))}
        if library := _LIBRARY.search(line):
            found["nccl"] = nccl_version(int(library[1]))
        begun = bool(self._runs) and not self._runs[-1].rows and self._runs[-1].out_of_bounds is None
        (self._runs[-1].versions if begun else self._versions).update(found)


def _half(cells: list[str], size: int) -> Half | None:
    """Time, algbw, busbw and wrong elements of one half of a row; None where it was not run.

    Raises:
        ValueError: a cell is no figure, or no possible one.
    """
    time, _algbw, busbw, wrong = (cell.rstrip("*") for cell in cells)  # rccl-tests marks what is out of bounds
    if _NONE in (time, busbw):
        return None
    us, rate = _figure(time), _figure(busbw)
    if us[0] <= 0:
        raise ValueError(f"got a time of {time} us, want one above 0")
    return Half(
        seconds=us[0] / 1e6, busbw=f"{busbw} GB/s", factor=factor_range(*rate, *us, size),
        # Old versions print the greatest error instead of a count; below 1 it is rounding, as their last line says.
        wrong=None if wrong == _NONE else int(_figure(wrong)[0]),
    )  # fmt: skip


def _figure(cell: str) -> tuple[float, float]:
    """A figure and half a unit of its last digit."""
    if not re.fullmatch(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?", cell):
        raise ValueError(f"got {cell[:20]!r}, want a figure")
    exponent = Decimal(cell).as_tuple().exponent
    return float(cell), 0.51 * 10.0 ** int(exponent)

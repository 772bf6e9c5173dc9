"""What a run of nccl-tests reported, in text or JSON: rows as they were read, and the sweeps made of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from pytest_clusterqual.model.fabric import ReportedSweep, ReportedTiming
from pytest_clusterqual.read.reported_ranks import Row, understood

_PROGRAM = re.compile(
    r"\b(?:nccl_)?"
    r"(all_reduce|all_gather|reduce_scatter|alltoallv?|sendrecv|broadcast|reduce|gather|scatter|hypercube)_perf\b"
)
_COLLECTIVES = {"alltoall": "all_to_all", "alltoallv": "all_to_all_v", "sendrecv": "send_recv"}
_MIXED = "the output of several processes is mixed: keep that of one, or build nccl-tests with MPI=1"


@dataclass(kw_only=True, slots=True)
class Raw:
    """One run as it is being read.

    `members` are rank -> (host, device), `sizes` how many the run was asked for, `out_of_bounds`
    the wrong values it counted, None until its end was seen.
    """

    where: str
    program: str = ""
    rows: list[Row] = field(default_factory=list)
    members: dict[int, tuple[str, str]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    sizes: int | None = None
    out_of_bounds: int | None = None
    problems: list[str] = field(default_factory=list)

    def mixed(self, where: str, why: str) -> None:
        """Note once that this cannot come from one process."""
        if not any(_MIXED in problem for problem in self.problems):
            self.problems.append(f"{where}: {why}: {_MIXED}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportedRun:
    """One sweep over sizes, with what its text tells of the conditions; None or empty where it is silent.

    `fits` are the least and the greatest number of ranks that list and figures allow, `hosts` the
    host of every rank if all are listed, `variant` what is not the usual (float, sum, root 0). A
    run with `problems` must not be judged.
    """

    collective: str | None
    variant: str
    sweep: ReportedSweep
    fits: tuple[int, int]
    hosts: tuple[str, ...]
    device: str
    versions: dict[str, str]
    variables: dict[str, str]
    problems: tuple[str, ...]

    @property
    def tool(self) -> str:
        return "rccl-tests" if any(name.startswith("rccl") for name in self.versions) else "nccl-tests"


def finish(raw: Raw, told: str | None) -> list[ReportedRun]:
    """The sweeps of one run: several where it went over several types, operations or roots, or in cycles.

    `told` is the collective where the text does not name it.
    """
    sweeps = list(_sweeps(raw)) or [[]]
    if told and raw.program and told != raw.program:
        raw.problems.append(f"{raw.where}: this is {raw.program} by its own word, told was {told}; leave that out")
    if raw.rows and raw.out_of_bounds is None:
        raw.problems.append(
            f"{raw.rows[-1].where}: no `Out of bounds values` follows: the log is cut, or the program died; "
            "give the log of a whole run"
        )
    return [_finished(raw, rows, told) for rows in sweeps]


def _sweeps(raw: Raw) -> Iterator[list[Row]]:
    rows: list[Row] = []
    for row in raw.rows:
        again = bool(rows) and row.bytes == rows[0].bytes < rows[-1].bytes  # the next cycle of -N
        if rows and (row.variant != rows[-1].variant or again):
            yield rows
            rows = []
        if rows and 0 < row.bytes <= rows[-1].bytes:
            raw.mixed(row.where, f"size {row.bytes} B comes after size {rows[-1].bytes} B")
        rows.append(row)
    if rows:
        yield rows


def _finished(raw: Raw, rows: list[Row], told: str | None) -> ReportedRun:
    problems = list(raw.problems)
    if rows and raw.sizes is not None and raw.sizes != len(rows):
        problems.append(
            f"{rows[0].where}: {raw.sizes} sizes were asked for, {len(rows)} are there: the log is cut; "
            "give the log of a whole run"
        )
    rows = [row for row in rows if row.bytes]  # a size of less than an element a rank is rounded down to none
    if not rows:
        problems.append(f"{raw.where}: a run begins here, but no row of it follows: the log is cut, or {_MIXED}")
    problems += [f"{row.where}: size {row.bytes} B has no time, so it tells nothing"
                 for row in rows if not any(row.halves)]  # fmt: skip
    listed = max(raw.members) + 1 if raw.members else None
    collective, fits, trouble = understood(rows, raw.program or told, listed)
    return ReportedRun(
        collective=collective, variant=_variant(rows[0]) if rows else "",
        sweep=ReportedSweep(
            source=rows[0].where if rows else raw.where, timings=tuple(map(_timing, rows)),
            out_of_bounds=raw.out_of_bounds or 0,
        ),
        fits=fits,
        hosts=tuple(raw.members[rank][0] for rank in sorted(raw.members)) if listed == len(raw.members) else (),
        device=", ".join(dict.fromkeys(device for _host, device in raw.members.values())),
        versions=raw.versions, variables=raw.variables, problems=(*problems, *trouble),
    )  # fmt: skip


def _timing(row: Row) -> ReportedTiming:
    seconds = [half.seconds if half else None for half in row.halves]
    checked = [half.wrong for half in row.halves if half is not None and half.wrong is not None]
    return ReportedTiming(
        bytes=row.bytes, seconds=seconds[0], seconds_in_place=seconds[1], wrong=sum(checked) if checked else None
    )


def _variant(row: Row) -> str:
    unusual = (
        row.element if row.element != "float" else "",
        row.redop if row.redop not in ("", "none", "sum") else "",
        f"root{row.root}" if row.root > 0 else "",
    )
    return "-".join(filter(None, unusual))


def sizes_asked(least: int, most: int, step: int, *, by_factor: bool) -> int | None:
    """How many sizes there are from `least` to `most` bytes; None where that cannot be said."""
    if least < 1 or step < 1 + by_factor:
        return None
    if not by_factor:
        return (most - least) // step + 1
    count = 0
    while least <= most:
        count, least = count + 1, least * step
    return count


def program_in(text: str) -> str:
    """The collective whose program a text names, such as ``all_reduce`` for ``all_reduce_perf -b 8``; or nothing."""
    match = _PROGRAM.search(text)
    return _COLLECTIVES.get(match[1], match[1]) if match else ""


def nccl_version(code: int) -> str:
    """``2.29.3`` for 22903, and ``2.8.4`` for 2804, as NCCL counts."""
    major, rest = divmod(code, 10_000) if code >= 10_000 else divmod(code, 1000)
    return f"{major}.{rest // 100}.{rest % 100}"

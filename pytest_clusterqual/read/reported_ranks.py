"""What the rows of nccl-tests say of themselves: which collective, on how many ranks.

The figures of a row check each other. Bus bandwidth x time / size is a factor that depends on the
collective and the number of ranks alone, and is known to within the digits that were printed.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from pytest_clusterqual import units
from pytest_clusterqual.model.busbw import busbw_factor

WIDTHS = {
    **dict.fromkeys(("int8", "uint8", "char", "f8e4m3", "f8e5m2", "fp8_e4m3", "fp8_e5m2"), 1),
    **dict.fromkeys(("half", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "int", "float"), 4),
    **dict.fromkeys(("int64", "uint64", "double"), 8),
}
MOST_RANKS = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Half:
    """Out of place or in place: `seconds` of a call, `factor` the range of busbw x time / size that the digits allow.

    `busbw` is kept as it was printed. `wrong` is None where the result was not checked.
    """

    seconds: float
    busbw: str
    factor: tuple[float, float]
    wrong: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One size. `redop` is empty and `root` -1 where there is none; `where` is the file and line."""

    where: str
    bytes: int
    count: int
    element: str
    redop: str
    root: int
    halves: tuple[Half | None, Half | None]

    @property
    def variant(self) -> tuple[str, str, int]:
        return self.element, self.redop, self.root

    @property
    def shares(self) -> int:
        """How many times what is counted makes up the size: 1, or the number of ranks; 0 if it does not."""
        counted = self.count * WIDTHS[self.element]
        return self.bytes // counted if counted and self.bytes % counted == 0 else 0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Form:
    """What the rows of a collective look like: do they name an operation, a root, and count one rank's share?"""

    reduces: bool
    rooted: bool
    shared: bool


_FORMS = {
    "all_reduce": _Form(reduces=True, rooted=False, shared=False),
    "reduce_scatter": _Form(reduces=True, rooted=False, shared=True),
    "all_gather": _Form(reduces=False, rooted=False, shared=True),
    "all_to_all": _Form(reduces=False, rooted=False, shared=True),
    "all_to_all_v": _Form(reduces=False, rooted=False, shared=True),
    "send_recv": _Form(reduces=True, rooted=False, shared=False),
    "broadcast": _Form(reduces=False, rooted=True, shared=False),
    "reduce": _Form(reduces=True, rooted=True, shared=False),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Fit:
    """The least and the greatest number of ranks that explains all rows, and what contradicts it."""

    ranks: tuple[int, int]
    contradiction: str = ""


def factor_range(busbw: float, busbw_error: float, us: float, us_error: float, size: int) -> tuple[float, float]:
    """What busbw (GB/s) x time (us) / size (bytes) may be, given the rounding errors of both."""
    if not size:
        return 0.0, math.inf
    low = max(busbw - busbw_error, 0.0) * max(us - us_error, 0.0)
    return low * 1e3 / size, (busbw + busbw_error) * (us + us_error) * 1e3 / size


def understood(
    rows: Sequence[Row], named: str | None, listed: int | None
) -> tuple[str | None, tuple[int, int], list[str]]:
    """The collective, the least and the greatest number of ranks, and what is wrong with that.

    `named` is the collective by the text, `listed` the number of ranks by its list, None without.
    """
    anything = (listed or 1, listed or MOST_RANKS)
    if not rows or (named and named not in _FORMS):
        return named, anything, []
    fits = {name: _fit(name, rows, listed) for name in _FORMS if _looks_like(rows[-1], name)}
    where = rows[0].where
    if named and named not in fits:
        seen = " or ".join(fits) or "nothing known"
        return named, anything, [f"{where}: these are no rows of {named}, but of {seen}"]
    # Without a name it is not the uneven one, whose rows look as those of all_to_all.
    clean = [n for n, fit in fits.items() if not fit.contradiction and fit.ranks[1] > 1 and n != "all_to_all_v"]
    if not named and len(clean) > 1:
        all_ranks = [fits[name].ranks for name in clean]
        problem = f"{where}: this may be {' or '.join(clean)}, and the text does not say; name it with --collective"
        return None, (min(all_ranks)[0], max(high for _, high in all_ranks)), [problem]
    collective = named or next(iter([*clean, *fits]), None)
    if collective is None:
        return None, anything, [f"{where}: these are rows of no collective that is known here; leave the run out"]
    fit = fits[collective]
    if not fit.contradiction and 1 in (fit.ranks[1], listed):
        alone = "this rank ran alone, so nothing was communicated: ask for more with -g, or build nccl-tests with MPI=1"
        return collective, (1, 1), [f"{where}: {alone}"]
    return collective, fit.ranks, [fit.contradiction] if fit.contradiction else []


def _looks_like(row: Row, collective: str) -> bool:
    form = _FORMS[collective]
    return (
        form.reduces == (row.redop not in ("", "none"))
        and form.rooted == (row.root >= 0)
        and (row.shares > 0 if form.shared else row.shares == 1)
    )


def _fit(collective: str, rows: Sequence[Row], listed: int | None) -> _Fit:
    ranks = rows[-1].shares if _FORMS[collective].shared else listed
    anything = (ranks or 1, ranks or MOST_RANKS)
    if listed not in (None, ranks):
        return _Fit(ranks=anything, contradiction=f"{rows[-1].where}: {ranks} shares make up the size, but {listed} "
                    "ranks are listed: the list is that of another run")  # fmt: skip
    low, high = 0.0, math.inf
    for row in rows:
        for half in filter(None, row.halves):
            low, high = max(low, half.factor[0]), min(high, half.factor[1])
            if low > high or (ranks and not half.factor[0] <= _factor(collective, ranks) <= half.factor[1]):
                return _Fit(ranks=anything, contradiction=_odd(row, half, collective, ranks))
    factor = partial(_factor, collective)  # it rises with the number of ranks, or stays
    possible = range(ranks or 1, (ranks or MOST_RANKS) + 1)
    fitting = possible[bisect_left(possible, low, key=factor) : bisect_right(possible, high, key=factor)]
    if not fitting:
        return _Fit(ranks=anything, contradiction=f"{rows[-1].where}: busbw x time / size is {low:.4g}, as with no "
                    f"number of ranks in {collective}: the log is damaged")  # fmt: skip
    return _Fit(ranks=(fitting[0], fitting[-1]))


def _factor(collective: str, ranks: int) -> float:
    if ranks > 1:
        return busbw_factor(collective, ranks)
    return 0.0 if _FORMS[collective].shared or collective == "all_reduce" else 1.0


def _odd(row: Row, half: Half, collective: str, ranks: int | None) -> str:
    by = f"{ranks} ranks" if ranks else "the number of ranks that other rows tell"
    return (
        f"{row.where}: busbw {half.busbw} does not follow from size {row.bytes} B, "
        f"{units.show(half.seconds, units.SECONDS)} and {by} in {collective}: the row is damaged, or the list of ranks "
        "is that of another run"
    )

"""The steps of all ranks beside each other: who was the last to reach each part of a step, and when.

The frontier of a step is, part by part, the time until the last rank was over with it, each by its own clock since its
own last step ended, where all ranks met. What it grows by from part to part sums to the step, and each of these
increments is the rank's that reached the frontier (StageFrontier, arXiv:2606.06751). Only that maximum, who has it, and
sums over some steps of each rank are kept, so memory hardly grows with the ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_clusterqual.judge.full_run.columns import UNKNOWN, Columns
from pytest_clusterqual.judge.full_run.stages import BETWEEN, DATA, STEP

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pytest_clusterqual.judge.full_run.columns import Counts, Flags, Floats

PARTS = 1024  # of a run, for each of which a rank's times are summed
_UNITS = ("tokens", "sequences")
_ALL = 2**31 - 1
_EMPTY: dict[str, int | float | bool] = {
    "ranks": 0, "world": _ALL, "seconds": 0.0, "tokens": UNKNOWN, "sequences": UNKNOWN, "at": 0.0, "warming": False,
    "disputed": False, "beside": False, "reached": -1.0, "carrier": -1,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class RankParts:
    """One rank: `times` are seconds by part of the step, summed over the steps of each of the `parts` of the run;
    `counts` says how many steps these are, `at` when the first of them began by the clock of its host.
    """

    rank: int
    node: str
    parts: Counts
    counts: Counts
    at: Floats
    times: dict[str, Floats]


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptSteps:
    """Steps that count, in their order: each as long as on its slowest rank, and its `work` by unit as the ranks name
    it, `UNKNOWN` where none does; `disputed` are units that they name differently.
    """

    seconds: Floats
    work: dict[str, Counts]
    disputed: frozenset[str]

    @property
    def known_work(self) -> Counts | None:
        """That of each step in the first unit which all of them name; None where there is none."""
        known = (work for unit, work in self.work.items() if unit not in self.disputed and (work != UNKNOWN).all())
        return next((work for work in known if len(work)), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Course:
    """The steps that all ranks have kept, without warm-up, in their order.

    `reached` is the frontier at the end of each of the `stages`, seconds by (stage, step), and `carrier` the rank that
    has it. `at` is when a step began by the clock of the first rank. `work` is that of all ranks together, None where
    it is not known. `beside` are saves and hooks by name, on whatever rank.
    """

    numbers: Counts
    at: Floats
    work: Counts | None
    stages: tuple[str, ...]
    reached: Floats
    carrier: Counts
    beside: dict[str, Flags]
    ranks: tuple[RankParts, ...]
    size: int

    @property
    def seconds(self) -> Floats:
        """Of each step, from where the last rank was ready to begin it until the last one was over."""
        seconds: Floats = self.reached[-1] - self.reached[0]
        return seconds

    @property
    def increments(self) -> Floats:
        """What each stage adds to the frontier, (stage, step)."""
        import numpy as np

        return np.diff(self.reached, axis=0, prepend=0.0)


class Frontier:
    """Add rank after rank, then ask for what they show together."""

    def __init__(self) -> None:
        import numpy as np

        self._numbers: Counts = np.zeros(0, dtype=np.int64)
        self._rows: dict[tuple[str, str], NDArray[Any]] = {}  # what it is, and of which stage or name: a value a step
        self._ranks: list[RankParts] = []
        self._size = 0

    def add(self, rank: int, node: str, mine: Columns) -> None:
        """One more rank, with the steps that it has kept."""
        import numpy as np

        self._widen(mine.numbers)
        here = np.searchsorted(self._numbers, mine.numbers)
        self._row("ranks")[here] += 1
        self._fold("world", np.minimum, np.where(mine.world > 0, mine.world, _ALL), here)
        self._fold("seconds", np.maximum, mine.seconds, here)
        self._row("warming")[here] |= mine.warming
        for unit, work in zip(_UNITS, (mine.tokens, mine.sequences), strict=True):
            known = self._row(unit)[here]
            self._row("disputed", unit)[here] |= (known != work) & (known != UNKNOWN) & (work != UNKNOWN)
            self._row(unit)[here] = np.where(work == UNKNOWN, known, work)
        if not self._ranks:
            self._row("at")[here] = mine.at
            self._size = max(1, len(mine.numbers) // PARTS)
        for name, met in mine.beside.items():
            self._row("beside", name)[here] |= met
        for stage, bound in mine.bounds.items():
            ahead = bound > self._row("reached", stage)[here]
            self._row("reached", stage)[here[ahead]] = bound[ahead]
            self._row("carrier", stage)[here[ahead]] = rank
        self._ranks.append(self._parts(rank, node, mine))

    def steps(self) -> KeptSteps:
        """The steps that every rank has kept which was there; a job may go on with fewer ranks than it began with."""
        import numpy as np

        kept = self._row("ranks") >= np.minimum(self._row("world"), len(self._ranks))
        return KeptSteps(
            seconds=self._row("seconds")[kept],
            work={unit: self._row(unit)[kept] for unit in _UNITS},
            disputed=frozenset(unit for unit in _UNITS if self._row("disputed", unit)[kept].any()),
        )

    def course(self) -> Course:
        """The same steps but for those that were still warming up."""
        import numpy as np

        kept = (self._row("ranks") >= np.minimum(self._row("world"), len(self._ranks))) & ~self._row("warming")
        marked = [name for kind, name in self._rows if kind == "reached" and name not in (BETWEEN, DATA, STEP)]
        stages = (BETWEEN, DATA, *marked, STEP)
        # What no rank has marked in a step is over there when the stage before it is.
        reached = np.maximum.accumulate([self._row("reached", stage)[kept] for stage in stages], axis=0)
        return Course(
            numbers=self._numbers[kept],
            at=self._row("at")[kept],
            work=self._work(kept),
            stages=stages,
            reached=reached,
            carrier=np.array([self._row("carrier", stage)[kept] for stage in stages]),
            beside={name: row[kept] for (kind, name), row in self._rows.items() if kind == "beside"},
            ranks=tuple(self._ranks),
            size=self._size,
        )

    def _work(self, kept: Flags) -> Counts | None:
        for unit in _UNITS:
            work = self._row(unit)[kept]
            if len(work) and not ((work == UNKNOWN) | self._row("disputed", unit)[kept]).any():
                return work
        return None

    def _parts(self, rank: int, node: str, mine: Columns) -> RankParts:
        import numpy as np

        parts, first, counts = np.unique(mine.numbers // self._size, return_index=True, return_counts=True)
        return RankParts(
            rank=rank, node=node, parts=parts, counts=counts, at=mine.at[first],
            times={
                stage: np.add.reduceat(bound, first) if len(first) else bound for stage, bound in mine.bounds.items()
            },
        )  # fmt: skip

    def _row(self, kind: str, name: str = "") -> NDArray[Any]:
        import numpy as np

        if (kind, name) not in self._rows:
            self._rows[kind, name] = np.full(len(self._numbers), _EMPTY[kind])
        return self._rows[kind, name]

    def _fold(self, kind: str, by: np.ufunc, values: NDArray[Any], here: NDArray[np.intp]) -> None:
        row = self._row(kind)
        row[here] = by(row[here], values)

    def _widen(self, numbers: Counts) -> None:
        """Make room for steps that no rank before has had."""
        import numpy as np

        if np.array_equal(numbers, self._numbers):
            return
        wider = np.union1d(self._numbers, numbers)
        here = np.searchsorted(wider, self._numbers)
        for (kind, name), row in self._rows.items():
            self._rows[kind, name] = np.full(len(wider), _EMPTY[kind])
            self._rows[kind, name][here] = row
        self._numbers = wider


def single(numbers: Counts, seconds: Floats, *, at: Floats) -> Course:
    """Steps of which only number, time and place in time are known, all of the same work."""
    import numpy as np

    nothing = np.zeros(len(numbers))
    frontier = Frontier()
    frontier.add(0, "", Columns(
        numbers=numbers, world=np.ones_like(numbers), seconds=seconds, tokens=np.ones_like(numbers),
        sequences=np.ones_like(numbers), at=at, warming=np.zeros(len(numbers), np.bool_),
        bounds={BETWEEN: nothing, DATA: nothing, STEP: seconds}, beside={},
    ))  # fmt: skip
    return frontier.course()

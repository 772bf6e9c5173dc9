"""The steps that one rank has kept as columns, and how several ranks' columns are laid beside each other.

A day of many ranks has tens of millions of steps: what is needed of each of them is reduced rank after rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_clusterqual.judge.full_run.life import DoneStep
from pytest_clusterqual.judge.full_run.stages import BETWEEN, DATA, STEP

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Counts = NDArray[np.int64]
    Flags = NDArray[np.bool_]

UNKNOWN = -1  # work that a step does not name
_NAMES = 64  # a script that makes up names as it goes is no use, and would fill the memory


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """A row a step, in rising order of their `numbers`. `bounds` are seconds since `at`, by the part that is over then;
    `beside` says in which steps a save or a hook of that name was met.
    """

    numbers: Counts
    world: Counts
    seconds: Floats
    tokens: Counts
    sequences: Counts
    at: Floats
    warming: Flags
    bounds: dict[str, Floats]
    beside: dict[str, Flags]


def columns(steps: Sequence[DoneStep]) -> Columns:
    """Of steps in rising order of their numbers."""
    import numpy as np

    def whole(values: list[int]) -> Counts:
        return np.array(values, dtype=np.int64)

    return Columns(
        numbers=whole([step.number for step in steps]),
        world=whole([step.world for step in steps]),
        seconds=np.array([step.seconds for step in steps]),
        tokens=whole([UNKNOWN if step.tokens is None else step.tokens for step in steps]),
        sequences=whole([UNKNOWN if step.sequences is None else step.sequences for step in steps]),
        at=np.array([step.reached.at for step in steps]),
        warming=np.array([step.warming for step in steps], dtype=np.bool_),
        bounds=_bounds(steps),
        beside=_beside(steps),
    )


def _bounds(steps: Sequence[DoneStep]) -> dict[str, Floats]:
    """A part that a step does not name is over there when the one before it is."""
    import numpy as np

    found = [step.reached for step in steps]
    over = np.array([reached.over for reached in found])
    last = np.minimum([reached.data for reached in found], over)
    bounds = {BETWEEN: np.minimum([reached.between for reached in found], last), DATA: last}
    marked = [(row, name, at) for row, reached in enumerate(found) for name, at in reached.marks]
    for name in list(dict.fromkeys(name for _, name, _ in marked))[:_NAMES]:
        bounds[name] = last = last.copy()
        for row, theirs, at in marked:
            if theirs == name:
                last[row] = min(max(last[row], at), over[row])
    return {**bounds, STEP: over}


def _beside(steps: Sequence[DoneStep]) -> dict[str, Flags]:
    import numpy as np

    found: dict[str, Flags] = {}
    for row, step in enumerate(steps):
        for name in step.reached.beside:
            if name not in found and len(found) < _NAMES:
                found[name] = np.zeros(len(steps), dtype=np.bool_)
            if name in found:
                found[name][row] = True
    return found

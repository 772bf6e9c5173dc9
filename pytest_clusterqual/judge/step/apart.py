"""A step taken apart, reduced to what a waterfall is made of: computing, waiting, transferring, round by round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_clusterqual import units
from pytest_clusterqual.judge.statistics import median
from pytest_clusterqual.judge.step.ladder import RUNGS, Ladder, expected_slowest, reduced
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.fabric import RankLadder

# Share of a step. What a step costs beyond another is no more certain than that where both vary as they do on shared
# cores, however often they are repeated: caches, clocks and the placing of memory differ between them.
RESOLUTION = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Apart:
    """Seconds of the typical step of each round; data are fetched before it.

    `alone`: the rank in the middle by itself, of two the faster one, so that a slow rank shows as waiting and
    not as slow computing of all. `held`: all ranks, which wait for the slowest. `step`: the real one.
    `barriers` tells whether waiting was measured with empty ones, or is what the ranks' own computing
    leads to expect.
    """

    ladder: Ladder
    alone: tuple[float, ...]
    held: tuple[float, ...]
    step: tuple[float, ...]
    barriers: bool

    @property
    def wait(self) -> float:
        return median([held - alone for held, alone in zip(self.held, self.alone, strict=True)])

    @property
    def beyond(self) -> float:
        """What communication adds to a step in which ranks wait for each other."""
        return median([step - held for step, held in zip(self.step, self.held, strict=True)])

    @property
    def own(self) -> dict[int, float]:
        """Rank -> seconds of its step without communication."""
        import numpy as np

        return dict(enumerate(np.median(self.ladder.compute, axis=(0, 1)).tolist()))

    @property
    def told(self) -> str:
        """How it was measured, and what communication and computing do to each other."""
        rounds = f"{self.ladder.count} rounds"
        if not self.barriers:
            return (
                f"{rounds}; wait is what the ranks' own computing leads to expect, for this layout's step cannot be "
                "done with empty barriers; what it cannot explain counts as transfer"
            )
        alone = median(self.ladder.rounds["payload"])
        inflation = self.beyond - alone
        shown = f"its bytes alone take {units.show(alone, units.SECONDS)}"
        if inflation > RESOLUTION * median(self.step):
            slower = units.show(inflation, units.SECONDS)
            return f"{rounds}; {shown}: computing and communicating at once slow each other by {slower}"
        return f"{rounds}; {shown}, of which {units.show(max(-inflation, 0.0), units.SECONDS)} are hidden"


def take_apart(conditions: Conditions, rounds: Sequence[Sequence[RankLadder]], what: str) -> Apart:
    """Raises MeasurementError, which names rank, round and rung, if a step or a positive time is missing."""
    import numpy as np

    barriers = bool(rounds[0] and rounds[0][0].barrier)
    ladder = reduced(conditions, rounds, f"{what}, step taken apart", rungs=RUNGS if barriers else ("compute", "step"))
    own = np.sort(np.median(ladder.compute, axis=1), axis=1)
    alone = tuple(own[:, (own.shape[1] - 1) // 2].tolist())
    expected = (expected_slowest(ladder.compute[number : number + 1]) for number in range(ladder.count))
    return Apart(
        ladder=ladder,
        alone=alone,
        held=ladder.rounds["barrier"] if barriers else tuple(expected),
        step=ladder.rounds["step"],
        barriers=barriers,
    )

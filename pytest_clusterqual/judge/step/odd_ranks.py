"""The one rank that computes unlike the others: in every step slower, or with pauses between its steps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pytest_clusterqual import units
from pytest_clusterqual.judge.judgement import rank_name
from pytest_clusterqual.judge.statistics import chance, mean_interval, median_interval
from pytest_clusterqual.judge.step.ladder import Ladder
from pytest_clusterqual.model.record import Finding, Interval

if TYPE_CHECKING:
    from pytest_clusterqual.judge.step.ladder import Samples

CHANCE = 0.005  # for each of the tests that can accuse
SUSPICION = 0.05  # where as many rounds again are worth their time
DRAWS = 999
# What is beyond the other ranks over all rounds; and over each third of them, for a rank that is held up for a while
# is not odd, and in the whole interval.
SLOW, STEADILY_SLOW = 1.2, 1.1  # times their typical step
LOST, STEADILY_LOST = 0.05, 0.02  # share of a typical step


def odd_ranks(ladder: Ladder, *, below: float = CHANCE) -> Iterator[Finding]:
    """The slow rank and the jittering one; of a rank that is both, that it is slow.

    A rank is odd if one that is like the others would look so with a probability `below` that.
    """
    slow = _slow_rank(ladder, below)
    jittering = _jittering_rank(ladder, below)
    if slow:
        yield slow
    if jittering and not (slow and slow.suspect == jittering.suspect):
        yield jittering


def _slow_rank(ladder: Ladder, below: float) -> Finding | None:
    """The rank whose typical step is longer than that of the others."""
    import numpy as np

    typical = np.log(np.median(ladder.compute, axis=1))
    found = _odd_one(typical, least=math.log(SLOW), steadily=math.log(STEADILY_SLOW), below=below)
    if found is None:
        return None
    rank, beyond = found
    ratio, interval = math.exp(beyond.mean()), median_interval(np.exp(beyond).tolist())
    if interval is None or interval.low < STEADILY_SLOW:
        return None
    return Finding(
        suspect=rank_name(ladder.conditions, rank), kind="slow rank", interval=interval,
        evidence=f"without communication its step takes {ratio:.3g} x [{interval.low:.3g}, {interval.high:.3g}] the "
        f"time of the other ranks' over {ladder.count} rounds, and more in each third of them",
        check_next="what it computes with: cores, a quota or other work on its host; clock, power and temperature of "
        "its GPU",
    )  # fmt: skip


def _jittering_rank(ladder: Ladder, below: float) -> Finding | None:
    """The rank that loses more time to single long steps than the others do, and at least twice as much."""
    import numpy as np

    typical = np.median(ladder.compute, axis=(0, 1))
    lost = ladder.compute.mean(axis=1) / typical - 1
    found = _odd_one(lost, least=LOST, steadily=STEADILY_LOST, below=below)
    if found is None:
        return None
    rank, beyond = found
    mine = float(lost[:, rank].mean())
    others = max(mine - float(beyond.mean()), 0.0)
    interval = mean_interval((1 + beyond).tolist())
    if mine < max(LOST, 2 * others) or interval is None or interval.low < 1 + STEADILY_LOST:
        return None
    return Finding(
        suspect=rank_name(ladder.conditions, rank), kind="jittering rank", interval=interval,
        evidence=f"its typical step takes {units.show(float(typical[rank]), units.SECONDS)}, but over {ladder.count} "
        f"rounds single steps are so long that it loses {units.show_share(mine)} of that time, the other ranks "
        f"{units.show_share(others)}; the difference is {_percent(interval)}, and some of it in each third of them",
        check_next="what stops it for moments: daemons and interrupts on its cores, a quota, swapping, a debugger or "
        "monitor; clock and power limits of its GPU",
    )  # fmt: skip


def _percent(ratio: Interval) -> str:
    return f"[{units.show_share(ratio.low - 1)}, {units.show_share(ratio.high - 1)}]"


def _odd_one(figures: Samples, *, least: float, steadily: float, below: float) -> tuple[int, Samples] | None:
    """The rank with the largest figures, and by how much they exceed the median of the others in each round.

    `figures` are (round, rank). None if no rank exceeds the others by `least` over all rounds and
    `steadily` over each third of them, or if chance does as well.
    """
    import numpy as np

    beyond = figures - np.array([[np.median(np.delete(row, rank)) for rank in range(len(row))] for row in figures])
    worst = int(beyond.mean(axis=0).argmax())
    mine = beyond[:, worst]
    if mine.mean() < least or min(part.mean() for part in np.array_split(mine, 3)) < steadily:
        return None
    # If ranks are alike, it is chance which of them has which of a round's figures.
    draw = np.random.default_rng(0)
    if chance(mine.mean(), [draw.permuted(beyond, axis=1).mean(axis=0).max() for _ in range(DRAWS)]) >= below:
        return None
    return worst, mine

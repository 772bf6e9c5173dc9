"""Why ranks wait for each other in a training step: who or what is to be looked at."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pytest_clusterqual import units
from pytest_clusterqual.judge.statistics import chance, median, ratio_interval, spread
from pytest_clusterqual.judge.step.ladder import Ladder
from pytest_clusterqual.judge.step.odd_ranks import CHANCE, DRAWS, SUSPICION, odd_ranks
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.record import Finding, Interval

if TYPE_CHECKING:
    from pytest_clusterqual.judge.step.ladder import Samples

# One of two ranks that is the slower one in each of nine rounds is so by chance in 1 of 256.
LEAST_ROUNDS = 9
SHARED = 0.1  # share of a step by which ranks must change together before it is more than worth a note
UNEXPLAINED = 1.1  # times what the parts of a step lead to expect


def causes(ladder: Ladder, interval: Interval | None, predicted: float) -> tuple[Finding, ...]:
    """What makes the ranks wait; where nothing else does, each rank's own jitter.

    `interval` is that of the amplification, None where no barriers were measured; `predicted` is the
    amplification that the ranks' own jitter leads to expect.
    """
    if ladder.count < LEAST_ROUNDS:
        return (_too_few(ladder.count),)
    found = (*odd_ranks(ladder), *_common_cause(ladder))
    if interval is None:
        return found
    return (*found, *_communication(ladder, interval, predicted)) or (_inherent(interval, predicted),)


def worth_another_look(ladder: Ladder) -> bool:
    """Whether as many rounds again may clear or convict somebody.

    What held a rank up for some seconds is over by then. And of two ranks, one that loses time in half of 16
    rounds does so by chance in 1 of 128, in half of 32 rounds in none.
    """
    if ladder.count < LEAST_ROUNDS:
        return False
    return any(odd_ranks(ladder, below=SUSPICION)) or any(found.level == "suspect" for found in _common_cause(ladder))


def _too_few(rounds: int) -> Finding:
    return Finding(
        suspect="the ranks", kind="cause of waiting", level="note",
        evidence=f"cannot be decided, because {rounds} rounds are too few to tell a slow rank from chance",
        check_next="measure again with a budget and a launcher.job_timeout that leave time for "
        f"{LEAST_ROUNDS} rounds or more",
    )  # fmt: skip


def _common_cause(ladder: Ladder) -> Iterator[Finding]:
    """Ranks compute each by itself, and yet are slow in the same steps."""
    import numpy as np
    from scipy.stats import rankdata

    count, steps, ranks = ladder.compute.shape
    # The first step of a round may be slow on all of them: only what differs between rounds counts.
    change = np.log(ladder.compute)
    change = change - np.median(change, axis=0)
    order = rankdata(change.reshape(-1, ranks), axis=0)
    order = (order - order.mean(axis=0)) / np.maximum(order.std(axis=0), 1e-12)
    by_round = order.reshape(count, steps, ranks)
    together = _correlation(order)

    draw = np.random.default_rng(0)

    def shuffled() -> float:
        places = draw.permuted(np.tile(np.arange(count), (ranks, 1)), axis=1).T
        moved = np.take_along_axis(by_round, places[:, None, :], axis=0)
        return _correlation(moved.reshape(-1, ranks))

    if together <= 0 or chance(together, [shuffled() for _ in range(DRAWS)]) >= CHANCE:
        return
    shared = math.sqrt(together) * median([spread(rank) for rank in change.reshape(-1, ranks).T.tolist()])
    known = _known_cause(ladder.conditions)
    yield Finding(
        suspect="all ranks", kind="common cause",
        level="suspect" if shared >= SHARED and not known else "note",
        evidence=f"ranks that compute each by itself are slow in the same steps: correlation {together:.2g}, about "
        f"{units.show_share(shared)} of a step",
        check_next=f"{known}else what they share: storage, power and cooling, neighbours on the hosts, a daemon that "
        "wakes everywhere at once",
    )  # fmt: skip


def _known_cause(conditions: Conditions) -> str:
    """What all ranks are known to share, as the beginning of a sentence; empty if that is nothing."""
    if conditions.simulated:
        return "the nodes are shares of one machine, "
    if conditions.load is not None and conditions.load.heavy:
        return f"other work took {units.show_share(conditions.load.other_cpu)} of the cores of {conditions.load.node}, "
    return ""


def _correlation(order: Samples) -> float:
    """The mean correlation of all pairs of columns, each of mean 0 and standard deviation 1."""
    count, ranks = order.shape
    return float(((order.sum(axis=1) ** 2).sum() / count - ranks) / (ranks * (ranks - 1)))


def _communication(ladder: Ladder, interval: Interval, predicted: float) -> Iterator[Finding]:
    """Waiting that neither the ranks' own jitter nor the bytes explain."""
    typical = {rung: units.show(median(seconds), units.SECONDS) for rung, seconds in ladder.rounds.items()}
    parts = [sum(pair) for pair in zip(ladder.rounds["barrier"], ladder.rounds["payload"], strict=True)]
    excess = ratio_interval(ladder.rounds["step"], parts)
    if interval.low > UNEXPLAINED * predicted:
        evidence = (
            f"empty barriers alone make a step {interval.low:.3g} x longer or more, where the ranks' own jitter leads "
            f"to expect {predicted:.3g} x"
        )
        check_next = "the latency of small messages between these ranks, and what else runs on their cores"
    elif excess is not None and excess.low > UNEXPLAINED:
        evidence = (
            f"the real step takes {typical['step']}, {excess.low:.3g} x or more of the step with empty barriers "
            f"({typical['barrier']}) and the bytes alone ({typical['payload']}) one after the other"
        )
        check_next = "computing and communicating hinder each other: cores or SMs that both use, memory bandwidth"
    else:
        return
    yield Finding(suspect="communication", kind="communication", level="note", evidence=evidence, check_next=check_next)


def _inherent(interval: Interval, predicted: float) -> Finding:
    nobody = "no rank is slow and none are slow together"
    expected = f"jitter of the ranks on their own leads to expect {predicted:.3g} x"
    told = f"{nobody}: {expected}, measured is [{interval.low:.3g}, {interval.high:.3g}]"
    if interval.low > predicted:
        return Finding(
            suspect="the ranks", kind="waiting", level="note",
            evidence=f"{told}: there is more, and too little of it to tell its cause",
            check_next="what meeting costs these ranks by itself: the latency of small messages between them",
        )  # fmt: skip
    return Finding(
        suspect="the ranks", kind="inherent jitter", level="note", evidence=told,
        check_next="nothing, or what makes single steps of any rank late: daemons, interrupts, the garbage collector",
    )  # fmt: skip

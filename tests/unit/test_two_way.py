"""The two-way fit: what each end and each pair is told to be, and how sure."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from pytest_clusterqual.judge.fabric.two_way import TwoWay, fit
from pytest_clusterqual.model.tournament import meetings, turns_for


def fitted(ends: int, partners: int, *, noise: float = 0.02, seed: int = 1, repeats: int = 6, **odd: Any) -> TwoWay:
    """A fit of 1 s for all pairs of a tournament; `sending` and `receiving` by end, `rest` by pair, are added."""
    met = [pair for turn in turns_for(partners, ends) for pair in meetings(turn, ends)]
    senders, receivers = np.array([*met, *((b, a) for a, b in met)]).T
    logs = np.random.default_rng(seed).normal(0, noise, (len(senders), repeats))
    for end, more in odd.get("sending", {}).items():
        logs[senders == end] += more
    for end, more in odd.get("receiving", {}).items():
        logs[receivers == end] += more
    for (one, other), more in odd.get("rest", {}).items():
        logs[(senders == one) & (receivers == other)] += more
    return fit(senders, receivers, np.exp(logs))


@pytest.mark.parametrize(("ends", "partners"), [(3, 9), (4, 9), (7, 9), (16, 31), (64, 5), (256, 9)])
def test_what_is_the_ends_and_what_is_the_pairs_is_told_apart(ends: int, partners: int) -> None:
    told = fitted(ends, partners, sending={1: 0.7}, receiving={2: 0.4})
    assert told.level == pytest.approx(0, abs=0.03)
    assert told.sending[1] == pytest.approx(0.7, abs=0.06)
    assert told.receiving[2] == pytest.approx(0.4, abs=0.06)
    assert np.abs(np.delete(told.sending, 1)).max() < 0.06
    assert np.abs(np.delete(told.receiving, 2)).max() < 0.06
    assert np.abs(told.rest).max() < 0.06


def test_an_odd_pair_leaves_no_trace_in_its_ends() -> None:
    pair = meetings(turns_for(9, 16)[0], 16)[0]
    told = fitted(16, 9, rest={pair: 2.0})
    assert told.rest.max() == pytest.approx(2.0, abs=0.05)
    assert np.abs(told.sending).max() < 0.03
    assert np.abs(told.receiving).max() < 0.03


@pytest.mark.parametrize(("ends", "partners"), [(4, 9), (8, 9), (64, 9), (64, 31)])
def test_the_errors_are_what_the_figures_scatter_by(ends: int, partners: int) -> None:
    tries = [fitted(ends, partners, noise=0.1, seed=seed) for seed in range(40)]
    sending = np.std([told.sending for told in tries])
    claimed = np.median([told.error("forth") for told in tries])
    assert 0.5 * claimed < sending < 1.1 * claimed
    rest = np.std([told.rest for told in tries])
    assert 0.4 * tries[0].rest_error < rest < 1.1 * tries[0].rest_error


def test_where_peers_differ_by_more_than_repeats_the_peers_count() -> None:
    differing = {end: 0.1 * (-1) ** end for end in range(16)}
    assert fitted(16, 31, noise=0.001, sending=differing).error("forth").min() > 0.1
    assert fitted(16, 31, noise=0.001).error("forth").max() < 0.001


def test_a_single_partner_tells_nothing_of_an_end() -> None:
    assert np.isinf(fitted(8, 1).end_error).all()
    assert not math.isinf(fitted(8, 2).end_error.max())

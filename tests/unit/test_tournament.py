"""Who meets whom in which turn."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest

from pytest_clusterqual.model.tournament import meetings, opponent, turns_for, turns_of

PLAYERS = [2, 3, 4, 5, 6, 7, 8, 31, 32]


@pytest.mark.parametrize("players", PLAYERS)
def test_everybody_meets_everybody_once_and_nobody_two_at_a_time(players: int) -> None:
    met = []
    for turn in range(turns_of(players)):
        others = [opponent(player, turn, players) for player in range(players)]
        assert all(other != player for player, other in enumerate(others))
        assert all(others[other] == player for player, other in enumerate(others) if other is not None)
        assert others.count(None) == players % 2
        met += meetings(turn, players)
    assert sorted(met) == list(combinations(range(players), 2))


@pytest.mark.parametrize("players", PLAYERS)
@pytest.mark.parametrize("partners", [1, 2, 3, 31])
def test_some_turns_give_everybody_as_many_partners_as_asked(players: int, partners: int) -> None:
    turns = turns_for(partners, players)
    met = Counter(player for turn in turns for pair in meetings(turn, players) for player in pair)
    assert min(met.values()) == min(partners, players - 1)
    assert max(met.values()) <= min(partners + players % 2, players - 1)
    assert len(met) == players


def test_no_partners_take_no_turn() -> None:
    assert turns_for(0, 8) == []
    assert turns_for(0, 7) == []


@pytest.mark.parametrize("partners", [3, 5])
def test_a_few_turns_tie_all_players_together_over_short_ways(partners: int) -> None:
    players = 256
    near = {player: set[int]() for player in range(players)}
    for turn in turns_for(partners, players):
        for one, other in meetings(turn, players):
            near[one].add(other)
            near[other].add(one)
    reached, steps = {0}, 0
    while len(reached) < players:
        reached |= {other for player in reached for other in near[player]}
        steps += 1
        assert steps < 32

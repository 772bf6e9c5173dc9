"""Who meets whom: a round-robin tournament between players that are numbered from 0."""

from __future__ import annotations

from random import Random


def turns_of(players: int) -> int:
    """How many turns it takes until each of `players` has met all others."""
    return players - 1 if players % 2 == 0 else players


def opponent(player: int, turn: int, players: int) -> int | None:
    """Whom `player` meets in a turn of a round-robin tournament; None if nobody.

    Of an odd number of players, those two meet whose sum is the turn, modulo that number; whoever
    would meet himself sits out. A last one who makes the number even meets that player.
    """
    odd = turns_of(players)
    if player == odd:
        return turn * (odd + 1) // 2 % odd
    other = (turn - player) % odd
    if other == player:
        return odd if odd < players else None
    return other


def meetings(turn: int, players: int) -> list[tuple[int, int]]:
    """The pairs of one turn, each with the lower number first."""
    met = ((player, opponent(player, turn, players)) for player in range(players))
    return [(player, other) for player, other in met if other is not None and player < other]


def turns_for(partners: int, players: int) -> list[int]:
    """Turns in which every player meets at least so many `partners`, or all others if they are less.

    The same for every caller. They are drawn at random: turns that follow each other would only
    let near numbers meet, and a slow stretch of them would have no others to be compared with.
    """
    turns = turns_of(players)
    wanted = partners + players % 2 if partners else 0  # of an odd number, each sits out once
    return list(range(turns)) if wanted >= turns else sorted(Random(players).sample(range(turns), wanted))

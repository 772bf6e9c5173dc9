"""What pairs of nodes can exchange: a collective over all nodes cannot tell whose link is slow."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from pytest_clusterqual.model.codec import to_json
from pytest_clusterqual.model.measurement import PairTiming
from pytest_clusterqual.rank.training import meet

if TYPE_CHECKING:
    from pytest_clusterqual.rank.jobs import Context

ELEMENT = 4
WARMUPS = 1


def exchange(ctx: Context, *, size: int, repeats: int, partners: int) -> Any:
    """Messages of `size` bytes, one way and then the other, between the first ranks of nodes.

    Disjoint pairs are at work at the same time. Each node meets so many `partners`, or all others
    if they are less. The repeats of a pair lie a whole tournament apart, so that a node that is
    held up for a while does not look slow.

    Returns:
        A `PairTiming` as JSON for every node that this rank received from.
    """
    players = ctx.groups("inter_node")[0]
    me = players.index(ctx.rank) if ctx.rank in players else None
    turns = min(partners, turns_of(len(players)))
    message = torch.zeros(size // ELEMENT, device=ctx.device)
    seconds: dict[int, list[float]] = {}
    for turn in range((WARMUPS + repeats) * turns):
        ctx.report(turn, (WARMUPS + repeats) * turns, "pairs of nodes")
        other = None if me is None else opponent(me, turn % turns, len(players))
        for lower_sends in (True, False):
            sends = me is not None and other is not None and (me < other) == lower_sends
            took = _timed(ctx, message, None if other is None else players[other], sends)
            if other is not None and not sends and turn >= WARMUPS * turns:
                seconds.setdefault(other, []).append(took)
    return to_json([
        PairTiming(
            sender=ctx.nodes[players[other]], receiver=ctx.node, bytes=len(message) * ELEMENT, seconds=tuple(took),
        )
        for other, took in sorted(seconds.items())
    ])  # fmt: skip


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


def _timed(ctx: Context, message: torch.Tensor, other: int | None, sends: bool) -> float:
    """Seconds from when all ranks have met until this one has sent or received the message, if it has to."""
    meet(ctx)
    start = time.perf_counter()
    if other is not None:
        pass_on = dist.isend if sends else dist.irecv
        for work in dist.batch_isend_irecv([dist.P2POp(pass_on, message, ctx.members[other], ctx.group)]):
            work.wait()
    ctx.synchronize()
    return time.perf_counter() - start

"""What pairs of nodes can exchange: a collective over all nodes cannot tell whose link is slow."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.model.codec import to_json
from pytest_clusterqual.model.fabric import PairTiming
from pytest_clusterqual.model.groups import Groups
from pytest_clusterqual.model.tournament import meetings, turns_for
from pytest_clusterqual.rank.training import meet

if TYPE_CHECKING:
    from pytest_clusterqual.rank.jobs import Context

ELEMENT = 4
WARMUPS = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """Pairs of ranks that are at work at the same time; `number` counts the turns with many."""

    pairs: tuple[tuple[int, int], ...]
    rail: int
    number: int
    alone: bool = False


def exchange(
    ctx: Context, *, size: int, repeats: int, partners: int, rails: bool = False, alone: Sequence[Sequence[Any]] = ()
) -> Any:
    """Messages of `size` bytes, one way and then the other, between the first ranks of nodes.

    Disjoint pairs are at work at the same time. Each node meets so many `partners`, or all others
    if they are less; with `rails` so do the second ranks of nodes, and so on, rail after rail. Then
    each of `alone`, (node, node, rail), exchanges while all others are idle. The repeats of a pair
    lie a whole pass apart, so that a node that is held up for a while does not look slow, and
    what is alone and what is not meet the same drift.

    Returns:
        A `PairTiming` as JSON for every exchange in which this rank received.

    Raises:
        MeasurementError: a pair of `alone` names a node or a rail that is not there.
    """
    lines = ctx.groups("rails") if rails else ctx.groups("inter_node")
    turns = [*_together(lines, partners), *_alone(lines, ctx.nodes, alone)]
    message = torch.zeros(size // ELEMENT, device=ctx.device)
    seconds: dict[tuple[int, int], list[float]] = {}
    for done in range((WARMUPS + repeats) * len(turns)):
        ctx.report(done, (WARMUPS + repeats) * len(turns), "pairs of nodes")
        at = done % len(turns)
        pair = next((pair for pair in turns[at].pairs if ctx.rank in pair), None)
        for sender in (0, 1):
            took = _timed(ctx, message, pair, sender)
            if pair is not None and pair[1 - sender] == ctx.rank and done >= WARMUPS * len(turns):
                seconds.setdefault((at, pair[sender]), []).append(took)
    return to_json([
        PairTiming(
            sender=ctx.nodes[sender], receiver=ctx.node, bytes=len(message) * ELEMENT, seconds=tuple(took),
            rail=turns[at].rail, turn=turns[at].number, alone=turns[at].alone,
        )
        for (at, sender), took in seconds.items()
    ])  # fmt: skip


def _together(lines: Groups, partners: int) -> Iterator[Turn]:
    number = 0
    for rail, players in enumerate(lines):
        for turn in turns_for(partners, len(players)):
            pairs = tuple((players[a], players[b]) for a, b in meetings(turn, len(players)))
            yield Turn(pairs=pairs, rail=rail, number=number)
            number += 1


def _alone(lines: Groups, nodes: Sequence[str], pairs: Sequence[Sequence[Any]]) -> Iterator[Turn]:
    seats = {(nodes[rank], rail): rank for rail, players in enumerate(lines) for rank in players}
    for one, other, rail in pairs:
        if missing := [node for node in (one, other) if (node, rail) not in seats]:
            raise MeasurementError(f"pairs of nodes: {missing[0]} has no rank on rail {rail}")
        yield Turn(pairs=((seats[one, rail], seats[other, rail]),), rail=rail, number=0, alone=True)


def _timed(ctx: Context, message: torch.Tensor, pair: tuple[int, int] | None, sender: int) -> float:
    """Seconds from when all ranks have met until this one has sent or received the message, if it has to."""
    meet(ctx)
    start = time.perf_counter()
    if pair is not None:
        pass_on, other = (dist.isend, 1 - sender) if ctx.rank == pair[sender] else (dist.irecv, sender)
        for work in dist.batch_isend_irecv([dist.P2POp(pass_on, message, ctx.members[pair[other]], ctx.group)]):
            work.wait()
    ctx.synchronize()
    return time.perf_counter() - start

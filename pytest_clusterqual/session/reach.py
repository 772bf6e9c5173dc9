"""Ranks that do not come together: which nodes cannot connect to each other is asked of the nodes themselves."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, islice
from typing import Any

from pytest_clusterqual.channel import Channel
from pytest_clusterqual.errors import LaunchError

_DOOR_SECONDS = 5.0  # a supervisor looks for orders ten times a second
_TRY_SECONDS = 30.0
_NAMED = 8  # of many, the first few show what they have in common

Unreached = Mapping[str, Mapping[str, str]]


def ask(channel: Channel, order: Callable[[dict[str, Any]], None], name: str, nodes: Sequence[str]) -> Unreached:
    """Node -> the other nodes that it cannot connect to, each with the reason; only nodes that answered.

    `order` gives an order to all supervisors; `name` is unique to this round.
    """
    order({"do": "reach", "name": name})
    doors = _gather(channel, {node: f"{name}/door/{node}" for node in nodes}, _DOOR_SECONDS)
    channel.put(f"{name}/doors", doors)
    unreached = _gather(channel, {node: f"{name}/lost/{node}" for node in doors}, _TRY_SECONDS)
    channel.flag(f"{name}/over")
    return unreached


def _gather(channel: Channel, keys: Mapping[str, str], seconds: float) -> dict[str, Any]:
    """The messages that are there once all are, or after so many seconds."""
    deadline = time.monotonic() + seconds
    while not channel.has(*keys.values()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return {node: channel.get(key) for node, key in keys.items() if channel.has(key)}


def blocked(unreached: Unreached) -> dict[str, str]:
    """Suspect -> what was seen: a node that is cut off from all others, else two nodes.

    Two nodes are named ``node2 - node4``, or ``node2 -> node4`` if only node2 cannot connect to the other.
    """
    found = _cut_off(unreached) if len(unreached) > 2 else {}  # of two nodes neither is the odd one
    for one, other in combinations([node for node in unreached if node not in found], 2):
        there, back = unreached[one].get(other), unreached[other].get(one)
        if there and back:
            found[f"{one} - {other}"] = f"neither can connect to the other ({there}; {back})"
        elif there:
            found[f"{one} -> {other}"] = f"no connection this way ({there}), but the other way"
        elif back:
            found[f"{other} -> {one}"] = f"no connection this way ({back}), but the other way"
    return found


def _cut_off(unreached: Unreached) -> dict[str, str]:
    found = {}
    for node, failed in unreached.items():
        others = [other for other in unreached if other != node]
        if all(node in unreached[other] for other in others):
            found[node] = f"no other node can connect to it ({unreached[others[0]][node]})"
        elif all(other in failed for other in others):
            found[node] = f"it can connect to no other node ({failed[others[0]]})"
    return found


def no_way_between(unreached: Unreached) -> LaunchError | None:
    """The error that names who is `blocked`; None if every node that answered can connect to every other."""
    found = blocked(unreached)
    if not found:
        return None
    named = dict(islice(found.items(), _NAMED))
    told = "; ".join(f"{suspect}: {seen}" for suspect, seen in named.items())
    more = f"; and {len(found) - len(named)} more such" if len(found) > len(named) else ""
    return LaunchError(
        f"the ranks cannot form a group: {told}{more}\n{len(unreached)} nodes tried a TCP connection to each other, on "
        "free ports; check the firewall rules of the nodes named, and the routes, VLANs and ACLs of the switches "
        "between them",
        culprits=list(named),
    )

"""What one copy of a served model sends between nodes, by two ways to cut it: an estimate from promised links."""

from __future__ import annotations

from pytest_clusterqual import units
from pytest_clusterqual.model.expected import Expected, as_algbw, expected_busbw
from pytest_clusterqual.model.purchase import NodeType, ServedModel

_ACTIVATION = 2  # bytes: activations travel in bf16, whatever the weights are


def tensor_across(model: ServedModel, node: NodeType, *, nodes: int, tokens: int) -> Expected:
    """Seconds of the all-reduces for `tokens`, two a layer, over all devices of `nodes`; None where no NIC is given."""
    message, calls = tokens * model.hidden * _ACTIVATION, 2 * model.layers
    names = [f"node{index // node.devices}" for index in range(nodes * node.devices)]
    ranks = (tuple(range(len(names))),)
    among = f"{nodes} nodes x {units.show_count(node.devices, 'device')}"
    words = f"2 x {model.layers} all-reduces of {units.show_decimal(message)} over {among}"
    return _seconds(words, calls * message, as_algbw(_level("all_reduce", ranks, names, node), "all_reduce", ranks))


def pipeline_across(model: ServedModel, node: NodeType, *, nodes: int, tokens: int) -> Expected:
    """Seconds of the messages for `tokens` from each node to the next one; None where no NIC is given."""
    message, calls = tokens * model.hidden * _ACTIVATION, nodes - 1
    words = f"{units.show_count(calls, 'message')} of {units.show_decimal(message)} to the next node"
    return _seconds(words, calls * message, _level("send_recv", ((0, 1),), ["node0", "node1"], node))


def _level(collective: str, ranks: tuple[tuple[int, ...], ...], names: list[str], node: NodeType) -> Expected:
    if node.links.nic is None:
        return Expected(value=None, why=f"links.nic of node {node.name} is not given")
    return expected_busbw(collective, ranks, names, promised=node.links)


def _seconds(words: str, size: float, level: Expected) -> Expected:
    if level.value is None:
        return Expected(value=None, why=f"{words} = {units.show_decimal(size)}; no time: {level.why}")
    seconds = size / level.value
    rate, time = units.show(level.value, units.RATE), units.show(seconds, units.SECONDS)
    return Expected(value=seconds, why=f"{words} = {units.show_decimal(size)} / {rate} = {time}")

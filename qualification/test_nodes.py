"""Nodes: all alike, as promised, and none at fault in itself; a node that is not is named."""

import pytest


@pytest.mark.criterion("nodes")
def test_nodes(measurement, qualify):
    qualify(measurement)


def test_node_alone(node, qualify):
    """The same work on each node by itself, by its slowest rank; with `require="<= ..."` it is judged."""
    rounds = [max(node.run("node_jobs:multiply_seconds", calls=20)) for _ in range(8)]
    qualify.samples("multiplication", rounds, unit="s")

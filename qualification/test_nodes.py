"""Nodes: all alike, as promised, and none at fault in itself; a node that is not is named."""

import pytest


@pytest.mark.criterion("nodes")
def test_nodes(measurement, qualify):
    qualify(measurement)

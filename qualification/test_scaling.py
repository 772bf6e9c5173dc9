"""Training Scaling: the same fixed work is done sooner on more nodes, by as much as the file demands."""

import pytest


@pytest.mark.criterion("scaling", needs=["memory", "fabric"])
def test_scaling(measurement, qualify):
    qualify(measurement)

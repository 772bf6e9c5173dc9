"""Memory: the exact job passes forward, backward and optimizer step on every rank, with the promised headroom."""

import pytest


@pytest.mark.criterion("memory")
def test_memory(measurement, qualify):
    qualify(measurement)

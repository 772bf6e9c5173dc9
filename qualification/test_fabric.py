"""Fabric: each collective reaches, at each required size and in each rank group, what the file demands."""

import pytest


@pytest.mark.criterion("fabric")
def test_fabric(measurement, qualify):
    qualify(measurement)

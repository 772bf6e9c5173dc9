"""Full-Run: what is left of the speed once checkpoints, a killed rank, its recovery and data stalls are paid."""

import pytest


@pytest.mark.criterion("full_run", needs=["scaling"])
def test_full_run(measurement, qualify):
    qualify(measurement)

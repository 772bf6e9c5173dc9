"""What a user's own test may hand to `qualify`."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.qualify import Qualify


def test_what_is_no_measurement_is_refused_by_name() -> None:
    nobody: Any = None
    with pytest.raises(MeasurementError, match=r"^qualify\(measurement\): got NoneType, want what the fixture"):
        Qualify(nobody, nobody)(nobody)

"""An estimate held against the memory that there will be."""

from __future__ import annotations

import pytest
from ladder_estimated import GIB, estimate

from pytest_clusterqual.judge.memory.estimated import held_against


@pytest.mark.parametrize(
    ("memory", "headroom", "expected"),
    [
        (80.0 * GIB, 0.1, "fits"),  # exactly 72 GiB may be used
        (80.0 * GIB - 1, 0.1, "tight"),
        (80.0 * GIB, 0.11, "tight"),
        (72.0 * GIB, 0.0, "fits"),
        (72.0 * GIB, 0.1, "tight"),
        (72.0 * GIB - 1, 0.0, "no"),
        (None, 0.1, None),
    ],
)
def test_fits_tight_no(memory: float | None, headroom: float, expected: str | None) -> None:
    assert held_against(estimate(), memory, headroom) == expected


def test_what_is_not_estimated_is_not_judged() -> None:
    assert held_against(None, 80.0 * GIB, 0.1) is None

"""An estimate held against the memory that there will be. It is never a PASS."""

from __future__ import annotations

from pytest_clusterqual.model.estimate import Estimate, Fits


def held_against(estimate: Estimate | None, memory: float | None, headroom: float) -> Fits | None:
    """``fits``, ``tight`` if less than `headroom` (a share) of `memory` (bytes) is left, ``no`` if it is exceeded.

    None where nothing is estimated, or no memory is known.
    """
    if estimate is None or memory is None:
        return None
    if estimate.peak > memory:
        return "no"
    return "fits" if estimate.peak <= memory * (1 - headroom) else "tight"

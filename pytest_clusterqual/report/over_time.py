"""What a run shows over time, in lines below a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pytest_clusterqual import units
from pytest_clusterqual.model.over_time import OverTime
from pytest_clusterqual.model.record import Finding


def over_time_lines(seen: OverTime) -> Iterator[tuple[str, str]]:
    """Drift, the parts of a step as the last rank is through with them, and findings."""
    if seen.drift is not None and seen.interval is not None:
        low, high = units.show_share(seen.interval.low), units.show_share(seen.interval.high)
        yield (
            "drift",
            f"{units.show_share(seen.drift)} [{low}, {high}] of the step time, over the whole run",
        )
    if seen.stages:
        parts = ", ".join(f"{units.show(seconds, units.SECONDS)} {stage}" for stage, seconds in seen.stages.items())
        yield "frontier", f"the last rank is through an average step after {parts}"
    yield from finding_lines(seen.findings)


def finding_lines(findings: Iterable[Finding]) -> Iterator[tuple[str, str]]:
    """A line each, with what to look at."""
    for finding in findings:
        yield finding.kind, f"{finding.suspect}: {finding.evidence}; look at {finding.check_next}"

"""The estimated ladder as a person reads it: nothing in it looks like a measurement or a verdict."""

from __future__ import annotations

import re

import pytest
from ladder_estimated import estimated, ladder, rung

from pytest_clusterqual.model.estimate import EstimatedRung
from pytest_clusterqual.model.record import Verdict
from pytest_clusterqual.report.rungs_table import rungs_table

IMPOSSIBLE = EstimatedRung(
    rung=rung("context 8", per_node=8, impossible="context: got 8, want 4"), estimate=None, fits=None
)
LADDER = ladder(
    estimated("one device", "no"), estimated("recompute full", "tight"), estimated("shard", "fits"), IMPOSSIBLE
)


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


def test_every_row_and_the_title_say_estimate() -> None:
    shown = rungs_table(LADDER, width=120)
    title, header, *rows = lines(shown)
    assert "estimate" in title
    assert "nothing is measured" in shown
    assert header.split() == ["rung", "ranks", "peak", "params", "grads", "optim.", "activ.", "other", "estimate"]
    assert [row.split("  ")[-1] for row in rows[:4]] == [
        "no (estimate)", "tight (estimate)", "fits (estimate)", "impossible",
    ]  # fmt: skip
    assert rows[0].split()[:8] == ["one", "device", "1", "x", "1", "72", "GiB", "10"]
    for verdict in Verdict:
        assert not re.search(rf"\b{verdict}\b", shown)


def test_what_it_cannot_see_is_listed_and_not_counted() -> None:
    shown = rungs_table(LADDER, width=120)
    assert shown.endswith(
        "the estimate cannot see, and a device holds besides:\n  - the CUDA context\n  - fragmentation"
    )


def test_it_says_what_it_is_held_against_and_why_a_rung_is_impossible() -> None:
    shown = " ".join(rungs_table(LADDER, width=120).split())
    assert (
        "first estimate that fits: shard; held against 80 GiB (topology.gpu_memory), of which 10 % must stay" in shown
    )
    assert "context 8: impossible: context: got 8, want 4" in shown
    none = " ".join(rungs_table(ladder(estimated("one device", "no"), headroom=0.0), width=120).split())
    assert "no estimate fits; held against 80 GiB (topology.gpu_memory), of which memory.require wants no" in none


def test_without_a_known_memory_nothing_fits_or_does_not() -> None:
    shown = rungs_table(ladder(estimated("one device", None), device_memory=None, memory_from=""), width=120)
    assert "give memory.device_memory or topology.gpu_memory to see what fits" in shown
    assert "(estimate)" not in shown
    assert lines(shown)[2].endswith("  estimate")


def test_arithmetic_is_told_with_its_reason_once() -> None:
    poor = {"method": "arithmetic", "reason": "torch is not installed here"}
    shown = rungs_table(ladder(estimated("one device", "no", **poor), estimated("shard", "fits", **poor)), width=120)
    assert "no (estimate by arithmetic)" in shown
    assert "one device, shard: estimate by arithmetic: torch is not installed here" in shown
    assert shown.count("torch is not installed here") == 1


@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_line_is_longer_than_the_terminal(width: int) -> None:
    assert max(map(len, rungs_table(LADDER, width=width).splitlines())) <= width


def test_text_of_the_file_cannot_steer_the_terminal() -> None:
    evil = EstimatedRung(rung=rung("x\x1b[2J", impossible="\x1b]0;title\x07"), estimate=None, fits=None)
    assert "\x1b" not in rungs_table(ladder(evil), width=120)

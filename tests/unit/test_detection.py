"""The benchmark of detection, in short: planted causes are named, and its bars are met."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "detection.py"


def test_planted_causes_are_named() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), "--quick"], capture_output=True, text=True, timeout=300, check=False
    )
    bars = [line for line in done.stdout.splitlines() if line.startswith(("met", "MISSED"))]
    assert (done.returncode, [bar for bar in bars if bar.startswith("MISSED")]) == (0, []), done.stdout + done.stderr
    assert len(bars) == 4

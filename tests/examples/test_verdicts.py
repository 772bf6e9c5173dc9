"""The suite on the example scripts: verdicts for Memory, Training Scaling and Full-Run, a killed rank included."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import defaultdict
from pathlib import Path

import pytest
from scripts import EXAMPLES, TRAINERS, blocks, labels, shell, skip_without_trainer

# Each takes a minute or two. What the scripts write through their probes is tested beside this without the suite, and
# a command in the suite in tests/plugin.
pytestmark = pytest.mark.skipif(
    os.environ.get("CLUSTERQUAL_EXAMPLES") != "full", reason="long; `make examples` runs it"
)


@pytest.mark.parametrize("example", TRAINERS)
def test_an_example_gets_its_verdicts(example: str, tmp_path: Path) -> None:
    skip_without_trainer(example)
    shutil.copy(EXAMPLES / example / "train.py", tmp_path)
    text = (EXAMPLES / example / "clusterqual.yaml").read_text()
    # How much two ranks gain is this machine's own, and what else it does meanwhile.
    text, replaced = re.subn(r'speedup: ">= [\d.]+"', 'speedup: ">= 0.01"', text)
    assert replaced == 1
    (tmp_path / "clusterqual.yaml").write_text(text)
    shell("clusterqual init", tmp_path)
    out = shell("pytest qualification/ --nodes 2 --qual-config clusterqual.yaml --qual-run-dir run", tmp_path)
    verdicts = defaultdict(set)
    for line in (tmp_path / "run" / "records.jsonl").read_text().splitlines():
        record = json.loads(line)
        verdicts[record["criterion"], record["judgement"]["quantity"]].add(record["judgement"]["verdict"])
    assert {what for what, found in verdicts.items() if "PASS" in found} >= {
        ("memory", "peak"), ("fabric", "busbw"), ("scaling", "speedup"),
        ("full_run", "goodput"), ("full_run", "checkpoint_blocking"), ("full_run", "recovery"),
    }, out  # fmt: skip
    assert {verdict for found in verdicts.values() for verdict in found} == {"PASS", "MEASURED"}, out
    if example == "plain":
        *_, shown = blocks((EXAMPLES.parent / "docs" / "own-job.md").read_text(encoding="utf-8"), "text")
        assert labels(shown) - labels(out) == set(), out

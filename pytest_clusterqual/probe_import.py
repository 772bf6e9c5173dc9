"""`clusterqual import probe`: the ledger of a training run, from what its own script wrote through a probe."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from pytest_clusterqual.judge.full_run.probe import Accounts
from pytest_clusterqual.model.codec import to_json
from pytest_clusterqual.model.probe import ProbeLedger
from pytest_clusterqual.read.probe import probe_files, probe_lines
from pytest_clusterqual.report.probe_table import probe_report


def import_probe(folder: Path) -> ProbeLedger:
    """Every second of every rank in one state, and what is left for steps that count.

    Raises:
        ClusterQualError: names the file and line that is of no probe, or the rank that contradicts itself.
    """
    torn: list[str] = []
    accounts = Accounts()
    for rank, files in probe_files(folder, torn.append).items():
        accounts.add(rank, ((file.start, probe_lines(file, torn.append)) for file in files))
    ledger = accounts.ledger()
    return dataclasses.replace(ledger, warnings=(*torn, *ledger.warnings))


def as_text(ledger: ProbeLedger, *, as_json: bool, width: int, color: bool) -> str:
    """A table, or all figures as JSON."""
    if as_json:
        return json.dumps({**to_json(ledger), "goodput": ledger.goodput}, indent=2)
    return probe_report(ledger, width=width, color=color)

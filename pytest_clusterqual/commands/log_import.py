"""`clusterqual import log`: what a training job's own log tells of its steps, and what it cannot tell."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pytest_clusterqual.judge.full_run.logged import logged_run
from pytest_clusterqual.model.codec import to_json
from pytest_clusterqual.read.training_log import read_training_log
from pytest_clusterqual.report.log_table import log_report


def import_logs(
    files: Sequence[Path], *, pattern: str | None, tokens_per_step: float | None, as_json: bool, width: int, color: bool
) -> str:
    """A report, or all figures as JSON, of the log of one run in one or several files.

    Raises:
        ClusterQualError: names the file that cannot be read or holds no step, or what is wrong with `pattern`.
    """
    run = logged_run(read_training_log(files, pattern), tokens_per_step=tokens_per_step)
    return json.dumps(to_json(run), indent=2) if as_json else log_report(run, width=width, color=color)

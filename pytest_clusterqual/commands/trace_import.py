"""`clusterqual import trace`: where the time of profiled steps went, from traces that people already have."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pytest_clusterqual.errors import ReadError
from pytest_clusterqual.judge.step.traces import trace_times
from pytest_clusterqual.model.codec import to_json
from pytest_clusterqual.model.trace import Trace
from pytest_clusterqual.read.trace import read_trace
from pytest_clusterqual.report.trace_table import trace_report


def import_traces(files: Sequence[Path], *, as_json: bool, width: int, color: bool) -> str:
    """A table, or all figures as JSON, of profiler traces of one run, one a rank.

    Raises:
        ClusterQualError: names every file that is no such trace, or why they are not of one run.
    """
    traces: list[Trace] = []
    problems: list[str] = []
    for file in files:
        try:
            traces.append(read_trace(file))
        except ReadError as error:
            problems.append(str(error))
    if problems:
        raise ReadError("\n".join(problems))
    times = trace_times(traces)
    return json.dumps(to_json(times), indent=2) if as_json else trace_report(times, width=width, color=color)

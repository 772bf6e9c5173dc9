"""Records as OpenMetrics text, for the textfile collector of the node exporter and whoever else scrapes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from pytest_clusterqual.model.record import SEVERITY, Record, worst
from pytest_clusterqual.report import text

_UNITS = {"s": "seconds", "B": "bytes", "B/s": "bytes_per_second", "tokens/s": "tokens_per_second", "1": "ratio"}


def metrics(records: Sequence[Record]) -> str:
    """A gauge for each verdict of a test (1 is the one it has), one for each figure, and when it was measured."""
    return "".join(f"{line}\n" for line in (*_verdicts(records), *_figures(records), *_times(records), "# EOF"))


def _verdicts(records: Sequence[Record]) -> Iterator[str]:
    yield "# TYPE clusterqual_verdict gauge"
    yield "# HELP clusterqual_verdict Whether a test ended with this verdict."
    by_test: dict[str, list[Record]] = {}
    for record in records:
        by_test.setdefault(record.test, []).append(record)
    for test, group in by_test.items():
        verdict = worst([record.judgement.verdict for record in group])
        for each in SEVERITY:
            labels = _labels(test=test, criterion=group[0].criterion, verdict=str(each))
            yield f"clusterqual_verdict{labels} {int(each is verdict)}"


def _figures(records: Sequence[Record]) -> Iterator[str]:
    by_name: dict[str, list[str]] = {}
    for record in records:
        judgement = record.judgement
        if judgement.value is None or not math.isfinite(judgement.value) or judgement.unit not in _UNITS:
            continue
        name = f"clusterqual_{re.sub(r'[^a-zA-Z0-9_]', '_', judgement.quantity)}_{_UNITS[judgement.unit]}"
        labels = _labels(
            test=record.test, criterion=record.criterion, label=judgement.label,
            required=judgement.requirement.text if judgement.requirement else "",
        )  # fmt: skip
        by_name.setdefault(name, []).append(f"{name}{labels} {judgement.value!r}")
    for name, lines in by_name.items():
        yield f"# TYPE {name} gauge"
        yield from dict.fromkeys(lines)


def _times(records: Sequence[Record]) -> Iterator[str]:
    yield "# TYPE clusterqual_measured_timestamp_seconds gauge"
    last: dict[str, float] = {}
    for record in records:
        if math.isfinite(record.started):
            last[record.criterion] = max(record.started, last.get(record.criterion, 0.0))
    for criterion, when in last.items():
        yield f"clusterqual_measured_timestamp_seconds{_labels(criterion=criterion)} {when!r}"


def _labels(**values: str) -> str:
    told = ",".join(f'{name}="{_escaped(value)}"' for name, value in values.items() if value)
    return f"{{{told}}}"


def _escaped(value: str) -> str:
    return text.visible(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

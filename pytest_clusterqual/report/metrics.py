"""Records as OpenMetrics text, for the textfile collector of the node exporter and whoever else scrapes."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from pytest_clusterqual.model.record import SEVERITY, Record, by_test, verdict_of
from pytest_clusterqual.report import text

_UNITS = {"s": "seconds", "B": "bytes", "B/s": "bytes_per_second", "tokens/s": "tokens_per_second", "1": "ratio"}
_VERDICT, _MEASURED = "clusterqual_verdict", "clusterqual_measured_timestamp_seconds"
_HELP = {_VERDICT: "Whether a test ended with this verdict.", _MEASURED: "When a criterion was last measured."}
_FIGURE = "A figure of a test, in the unit that ends its name."

_Series = tuple[str, dict[str, str], str]  # name, labels, value


def metrics(records: Sequence[Record]) -> str:
    """A gauge for each verdict of a test (1 is the one it has), one for each figure, and when it was measured."""
    families: dict[str, list[str]] = {}
    times: Counter[str] = Counter()
    for name, labels, value in (*_verdicts(records), *_figures(records), *_times(records)):
        series = name + _labels(labels)
        times[series] += 1
        if times[series] > 1:  # a collector refuses the same series twice, so what a test tells again has a number
            series = name + _labels({**labels, "number": str(times[series])})
        families.setdefault(name, []).append(f"{series} {value}")
    return "".join(f"{line}\n" for line in (*_grouped(families), "# EOF"))


def _grouped(families: dict[str, list[str]]) -> Iterator[str]:
    for name, lines in families.items():
        yield f"# HELP {name} {_HELP.get(name, _FIGURE)}"
        yield f"# TYPE {name} gauge"
        yield from lines


def _verdicts(records: Sequence[Record]) -> Iterator[_Series]:
    for test, group in by_test(records).items():
        verdict = verdict_of(group)
        for each in SEVERITY:
            labels = {"test": test, "criterion": group[0].criterion, "verdict": str(each)}
            yield _VERDICT, labels, str(int(each is verdict))


def _figures(records: Sequence[Record]) -> Iterator[_Series]:
    for record in records:
        judgement = record.judgement
        if judgement.value is None or not math.isfinite(judgement.value) or judgement.unit not in _UNITS:
            continue
        name = f"clusterqual_{re.sub(r'[^a-zA-Z0-9_]', '_', judgement.quantity)}_{_UNITS[judgement.unit]}"
        labels = {
            "test": record.test, "criterion": record.criterion, "label": judgement.label,
            "required": judgement.requirement.text if judgement.requirement else "",
        }  # fmt: skip
        yield name, labels, repr(judgement.value)


def _times(records: Sequence[Record]) -> Iterator[_Series]:
    last: dict[str, float] = {}
    for record in records:
        if math.isfinite(record.started):
            last[record.criterion] = max(record.started, last.get(record.criterion, 0.0))
    for criterion, when in last.items():
        yield _MEASURED, {"criterion": criterion}, repr(when)


def _labels(values: dict[str, str]) -> str:
    told = ",".join(f'{name}="{_escaped(value)}"' for name, value in values.items() if value)
    return f"{{{told}}}"


def _escaped(value: str) -> str:
    return text.visible(value).replace("\\", "\\\\").replace('"', '\\"')

"""Words and numbers of a record as people read them; shared by all reports of this room."""

from __future__ import annotations

import math
import re
import shlex
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

from pytest_clusterqual import units
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.record import Finding, Judgement
from pytest_clusterqual.model.telemetry import NodeTelemetry
from pytest_clusterqual.model.variables import given_options

# Ratios that people say in percent; any other follows the requirement's own way of saying it.
_SHARES = (
    "headroom", "goodput", "ettr", "data_stall", "wait", "placement", "contention", "exposed_communication", "waiting",
    "checkpoint_inflation", "checkpoint_loss",
)  # fmt: skip
_BARE_SIZE = re.compile(r"(\d{4,}) B")
# Control, format (text direction), surrogate, line and paragraph separator.
_UNSAFE = ("Cc", "Cf", "Cs", "Zl", "Zp")
# XML 1.0 has no way to write any other character, not even as a reference.
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def visible(text: str) -> str:
    """Outside text on one line: blanks become spaces, what could steer a terminal becomes its escape."""
    one_line = " ".join(text.split())
    return "".join(
        char.encode("unicode_escape").decode() if unicodedata.category(char) in _UNSAFE else char for char in one_line
    )


def xml_safe(text: str) -> str:
    """`text` with what XML 1.0 does not allow as a visible escape."""
    return _NOT_XML.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def case_of(test: str) -> str:
    """The bracket part of a test's name, or its name where it has none."""
    name, bracket, case = test.partition("[")
    return visible(case.removesuffix("]") if bracket else name.rsplit("::", 1)[-1])


def quantity_of(judgement: Judgement) -> str:
    """Quantity and label, such as ``busbw 1 MiB``; empty where nothing was measured."""
    return visible(f"{judgement.quantity} {label_of(judgement)}")


def label_of(judgement: Judgement) -> str:
    """The label; a size that is no whole number of KiB with four digits, which still tell it from its neighbours."""
    if (exact := _BARE_SIZE.fullmatch(judgement.label)) is None:
        return visible(judgement.label)
    size = float(exact[1])
    unit = units.show(size, units.BYTES).partition(" ")[2]
    return f"{size / units.parse(f'1 {unit}', units.BYTES):.4g} {unit}"


def value_of(judgement: Judgement) -> str:
    """The value with its unit; empty where there is none."""
    return "" if judgement.value is None else _number(judgement, judgement.value)


def interval_of(judgement: Judgement) -> str:
    """``[low, high]`` in the unit of the value where that reads the same; empty for an exact value.

    ``(one run)`` of what was seen once: the resolution of its clocks says nothing about another run.
    """
    interval = judgement.interval
    if judgement.value is None or interval is None or interval.low == interval.high == judgement.value:
        return ""
    if interval.kind == "resolution":
        return "(one run)"
    return units.show_interval(*(_number(judgement, value) for value in (judgement.value, interval.low, interval.high)))


def parts_of(judgement: Judgement) -> str:
    """Such as ``4.1 ms a step = compute loss 0.9, exposed transfer 2.5``; parts too small to show are left out."""
    whole, parts = judgement.value or 0.0, judgement.parts
    most = max(map(abs, (whole, *parts.values())))
    unit = units.show(most, judgement.unit).partition(" ")[2]
    scale = units.parse(f"1 {unit}", judgement.unit)
    told = ", ".join(f"{name} {part / scale:.3g}" for name, part in parts.items() if abs(part) >= 0.005 * most)
    return visible(f"{whole / scale:.3g} {unit} a step = {told}")


def bound_of(judgement: Judgement) -> str:
    """What is required as an absolute bound, such as ``>= 320 MB/s``; empty without a requirement."""
    demand = judgement.requirement
    if demand is None:
        return ""
    return visible(f"{demand.op} {_number(judgement, demand.value)}" if demand.expected_from else demand.text)


def share_of_expected(judgement: Judgement) -> str:
    """``80 % of expected`` where the bound was made from a level that the topology should give."""
    demand = judgement.requirement
    return visible(demand.text.removeprefix(demand.op)) if demand and demand.expected_from else ""


def whole_of(judgement: Judgement) -> str:
    """Such as ``busbw 1 MiB 410 MB/s [390, 430] required >= 500 MB/s (FAIL)``."""
    figures = (quantity_of(judgement), value_of(judgement), interval_of(judgement))
    bound = bound_of(judgement)
    return " ".join(filter(None, (*figures, bound and f"required {bound}", f"({judgement.verdict})")))


def ranges(numbers: Iterable[int]) -> str:
    """Numbers in rising order on one line: ``1-3, 7``."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def margin_of(judgement: Judgement) -> str:
    """Signed percent of the bound, positive on the good side; empty without a requirement."""
    if judgement.margin is None:
        return ""
    percent = judgement.margin * 100
    return f"{signed(percent)} %" if math.isfinite(percent) else f"{percent}"


def signed(percent: float) -> str:
    """With its sign, to two digits or all whole ones: ``+0.35``, ``-2.1``, ``+160``."""
    digits = 0 if abs(percent) >= 9.95 else 1 if abs(percent) >= 0.95 else 2
    return f"{percent:+.{digits}f}"


def finding_line(finding: Finding) -> str:
    return visible(f"{finding.suspect} ({finding.kind}): {finding.evidence}; check next: {finding.check_next}")


def ranks_of(conditions: Conditions) -> str:
    """Such as ``2 nodes x 1 rank, cpu, gloo``."""
    nodes, ranks = units.show_count(conditions.nodes, "node"), units.show_count(conditions.nproc_per_node, "rank")
    return visible(f"{nodes} x {ranks}, {conditions.device}, {conditions.backend}")


def conditions_line(conditions: Conditions) -> str:
    """All conditions that have a meaning for the measurement, on one line."""
    parts = [ranks_of(conditions), f"hosts {', '.join(conditions.hosts)}"]
    parts += ["simulated on one machine"] if conditions.simulated else []
    parts += ["ranks share cores"] if conditions.oversubscribed else []
    for key in ("device_name", "layout", "workload", "collective", "group", "algorithm"):
        if (value := getattr(conditions, key)) is not None:
            parts.append(f"{key.replace('_', ' ')} {value}")
    if conditions.bytes is not None:
        parts.append(units.show(conditions.bytes, units.BYTES))
    parts += [f"{name} {version}" for name, version in sorted(conditions.versions.items())]
    if conditions.load is not None:
        parts.append(f"other work took {units.show_share(conditions.load.other_cpu)} of {conditions.load.node}'s cores")
    return visible("; ".join(parts))


def throttled_lines(telemetry: Iterable[NodeTelemetry]) -> list[str]:
    """A sentence for each node whose GPUs were slowed down against their will, over all measurements."""
    seen: dict[str, dict[str, None]] = {}
    for node in telemetry:
        for device, reasons in node.throttled.items():
            seen.setdefault(node.node, {}).update(dict.fromkeys(f"{device}: {reason}" for reason in reasons))
    return [
        visible(f"{node} was throttled ({'; '.join(what)}): slow timings may come from heat or power, not from the job")
        for node, what in seen.items()
    ]


def repeat_with(environment: Mapping[str, Any]) -> str:
    """The command that made a run, with the options that variables gave; of a merged run those of its parts."""
    if isinstance(merged := environment.get("merged"), Mapping):
        return "; ".join(filter(None, map(repeat_with, merged.values())))
    given = given_options(environment.get("variables", {}))
    words = [f"{name}={shlex.quote(value)}" for name, value in given.items()]
    return " ".join([*words, argv]) if (argv := str(environment.get("argv", ""))) else ""


def _number(judgement: Judgement, value: float) -> str:
    if judgement.unit == units.NODES and judgement.interval is not None:
        return f"{value:g} odd of {judgement.interval.samples} nodes"
    if judgement.unit != units.RATIO or not math.isfinite(value):
        return units.show(value, judgement.unit)
    demand = judgement.requirement
    share = "%" in demand.text and not demand.expected_from if demand else judgement.quantity in _SHARES
    return units.show_share(value) if share else units.show(value, units.RATIO)

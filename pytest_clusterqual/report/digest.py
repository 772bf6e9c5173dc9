"""Records in short: which is the worst, and what every report says first of criteria, suspects, loads and ledgers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from pytest_clusterqual import units
from pytest_clusterqual.model.conditions import Conditions, Load
from pytest_clusterqual.model.measurement import CRITERIA
from pytest_clusterqual.model.record import GOOD, SEVERITY, Finding, Judgement, Record, Verdict
from pytest_clusterqual.report import text


def severity(judgement: Judgement) -> tuple[int, float]:
    """A key that sorts the worst verdict first, and of one verdict the one that is furthest off."""
    return -SEVERITY.index(judgement.verdict), distance(judgement)


def distance(judgement: Judgement) -> float:
    """The margin; a failure without one (a wrong result) is worse than any, a PASS better than any."""
    if judgement.margin is None or math.isnan(judgement.margin):
        return math.inf if judgement.verdict in GOOD else -math.inf
    return judgement.margin


def by_criterion(records: Iterable[Record]) -> dict[str, list[Record]]:
    """The records of each criterion that has some, in the order in which criteria are tried; own ones at the end."""
    grouped: dict[str, list[Record]] = {name: [] for name in CRITERIA}
    for record in records:
        grouped.setdefault(text.visible(record.criterion), []).append(record)
    return {name: group for name, group in grouped.items() if group}


def because(group: Sequence[Record], verdict: Verdict) -> str:
    """The one thing to know about a criterion: the reason of its worst record, or its tightest margin."""
    those = [record for record in group if record.judgement.verdict is verdict]
    if verdict is Verdict.MEASURED:
        return "no requirement in the project file: numbers only, never a PASS"
    record = min(those, key=lambda r: distance(r.judgement))
    place = " ".join(filter(None, (text.case_of(record.test), text.label_of(record.judgement))))
    if verdict is not Verdict.PASS:
        more = f" (+{len(those) - 1} more {verdict})" if len(those) > 1 else ""
        return f"{place}: {text.visible(record.judgement.reason)}{more}"
    numbers = sum(record.judgement.verdict is Verdict.MEASURED for record in group)
    margin = text.margin_of(record.judgement)
    return "; ".join(
        filter(
            None,
            (
                f"tightest margin: {text.visible(record.judgement.quantity)} of {place} {margin}" if margin else "",
                f"{numbers} number{'s have' if numbers > 1 else ' has'} no requirement" if numbers else "",
            ),
        )
    )


def findings(judgements: Iterable[Judgement]) -> tuple[list[Finding], list[Finding]]:
    """Suspects and notes, each once although it may be there at several sizes, those of the first judgements first."""
    once: dict[tuple[str, str], Finding] = {}
    for finding in (finding for judgement in judgements for finding in judgement.findings):
        once.setdefault((finding.suspect, finding.kind), finding)
    return [f for f in once.values() if f.level == "suspect"], [f for f in once.values() if f.level == "note"]


def conditions_of(records: Iterable[Record]) -> list[Conditions]:
    """Each once, although all records of a measurement have the same."""
    return list({id(r.conditions): r.conditions for r in records if r.conditions is not None}.values())


def _heavy_loads(known: Iterable[Conditions]) -> list[Load]:
    """The heaviest load of every node that was loaded."""
    loads: dict[str, Load] = {}
    for load in (conditions.load for conditions in known):
        if load is not None and load.heavy and (load.node not in loads or load.other_cpu > loads[load.node].other_cpu):
            loads[load.node] = load
    return list(loads.values())


def load_lines(known: Iterable[Conditions]) -> list[str]:
    """A sentence about every node that was loaded."""
    return [
        f"{text.visible(load.node)} was loaded by other work ({units.show_share(load.other_cpu)} of its cores' time): "
        "slow timings may be its neighbours'"
        for load in _heavy_loads(known)
    ]


def states(records: Iterable[Record], test: str) -> dict[str, Judgement]:
    """State -> its seconds, of the ledger of one full run."""
    told = (r.judgement for r in records if r.test == test and r.judgement.quantity == "time")
    return {text.visible(part.label): part for part in told if part.value is not None}

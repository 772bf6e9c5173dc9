"""What has changed between two runs of the same tests on the same kind of machine."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.judgement import worst_load
from pytest_clusterqual.judge.statistics import apart_ratio_interval, minimum_samples
from pytest_clusterqual.model.comparison import Compared, Loaded, Refused, RunsCompared, Turned
from pytest_clusterqual.model.conditions import Conditions, Load
from pytest_clusterqual.model.record import Interval, Judgement, Record, by_test, verdicts
from pytest_clusterqual.model.requirement import QUANTITIES, small_is_good

LEVEL = 0.05  # of all figures together: how often two runs that are alike may be told to differ
# What must be the same for a number to mean the same.
_SAME = (
    "simulated", "oversubscribed", "device", "device_name", "backend", "nodes", "nproc_per_node", "ranks", "layout",
    "workload", "collective", "bytes", "group", "algorithm", "rank_map",
)  # fmt: skip
_ORDER = {"worse": 0, "open": 1, "better": 2, "alike": 3}

_Key = tuple[str, str]  # quantity, label


def compare(old: Sequence[Record], new: Sequence[Record]) -> RunsCompared:
    """Compare what both runs have measured of the same tests.

    Differences are told by samples inside the two runs, so what only another launch changes is in them too: it takes
    several runs of each to tell these apart.

    Raises:
        MeasurementError: they have no test in common that could be compared.
    """
    before, after = requirable(old), requirable(new)
    both = [test for test in before if test in after]
    refused = [difference for test in both for difference in differences(test, before[test], after[test])]
    comparable = [test for test in both if test not in {each.test for each in refused}]
    figures = [figure for test in comparable for figure in _figures(test, before[test], after[test])]
    if not figures:
        raise MeasurementError(_nothing(both, refused))
    judged = [_concluded(figure) for figure in _corrected(figures)]
    return RunsCompared(
        old=old[0].run,
        new=new[0].run,
        turned=tuple(_turned(old, new, judged, {each.test for each in refused})),
        figures=tuple(sorted(judged, key=lambda each: (_ORDER[each.change], -_distance(each)))),
        refused=tuple(refused),
        only_old=tuple(test for test in before if test not in after),
        only_new=tuple(test for test in after if test not in before),
        loaded=tuple(_loaded(comparable, before, after)),
    )


def _loaded(
    tests: Sequence[str], old: Mapping[str, Sequence[Record]], new: Mapping[str, Sequence[Record]]
) -> Iterator[Loaded]:
    """Of timings: what a job needs of memory does not change with its neighbours."""
    for test in tests:
        before, after = (_heavy(records[test]) for records in (old, new))
        if (before or after) and old[test][0].criterion != "memory":
            yield Loaded(test=test, old=before, new=after)


def _heavy(records: Sequence[Record]) -> Load | None:
    loads = [record.conditions.load for record in records if record.conditions]
    return worst_load(load for load in loads if load is not None and load.heavy)


def _turned(
    old: Sequence[Record], new: Sequence[Record], figures: Sequence[Compared], refused: set[str]
) -> Iterator[Turned]:
    """Of all tests, also those without a figure."""
    before, after = verdicts(old), verdicts(new)
    for test in before:
        if test in refused or test not in after or before[test] is after[test]:
            continue
        changes = {figure.change for figure in figures if figure.test == test}
        explained: bool | None = bool(changes & {"worse", "better"})
        if not explained and (changes != {"alike"} or hosts_of(old, test) != hosts_of(new, test)):
            explained = None
        yield Turned(test=test, old=before[test], new=after[test], explained=explained)


def hosts_of(records: Sequence[Record], test: str) -> set[str]:
    """Those that this test ran on."""
    return {host for record in records if record.test == test and record.conditions for host in record.conditions.hosts}


def _nothing(both: Sequence[str], refused: Sequence[Refused]) -> str:
    if not both:
        return "the runs have no test in common: there is nothing to compare"
    if not refused:
        return "no test of these runs has a number in both: there is nothing to compare"
    first = refused[0]
    return (
        f"the runs did different things: {first.what} of {first.test} was {first.old}, now {first.new}; compare runs "
        "of the same workload on the same topology"
    )


def requirable(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records of every test that measured something that can be required."""
    return by_test(record for record in records if record.criterion in QUANTITIES)


def differences(test: str, old: Sequence[Record], new: Sequence[Record]) -> Iterator[Refused]:
    """What makes the figures of this test other things in the two runs."""
    before, after = (next((r.conditions for r in records if r.conditions), None) for records in (old, new))
    if before is None or after is None:
        return
    for what in unlike(before, after):
        one, other = getattr(before, what), getattr(after, what)
        yield Refused(test=test, what=what, old=_told(one, before, what), new=_told(other, after, what))


def unlike(before: Conditions, after: Conditions) -> list[str]:
    """The conditions that differ and by which a number means something else."""
    return [what for what in _SAME if getattr(before, what) != getattr(after, what)]


def _told(value: object, conditions: Conditions, what: str) -> str:
    """A fingerprint alone helps nobody: software is what changes it most often."""
    if what != "workload":
        return str(value)
    return f"{value} ({', '.join(f'{name} {version}' for name, version in sorted(conditions.versions.items()))})"


def _figures(test: str, old: Sequence[Record], new: Sequence[Record]) -> Iterator[Compared]:
    before, after = by_figure(old), by_figure(new)
    for key, one in before.items():
        other = after.get(key)
        if other is None or one.value is None or other.value is None or one.unit != other.unit:
            continue
        yield Compared(
            test=test, criterion=old[0].criterion, quantity=one.quantity, label=one.label, unit=one.unit,
            old=one.value, new=other.value, ratio=other.value / one.value if one.value > 0 else None,
            interval=_interval(one, other), chance=_chance(one, other), change="open",
        )  # fmt: skip


def by_figure(records: Sequence[Record]) -> Mapping[_Key, Judgement]:
    """The figures that could be required; one that is judged twice counts once."""
    wanted = QUANTITIES[records[0].criterion]
    return {
        (record.judgement.quantity, record.judgement.label): record.judgement
        for record in records
        if record.judgement.quantity in wanted
    }


def _interval(old: Judgement, new: Judgement) -> Interval | None:
    return apart_ratio_interval(new.samples, old.samples) if _sampled(old, new) else None


def _sampled(old: Judgement, new: Judgement) -> bool:
    enough = min(len(old.samples), len(new.samples)) >= minimum_samples()
    return enough and all(math.isfinite(sample) and sample > 0 for sample in (*old.samples, *new.samples))


def _chance(old: Judgement, new: Judgement) -> float | None:
    """Two-sided, of the logarithms by Welch's test; certainly chance where the ranks alone do not tell them apart.

    Ranks assume no shape of the noise, but of six samples against six they say 0.2 % at best, which is too much for any
    of thirty figures. Outliers make a test of means more careful, not less.
    """
    if not _sampled(old, new):
        return None
    from scipy.stats import mannwhitneyu, ttest_ind  # on first use: few commands compare

    if set(old.samples) == set(new.samples):
        return 1.0
    before, after = ([math.log(sample) for sample in one.samples] for one in (old, new))
    if len(set(before)) == len(set(after)) == 1:
        return 0.0
    if mannwhitneyu(before, after, alternative="two-sided").pvalue >= LEVEL:
        return 1.0
    return float(ttest_ind(before, after, equal_var=False).pvalue)


def _corrected(figures: Sequence[Compared]) -> list[Compared]:
    """Holm's correction: the smallest of m chances counts m times, the next one m - 1 times, and never less."""
    told = sorted((figure.chance, at) for at, figure in enumerate(figures) if figure.chance is not None)
    corrected = list(figures)
    least = 0.0
    for place, (chance, at) in enumerate(told):
        least = min(max(least, chance * (len(told) - place)), 1.0)
        corrected[at] = replace(corrected[at], chance=least)
    return corrected


def _concluded(figure: Compared) -> Compared:
    if figure.chance is None:
        return figure
    if figure.new == figure.old:
        return replace(figure, change="alike")
    if figure.chance >= LEVEL:
        within = figure.interval is None or figure.interval.low <= 1 <= figure.interval.high
        return figure if not within else replace(figure, change="alike")
    smaller = figure.new < figure.old
    return replace(figure, change="better" if smaller == small_is_good(figure.quantity, figure.unit) else "worse")


def _distance(figure: Compared) -> float:
    """How far apart, whichever way: half is as far as twice."""
    return abs(math.log(figure.ratio)) if figure.ratio is not None and figure.ratio > 0 else 0.0

"""Whether a run is accepted, and how far each criterion got: one rule for the terminal, the page and Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_clusterqual import units
from pytest_clusterqual.model.measurement import CRITERIA
from pytest_clusterqual.model.record import Record, Verdict, accepted, by_test, verdict_of, worst
from pytest_clusterqual.report import text
from pytest_clusterqual.report.asides import gates_not_run
from pytest_clusterqual.report.digest import by_criterion

# What keeps a run from being accepted, the clearest first: only a FAIL says that something is not as promised.
_AGAINST = (Verdict.FAIL, Verdict.ERROR, Verdict.UNDECIDED, Verdict.BLOCKED, Verdict.MEASURED)
_CRITERIA = tuple(name for name in CRITERIA if name != "decision")
_NO_NETWORK = "simulated nodes: no evidence about a network"


@dataclass(frozen=True, kw_only=True, slots=True)
class Overall:
    """The verdict on all that was asked for, and why. `verdict` is the one whose colour it has."""

    outcome: Literal["accepted", "passed", "refused", "no verdict yet"]
    why: str
    verdict: Verdict

    def __str__(self) -> str:
        return f"{self.outcome}: {self.why}"


def overall(records: Sequence[Record], asked: Mapping[str, Sequence[str]], *, simulated: bool) -> Overall:
    """Accepted only if all criteria are PASS on real nodes, after their gates, with a record of every test.

    On simulated nodes, or where only some criteria were asked for, that is passed and nothing more.
    `asked` has the tests of each criterion, as far as they apply here. A failure that the project file accepts counts
    as a PASS. Own tests and the decision count where they failed: nothing is promised by their numbers.
    """
    found = {name: _verdict(group) for name, group in by_criterion(records).items()}
    missing = len(missing_tests(records, asked))
    if not found and not missing:
        return Overall(outcome="no verdict yet", why="no test made a record", verdict=Verdict.ERROR)
    against = [
        (name, verdict) for verdict in _AGAINST for name, reached in found.items()
        if reached is verdict and (name in _CRITERIA or verdict is not Verdict.MEASURED)
    ]  # fmt: skip
    why = [*_against(against), *([f"{units.show_count(missing, 'test')} not run"] if missing else [])]
    why += [f"no test of {name} applies here" for name in _CRITERIA if asked.get(name) == [] and name not in found]
    why += [f"{name} without {' and '.join(gates)}" for name, gates in gates_not_run(records).items()]
    passed = [name for name in _CRITERIA if found.get(name) is Verdict.PASS]
    told = ", ".join(why) or _passed(passed, records)
    told += f" ({_NO_NETWORK})" if simulated else ""
    if any(verdict is Verdict.FAIL for _, verdict in against):
        return Overall(outcome="refused", why=told, verdict=Verdict.FAIL)
    if why or not passed:
        return Overall(outcome="no verdict yet", why=told, verdict=against[0][1] if against else Verdict.UNDECIDED)
    whole = len(passed) == len(_CRITERIA) and not simulated
    return Overall(outcome="accepted" if whole else "passed", why=told, verdict=Verdict.PASS)


def incomplete(criterion: str, group: Iterable[Record], asked: Mapping[str, Sequence[str]]) -> str:
    """Such as ``incomplete, 1 of 5 tests``, of the records of one criterion; empty where all its tests have some."""
    wanted = {criterion: asked.get(criterion, ())}
    lost, total = len(missing_tests(group, wanted)), len(wanted[criterion])
    return f"incomplete, {total - lost} of {units.show_count(total, 'test')}" if lost else ""


def missing_tests(records: Iterable[Record], asked: Mapping[str, Sequence[str]]) -> list[str]:
    """What was asked for and has no record; a test of one's own need not make one."""
    recorded = {record.test for record in records}
    return [test for name, tests in asked.items() if name != "own" for test in tests if test not in recorded]


def _verdict(group: Sequence[Record]) -> Verdict:
    """The worst of the tests; an ERROR beside a FAIL does not make that any less clear."""
    tests = by_test(group).values()
    reached = [Verdict.PASS if accepted(each) else verdict_of(each) for each in tests]
    failed = any(
        record.judgement.verdict is Verdict.FAIL for each in tests if not accepted(each) for record in each
    )  # fmt: skip
    return Verdict.FAIL if failed else worst(reached)


def _against(found: Sequence[tuple[str, Verdict]]) -> Iterator[str]:
    for name, verdict in found:
        bare = verdict is Verdict.MEASURED
        yield f"nothing is required of {text.visible(name)}" if bare else f"{text.visible(name)} {verdict}"


def _passed(names: Sequence[str], records: Sequence[Record]) -> str:
    """Which criteria passed; that there are others is said where they were not asked for."""
    excepted = sum(accepted(group) for group in by_test(records).values())
    beside = f", {units.show_count(excepted, 'failure')} accepted by name" if excepted else ""
    if len(names) == len(_CRITERIA):
        return f"all {len(names)} criteria are PASS{beside}"
    return f"{' and '.join(names)}{beside}; no other criterion was asked for" if names else "nothing was judged"

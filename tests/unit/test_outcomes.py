"""How a run has ended: one rule for the exit code of pytest and of the commands, exceptions, and earlier attempts."""

from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from made import RUN, STARTED, passed, record, without_value

from pytest_clusterqual.folder.runs import RunFolder, Selected
from pytest_clusterqual.model.project import KnownException, Project
from pytest_clusterqual.model.record import Record, Verdict
from pytest_clusterqual.recorded.outcomes import earlier, exit_code, unanswered, with_exception

DAY = datetime.datetime.fromtimestamp(STARTED, datetime.timezone.utc).date()
YESTERDAY, TOMORROW = DAY - datetime.timedelta(days=1), DAY + datetime.timedelta(days=1)
GOOD = passed("test_memory[ddp]", "memory")


def of(verdict: Verdict, **more: Any) -> Record:
    return replace(record("test_memory[fsdp]", "memory", verdict=verdict), **more)


def asked(*tests: str, criterion: str = "memory", inapplicable: str = "") -> dict[str, Selected]:
    return {test: Selected(criterion=criterion, inapplicable=inapplicable) for test in tests}


@pytest.mark.parametrize(
    ("verdict", "exception", "code"),
    [
        (Verdict.PASS, "", 0), (Verdict.MEASURED, "", 0), (Verdict.FAIL, "", 1), (Verdict.UNDECIDED, "", 1),
        (Verdict.BLOCKED, "", 1), (Verdict.ERROR, "", 1), (Verdict.FAIL, "ticket", 0), (Verdict.UNDECIDED, "ticket", 0),
        (Verdict.BLOCKED, "ticket", 1), (Verdict.ERROR, "ticket", 1),
    ],
)  # fmt: skip
def test_each_verdict_beside_a_pass(verdict: Verdict, exception: str, code: int) -> None:
    records = [GOOD, of(verdict, exception=exception)]
    assert exit_code(asked(*(r.test for r in records)), records) == code


def test_a_criterion_without_any_verdict_is_not_well() -> None:
    number = of(Verdict.MEASURED)
    assert unanswered(asked(number.test), [number]) == ["memory: no verdict was reached"]
    assert exit_code(asked(number.test), [number]) == 1
    assert exit_code({}, [number], numbers_do=True) == 0
    assert exit_code({}, [of(Verdict.FAIL)], numbers_do=True) == 1
    assert exit_code({}, []) == 0, "of a criterion without a section nobody asks anything"


def test_a_test_that_was_asked_for_needs_a_record() -> None:
    tests = asked(GOOD.test, *(f"test_memory[{number}]" for number in range(5)))
    assert unanswered(tests, [GOOD]) == [
        "asked for and not recorded: test_memory[0], test_memory[1], test_memory[2] and 2 more"
    ]
    assert exit_code(tests, [GOOD]) == 1
    for harmless in (asked("test_memory[x]", inapplicable="one node"), asked("test_mine", criterion="own")):
        assert exit_code({**asked(GOOD.test), **harmless}, [GOOD]) == 0


def test_the_decision_may_be_told_only() -> None:
    told = replace(without_value("test_decision[2nodes]", "decision", Verdict.MEASURED, "undecided"), started=STARTED)
    assert exit_code({**asked(GOOD.test), **asked(told.test, criterion="decision")}, [GOOD, told]) == 0


def excepting(*untils: datetime.date) -> Project:
    known = [KnownException(test="test_memory*", reason=f"until {until}", until=until) for until in untils]
    return cast(Any, SimpleNamespace(exceptions=known))


def test_the_day_of_the_measurement_decides_about_an_exception() -> None:
    def told(*untils: datetime.date) -> tuple[str, str, str]:
        made = with_exception(of(Verdict.FAIL, exception="another", expired="another"), excepting(*untils))
        return made.exception, made.until, made.expired

    assert told(DAY) == (f"until {DAY}", str(DAY), "")
    assert told(YESTERDAY) == ("", str(YESTERDAY), f"until {YESTERDAY}")
    assert told(YESTERDAY, TOMORROW, DAY) == (f"until {TOMORROW}", str(TOMORROW), "")
    assert told() == ("", "", "")
    other = with_exception(record("test_fabric[x]"), excepting(DAY))
    assert (other.exception, other.until) == ("", "")


@pytest.mark.parametrize("started", [float("nan"), float("inf"), 1e30])
def test_a_time_that_no_calendar_knows_is_in_no_exception(started: float) -> None:
    made = with_exception(of(Verdict.FAIL, started=started), excepting(TOMORROW))
    assert (made.exception, made.expired) == ("", f"until {TOMORROW}")


def test_the_verdicts_of_earlier_attempts_are_known(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, run=RUN, environment={}, simulated=True)
    test = of(Verdict.PASS).test
    assert earlier(folder, test) == ()
    for verdict, told in [
        (Verdict.FAIL, (Verdict.FAIL,)),
        (Verdict.BLOCKED, (Verdict.FAIL,)),  # nothing was measured
        (Verdict.ERROR, (Verdict.FAIL, Verdict.ERROR)),
    ]:
        folder.add_record(of(verdict, attempt=folder.attempt, earlier=earlier(folder, test)))
        assert earlier(folder, test) == folder.records()[-1].earlier, "a second record of the same attempt"
        folder.begin_attempt()
        assert earlier(folder, test) == told
    assert RunFolder.open(tmp_path).records()[-1].earlier == (Verdict.FAIL,)

"""Several runs are a trend: a change is told from what launches differ by, and from which run on it is."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from made import STARTED, conditions, judgement, record
from recorded_made import recorded

from pytest_clusterqual.cli import main
from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.trend import trends
from pytest_clusterqual.model.comparison import Trends
from pytest_clusterqual.model.record import Interval, Record, Verdict
from pytest_clusterqual.recorded.comparing import Comparison
from pytest_clusterqual.report.plot_style import svg
from pytest_clusterqual.report.plot_trend import trend_picture
from pytest_clusterqual.report.trend_table import trend_report

TEST = "test_fabric[all_reduce-world]"


def one(run: int, value: float | None, *, label: str = "1 MiB", verdict: Verdict = Verdict.PASS, **more: Any) -> Record:
    told = judgement(
        quantity=more.pop("quantity", "busbw"), label=label, unit=more.pop("unit", "B/s"), value=value, samples=(),
        interval=Interval(low=value * 0.99, high=value * 1.01, kind="median", samples=12) if value else None,
        requirement=None, verdict=verdict,
    )  # fmt: skip
    return replace(
        record(), run=f"day{run:02}", test=TEST, judgement=told, started=STARTED + 86400 * run,
        conditions=conditions(**more),
    )  # fmt: skip


def runs(values: Sequence[float | None], **more: Any) -> list[list[Record]]:
    return [[one(run, value, **more)] for run, value in enumerate(values)]


def noisy(level: Callable[[int], float], count: int, *, seed: int = 1, noise: float = 0.02) -> list[float]:
    drawn = random.Random(seed)
    return [1e9 * level(run) * drawn.lognormvariate(0, noise) for run in range(count)]


def test_a_level_that_falls_is_told_with_the_run_it_fell_in() -> None:
    (found,) = trends(runs(noisy(lambda run: 1.0 if run < 8 else 0.8, 14))).trends
    (point,) = found.points
    assert (found.change, point.run, point.since, found.drift) == ("worse", "day08", 8, None)
    assert point.interval.low < 0.8 < point.interval.high
    assert found.chance is not None and found.chance < 0.001


def test_a_bad_week_has_two_ends_and_leaves_the_figure_alike() -> None:
    (found,) = trends(runs(noisy(lambda run: 0.7 if 6 <= run < 11 else 1.0, 18))).trends
    assert [point.run for point in found.points] == ["day06", "day11"]
    assert [point.ratio for point in found.points] == pytest.approx([0.7, 1 / 0.7], rel=0.05)
    assert found.change == "alike"


def test_a_straight_line_is_a_drift_and_not_a_change() -> None:
    (found,) = trends(runs(noisy(lambda run: 1.02**run, 16), quantity="latency", unit="s")).trends
    assert (found.points, found.change) == ((), "worse")
    assert found.drift == pytest.approx(1.02**15, rel=0.05)


def test_the_last_run_alone_is_a_change() -> None:
    (found,) = trends(runs(noisy(lambda run: 0.7 if run == 9 else 1.0, 10))).trends
    assert [point.run for point in found.points] == ["day09"]


def test_runs_without_a_change_are_said_to_have_one_no_more_often_than_promised() -> None:
    alarms = 0
    for seed in range(200):
        drawn = random.Random(seed)
        several = [[one(run, 1e9 * drawn.lognormvariate(0, 0.05), label=f"{size}") for size in range(10)]
                   for run in range(5 + seed % 12)]  # fmt: skip
        alarms += any(trend.points or trend.drift for trend in trends(several).trends)
    assert alarms <= 0.05 * 200


def test_what_repeats_to_the_byte_and_moves_by_less_than_a_thousandth_has_not_changed() -> None:
    (same,) = trends(runs([4e8] * 6)).trends
    (little,) = trends(runs([4e8] * 4 + [4e8 + 64] * 4)).trends
    (step,) = trends(runs([4e8] * 4 + [5e8] * 4, quantity="latency", unit="s")).trends
    assert (same.change, little.change) == ("alike", "alike")
    assert (step.change, step.points[0].ratio) == ("worse", pytest.approx(1.25))


@pytest.mark.parametrize("values", [[1e9] * 4, [0.0, 1.0, 0.0, 1.0, 0.0, 1.0], [1e9, None, None, 1e9, 1e9, 1e9]])
def test_too_few_runs_or_zeros_leave_it_open(values: list[float | None]) -> None:
    (found,) = trends(runs(values)).trends
    assert (found.change, found.chance, found.points) == ("open", None, ())


def test_the_order_is_that_of_time_and_a_run_may_lack_a_figure() -> None:
    values = noisy(lambda run: 1.0 if run < 5 else 0.5, 10)
    several = runs(values)
    several[3] = [one(3, 1e9, label="another")]
    found = trends(list(reversed(several)))
    assert found.runs == tuple(f"day{run:02}" for run in range(10))
    (trend,) = found.trends
    assert 3 not in trend.at and len(trend.at) == 9
    assert trend.points[0].run == "day05"


def test_another_thing_is_refused_and_nothing_in_common_is_an_error() -> None:
    several = runs([1e9] * 6)
    several[4] = [one(4, 1e9, workload="other")]
    with pytest.raises(MeasurementError, match="no figure in common"):
        trends(several)
    found = trends([[*run, replace(one(at, 1e9), test="test_fabric[other]")] for at, run in enumerate(several)])
    assert [(each.test, each.what) for each in found.refused] == [(TEST, "workload")]
    assert [each.test for each in found.trends] == ["test_fabric[other]"]


def turned(last: float, **more: Any) -> Trends:
    several = runs([*noisy(lambda _: 1.0, 9, noise=0.005)])
    return trends([*several, [one(9, 1e9 * last, verdict=Verdict.FAIL, **more)]])


def test_a_verdict_that_turns_is_explained_by_a_figure_or_flaky_or_not_to_be_told() -> None:
    assert [each.explained for each in turned(0.5).histories] == [True]
    (flaky,) = turned(1.0).histories
    assert (flaky.explained, flaky.verdicts[-2:]) == (False, (Verdict.PASS, Verdict.FAIL))
    assert [each.explained for each in turned(1.0, hosts=("node0", "node7")).histories] == [None]


def test_what_makes_the_command_fail() -> None:
    assert Comparison(pairs=(), trend=turned(0.5)).worse
    assert not Comparison(pairs=(), trend=turned(1.0)).worse  # flaky, nothing is worse
    assert Comparison(pairs=(), trend=turned(1.0, hosts=("node0", "node7"))).worse
    assert not Comparison(pairs=(), trend=trends(runs(noisy(lambda run: 1.0 if run < 5 else 1.3, 10)))).worse


def test_the_table_and_the_picture_say_what_changed() -> None:
    several = []
    for run, value in enumerate(noisy(lambda run: 1.0 if run < 8 else 0.8, 14)):
        second = one(run, 2e9, label="<b>&", verdict=Verdict.FAIL if run == 3 else Verdict.PASS)
        several.append([one(run, value), second])
    found = trends(several)
    report = trend_report(found, width=120)
    assert "14 runs, day00 to day13" in report
    assert re.search(r"busbw 1 MiB .* worse: 0\.[78]\d* x \[0\.[78]", report) and "from day08 on" in report
    assert "PASS, PASS, PASS, FAIL, PASS" in " ".join(report.split())
    assert max(map(len, trend_report(found, width=70).splitlines())) <= 70
    drawn = svg(trend_picture(found))
    words = next(each.text or "" for each in ElementTree.fromstring(drawn) if each.tag.endswith("desc"))
    assert "busbw 1 MiB" in words and "from day08 on" in words and "<b>&" in words


def test_folders_become_a_table_and_a_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [str(recorded(tmp_path / name).path) for name in "abcde"]
    plot = tmp_path / "trend.svg"
    assert main(["compare", *folders, "--plot", str(plot)]) == 0
    assert "5 runs" in capsys.readouterr().out
    assert ElementTree.parse(plot).getroot().tag.endswith("svg")
    assert main(["compare", *folders[:2], "--plot", str(plot)]) == 4
    assert "give three runs or more" in capsys.readouterr().err
    assert main(["compare", *folders, "--plot", str(tmp_path / "no" / "trend.svg")]) == 4
    assert "--plot" in capsys.readouterr().err

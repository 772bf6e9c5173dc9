"""Two runs are compared figure by figure: what is alike has not changed, and what is another thing is refused."""

from __future__ import annotations

import errno
import json
import os
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made import conditions, judgement, record
from recorded_made import recorded

from pytest_clusterqual.errors import ClusterQualError, MeasurementError
from pytest_clusterqual.judge.comparison import compare
from pytest_clusterqual.judge.statistics import median, median_interval
from pytest_clusterqual.model.conditions import Load
from pytest_clusterqual.model.record import Interval, Record, Verdict
from pytest_clusterqual.recorded.comparing import Comparison, as_json, as_text, compare_runs, write_plot
from pytest_clusterqual.report.comparison_table import comparison_report, named


def figure(
    drawn: random.Random, level: float, *, quantity: str = "busbw", unit: str = "B/s", label: str = "1 MiB",
    count: int = 12, noise: float = 0.03, outliers: float = 0.0, test: str = "test_fabric[all_reduce-world]",
    **under: Any,
) -> Record:  # fmt: skip
    """With `outliers`, so many of the samples are half of what they would be."""
    samples = tuple(
        level * drawn.lognormvariate(0, noise) * (0.5 if drawn.random() < outliers else 1.0) for _ in range(count)
    )
    made = judgement(
        quantity=quantity, label=label, unit=unit, value=median(samples), interval=median_interval(samples),
        samples=samples, requirement=None, verdict=Verdict.PASS,
    )  # fmt: skip
    return replace(record(), test=test, judgement=made, conditions=conditions(**under))


def runs(change: float, *, seed: int = 1, **how: Any) -> tuple[list[Record], list[Record]]:
    drawn = random.Random(seed)
    return [figure(drawn, 1e9, **how)], [figure(drawn, 1e9 * change, **how)]


@pytest.mark.parametrize(
    ("quantity", "unit", "change", "told"),
    [
        ("busbw", "B/s", 0.8, "worse"), ("busbw", "B/s", 1.25, "better"), ("latency", "s", 0.8, "better"),
        ("latency", "s", 1.25, "worse"), ("wait", "1", 1.25, "worse"),
    ],
)  # fmt: skip
def test_a_change_is_good_or_bad_by_its_quantity(quantity: str, unit: str, change: float, told: str) -> None:
    (found,) = compare(*runs(change, quantity=quantity, unit=unit)).figures
    assert found.change == told
    assert found.ratio == pytest.approx(change, rel=0.05)
    assert found.interval is not None and found.interval.low < change < found.interval.high
    assert found.chance is not None and found.chance < 0.01


@pytest.mark.parametrize(
    ("figures", "count", "outliers"), [(10, 12, 0.0), (40, 6, 0.0), (40, 6, 0.1)], ids=["many", "few", "outliers"]
)
def test_runs_that_are_alike_are_told_to_differ_no_more_often_than_said(
    figures: int, count: int, outliers: float
) -> None:
    alarms = 0
    for seed in range(60):
        drawn = random.Random(seed)
        old, new = (
            [figure(drawn, 1e9, label=f"{size} MiB", count=count, outliers=outliers) for size in range(figures)]
            for _ in range(2)
        )
        alarms += any(each.change in ("worse", "better") for each in compare(old, new).figures)
    assert alarms <= 0.05 * 60 + 3 * (0.05 * 0.95 * 60) ** 0.5


def test_a_third_is_seen_in_six_samples_of_a_hundred_figures_and_what_may_be_one_is_open() -> None:
    drawn = random.Random(17)
    levels = {3: 0.33, 50: 0.7}
    old = [figure(drawn, 1e9, label=f"{size} KiB", count=6, noise=0.15) for size in range(100)]
    new = [figure(drawn, 1e9 * levels.get(n, 1), label=f"{n} KiB", count=6, noise=0.15) for n in range(100)]
    found = {each.label: each for each in compare(old, new).figures}
    assert [label for label, each in found.items() if each.change == "worse"] == ["3 KiB"]
    assert found["50 KiB"].change == "open"
    assert sum(each.change == "alike" for each in found.values()) > 80


def test_what_never_varies_has_changed_if_it_is_another() -> None:
    peak = judgement(quantity="peak", label="", unit="B", value=4e8, samples=(4e8,) * 6, requirement=None)
    old = [replace(record(), criterion="memory", judgement=peak)]
    (found,) = compare(old, [replace(old[0], judgement=replace(peak, value=4.1e8, samples=(4.1e8,) * 6))]).figures
    assert (found.change, found.chance) == ("worse", 0.0)


def test_a_twentieth_less_is_seen_among_fifty_figures_that_are_alike() -> None:
    drawn = random.Random(3)
    old = [figure(drawn, 1e9, label=f"{size} KiB", count=20) for size in range(51)]
    new = [figure(drawn, 1e9 * (0.95 if size == 7 else 1), label=f"{size} KiB", count=20) for size in range(51)]
    first, *others = compare(old, new).figures
    assert (first.label, first.change) == ("7 KiB", "worse")
    assert {each.change for each in others} == {"alike"}


def test_the_worst_comes_first_and_what_is_open_before_what_is_well() -> None:
    drawn = random.Random(5)
    levels = {"a": 0.7, "b": 0.5, "c": 1.5, "d": 1.0}
    old = [figure(drawn, 1e9, label=name) for name in (*levels, "e")]
    new = [figure(drawn, 1e9 * level, label=name) for name, level in levels.items()]
    new.append(figure(drawn, 1e9, label="e", count=3))
    order = [(each.label, each.change) for each in compare(old, new).figures]
    assert order == [("b", "worse"), ("a", "worse"), ("e", "open"), ("c", "better"), ("d", "alike")]


def test_a_single_event_is_never_told_to_have_changed() -> None:
    once = judgement(
        quantity="recovery", label="", unit="s", value=6.0, samples=(6.0,), requirement=None,
        interval=Interval(low=5.99, high=6.01, kind="resolution", samples=1),
    )  # fmt: skip
    old = replace(record(), criterion="full_run", judgement=once)
    new = replace(old, judgement=replace(once, value=60.0, interval=None, samples=(60.0,)))
    (found,) = compare([old], [new]).figures
    assert (found.change, found.chance, found.interval, found.ratio) == ("open", None, None, 10.0)


@pytest.mark.parametrize(
    ("field", "value"),
    [("workload", "ab12"), ("nodes", 4), ("device_name", "NVIDIA H200"), ("simulated", False), ("rank_map", "cyclic")],
)
def test_another_thing_is_refused_with_the_difference(field: str, value: Any) -> None:
    old, new = runs(1.0)
    other = [replace(new[0], conditions=replace(new[0].conditions, **{field: value}))]
    with pytest.raises(MeasurementError, match=f"the runs did different things: {field} of test_fabric"):
        compare(old, other)
    both = compare([*old, *runs(1.0, test="other")[0]], [*other, *runs(1.0, test="other")[1]])
    assert [(each.test, each.what) for each in both.refused] == [(old[0].test, field)]
    assert {each.test for each in both.figures} == {"other"}


def test_another_workload_names_the_software() -> None:
    old, new = runs(1.0, workload="aa")
    newer = conditions(workload="bb", versions={"torch": "2.14.0"})
    with pytest.raises(MeasurementError, match=r"was aa \(python 3.11.2, torch 2.13.0\), now bb \(torch 2.14.0\)"):
        compare(old, [replace(new[0], conditions=newer)])


def test_tests_of_one_run_only_are_listed() -> None:
    old, new = runs(1.0)
    found = compare([*old, *runs(1.0, test="gone")[0]], [*new, *runs(1.0, test="come")[0]])
    assert (found.only_old, found.only_new) == (("gone",), ("come",))
    with pytest.raises(MeasurementError, match="no test in common"):
        compare(runs(1.0, test="gone")[0], new)


def test_the_table_says_what_changed_and_how_sure_it_is() -> None:
    drawn = random.Random(2)
    old = [figure(drawn, 1e9, label=f"{size} MiB") for size in range(14)] + [figure(drawn, 2e9, label="x", count=2)]
    new = [figure(drawn, 1e9 * (0.5 if size == 3 else 1), label=f"{size} MiB") for size in range(14)]
    new.append(figure(drawn, 2e9, label="x", count=2))
    report = comparison_report(compare(old, new), width=100)
    numbers = r"[\d.]+ [MG]B/s +\d+ MB/s +0\.\d+ \[0\.\d+, 0\.\d+\]"
    assert re.search(rf"all_reduce-world +busbw 3 MiB +{numbers} +worse", report)
    assert "1 worse, 13 alike, 1 open; 3 more that are alike are not shown" in report
    assert "too few samples" in report and "another launch" in report
    assert max(map(len, comparison_report(compare(old, new), width=60).splitlines())) <= 60


def test_what_is_worse_on_a_loaded_machine_says_so_and_is_worse_still() -> None:
    busy = Load(other_cpu=0.92, node="node1")
    old, new = runs(0.5)
    loaded = [replace(new[0], conditions=conditions(load=busy))]
    words = "node1 was 92 % loaded by other work"
    report = comparison_report(compare(old, loaded), width=200)
    assert f"worse, {words}\n" in report
    assert f"loaded   fabric all_reduce-world: now {words}; its timings" in report
    assert Comparison(pairs=(compare(old, loaded),), trend=None).worse
    report = comparison_report(compare(loaded, old), width=200)
    assert f"better, {words}\n" in report and f"all_reduce-world: then {words}; " in report
    idle = [replace(new[0], conditions=conditions(load=replace(busy, other_cpu=0.1)))]
    assert "loaded" not in comparison_report(compare(old, idle), width=200)
    memory = [replace(each, criterion="memory", judgement=replace(each.judgement, quantity="peak", unit="B"))
              for each in (old[0], loaded[0])]  # fmt: skip
    assert compare(memory[:1], memory[1:]).loaded == ()


def test_of_many_loaded_tests_the_first_are_named() -> None:
    busy = Load(other_cpu=0.92, node="node1")
    old = [runs(1.0, test=f"f.py::test_fabric[{n}]")[0][0] for n in range(5)]
    report = comparison_report(compare(old, [replace(r, conditions=conditions(load=busy)) for r in old]), width=200)
    assert report.count("its timings") == 3 and "and 2 more tests" in report


def test_a_test_that_turned_is_named_with_its_criterion() -> None:
    old, new = runs(1.0)
    blocked, well = (
        [replace(record(), test="q/test_full_run.py::test_full_run[ddp-2nodes]", criterion="full_run",
                 judgement=judgement(quantity="full_run", verdict=verdict, samples=()))]
        for verdict in (Verdict.BLOCKED, Verdict.PASS)
    )  # fmt: skip
    report = comparison_report(compare([*old, *blocked], [*new, *well]), width=200)
    assert re.search(r"^turned +full_run ddp-2nodes: BLOCKED -> PASS", report, re.MULTILINE)
    assert [named(test) for test in ("test_barrier", "a.py::test_barrier")] == ["test_barrier", "test_barrier"]


def test_a_test_that_turned_without_a_change_is_flaky() -> None:
    old, new = runs(1.0)
    for change, explained in ((1.0, False), (0.5, True)):
        other = runs(change)[1]
        failed = [replace(other[0], judgement=replace(other[0].judgement, verdict=Verdict.FAIL))]
        (turned,) = compare(old, failed).turned
        assert (turned.old, turned.new, turned.explained) == (old[0].judgement.verdict, Verdict.FAIL, explained)
        assert ("flaky" in comparison_report(compare(old, failed), width=100)) is not explained
    assert compare(old, new).turned == ()


def test_a_test_without_a_figure_that_changed_its_verdict_is_told_and_not_called_flaky() -> None:
    old, new = runs(1.0)
    own = replace(record(), test="test_own", criterion="custom", judgement=judgement(quantity="x", samples=()))
    bad = replace(own, judgement=replace(own.judgement, verdict=Verdict.ERROR))
    found = compare([*old, own], [*new, bad])
    assert [(each.test, each.new, each.explained) for each in found.turned] == [("test_own", Verdict.ERROR, None)]
    assert Comparison(pairs=(found,), trend=None).worse
    assert "flaky" not in comparison_report(found, width=100)


def test_a_verdict_that_turned_on_other_hosts_is_not_called_flaky() -> None:
    old, new = runs(1.0, hosts=("a", "b"))[0], runs(1.0, hosts=("a", "c"))[1]
    failed = [replace(new[0], judgement=replace(new[0].judgement, verdict=Verdict.FAIL))]
    assert [each.explained for each in compare(old, failed).turned] == [None]


def test_figures_of_too_few_samples_do_not_make_a_test_flaky() -> None:
    drawn = random.Random(1)
    old, new = ([figure(drawn, level, count=3)] for level in (1e9, 4e8))
    failed = [replace(new[0], judgement=replace(new[0].judgement, verdict=Verdict.FAIL))]
    found = compare(old, failed)
    assert [each.explained for each in found.turned] == [None]
    assert Comparison(pairs=(found,), trend=None).worse


def test_folders_are_compared_with_the_first(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        recorded(tmp_path / name)
    found = compare_runs([tmp_path / "a", tmp_path / "b", tmp_path / "c"])
    assert [each.figures[0].quantity for each in found.pairs] == ["peak", "peak"]
    assert {each.change for runs in found.pairs for each in runs.figures} <= {"alike", "open"}
    told = json.loads(as_json(found))
    assert len(told["pairs"]) == 2 and told["pairs"][0]["figures"][0]["ratio"] == 1.0
    assert len(told["trend"]["runs"]) == 3
    assert as_text(found, width=80, color=False).count("new / old") == 2


def test_one_run_is_not_compared_with_itself(tmp_path: Path) -> None:
    run = recorded(tmp_path / "a").path
    with pytest.raises(ClusterQualError, match="one run is given twice"):
        compare_runs([run, run.parent / "b" / ".." / "a"])


def test_tests_of_one_s_own_alone_are_not_compared(tmp_path: Path) -> None:
    for name in ("a", "b"):
        file = recorded(tmp_path / name).path / "records.jsonl"
        file.write_text(file.read_text().replace('"criterion": "memory"', '"criterion": "own"'))
    with pytest.raises(ClusterQualError, match="tests of your own are not compared"):
        compare_runs([tmp_path / "a", tmp_path / "b"])


def test_a_plot_on_a_full_disk_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        recorded(tmp_path / name)
    (plot := tmp_path / "old.svg").write_text("old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ClusterQualError, match=r"old.svg: cannot be written: No space left on device; give --plot"):
        write_plot(compare_runs([tmp_path / name for name in "abc"]), plot)
    assert plot.read_text() == "old"


def test_a_run_without_a_record_says_so(tmp_path: Path) -> None:
    recorded(tmp_path / "a")
    empty = recorded(tmp_path / "b")
    (empty.path / "records.jsonl").write_text("")
    with pytest.raises(ClusterQualError, match=r"b: holds no record"):
        compare_runs([tmp_path / "a", tmp_path / "b"])

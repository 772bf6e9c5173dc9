"""Plots of memory, speedup, steps and full runs: every figure where it belongs, and the same in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from full_run_made import measured, quiet_run
from made import MIB, conditions, demand, memory_measurement, record
from test_report_plots import drawn
from waterfall_made import Made

from pytest_clusterqual.judge.full_run.verdict import judge_full_run
from pytest_clusterqual.judge.memory.verdict import judge_memory
from pytest_clusterqual.judge.scaling.verdict import judge_scaling
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.full_run import FullRunMeasurement
from pytest_clusterqual.model.memory import MemoryMeasurement, RankMemory
from pytest_clusterqual.model.record import Judgement, Record, Verdict
from pytest_clusterqual.model.requirement import Requirement, parse_bound
from pytest_clusterqual.report.plot_ledger import ledger
from pytest_clusterqual.report.plot_memory import memory
from pytest_clusterqual.report.plot_speedup import speedup
from pytest_clusterqual.report.plot_steps import steps
from pytest_clusterqual.report.plot_style import svg
from pytest_clusterqual.report.plot_timeline import timeline


def recorded(judgements: tuple[Judgement, ...], criterion: str, at: Conditions) -> list[Record]:
    made = record(f"test_{criterion}[x]", criterion, under=at)
    return [replace(made, judgement=judgement) for judgement in judgements]


def required(criterion: str, quantity: str, text: str, **more: Any) -> Requirement:
    op, value, _ = parse_bound(text, criterion, quantity)
    return Requirement(
        criterion=criterion, quantity=quantity, op=op, value=value, unit="1" if criterion == "scaling" else "B",
        text=text, source="clusterqual.yaml:9", **more,
    )  # fmt: skip


def held(*peaks: int, limit: int = 100) -> MemoryMeasurement:
    """Ranks whose peaks are three parts parameters and one part the rest, in MiB."""
    usual = memory_measurement()
    ranks = tuple(
        RankMemory(
            rank=rank, step_peaks=(peak * MIB,), reserved_peaks=(), device_used=peak * MIB, limit=limit * MIB,
            limit_from="GPU memory", counted="tensors", losses=(5.0,), data_digest="3fb1",
            parts={"parameters": peak * MIB * 3 // 4, "other": peak * MIB // 4},
        )
        for rank, peak in enumerate(peaks)
    )  # fmt: skip
    at = conditions(nodes=len(peaks), ranks=len(peaks), layout="ddp")
    return replace(usual, conditions=at, ranks=ranks)


def test_each_rank_has_its_parts_and_the_lines_are_what_is_required_and_what_there_is() -> None:
    m = held(40, 48)
    told = recorded(judge_memory(m, [required("memory", "peak", "<= 64 MiB")]), "memory", m.conditions)
    picture = memory(told, m)
    (ax,) = drawn(picture)
    bars = [(round(bar.get_x() + bar.get_width() / 2), bar.get_y(), bar.get_height()) for bar in ax.patches]  # type: ignore[attr-defined]
    assert bars == [(0, 0, 30), (1, 0, 36), (0, 30, 10), (1, 36, 12)]
    assert [line.get_ydata()[0] for line in ax.lines] == [64, 100]  # type: ignore[index]
    labels = {text.get_text() for text in ax.get_legend().get_texts()}
    assert labels == {"parameters", "other", "required <= 64 MiB", "limit 100 MiB (GPU memory)"}
    assert ax.get_ylabel() == "memory (MiB)"
    assert picture is not None
    assert "rank 1 node1 holds most, 48 MiB, parameters 36 MiB, other 12 MiB; required <= 64 MiB" in picture.words


def test_a_limit_far_above_does_not_press_the_bars_together() -> None:
    m = held(40, 48, limit=10_000)
    picture = memory(recorded(judge_memory(m, []), "memory", m.conditions), m)
    (ax,) = drawn(picture)
    assert ax.get_ylim()[1] < 100
    assert picture is not None and "Beyond the axis: limit 9.77 GiB (GPU memory)." in picture.caption


def test_without_samples_the_bars_are_whole_and_without_ranks_there_are_none() -> None:
    m = held(40, 48)
    told = recorded(judge_memory(m, []), "memory", m.conditions)
    assert [bar.get_height() for bar in drawn(memory(told, None))[0].patches] == [40, 48]  # type: ignore[attr-defined]
    assert memory([record("test_memory[x]", "memory", quantity="peak", per_rank={})], None) is None


def test_of_many_ranks_the_fullest_are_shown() -> None:
    m = held(*(40 + (rank == 700) for rank in range(1024)))
    picture = memory(recorded(judge_memory(m, []), "memory", m.conditions), m)
    assert len(drawn(picture)[0].patches) == 2 * 64
    assert picture is not None and "rank 700 node700 holds most" in picture.words
    assert "64 of 1024 ranks: those that hold most." in picture.caption


def scaled(*points: tuple[int, float], require: str = "", base: int = 1) -> list[Record]:
    """Speedups over so many nodes, with the efficiency of each."""
    at, told, label = conditions(layout="ddp"), [], f"{base} node{'s' * (base > 1)}"
    work = {"quantity": "time_to_fixed_work", "unit": "s", "requirement": None, "verdict": Verdict.MEASURED}
    told.append(record("test_scaling[ddp]", "scaling", under=at, label=label, value=100.0, **work))
    for nodes, value in points:
        for quantity, figure in (("speedup", value), ("efficiency", value * base / nodes)):
            asked = demand(require, float(require.split()[1]), "1") if require and quantity == "efficiency" else None
            told.append(record(
                "test_scaling[ddp]", "scaling", under=at, quantity=quantity, label=f"{nodes} nodes", value=figure,
                unit="1", requirement=asked, verdict=Verdict.PASS if asked else Verdict.MEASURED,
                interval=replace(record().judgement.interval, low=figure * 0.9, high=figure * 1.2),  # type: ignore[type-var]
            ))  # fmt: skip
    return told


def test_a_curve_has_its_points_the_ideal_line_and_what_is_required() -> None:
    picture = speedup(scaled((2, 1.8), (4, 3.0), require=">= 0.7"))
    (ax,) = drawn(picture)
    ideal, through, *_ = ax.lines
    assert list(ideal.get_xdata()) == [1, 4] and list(ideal.get_ydata()) == [1, 4]
    assert list(through.get_xdata()) == [1, 2, 4] and list(through.get_ydata()) == [1, 1.8, 3.0]
    bounds = next(line for line in ax.lines if line.get_label() == "required at least")
    assert list(bounds.get_ydata()) == pytest.approx([1.4, 2.8])
    low, high = ax.containers[0].lines[2][0].get_segments()[1][:, 1]  # type: ignore[attr-defined]
    assert (low, high) == pytest.approx((2.7, 3.6))
    assert picture is not None and "speedup 4 nodes 3 [2.7, 3.6] (MEASURED)" in picture.words
    assert "efficiency 4 nodes 75 %" in picture.words or "efficiency 4 nodes 0.75" in picture.words


def test_a_baseline_of_several_nodes_is_where_the_curve_begins() -> None:
    picture = speedup(scaled((8, 1.5), base=4))
    ideal, through, *_ = drawn(picture)[0].lines
    assert (list(ideal.get_xdata()), list(ideal.get_ydata())) == ([4, 8], [1, 2])
    assert (list(through.get_xdata()), list(through.get_ydata())) == ([4, 8], [1, 1.5])
    assert picture is not None and picture.words.startswith("ddp, against 4 nodes: speedup 8 nodes 1.5")


def test_points_far_apart_stand_on_a_logarithmic_scale() -> None:
    (near,), (far,) = drawn(speedup(scaled((8, 7.0)))), drawn(speedup(scaled((2, 1.9), (64, 50.0))))
    assert (near.get_xscale(), far.get_xscale(), far.get_yscale()) == ("linear", "log", "log")
    assert list(far.get_yticks()) == [1, 2, 4, 8, 16, 32, 64]


def test_without_a_speedup_there_is_no_curve() -> None:
    assert speedup(scaled()) is None
    assert speedup([each for each in scaled((2, 1.8)) if each.judgement.quantity != "speedup"]) is None


def test_steps_of_the_larger_point_are_shown_rank_by_rank() -> None:
    m = Made(loss=0.01, noise=0.05).measurement()
    told = recorded(judge_scaling(m, []), "scaling", m.conditions)
    picture = steps(told, m)
    (ax,) = drawn(picture)
    (longest,) = ax.lines
    two = [rank for run in m.runs if run.conditions.nodes == 2 for rank in run.ranks]
    expected = [max(s for rank in two if rank.rank == number for s in rank.step_seconds) for number in (0, 1)]
    assert list(longest.get_ydata()) == pytest.approx([seconds * 1e3 for seconds in expected])
    halves = [(bar.get_y(), bar.get_y() + bar.get_height()) for bar in ax.patches]  # type: ignore[attr-defined]
    ordered = sorted(s * 1e3 for rank in two if rank.rank == 0 for s in rank.step_seconds)
    quarter = len(ordered) // 4
    assert ordered[quarter - 1] <= halves[0][0] <= ordered[quarter + 1]
    assert picture is not None and picture.title.endswith("step time by rank on 2 nodes")
    assert picture.caption[0].startswith("80 steps of each rank in 8 runs")
    assert steps(told, None) is None


def ran() -> tuple[list[Record], FullRunMeasurement]:
    m = measured(quiet_run())
    return recorded(judge_full_run(m, []), "full_run", m.conditions), m


def test_the_states_of_a_rank_are_stacked_to_its_wall_clock() -> None:
    told, m = ran()
    picture = ledger(told)
    (ax,) = drawn(picture)
    walls = {0: 0.0, 1: 0.0}
    for bar in ax.patches:
        walls[round(bar.get_x() + bar.get_width() / 2)] += bar.get_height()  # type: ignore[attr-defined]
    for rank in m.run.ranks:
        assert walls[rank.rank] == pytest.approx(rank.ended - rank.began, abs=0.05)
    states = {text.get_text() for text in ax.get_legend().get_texts()}
    assert {"kept", "init"} <= states
    fills = {(bar.get_facecolor(), bar.get_hatch()) for bar in ax.patches}
    assert len(fills) == len(states), "no two states may look alike"
    assert picture is not None and "kept" in picture.words


def test_the_course_of_a_run_begins_with_the_first_agent() -> None:
    told, m = ran()
    picture = timeline(told, m)
    (ax,) = drawn(picture)
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert {"steps", "load", "process"} <= set(labels)
    first = m.run.ranks[0].processes[0]
    first_step = next(line for line in first.lines if line.what == "step")
    bars = [path.vertices[:, 0] for kind in ax.collections for path in kind.get_paths() if kind.get_label() == "steps"]
    assert min(bars[0]) == pytest.approx(first_step.at - m.run.ranks[0].began, abs=0.01)
    assert picture is not None and picture.words.startswith("x, 10 steps, async checkpoints every 4: rank 0 node0")
    assert timeline(told, None) is None


def test_every_picture_becomes_a_file() -> None:
    told, m = ran()
    held_by = held(40, 48)
    for picture in (
        ledger(told), timeline(told, m), speedup(scaled((2, 1.8))),
        memory(recorded(judge_memory(held_by, []), "memory", held_by.conditions), held_by),
    ):  # fmt: skip
        assert picture is not None
        assert svg(picture).count("<text") > 10

"""The lost time of scaling as people see it: a line in the terminal and a plot."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from made import conditions, record
from matplotlib.figure import Figure
from waterfall_made import Made

from pytest_clusterqual.judge.scaling.verdict import judge_scaling
from pytest_clusterqual.model.record import Record
from pytest_clusterqual.report.plot_waterfall import waterfall
from pytest_clusterqual.report.plots import write_plots
from pytest_clusterqual.report.terminal import summary

TEST = "test_scaling[ddp-2nodes]"
MADE = Made(loss=0.01, barrier=0.005, transfer=0.02, data=0.004, base_data=0.002, rest=-0.003)


def records(made: Made = MADE, **more: str) -> list[Record]:
    m = made.measurement(**more)
    under = conditions(layout="ddp", simulated=False)
    return [replace(record(TEST, "scaling", under=under), judgement=each) for each in judge_scaling(m, [])]


def terminal(*told: Record) -> str:
    return " ".join(summary(told, run_folder="run", simulated=False, width=100).split())


def test_the_terminal_says_where_the_time_goes() -> None:
    parts = "compute loss 10, exposed transfer 20, wait 5, data stall 3, residual -3"
    assert f"lost time ddp-2nodes: 35 ms a step = {parts}" in terminal(*records())


def test_it_says_so_too_where_the_step_was_not_taken_apart() -> None:
    m = MADE.measurement()
    told = judge_scaling(replace(m, apart=(), not_apart="why"), [])
    lines = terminal(*(replace(record(TEST, "scaling"), judgement=each) for each in told))
    assert "lost time ddp-2nodes: 35 ms a step = data stall 3, residual 32" in lines


def test_no_lost_time_no_line() -> None:
    told = [r for r in records() if r.judgement.quantity != "lost_time"]
    assert "lost time" not in terminal(*told)
    assert waterfall(told) is None


def test_the_plot_goes_from_zero_to_what_is_lost() -> None:
    picture = waterfall(records())
    assert picture is not None
    ax = Figure().subplots()
    picture.draw([ax])
    bars = [(bar.get_y(), bar.get_height()) for bar in ax.patches]
    assert bars[0] == (0.0, pytest.approx(10.0))
    for (below, height), (bottom, _) in itertools.pairwise(bars[:-1]):
        assert bottom == pytest.approx(below + height)
    assert bars[-1] == (0.0, pytest.approx(35.0))
    assert [label.get_text() for label in ax.get_xticklabels()][-2:] == ["residual", "lost"]
    assert ax.get_ylabel() == "lost in a step (ms)"
    assert ax.texts[-1].get_text() == "35"
    hatched = [bar.get_hatch() for bar in ax.patches]
    assert [bool(hatch) for hatch in hatched] == [*[False] * 6, True, False], "what takes from it needs no colour"


def test_a_run_has_a_plot_of_each_test_of_scaling(tmp_path: Path) -> None:
    drawn, missing = write_plots(records(), {}, tmp_path / "plots")
    assert ([plot.name for plot in drawn], missing) == (["speedup-ddp", "ddp-2nodes-lost-time"], "")
    path = tmp_path / "plots" / "ddp-2nodes-lost-time.svg"
    words = ET.parse(path).getroot().findtext("{http://www.w3.org/2000/svg}desc", "")
    assert "35 ms a step = compute loss 10" in words
    assert "The step there takes 135 ms" in words

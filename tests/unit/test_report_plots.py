"""The plots of a run: what is on them, that they need no colour, and that nothing else depends on them."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from fabric_made import MIB, WHY, cluster, exchanged_by, swept, waited
from made import conditions, judgement, record, without_value
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pytest_clusterqual.model.fabric import FabricMeasurement, PairTiming
from pytest_clusterqual.model.record import Record, Verdict
from pytest_clusterqual.report import plots
from pytest_clusterqual.report.plot_links import links
from pytest_clusterqual.report.plot_style import Picture, svg
from pytest_clusterqual.report.plot_sweep import sweep
from pytest_clusterqual.report.plot_waits import waits
from pytest_clusterqual.report.plots import Measurements

TEST = "test_fabric[all_reduce-world]"
HOSTILE = [
    "$\\frac{a}{b}$",
    "<script>alert(1)</script>",
    "a&b",
    "\x00\x1b[2J\u202e",
    "../../etc",
    "node\ud800",
    "\ufffe",
    "节点一",
]


def written(told: Sequence[Record], measurements: Measurements, folder: Path, **how: float) -> tuple[int, str]:
    """How many plots there are then, and what is missing."""
    made, missing = plots.write_plots(told, measurements, folder, **how)
    return len(made), missing


def drawn(picture: Picture | None) -> list[Axes]:
    assert picture is not None
    axes = list(Figure().subplots(len(picture.panels), squeeze=False)[:, 0])
    picture.draw(axes)
    return axes


def said(path: Path) -> str:
    """All text that is to be read on a plot."""
    return " ".join("".join(element.itertext()) for element in ET.parse(path).iter("{http://www.w3.org/2000/svg}text"))


def spoken(path: Path) -> tuple[str, str]:
    """Title and description, for who does not see it."""
    root = ET.parse(path).getroot()
    return tuple(root.findtext(f"{{http://www.w3.org/2000/svg}}{tag}", "") for tag in ("title", "desc"))  # type: ignore[return-value]


def pairs_of(nodes: int, **how: object) -> tuple[Record, Measurements]:
    measured = exchanged_by(nodes, **how)  # type: ignore[arg-type]
    told = record("test_fabric[pairs]", under=measured.conditions, quantity="pair_busbw", label="", measurement="m1")
    return told, {"m1": (told.test, "fabric", measured)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of 16 nodes x 8 ranks: a sweep, and all pairs, one of whose nodes is slow."""
    told, measurements = pairs_of(16, slow="gpu007")
    path = tmp_path_factory.mktemp("run") / "plots"
    assert written([*swept(TEST, cluster(16)), told], measurements, path) == (3, "")
    return path


def test_a_run_leaves_a_plot_of_sizes_waits_and_links(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == [
        "all_reduce-world-sizes.svg", "all_reduce-world-waits.svg", "pairs-links.svg",
    ]  # fmt: skip
    assert all(path.stat().st_size < 200_000 for path in folder.iterdir())


def test_nothing_is_said_by_colour(folder: Path) -> None:
    for path in folder.iterdir():
        colors = set(re.findall(r"#([0-9a-f]{6})\b", path.read_text()))
        assert colors, "the pattern must find colours"
        assert all(color[0:2] == color[2:4] == color[4:6] for color in colors), colors


def test_axes_have_units_and_captions_have_the_conditions(folder: Path) -> None:
    for name, units in {"sizes": ("(GB/s)", "(ms)", "64 MiB", "1 GiB"), "waits": ("(% of the call)",)}.items():
        text = said(folder / f"all_reduce-world-{name}.svg")
        for part in (*units, "16 nodes x 8 ranks, cuda, nccl", "NVIDIA H100", "real nodes gpu001, gpu002, gpu003 and",
                     "torch 2.13.0", "other work took 2 % of gpu001's cores", "2026-11-30"):  # fmt: skip
            assert part in text, part
    assert "rate (GB/s)" in said(folder / "pairs-links.svg")


def test_the_level_is_named_with_its_arithmetic_and_so_is_what_is_required(folder: Path) -> None:
    text = said(folder / "all_reduce-world-sizes.svg")
    assert "expected: 400 GB/s" in text
    assert "required >= 80 % of expected: 320 GB/s" in text
    assert "required <= 100 us" in text
    assert WHY in " ".join(text.split())


def test_the_numbers_are_there_in_words(folder: Path) -> None:
    title, words = spoken(folder / "all_reduce-world-sizes.svg")
    assert title == "all_reduce-world: all_reduce in world, over the message size"
    assert re.search(r"busbw 64 MiB 34\d GB/s \[3\d\d, 3\d\d\] required >= 320 GB/s \(PASS\)", words)
    assert "busbw 4 KiB" in words and "(MEASURED)" in words and WHY in words
    assert "Slowest: gpu007 to" in spoken(folder / "pairs-links.svg")[1]
    assert "slowest first: gpu007 24 GB/s" in spoken(folder / "pairs-links.svg")[1]
    assert re.search(r"rank 11 gpu002 0\.\d+ %", spoken(folder / "all_reduce-world-waits.svg")[1])


def test_the_same_records_give_the_same_files(folder: Path, tmp_path: Path) -> None:
    told, measurements = pairs_of(16, slow="gpu007")
    written([*swept(TEST, cluster(16)), told], measurements, tmp_path)
    for path in folder.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


def test_simulated_nodes_and_unknown_load_are_told() -> None:
    picture = sweep([record(TEST, under=conditions(collective="all_reduce", group="world"))], 2)
    assert picture is not None
    assert "simulated nodes, all on one machine: no evidence about a network" in picture.caption[-1]
    assert "other load not known" in picture.caption[-1]


def test_each_figure_is_where_it_belongs_with_its_interval_and_its_verdict() -> None:
    at = conditions(collective="all_reduce", group="world")
    usual = record(TEST, under=at).judgement
    told = [
        replace(record(TEST, under=at), judgement=replace(usual, label=label, verdict=verdict))
        for label, verdict in (("1 MiB", Verdict.FAIL), ("4 MiB", Verdict.UNDECIDED), ("16 MiB", Verdict.ERROR))
    ]
    busbw, latency = drawn(sweep(told, 2))
    assert list(busbw.lines[0].get_xdata()) == [MIB, 4 * MIB, 16 * MIB]
    assert list(busbw.lines[0].get_ydata()) == pytest.approx([410.0] * 3)
    # Of two ranks the bus bandwidth of an all-reduce is its algorithm bandwidth: time is size over rate.
    times = [size * MIB / 0.41e9 * 1e3 for size in (1, 4, 16)]
    assert list(latency.lines[0].get_ydata()) == pytest.approx(times)
    low, high = latency.containers[0].lines[2][0].get_segments()[0][:, 1]
    assert (low, high) == pytest.approx((MIB / 0.43e9 * 1e3, MIB / 0.39e9 * 1e3))
    labels = [text.get_text() for text in busbw.get_legend().get_texts()]
    assert labels == ["required >= 500 MB/s", "FAIL", "UNDECIDED", "ERROR"]
    assert [text.get_text() for text in latency.get_legend().get_texts()] == ["MEASURED"]
    markers = {lines.lines[0].get_marker() for lines in busbw.containers}
    assert len(markers) == 3


def test_of_two_demands_on_a_size_the_worse_verdict_is_marked_and_both_bounds_are_there() -> None:
    at = conditions(collective="all_reduce", group="world")
    fine = replace(judgement(), verdict=Verdict.PASS, margin=0.2, requirement=replace(
        judgement().requirement, text=">= 100 MB/s", value=0.1e9))  # type: ignore[type-var]  # fmt: skip
    told = record(TEST, under=at)
    busbw, _ = drawn(sweep([replace(told, judgement=fine), told], 2))
    assert [text.get_text() for text in busbw.get_legend().get_texts()] == [
        "required >= 100 MB/s", "required >= 500 MB/s", "FAIL",
    ]  # fmt: skip


@pytest.mark.parametrize(("quantity", "value", "unit"), [("algbw", 0.2e9, "B/s"), ("latency", 1e-2, "s")])
def test_a_size_that_only_another_quantity_is_required_of_is_on_both_panels(
    quantity: str, value: float, unit: str
) -> None:
    at = conditions(nodes=4, ranks=4, collective="all_reduce", group="world")
    told = record(TEST, under=at, quantity=quantity, value=value, unit=unit, interval=None, requirement=None)
    busbw, latency = drawn(sweep([told], 4))
    seconds = MIB / value if quantity == "algbw" else value
    assert list(latency.lines[0].get_ydata()) == pytest.approx([seconds * 1e3])
    assert list(busbw.lines[0].get_ydata()) == pytest.approx([MIB * 1.5 / seconds / 1e6])


def test_nothing_is_derived_where_groups_differ_in_size() -> None:
    told = record(TEST, under=conditions(collective="all_reduce", group="tp.tensor"))
    busbw, latency = drawn(sweep([told], None))
    assert list(busbw.lines[0].get_ydata()) == pytest.approx([410.0])
    assert [text.get_text() for text in latency.texts] == ["time of one call: not measured"]


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), 0.0, -1.0])
def test_what_is_no_number_is_on_no_panel_but_in_the_words(value: float | None) -> None:
    at = conditions(collective="all_reduce", group="world")
    picture = sweep([record(TEST, under=at, value=value, verdict=Verdict.ERROR, interval=None)], 2)
    assert [len(ax.lines) for ax in drawn(picture)] == [0, 0]
    assert picture is not None and "busbw 1 MiB" in picture.words and "(ERROR)" in picture.words


def test_records_of_no_sweep_have_no_plot_of_sizes() -> None:
    at = conditions(collective="all_reduce", group="world")
    assert sweep([record(TEST, under=at, quantity="contention", label="")], 2) is None
    assert sweep([record(TEST, under=conditions())], 2) is None
    assert sweep([without_value(TEST, "fabric", Verdict.ERROR, "rank 1 died")], 2) is None
    assert waits([record(TEST, under=at)]) is None


def test_the_rank_that_waits_least_is_marked_at_the_size_where_ranks_wait_longest() -> None:
    at = cluster(2)
    told = [waited(TEST, at, label, late=late, share=share) for label, late, share in
            (("1 MiB", 3, 0.1), ("4 MiB", 11, 0.4), ("16 MiB", 5, 0.2))]  # fmt: skip
    picture = waits(told)
    (ax,) = drawn(picture)
    heights = [bar.get_height() for bar in ax.patches]  # type: ignore[attr-defined]
    assert len(heights) == 16 and max(heights) <= 40
    assert [place for place, bar in enumerate(ax.patches) if bar.get_hatch()] == [11]
    assert picture is not None and picture.title.endswith("at 4 MiB")
    assert "Of the time of all calls most ranks waited 40 % [36, 44]," in picture.caption[0]
    assert not ax.lines, "a share of time is not drawn over medians of calls"
    assert picture.caption[1] == "Who comes last waits least: here rank 11 gpu002, 0.8 %."


def test_waits_next_to_nothing_do_not_fill_the_panel() -> None:
    small = waited(TEST, cluster(2), "1 MiB", late=3, share=1e-4)
    (ax,) = drawn(waits([small]))
    assert ax.get_ylim()[1] >= 1.0


def test_of_many_ranks_those_that_wait_least_are_shown() -> None:
    picture = waits([waited(TEST, cluster(128), "1 MiB", late=777, share=0.3)])
    (ax,) = drawn(picture)
    assert len(ax.patches) == 64
    assert picture is not None and "rank 777 gpu098, 0.6 %" in picture.caption[1]
    assert picture.caption[2] == "64 of 1024 ranks: those that wait least."


def cells(picture: Picture | None) -> Sequence[Sequence[float]]:
    (ax,) = drawn(picture)
    return ax.images[0].get_array().filled(-1).tolist()  # type: ignore[union-attr, no-any-return]


def test_a_row_is_a_sender_and_a_column_a_receiver() -> None:
    measured, names = exchanged_by(3), ("gpu001", "gpu003")
    slow = tuple(
        replace(pair, seconds=tuple(4 * s for s in pair.seconds)) if (pair.sender, pair.receiver) == names else pair
        for pair in measured.pairs
    )
    shown = cells(links(TEST, replace(measured, pairs=slow)))
    assert [shown[at][at] for at in range(3)] == [-1, -1, -1]
    assert shown[0][2] == pytest.approx(12, rel=0.05)
    assert [shown[a][b] for a, b in ((0, 1), (1, 0), (1, 2), (2, 0), (2, 1))] == pytest.approx([48] * 5, rel=0.05)


def test_the_slowest_rail_counts_and_what_a_pair_did_alone_does_not() -> None:
    def pair(seconds: float, **how: object) -> PairTiming:
        return PairTiming(sender="gpu001", receiver="gpu002", bytes=48 * 10**9, seconds=(seconds,) * 6, **how)  # type: ignore[arg-type]

    measured = exchanged_by(2)
    pairs = (pair(1), pair(2, rail=1), pair(4, alone=True), replace(pair(9), bytes=MIB))
    assert cells(links(TEST, replace(measured, pairs=pairs)))[0][1] == pytest.approx(24)
    assert cells(links(TEST, replace(measured, pairs=(pair(4, alone=True),))))[0][1] == pytest.approx(12)
    assert links(TEST, replace(measured, pairs=())) is None


def test_of_many_nodes_several_share_a_row_and_the_slowest_pair_is_shown(tmp_path: Path) -> None:
    told, measurements = pairs_of(1024, slow="gpu777", partners=8)
    picture = links(told.test, measurements["m1"][2])  # type: ignore[arg-type]
    shown = cells(picture)
    assert len(shown) == 64
    slow = {(row, column) for row in range(64) for column in range(64) if 0 < shown[row][column] < 30}
    assert slow == {(48, 48), (48, 49), (49, 48)}  # node 777 is the 9th of 16 in row 48, with 8 partners on each side
    assert picture is not None
    assert picture.caption[1] == "1024 nodes: a cell is the slowest of the pairs between 16 x 16 nodes."
    assert len(svg(picture).encode()) < 200_000


def test_the_pairs_that_a_failed_sweep_asked_for_are_drawn_too(tmp_path: Path) -> None:
    told = record(TEST, under=cluster(4), measurement="m1")
    measured = FabricMeasurement(
        conditions=cluster(4), rounds=(), started=0.0, seconds=1.0, pairs=exchanged_by(4).pairs, groups=((0, 1), (2, 3))
    )
    assert written([told], {"m1": (TEST, "fabric", measured)}, tmp_path) == (2, "")
    assert (tmp_path / "all_reduce-world-links.svg").exists()


def test_names_from_elsewhere_are_text_and_nothing_else(tmp_path: Path) -> None:
    test, names = f"test_fabric[{''.join(HOSTILE)}]", dict(zip(cluster(len(HOSTILE)).hosts, HOSTILE, strict=True))
    at = cluster(
        len(HOSTILE), 1, hosts=tuple(HOSTILE), rank_nodes=tuple(HOSTILE), group="".join(HOSTILE),
        backend="".join(HOSTILE), versions=dict.fromkeys(HOSTILE, "1"),
    )  # fmt: skip
    measured = exchanged_by(len(HOSTILE))
    pairs = tuple(replace(pair, sender=names[pair.sender], receiver=names[pair.receiver]) for pair in measured.pairs)
    told = [record(test, under=at, measurement="m1"), waited(test, at, "1 MiB", late=1, share=0.5)]
    measurements: Measurements = {"m1": (test, "fabric", replace(measured, conditions=at, pairs=pairs))}
    assert written(told, measurements, tmp_path / "plots") == (3, "")
    assert [path.name for path in tmp_path.iterdir()] == ["plots"]
    for path in (tmp_path / "plots").iterdir():
        assert re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]+", path.name)
        assert not list(ET.parse(path).iter("{http://www.w3.org/2000/svg}script"))
        for name in filter(str.isprintable, HOSTILE):
            assert name in spoken(path)[1]
            assert name in said(path)
        assert "\\x00\\x1b[2J\\u202e" in spoken(path)[1]


def test_tests_whose_cases_are_named_alike_do_not_overwrite_each_other(tmp_path: Path) -> None:
    at = conditions(collective="all_reduce", group="world")
    tests = [f"{function}[{case}]" for function in ("test_a", "test_b") for case in ("x-2", "x", "X", "x!")]
    count, _ = written([record(test, under=at) for test in tests], {}, tmp_path)
    assert count == len(list(tmp_path.iterdir())) == 8


def test_no_file_is_hidden_or_without_a_name(tmp_path: Path) -> None:
    at = conditions(collective="all_reduce", group="world")
    written([record(f"test_fabric[{case}]", under=at) for case in ("..", ".hidden", "x" * 300)], {}, tmp_path)
    names = [path.name for path in tmp_path.iterdir()]
    assert sorted(names) == ["hidden-sizes.svg", "test-sizes.svg", "x" * 80 + "-sizes.svg"]


def test_other_criteria_have_no_plots_and_no_folder(tmp_path: Path) -> None:
    assert written([record("test_memory[ddp]", "memory")], {}, tmp_path / "plots") == (0, "")
    assert not (tmp_path / "plots").exists()


def test_a_plot_that_fails_is_told_and_the_others_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = plots.svg

    def fails(picture: Picture) -> str:
        if "wait" not in picture.title:
            raise ValueError("no\nroom")
        return real(picture)

    monkeypatch.setattr(plots, "svg", fails)
    assert written(swept(TEST, cluster(2)), {}, tmp_path) == (
        1, "a plot is missing: all_reduce-world-sizes.svg: ValueError: no room",
    )  # fmt: skip


def test_a_run_without_matplotlib_has_no_plots_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    count, missing = written(swept(TEST, cluster(2)), {}, tmp_path)
    assert count == 0
    assert "matplotlib" in missing and missing.endswith("(+1 more)")


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "plots").write_text("a file")
    count, missing = written(swept(TEST, cluster(2)), {}, tmp_path / "plots")
    assert count == 0
    assert "NotADirectoryError" in missing


def test_what_ends_a_run_is_not_taken_for_a_plot_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def left(picture: Picture) -> str:
        pytest.exit("SIGTERM received")

    monkeypatch.setattr(plots, "svg", left)
    with pytest.raises(pytest.exit.Exception):
        written(swept(TEST, cluster(2)), {}, tmp_path)


def test_time_is_up_after_the_budget_and_an_old_plot_does_not_stay(tmp_path: Path) -> None:
    (tmp_path / "all_reduce-world-sizes.svg").write_text("of an earlier attempt")
    count, missing = written(swept(TEST, cluster(2)), {}, tmp_path, budget=0)
    assert count == 0
    assert "not drawn within 0 s; `clusterqual report --all-plots` draws all (+1 more)" in missing
    assert list(tmp_path.iterdir()) == []


def test_the_worst_test_is_drawn_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    titles: list[str] = []
    monkeypatch.setattr(plots, "svg", lambda picture: titles.append(picture.title) or "")  # type: ignore[func-returns-value]
    at = conditions(collective="all_reduce", group="world")
    verdicts = {"a": Verdict.PASS, "b": Verdict.MEASURED, "c": Verdict.ERROR, "d": Verdict.FAIL}
    written([record(f"test_fabric[{name}]", under=at, verdict=v) for name, v in verdicts.items()], {}, tmp_path)
    assert [title[0] for title in titles] == ["c", "d", "a", "b"]

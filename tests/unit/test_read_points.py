"""Tables of scaling points: what a column says by its name, a cell by its unit, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from captures import damaged
from hypothesis import given
from hypothesis import strategies as st
from points_made import points, table

from pytest_clusterqual.errors import ReadError
from pytest_clusterqual.read.points import read_points


@pytest.mark.parametrize(
    ("column", "cell", "work", "rate"),
    [
        ("tokens_per_second", "8000", "tokens", 8000),
        ("tokens/s", "8e3", "tokens", 8000),
        ("Tokens per second per GPU", "500", "tokens", 8000),
        ("TPS/GPU", "500", "tokens", 8000),
        ("tokens/gpu/s", "500", "tokens", 8000),
        ("samples_per_second", "4", "tokens", 8000),
        ("median_throughput_samples_s", "4", "tokens", 8000),
        ("sequences/s/device", "0.25", "tokens", 8000),
        ("it/s", "0.5", "tokens", 8000),
        ("s/it", "2", "tokens", 8000),
        ("seconds_per_iteration", "2", "tokens", 8000),
        ("step_time_ms", "2000", "tokens", 8000),
        ("step_time", "2000 ms", "tokens", 8000),
        ("step_time", "2 s/it", "tokens", 8000),
        ("speed", "0.5 it/s", "tokens", 8000),
        ("speed", "2 s/it", "tokens", 8000),
        ("throughput", "8000 tokens/s", "tokens", 8000),
        ("throughput", "500 tokens / s / GPU", "tokens", 8000),
        ("epoch_time", "50 s", "epochs", 0.02),
        ("tflops_per_gpu", "400", "FLOP", 16 * 400e12),
        ("mfu", "47 %", "peaks", 16 * 0.47),
        ("MFU", "0.47", "peaks", 16 * 0.47),
    ],
)
def test_units_are_in_the_name_or_in_the_cell(tmp_path: Path, column: str, cell: str, work: str, rate: float) -> None:
    (point,) = points(tmp_path, f"nodes,ranks,global_batch,sequence_length,{column}", f"2,16,8,2000,{cell}")
    assert point.work == work
    assert point.rates == pytest.approx([rate])


@pytest.mark.parametrize(
    ("header", "line", "message"),
    [
        ("nodes,throughput", "2,8000", '2: throughput: got "8000", and neither column nor cell says in which unit; '
         "clear are tokens_per_second, tokens_per_second_per_device"),
        ("nodes,speed", "2,0.661s", '2: speed: got "0.661s", want a unit such as tokens/s'),
        ("nodes,tps", "2,5762", '2: tps: got "5762", and neither column nor cell says'),
        ("nodes,time", "2,12", '2: time: got "12", and neither column nor cell says'),
        ("nodes,step_s", "2,12", "no column is a figure; clear are tokens_per_second"),
        ("nodes,step_time", "2,0.5", "2: step_time: got '0.5', want a time such as 20 s (the unit is missing)"),
        ("nodes,tokens_per_second", '2,"5,762"', '2: tokens_per_second: got "5,762", want a number without separators'),
        ("nodes,tokens_per_second", "2,fast", '2: tokens_per_second: got "fast", want a number'),
        ("nodes,tokens_per_second", "2,-3", '2: tokens_per_second: got "-3", want a figure above 0'),
        ("nodes,tokens_per_second", "2,1e999", '2: tokens_per_second: got "1e999", want a figure above 0'),
        ("nodes,tokens_per_second", "2,5 it/s", '2: tokens_per_second: got "5 it/s", which is not what the name'),
        ("nodes,tokens_per_second", "2,5 tokens/s/GPU", "which is not what the name of the column says"),
        ("nodes,mfu", "2,47", '2: mfu: got "47", want a share such as 47 % or 0.47'),
        ("nodes,tokens/s/gpu", "2,500", "2: tokens/s/gpu: it is of one device, and how many there are is not told"),
        ("nodes,it/s", "two,1", '2: nodes: got "two", want a whole number from 1'),
        ("nodes,it/s", "0,1", '2: nodes: got "0", want a whole number from 1'),
        ("nodes,global_batch,it/s", "2,1.5,1", '2: global_batch: got "1.5", want a whole number from 1'),
        ("model,it/s", "8B,1", "2: nodes: neither nodes nor ranks are told"),
        ("nodes,ranks,it/s", "3,16,1", "2: ranks: got 16 on 3 nodes, want as many on each node"),
        ("nodes,ranks,gpus_per_node,it/s", "2,16,4,1", "2: ranks: got 16 on 2 nodes of 4, want as many on each"),
        ("nodes,it/s", "2", "2: got 1 cells, the header names 2"),
        ("nodes,it/s", "2,", "2: no figure is given; clear are"),
        ("ranks,gpus,it/s", "8,8,1", "devices is there twice, as ranks and gpus"),
        ("nodes,busbw", "2,3", 'no column is a figure; clear are tokens_per_second'),
        ("just text", "", "want CSV with a header that names every column"),
        ("nodes,it/s", "", "there is a header and no line below it"),
    ],
)  # fmt: skip
def test_what_is_not_clear_is_refused(tmp_path: Path, header: str, line: str, message: str) -> None:
    with pytest.raises(ReadError) as refused:
        points(tmp_path, header, line, same=())
    assert message in str(refused.value)
    assert str(refused.value).startswith(str(tmp_path / "points.csv"))


def test_all_problems_come_at_once(tmp_path: Path) -> None:
    with pytest.raises(ReadError) as refused:
        points(tmp_path, "nodes,global_batch,it/s", "x,8,1", "2,y,z", "3,8,1")
    assert [line.split(": got")[0].rpartition("points.csv:")[2] for line in str(refused.value).splitlines()] == [
        "2: nodes", "3: global_batch", "3: it/s",
    ]  # fmt: skip


def test_two_figures_of_a_run_must_agree(tmp_path: Path) -> None:
    header = "nodes,ranks,global_batch,sequence_length,tokens_per_second,step_time_s"
    (point,) = points(tmp_path, header, "2,16,8,1000,8010,1")
    assert point.rates == (8010,)
    with pytest.raises(ReadError, match="tokens_per_second and step_time_s: they contradict each other: 500 and 8000"):
        points(tmp_path, header, "2,16,8,1000,500,1")  # it was of one device
    with pytest.raises(ReadError, match="it/s where s/it was meant"):
        points(tmp_path, "nodes,global_batch,samples_per_second,it/s", "2,8,4,2")  # it was s/it


def test_runs_of_a_point_are_counted_alike(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match="3: it counts steps, line 2 of the same point samples; give all runs in the"):
        points(tmp_path, "nodes,samples_per_second,it/s", "1,5,", "1,,2")


def test_lines_under_the_same_conditions_are_runs_of_one_point(tmp_path: Path) -> None:
    one, two = points(
        tmp_path, "nodes,ranks,global_batch,run,samples_per_second,time_to_train_min,samples_to_converge,loss",
        "# of the second try", "1,8,8,0,2.0,30,3456,1.2", "", "1,8,8,1,2.2,27,3072,1.3", "2,16,8,0,4,15,3072,1.2",
    )  # fmt: skip
    assert (one.label, one.rates, one.times_to_train, one.samples_to_converge) == (
        "1 x 8", (2.0, 2.2), (1800, 1620), (3456, 3072)
    )  # fmt: skip
    assert [source.rpartition(":")[2] for source in one.sources] == ["3", "5"]
    assert two.label == "2 x 8"
    with pytest.raises(ReadError, match='run "0" of this point is in line 2 already'):
        points(tmp_path, "nodes,run,it/s", "1,0,2", "1,0,3")


def test_a_world_follows_from_two_of_three_and_from_the_name_of_a_system(tmp_path: Path) -> None:
    lines = ["system,ranks,devices_per_node,it/s", "a,16,8,1", "a,4,8,1"]
    assert [point.label for point in points(tmp_path, *lines)] == ["2 x 8", "1 x 4"]
    found = points(tmp_path, "system,gpus,it/s", "eos n8,64,1", "Dell 2n,16,1", same=())
    assert [(point.identity["system"], point.label) for point in found] == [("eos", "8 x 8"), ("Dell", "2 x 8")]
    (other,) = points(tmp_path, "system,gpus,it/s", "n0,8,1", same=())
    assert (other.identity["system"], other.label) == ("n0", "8 devices")


def test_sizes_are_told_on_all_lines_or_on_none(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match="3: ranks: it is told on other lines and not here; want it on all or on none"):
        points(tmp_path, "nodes,ranks,it/s", "1,8,1", "2,,1")
    with pytest.raises(ReadError, match="2: nodes: it is told on other lines and not here"):
        points(tmp_path, "system,gpus,it/s", "eos,8,1", "eos n2,16,1", same=())


def test_other_separators_and_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "points.csv"
    path.write_bytes("\ufeffnodes;it/s\r\n2;1.5\r\n".encode())
    assert read_points(path)[0].rates == (1.5,)


def test_a_column_for_all_lines_does_not_replace_one_that_is_there(tmp_path: Path) -> None:
    (point,) = points(tmp_path, "nodes,it/s", "2,1", same=[("devices_per_node", "8"), ("Software", "x 1")])
    assert (point.devices, point.identity) == (16, {"software": "x 1"})
    with pytest.raises(ReadError, match="nodes is there twice, as nodes and nnodes"):
        points(tmp_path, "nodes,it/s", "2,1", same=[("nnodes", "3")])


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match=r"none\.csv: cannot be read: No such file"):
        read_points(tmp_path / "none.csv")
    (tmp_path / "endless.csv").write_text('nodes,it/s\n1,"' + "1" * 200_000, encoding="utf-8")
    with pytest.raises(ReadError, match=r"endless\.csv: want CSV, got what is none: field larger than"):
        read_points(tmp_path / "endless.csv")
    with pytest.raises(
        ReadError, match="got 401 points, at most 400 are read; is a column that changes from run to run"
    ):
        points(tmp_path, "nodes,step,it/s", *(f"1,step {number},2" for number in range(401)))
    (tmp_path / "binary.csv").write_bytes(b"nodes,it/s\n\xff\xfe")
    with pytest.raises(ReadError, match=r"binary\.csv: want CSV in UTF-8"):
        read_points(tmp_path / "binary.csv")


WHOLE = "nodes,ranks,global_batch,run,speed,model\n1,8,8,0,2 it/s,a b\n2,16,8,0,3.5 it/s,a b\n2,16,8,1,280 ms/it,\n"


@given(damaged(WHOLE))
def test_damaged_tables_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.csv"
    path.write_text(text, encoding="utf-8", errors="replace")
    try:
        found = read_points(path)
    except ReadError:
        return
    assert all(rate > 0 for point in found for rate in point.rates)


@given(st.floats(min_value=1e-3, max_value=1e3), st.integers(min_value=1, max_value=64))
def test_every_way_to_say_it_is_the_same_figure(
    tmp_path_factory: pytest.TempPathFactory, seconds: float, ranks: int
) -> None:
    folder = tmp_path_factory.getbasetemp()
    ways = {
        "it/s": 1 / seconds, "s/it": seconds, "step_time_ms": seconds * 1e3, "samples_per_second": 24 / seconds,
        "tokens_per_second_per_device": 24 * 512 / seconds / ranks,
    }  # fmt: skip
    for name, value in ways.items():
        path = table(folder, f"nodes,ranks,global_batch,sequence_length,{name}", f"1,{ranks},24,512,{value!r}")
        (point,) = read_points(path)
        assert point.rates == pytest.approx([24 * 512 / seconds])

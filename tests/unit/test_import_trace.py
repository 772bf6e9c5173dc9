"""`clusterqual import trace`: the table, what stands out, the warnings, and traces that are not of one run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from traces_made import ALL_REDUCE, document, event, kernel, launch, step, trace, written

from pytest_clusterqual.cli import main
from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.step.traces import trace_times

STEPS = [step(1, 0, 1000), step(2, 1000, 1000)]


def rank_file(folder: Path, rank: int, *, waits: int, world: int = 2) -> Path:
    """Two steps; in each 600 µs compute and an all-reduce of 100 + `waits` µs, half of 100 behind compute."""
    told = {"Collective name": "allreduce", "Process Group Name": "0", "Process Group Ranks": "[0, 1]"}
    events = list(STEPS)
    for number in (0, 1):
        at, link = 1000 * number, 2 * number + 1
        events += [
            launch(link, at + 1), launch(link + 1, at + 2), kernel("gemm", at, 600 - waits, correlation=link),
            kernel(ALL_REDUCE, at + 550 - waits, 100 + waits, correlation=link + 1, **told),
        ]  # fmt: skip
    return written(folder / f"rank{rank}.json.gz", document(events, rank=rank, world=world))


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


@pytest.mark.parametrize("columns", [60, 80])
def test_a_narrow_terminal_shows_every_figure_with_its_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    files = [rank_file(tmp_path, 1, waits=0), rank_file(tmp_path, 0, waits=200)]
    assert main(["import", "trace", *map(str, files)]) == 0
    wide = capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["import", "trace", *map(str, files)]) == 0
    narrow = capsys.readouterr().out
    assert max(map(len, narrow.splitlines())) <= columns
    assert sorted(narrow.split()) == sorted([*wide.split(), "rank", "0", "rank", "1"])


def test_the_table_names_who_waits_and_who_is_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [rank_file(tmp_path, 1, waits=0), rank_file(tmp_path, 0, waits=200)]
    assert main(["import", "trace", *map(str, files)]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [re.split(r"\s{2,}", line) for line in lines]
    assert rows[0][1:] == [
        "time", "compute", "overlapped", "exposed", "memory", "idle", "hidden", "slower", "transfer", "wait", "last",
    ]  # fmt: skip
    assert rows[1] == [
        "rank 0", "2 ms", "35 %", "5 %", "25 %", "0 %", "35 %", "16.7 %", "-", "200 us", "400 us", "0 of 2",
    ]  # fmt: skip
    assert rows[2] == ["rank 1", "2 ms", "55 %", "5 %", "5 %", "0 %", "35 %", "50 %", "-", "200 us", "0 s", "2 of 2"]
    below = " ".join(" ".join(lines[4:]).split())
    assert below == (
        "together 2 steps: 2 ms, of it compute 1.2 ms (60 %), exposed communication 100 us (5 %), memory 0 s (0 %), "
        "idle 700 us (35 %) exposed rank 0 the most: 500 us "
        "waited for rank 1 the most: it came last to 2 of 2 collectives, the others waited for it there"
    )


def test_json_has_all_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "trace", "--json", str(rank_file(tmp_path, 1, waits=0))]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["world"], found["steps"]) == (2, [1, 2])
    assert found["ranks"][0]["steps"][1]["parts"]["exposed"] == pytest.approx(50e-6)
    assert found["together"]["compute"] == pytest.approx(1200e-6)
    assert found["warnings"] == ["1 of 2 ranks have no trace here (0): what they do, and waiting for them, is not seen"]


def test_without_communication_no_share_is_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path / "a.json", document([*STEPS, kernel("gemm", 0, 500)], world=1))
    assert main(["import", "trace", str(file)]) == 0
    assert re.search(r"^rank 0 +2 ms +25 % +- +- +0 % +75 % +- +- +- +- +-$", capsys.readouterr().out, re.M)


def test_a_trace_of_cpus_says_what_it_understates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = [event("cpu_op", "aten::mm", 0, 500, tid=1), event("user_annotation", "gloo:all_reduce", 400, 300, tid=2)]
    assert main(["import", "trace", str(written(tmp_path / "a.json", document(events, backend="gloo")))]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "together the whole trace: 700 us, of it compute 500 us (71.4 %)" in out
    assert "warning on CPUs communication takes cores from computing: a trace understates what it costs" in out


def test_every_file_that_is_no_trace_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [rank_file(tmp_path, 0, waits=0), written(tmp_path / "b.json", "{}"), tmp_path / "none.json"]
    assert main(["import", "trace", *map(str, files)]) == 4
    assert re.search(r'b\.json: no list "traceEvents".*\n.*none\.json: No such file', capsys.readouterr().err)


def test_a_terminal_is_not_steered_by_the_name_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path / "a\x1b[31m.json", {"traceEvents": [kernel("gemm", 0, 5)]})
    assert main(["import", "trace", str(file)]) == 0
    assert "\x1b" not in capsys.readouterr().out


ONE, OTHER = [(0, 40)], [(0, 60)]


def test_only_common_steps_count_together_and_the_rest_is_told() -> None:
    short = trace(ONE, steps=[(3, 0, 100)])
    long = trace(OTHER, steps=[(3, 0, 100), (4, 100, 200)], rank=1, problems=["odd"])
    times = trace_times([long, short])
    assert [rank.rank for rank in times.ranks] == [0, 1]
    assert times.steps == (3,)
    assert times.together.total == pytest.approx(100e-9)
    assert times.ranks[1].parts.total == pytest.approx(200e-9)
    assert times.warnings == (
        "not all traces have step 4: left out of what ranks cost together",
        "no collective was found on all traces of its group: waiting cannot be told from transfer",
        "rank 1: odd",
    )


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ([trace(ONE)], r"rank 0 is in rank0\.json and in rank0\.json; give one trace a rank"),
        ([trace(ONE, rank=1, world=4)], r"different worlds: rank0\.json is of 2 ranks, rank1\.json is of 4 ranks"),
        ([trace(ONE, rank=1, world=None)], r"rank1\.json is of an unknown number of ranks"),
        ([trace(ONE, rank=1, steps=[(9, 0, 99)])], r"no step in common \(rank 0: none; rank 1: 9\)"),
    ],
)
def test_traces_that_are_not_of_one_run_are_refused(others: list[object], message: str) -> None:
    with pytest.raises(MeasurementError, match=message):
        trace_times([trace(ONE), *others])  # type: ignore[list-item]

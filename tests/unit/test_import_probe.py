"""`clusterqual import probe`: the table and the lines below it, JSON, narrow terminals, folders that are none."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from probe_made import Run, killed_run

from pytest_clusterqual.cli import main

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def shown(folder: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    assert main(["import", "probe", str(folder), *flags]) == 0
    return capsys.readouterr().out


def test_the_table_of_one_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    killed_run(tmp_path)
    table, lines = shown(tmp_path, capsys).split("\n\n")
    assert [re.split(r"\s{2,}", row.strip()) for row in table.splitlines()] == [
        ["rank 0", "share"],
        ["init", "3 s", "8.66 %"],
        ["warm-up", "3 s", "8.66 %"],
        ["kept", "12 s", "34.7 %"],
        ["data", "3.75 s", "10.8 %"],
        ["checkpoint", "1.25 s", "3.61 %"],
        ["lost", "2 s", "5.78 %"],
        ["outage", "4.75 s", "13.7 %"],
        ["rendezvous", "2.5 s", "7.22 %"],
        ["reload", "500 ms", "1.44 %"],
        ["hook evaluation", "1.5 s", "4.33 %"],
        ["teardown", "250 ms", "0.722 %"],
        ["residual", "125 ms", "0.361 %"],
        ["wall clock", "34.6 s", "100 %"],
    ]
    assert [re.split(r"\s{2,}", row) for row in lines.splitlines()[:8]] == [
        ["goodput", "34.7 tokens/s of wall clock, 34.7 % of the steady state"],
        ["step", "1 s [1 s, 1 s], the median of kept steps on their slowest rank, once warm"],
        ["steps", "12 kept, 2 done again after 1 restart"],
        ["data stall", "21.1 % on rank 0 of its data and step time"],
        ["checkpoints", "2 saves blocked 1.25 s on their slowest rank: median 625 ms, worst 750 ms after step 12"],
        ["ended", "attempt 0: killed on 1 rank"],
        ["not known", "12 steps are too few, want 256 or more: nothing is said of drift, changes and stalls"],
        ["not known", re.split(r"\s{2,}", lines.splitlines()[7])[1]],
    ]
    assert "warning" not in lines


def test_the_script_of_the_page_is_killed_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (script,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "probe.md").read_text(encoding="utf-8"), re.DOTALL)
    folder = tmp_path / "probe"
    environment = {**os.environ, "CLUSTERQUAL_PROBE": str(folder), "RANK": "0", "WORLD_SIZE": "1"}

    def started() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path, env=environment)

    file = folder / "rank0-attempt0.jsonl"
    with started() as first:
        while first.poll() is None and not (file.exists() and '"step":60,' in file.read_text()):
            time.sleep(0.001)
        first.kill()
    assert first.returncode == -signal.SIGKILL
    time.sleep(0.1)  # the system tells in ticks of 10 ms when a process began
    with started() as second:
        assert second.wait(timeout=60) == 0
    found = json.loads(shown(folder, capsys, "--json"))
    (rank,) = found["ranks"]
    assert (found["kept"], found["work"], found["saves"]["count"]) == (200, 200 * 2048, 4)
    assert (rank["kept"], rank["ends"]) == (200, ["", "done"])
    assert rank["lost"] >= 10
    states = ("init", "kept", "data", "checkpoint", "lost", "outage", "rendezvous", "reload", "teardown")
    assert all(rank["seconds"][state] > 0 for state in states)
    assert sum(rank["seconds"].values()) == pytest.approx(rank["wall"])
    assert abs(rank["seconds"]["residual"]) < max(0.005 * rank["wall"], 1.0)


def test_two_ranks_of_the_script_of_the_page_write_no_file_of_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (script,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "probe.md").read_text(encoding="utf-8"), re.DOTALL)
    for long, short in (("201)", "51)"), ("(1024, 256)", "(4, 256)")):
        assert script.count(long) == 1
        script = script.replace(long, short)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLUSTERQUAL_PROBE", raising=False)
    written: dict[str, set[str]] = {"0": set(), "1": set()}
    save = np.savez
    for rank, names in written.items():
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setattr(np, "savez", lambda to, names=names, **more: (names.add(str(to)), save(to, **more)))
        exec(script, {})
    assert written["0"] and written["1"] and not written["0"] & written["1"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["weights-0.npz", "weights-1.npz"]


def test_the_table_of_the_page_is_one_that_closes() -> None:
    (shown,) = re.findall(r"```text\n(.*?)```", (ROOT / "docs" / "probe.md").read_text(encoding="utf-8"), re.DOTALL)
    scale = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
    rows = re.findall(r"^(\S+(?: \S+)?) +([\d.]+) (s|ms|us) +[\d.]+ %", shown, re.M)
    seconds = {name: float(value) * scale[unit] for name, value, unit in rows}
    assert seconds.pop("wall clock") == pytest.approx(sum(seconds.values()), abs=0.01)


def test_several_ranks_have_the_least_the_most_and_who_has_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(tmp_path)
    for rank, stall in enumerate([0.25, 1.0, 0.5]):
        run.clock.now = 1000.0
        with run.process(rank) as process:
            for _ in range(3):
                with process.span("data"):
                    process.passes(stall)
                with process.span("step"):
                    process.passes(2.0 - stall)
            process.done()
    out = shown(tmp_path, capsys)
    (data,) = re.findall(r"^data  .*$", out, re.M)
    assert re.split(r"\s{2,}", data) == ["data", "750 ms", "12.5 %", "750 ms", "3 s", "rank 1"]
    assert "3 kept by all 3 ranks, 0 done again after 0 restarts" in out
    assert "50 % on rank 1, 25 % on rank 2, 12.5 % on rank 0 of its data and step time" in out
    assert "ended" not in out


@pytest.mark.parametrize("columns", [60, 80])
def test_a_narrow_terminal_shows_every_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    killed_run(tmp_path, ranks=2)
    wide = shown(tmp_path, capsys)
    monkeypatch.setenv("COLUMNS", str(columns))
    narrow = shown(tmp_path, capsys)
    assert max(map(len, narrow.splitlines())) <= columns
    assert narrow.split() == wide.split()


def test_json_has_all_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    killed_run(tmp_path)
    found = json.loads(shown(tmp_path, capsys, "--json"))
    assert found["goodput"] == pytest.approx(1200 / 34.625, rel=1e-5)
    assert sum(found["ranks"][0]["seconds"].values()) == pytest.approx(found["wall"])
    assert found["ranks"][0]["ends"] == ["", "done"]
    assert found["saves"]["worst_step"] == 12


def test_a_torn_line_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    killed_run(tmp_path)
    torn = tmp_path / "rank0-attempt0.jsonl"
    torn.write_bytes(torn.read_bytes() + b'{"what":"st')
    assert re.search(
        rf"^warning +{torn}:\d+: the last line was cut off by a kill and is left out$", shown(tmp_path, capsys), re.M
    )


def test_names_from_a_script_cannot_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(tmp_path)
    with run.process() as process, process.span("\x1b[2Jclear"):
        process.passes(1.0)
    out = shown(tmp_path, capsys)
    assert r"hook \x1b[2Jclear" in out
    assert "\x1b" not in out


def test_a_run_without_a_step_has_a_ledger_and_no_goodput(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(tmp_path)
    with run.process(imports=2.0) as process:
        process.passes(1.0)
    out = shown(tmp_path, capsys)
    assert re.search(r"^init +3 s +100 %$", out, re.M)
    assert re.search(r"^goodput +no step was kept$", out, re.M)


def test_a_folder_that_is_none_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "probe", str(tmp_path / "absent")]) == 4
    assert capsys.readouterr().err == (
        f"clusterqual: {tmp_path}/absent: cannot be read: No such file or directory; "
        "want the folder that a probe wrote\n"
    )

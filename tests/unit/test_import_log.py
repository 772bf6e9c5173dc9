"""`clusterqual import log`: the report on narrow terminals, JSON, options, and logs that are none."""

from __future__ import annotations

import json
import random
import re
import shutil
from pathlib import Path

import pytest
from captures import CASES, capture
from logs_made import nemo_line, titan, written

from pytest_clusterqual.cli import main
from pytest_clusterqual.read.log_pattern import GROUPS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "logs.md"


def times(count: int, mean: float = 2.0) -> list[float]:
    draw = random.Random(7)
    return [mean * draw.uniform(0.99, 1.01) for _ in range(count)]


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")


def imported(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["import", "log", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", f"{columns}")
    resumed = titan([20.0, *times(15)]) + "Saving the checkpoint\n" + titan(times(20), first=100, began=900)
    written(Path(), "noise \x1b[31m of a tool\n" + resumed)
    out = imported(capsys, "train.log")
    assert max(map(len, out.splitlines())) <= columns
    rows = [line.split() for line in out.splitlines()]
    assert rows[0] == ["attempt", "steps", "lines", "warm-up", "a", "step", "lost", "away"]
    assert (rows[1][:4], rows[1][-2:]) == (["1", "1-160", "16", "10"], ["60", "-"])
    assert rows[2][:4] == ["2", "101-300", "20", "0"]
    words = " ".join(out.split())
    assert "60 steps were done again after a restart, some 1" in words
    assert re.search(r"step time \S+ s \[\S+, \S+\] \(35 lines of 350 steps, from the work and rate", words)
    assert re.search(r"tokens/s \d{4} tokens/s \[\d{4}, \d{4}\]; 16,384 a step, from the log", words)
    assert "not read 1 of 42 lines tell nothing that is known here, such as 1 x line 1: noise of a tool" in words


def test_json_has_every_figure_and_line(capsys: pytest.CaptureFixture[str]) -> None:
    written(Path(), titan(times(8)))
    told = json.loads(imported(capsys, "train.log", "--json"))
    assert (told["log"]["family"], told["tokens_per_step"], told["seconds"]["steps"]) == ("torchtitan", 16384, 80)
    assert [step["step"] for step in told["log"]["attempts"][0]] == list(range(10, 90, 10))


def test_the_options_work_and_pattern(capsys: pytest.CaptureFixture[str]) -> None:
    written(Path(), "".join(f"[{n}] took {2 + n / 100:.2f} sec\n" for n in range(8)))
    out = imported(
        capsys, "train.log", "--pattern", r"\[(?P<step>\d+)\] took (?P<seconds>[\d.]+) sec", "--tokens-per-step", "4096"
    )
    assert "4,096 a step, from --tokens-per-step" in out
    assert "--pattern: train.log" in out


def test_what_is_missing_is_said_and_nothing_is_made_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    written(Path(), "".join(nemo_line(n, 2.0).replace("global_batch_size: 128 | ", "") for n in range(10)))
    out = imported(capsys, "train.log")
    assert "missing    the tokens of a step, so nothing follows about speed; give --tokens-per-step" in out
    assert "/s " not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train.log"], "clusterqual: train.log: no line of 1 tells of a step in the form of torchtitan"),
        (["missing.log"], "clusterqual: missing.log: cannot be read: No such file or directory"),
        (["train.log", "--pattern", "("], 'clusterqual: --pattern: got "(", want a regular expression such as'),
    ],
)
def test_what_cannot_be_read_is_said(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    written(Path(), "hello\n")
    assert main(["import", "log", *arguments]) == 4
    assert message in capsys.readouterr().err


def test_work_of_no_tokens_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["import", "log", "train.log", "--tokens-per-step", "0"])
    assert refused.value.code == 2
    assert "want a positive whole number, got '0'" in capsys.readouterr().err


def test_the_page_shows_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    capture("train_logs/mlperf_gpt3_eos_n32_256gpu.txt")
    shutil.copy(CASES / "train_logs" / "mlperf_gpt3_eos_n32_256gpu.txt", "result_1.txt")
    page = PAGE.read_text(encoding="utf-8")
    (command,) = re.findall(r"^    clusterqual import log (result_1.txt)$", page, flags=re.MULTILINE)
    (shown,) = re.findall(r"```text\n(.*?)```", page, flags=re.DOTALL)
    assert imported(capsys, command) == shown


def test_every_group_is_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [name for name in GROUPS if f"`{name}`" not in page] == []

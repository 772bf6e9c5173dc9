"""`clusterqual import points`: the table, JSON, exit status, and files that are no such table."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from points_made import TOLD, table
from project_files import SMALL

from pytest_clusterqual.cli import main

HEADER = "cluster,nodes,devices_per_node,global_batch,run,samples_per_second"
ONE = [f"red,1,8,4,{run},{10 + run / 100}" for run in range(6)]
TWO = [f"red,2,8,4,{run},{18 + run / 100}" for run in range(6)]
SAME = [f"--same={name}={cell}" for name, cell in TOLD]
PROJECT = f"{SMALL}scaling:\n  points: [1, 2]\n  require: [{{nodes: 2, efficiency: '>= 0.8'}}]\n"


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("CLUSTERQUAL_CONFIG", raising=False)


def imported(capsys: pytest.CaptureFixture[str], *lines: str, options: list[str] | None = None) -> tuple[int, str]:
    code = main(["import", "points", str(table(Path(), HEADER, *lines)), *(SAME if options is None else options)])
    return code, capsys.readouterr().out


def test_the_table_says_what_each_point_is(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = imported(capsys, *ONE, *TWO, "red,4,8,8,0,40", "blue,2,8,8,0,9")
    assert code == 0
    rows = [line.split() for line in out.splitlines()]
    assert rows[0] == ["nodes", "batch", "runs", "throughput", "a", "device", "against", "is", "speedup", "efficiency",
                       "normalized", "verdict"]  # fmt: skip
    assert "red 2 x 8 4 6 18 samples/s [18, 18.1] 1.13 1 x 8 strong scaling 1.8 [1.79, 1.81] 0.899" in " ".join(rows[2])
    assert [row[-1] for row in rows[1:5]] == ["MEASURED"] * 4
    assert "weak scaling    red 4 x 8 against 2 x 8: the same batch on each device, so more work in a step" in out
    assert "another regime  blue 2 x 8 against red 2 x 8: not the same job on more of the same nodes, so no effi" in out
    assert "cluster: red against blue" in out
    assert "beyond          red: 2 sizes were measured, and nothing is predicted from fewer than 4" in out


def test_undecided_is_not_success(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = imported(capsys, *ONE, *TWO, options=[])
    assert code == 1
    assert "strong scaling?" in out
    assert "UNDECIDED" in out
    assert "undecided  2 x 8 against 1 x 8: cannot be decided, because the table does not tell model, versions" in out


def test_a_project_file_decides(capsys: pytest.CaptureFixture[str]) -> None:
    Path("clusterqual.yaml").write_text(PROJECT, encoding="utf-8")
    code, out = imported(capsys, *ONE, *TWO)
    assert code == 0
    assert (
        "PASS    2 x 8: efficiency 0.899 [0.896, 0.903] meets the required >= 0.8 (2 x 8 against 1 x 8, 6 and 6 runs)"
        in out
    )
    Path("strict.yaml").write_text(PROJECT.replace("0.8", "0.95"), encoding="utf-8")
    code, out = imported(capsys, *ONE, *TWO, options=[*SAME, "--qual-config", "strict.yaml"])
    assert (code, "FAIL" in out, "is below the required >= 0.95" in out) == (1, True, True)
    code, out = imported(capsys, *ONE, *[line.replace(",8,4,", ",8,8,") for line in TWO])
    assert (code, "ERROR" in out) == (1, True)
    assert "efficiency was not measured: the same batch on each device" in out


def test_a_project_file_of_another_job_decides_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    Path("clusterqual.yaml").write_text(PROJECT, encoding="utf-8")
    code, out = imported(capsys, *[line.replace(",8,4,", ",8,12,") for line in (*ONE, *TWO)])
    assert code == 1
    assert "decides nothing: the project file is of another job: it has global batch 4, the table 12" in out


def test_a_project_file_without_scaling_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    Path("clusterqual.yaml").write_text(SMALL, encoding="utf-8")
    assert main(["import", "points", str(table(Path(), HEADER, *ONE))]) == 4
    assert "scaling: the section is missing, so nothing is required of these points" in capsys.readouterr().err


def test_json_has_all_figures(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"red,{nodes},8,4,0,{10 / (0.1 + 0.9 / nodes)}" for nodes in (1, 2, 4, 8)]
    code, out = imported(capsys, *lines, options=[*SAME, "--json"])
    found = json.loads(out)
    assert code == 0
    assert [each["kind"] for each in found["comparisons"]] == ["strong scaling"] * 3
    assert found["comparisons"][2]["judgements"][1]["value"] == pytest.approx(1 / (0.1 + 0.9 / 8) / 8)
    assert found["points"][3]["sources"] == ["points.csv:5"]
    (curve,) = found["curves"]
    assert curve["envelope"]["nodes"] == 16
    assert len(curve["envelope"]["models"]) == 4


def test_the_envelope_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    _code, out = imported(capsys, *[f"red,{nodes},8,4,0,{10 / (0.1 + 0.9 / nodes)}" for nodes in (1, 2, 4, 8)])
    line = " ".join(out.split()).partition("beyond ")[2]
    assert line.startswith("on 16 nodes a speedup of ")
    assert "against 1 x 8: model-dependent (Amdahl, " in line
    assert line.endswith("an estimate and never a verdict")


def test_what_cannot_be_read_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "points", str(table(Path(), "nodes,speed", "1,5"))]) == 4
    assert 'points.csv:2: speed: got "5", and neither column nor cell says in which unit' in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["import", "points", "points.csv", "--same", "software"])
    assert "want NAME=VALUE, got 'software'" in capsys.readouterr().err


def test_a_terminal_is_not_steered_by_a_cell(capsys: pytest.CaptureFixture[str]) -> None:
    _code, out = imported(capsys, ONE[0].replace("red", "r\u202eed"), TWO[0])
    assert "\u202e" not in out
    assert "r\\u202eed" in out


def test_the_example_of_the_page_is_real(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "points.md").read_text(encoding="utf-8")
    blocks = dict(re.findall(r"```(csv|text)\n(.*?)```", page, flags=re.DOTALL))
    (command,) = re.findall(r"^    clusterqual (import points lora\.csv.*)$", page, flags=re.MULTILINE)
    Path("lora.csv").write_text(blocks["csv"], encoding="utf-8")
    monkeypatch.setenv("COLUMNS", "120")
    assert main(command.split()) == 0
    assert capsys.readouterr().out == blocks["text"]

"""`clusterqual import nccl-tests`: files become a run folder that is judged like any other, or nothing at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from nccl_tests_made import log, report, runs, steady
from project_files import SMALL

from pytest_clusterqual.cli import main
from pytest_clusterqual.folder.runs import RunFolder
from pytest_clusterqual.model.fabric import ReportedMeasurement
from pytest_clusterqual.model.record import Verdict

PROJECT = f"""{SMALL.replace("global_batch: 4", "global_batch: 16")}
fabric:
  links: {{intra_node: 900 GB/s, nic: 400 Gbit/s, nics_per_node: 8}}
  require:
    - {{collective: all_reduce, group: world, from: 4 MiB, busbw: ">= 30 % of expected"}}
"""


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("CONFIG", "RUN_DIR", "NODES", "NPROC_PER_NODE"):
        monkeypatch.delenv(f"CLUSTERQUAL_{name}", raising=False)


def files(texts: list[str], kind: str = "log") -> list[str]:
    names = [f"run{number}.{kind}" for number in range(1, len(texts) + 1)]
    for name, text in zip(names, texts, strict=True):
        Path(name).write_text(text, encoding="utf-8")
    return names


def imported(texts: list[str], *options: str) -> tuple[int, RunFolder]:
    code = main(["import", "nccl-tests", *files(texts), "--qual-run-dir", "run", *options])
    return code, RunFolder.open("run")


def verdicts(folder: RunFolder, test: str = "import::all_reduce-world") -> dict[str, Verdict]:
    judged = [record.judgement for record in folder.records() if record.test == test]
    return {" ".join(filter(None, (each.quantity, each.label))): each.verdict for each in judged}


def refused(capsys: pytest.CaptureFixture[str], texts: list[str], *options: str) -> str:
    """What is said; nothing is written."""
    assert main(["import", "nccl-tests", *files(texts), "--qual-run-dir", "run", *options]) == 4
    assert not Path("run").exists()
    return capsys.readouterr().err


def test_six_runs_are_judged_and_can_be_judged_again(capsys: pytest.CaptureFixture[str]) -> None:
    Path("clusterqual.yaml").write_text(PROJECT, encoding="utf-8")
    code, folder = imported(runs(6))
    assert code == 0
    assert verdicts(folder) == {
        "wrong_elements": Verdict.MEASURED,
        "busbw 1 MiB": Verdict.MEASURED,
        "busbw 2 MiB": Verdict.MEASURED,
        "busbw 4 MiB": Verdict.PASS,
        "busbw 8 MiB": Verdict.PASS,
        "busbw 16 MiB": Verdict.PASS,
        "alpha": Verdict.MEASURED,
        "plateau": Verdict.MEASURED,
    }
    ((test, criterion, measurement),) = folder.measurements().values()
    assert (test, criterion) == ("import::all_reduce-world", "fabric")
    assert isinstance(measurement, ReportedMeasurement)
    at = measurement.conditions
    assert (at.nodes, at.nproc_per_node, at.ranks, at.hosts) == (2, 8, 16, ("gpu001", "gpu002"))
    assert (at.device_name, at.backend, at.simulated) == ("NVIDIA H100 80GB HBM3", "nccl", False)
    assert [sweep.source for sweep in measurement.sweeps] == [f"run{number}.log:26" for number in range(1, 7)]
    assert 'name="all_reduce-world"' in Path("run/junit.xml").read_text(encoding="utf-8")
    assert "all_reduce-world" in capsys.readouterr().out

    Path("strict.yaml").write_text(PROJECT.replace("30 %", "90 %"), encoding="utf-8")
    assert main(["judge", "run", "--config", "strict.yaml"]) == 1
    assert "FAIL" in capsys.readouterr().out


def test_fewer_runs_are_undecided() -> None:
    Path("other.yaml").write_text(PROJECT, encoding="utf-8")
    code, folder = imported(runs(5), "--qual-config", "other.yaml")
    assert code == 1
    assert verdicts(folder)["busbw 16 MiB"] is Verdict.UNDECIDED


def test_without_a_project_file_figures_are_measured_and_wrong_data_fails() -> None:
    code, folder = imported(runs(2))
    assert code == 0
    assert set(verdicts(folder).values()) == {Verdict.MEASURED}
    Path("run").rename("before")
    code, folder = imported([log(wrong="1")])
    assert code == 1
    assert verdicts(folder)["wrong_elements"] is Verdict.FAIL


def test_each_collective_and_each_variant_is_a_test_of_its_own() -> None:
    texts = [log() + log("all_gather"), log(element="bfloat16", width=2), log(seconds=lambda size: steady(size) * 1.1)]
    _code, folder = imported(texts)
    assert {test: len(m.sweeps) for test, _, m in folder.measurements().values() if hasattr(m, "sweeps")} == {
        "import::all_reduce-world": 2,
        "import::all_gather-world": 1,
        "import::all_reduce-world-bfloat16": 1,
    }


def test_of_the_environment_in_json_only_the_allowed_is_written() -> None:
    env = ["NCCL_ALGO=Ring", "HF_TOKEN=hf_1", "NCCL_SECRET=2", "HOME=/root"]
    (name,) = files([json.dumps(report(env=env))], "json")
    assert main(["import", "nccl-tests", name, "--qual-run-dir", "run"]) == 0
    written = "".join(path.read_text(encoding="utf-8") for path in Path("run").iterdir())
    assert RunFolder.open("run").environment["variables"] == {"NCCL_ALGO": "Ring"}
    assert not any(word in written for word in ("hf_1", "NCCL_SECRET", "/root"))
    ((_, _, measurement),) = RunFolder.open("run").measurements().values()
    assert measurement.conditions is not None
    assert measurement.conditions.algorithm == "Ring"


def test_without_a_list_of_ranks_the_world_is_asked_for_and_checked(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, [log(listed=False)])
    assert "run1.log:9: it was run on 16 ranks, but not all are listed with their hosts" in said
    assert "the figures are those of 16" in refused(
        capsys, [log(listed=False)], "--nodes", "4", "--nproc-per-node", "8"
    )
    _code, folder = imported([log(listed=False)], "--nodes", "4")
    ((_, _, measurement),) = folder.measurements().values()
    assert measurement.conditions is not None
    assert (measurement.conditions.nproc_per_node, measurement.conditions.rank_nodes[::4]) == (
        4, ("node0", "node1", "node2", "node3"),
    )  # fmt: skip


def test_a_named_collective_stands_for_text_that_does_not_say() -> None:
    _code, folder = imported([log("all_gather", named=False)], "--collective", "all_gather", "--group", "world")
    assert [test for test, _, _ in folder.measurements().values()] == ["import::all_gather-world"]


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        ([log(), log(version="2.20.3")], [],
         "run2.log:26: nccl version: got 2.20.3, run1.log:26 has 2.29.3: import what was measured under different"),
        ([log(), log(nodes=4)], [], "run2.log:42: number of ranks: got 32, run1.log:26 has 16"),
        ([log(), log(nodes=4)], [], "run2.log:42: hosts: got gpu001, gpu002, gpu003, gpu004, run1.log:26 has gpu001"),
        ([log(), log().replace("H100 80GB HBM3", "H200")], [], "run2.log:26: devices: got NVIDIA H200, run1.log"),
        ([log(), log(listed=False)], [], "run2.log:9: hosts: got none told, run1.log:26 has gpu001, gpu002"),
        ([log(), log()], [], "run2.log:26: this is the run of run1.log:26 again; give each run once"),
        ([log("reduce")], [], "run1.log:26: reduce is none of all_reduce, all_gather"),
        ([log(), log().partition("# Out of")[0]], [], "run2.log:30: no `Out of bounds values` follows"),
        (["hello"], [], 'run1.log: got "hello", want what all_reduce_perf or another program of nccl-tests prints'),
        ([log()], ["--nodes", "4"], "run1.log:26: it was run on 2 nodes by its own list, told were 4"),
        ([log().replace("on gpu002 device  7", "on gpu003 device  7")], [], "nodes have different numbers of ranks"),
        ([log()], ["--collective", "all_gather"], "this is all_reduce by its own word, told was all_gather"),
        ([log()], ["--qual-config", "none.yaml"], "none.yaml"),
    ],
)  # fmt: skip
def test_what_is_no_evidence_is_refused_whole(
    capsys: pytest.CaptureFixture[str], texts: list[str], options: list[str], message: str
) -> None:
    assert message in refused(capsys, texts, *options)


def test_every_file_that_is_no_evidence_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, [log().partition("# Out of")[0], "hello", log(nodes=1, local=1)])
    for name in ("run1.log:30: ", "run2.log: got", "run3.log:11: this rank ran alone"):
        assert name in said
    assert main(["import", "nccl-tests", "missing.log"]) == 4
    assert "missing.log: cannot be read: No such file or directory" in capsys.readouterr().err

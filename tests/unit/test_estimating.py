"""The estimated ladder of a project file: what is asked of the program, and what is done without its answer."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from project_files import SMALL

from pytest_clusterqual.commands import estimating
from pytest_clusterqual.commands.estimating import by_arithmetic, estimated_ladder
from pytest_clusterqual.model.estimate import EstimatedLadder
from pytest_clusterqual.read.project import load_project

FILE = SMALL.replace("precision: bf16", "precision: fp32") + "launcher: {nproc_per_node: 2, device: cpu}\n"
OWN = "memory.device_memory"
# The program's side of the protocol: `answer(rung)` is what it says of each rung.
ANSWERS = """
import json, sys
def found(rung):
    parts = {"parameters": 4, "gradients": 4, "optimizer": 8, "activations": 100 // rung["per_node"], "other": 0}
    peak = sum(parts.values())
    return json.dumps({"estimate": {"peak": peak, "parts": parts, "rank": 0, "method": "fake tensors", "reason": ""}})
print("a library says hello", flush=True)
for rung in json.loads(sys.stdin.readline())["rungs"]:
    print(answer(rung), flush=True)
"""


def ladder(folder: Path, answer: str, text: str = FILE + "memory: {}\n") -> EstimatedLadder:
    """That of a file, with a program of which `answer` is the source of the function that answers."""
    (folder / "clusterqual.yaml").write_text(text)
    project = load_project(folder / "clusterqual.yaml", nodes=2)
    return estimated_ladder(project, nodes=2, program=[sys.executable, "-c", f"{answer}\n{ANSWERS}"])


def test_the_programs_answers_are_the_estimates(tmp_path: Path) -> None:
    found = ladder(tmp_path, "def answer(rung): return found(rung)")
    told = [each for each in found.rungs if each.estimate is not None]
    assert [each.estimate.peak for each in told if each.estimate][:2] == [116, 116]
    assert {each.estimate.peak for each in told if each.estimate and each.rung.per_node == 2} == {66}
    assert [each.rung.impossible != "" for each in found.rungs] == [each.estimate is None for each in found.rungs]
    assert all(each.fits is None for each in found.rungs)


def test_a_rung_without_an_answer_is_estimated_by_arithmetic(tmp_path: Path) -> None:
    problem = """
def answer(rung):
    return found(rung) if rung["name"] != "one device" else json.dumps({"problem": "torch cannot do this"})"""
    first, *others = ladder(tmp_path, problem).rungs
    assert first.estimate is not None
    assert (first.estimate.method, first.estimate.reason) == ("arithmetic", "torch cannot do this")
    assert sum(first.estimate.parts.values()) == first.estimate.peak > 1000
    assert {each.estimate.method for each in others if each.estimate} == {"fake tensors"}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')", "torch is not installed here"),
        ("import sys; sys.exit('out of patience')", "out of patience"),
        ("import os; os._exit(3)", "the program left with exit code 3"),
        ("def answer(rung): os.kill(os.getpid(), 9)\nimport os", "the program was killed by SIGKILL"),
    ],
)
def test_a_program_that_ends_early_is_told_and_costs_its_answers_only(tmp_path: Path, answer: str, reason: str) -> None:
    found = ladder(tmp_path, answer)
    estimates = [each.estimate for each in found.rungs if each.estimate is not None]
    assert {(each.method, each.reason) for each in estimates} == {("arithmetic", reason)}


def test_a_rung_that_takes_too_long_costs_only_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimating, "RUNG_SECONDS", 5.0)
    hangs = """
def answer(rung):
    import time
    return found(rung) if rung["name"] != "shard" else time.sleep(600)"""
    told = {each.rung.name: each.estimate for each in ladder(tmp_path, hangs).rungs if each.estimate is not None}
    slow = told.pop("shard")
    assert (slow.method, slow.reason) == ("arithmetic", "no answer within 5 s")
    assert {each.method for each in told.values()} == {"fake tensors"}


@pytest.mark.parametrize(
    ("text", "memory", "headroom", "fits"),
    [
        ("memory: {device_memory: 120 B}\n", (120, OWN), 0.0, "fits"),
        ("memory: {device_memory: 120 B, require: [{headroom: '>= 10 %'}]}\n", (120, OWN), 0.1, "tight"),
        ("memory: {device_memory: 1 B}\ntopology: {gpu_memory: '>= 80 GB'}\n", (1, OWN), 0.0, "no"),
        ("memory: {}\ntopology: {gpu_memory: '>= 80 GB'}\n", (80e9, "topology.gpu_memory"), 0.0, "fits"),
        ("memory: {}\ntopology: {gpu_memory: '<= 80 GB'}\n", (None, ""), 0.0, None),  # no promise of any memory
        ("memory: {require: [{layout: ddp, headroom: '>= 50 %'}]}\n", (None, ""), 0.0, None),  # of that layout alone
    ],
)  # fmt: skip
def test_memory_and_headroom_are_the_files(
    tmp_path: Path, text: str, memory: tuple[float | None, str], headroom: float, fits: str | None
) -> None:
    found = ladder(tmp_path, "def answer(rung): return found(rung)", FILE + text)
    assert (found.device_memory, found.memory_from) == memory
    assert found.headroom == pytest.approx(headroom)
    assert found.rungs[0].fits == fits


@pytest.mark.parametrize(
    ("launcher", "topology", "device"),
    [
        ("{device: cpu}", "{gpu_memory: '>= 80 GB'}", "cpu"),
        ("{device: cuda}", "{}", "cuda"),
        ("{device: auto}", "{gpu_memory: '>= 80 GB'}", "cuda"),
        ("{kind: slurm}", "{}", "cuda"),
    ],
)
def test_the_file_says_what_the_tensors_will_be_in(tmp_path: Path, launcher: str, topology: str, device: str) -> None:
    text = SMALL + f"memory: {{}}\nlauncher: {launcher}\ntopology: {topology}\n"
    found = ladder(tmp_path, "def answer(rung): return found(rung)", text)
    assert found.device == device
    seen = " ".join(found.unseen)
    assert ("CUDA context" in seen, "interpreter" in seen) == (device == "cuda", device == "cpu")


def test_a_router_is_among_what_is_not_seen(tmp_path: Path) -> None:
    text = FILE.replace("vocab: 256", "vocab: 256, experts: 2") + "memory: {}\n"
    assert "router" in ladder(tmp_path, "def answer(rung): return found(rung)", text).unseen[-1]


def test_arithmetic_counts_what_is_sure_exactly(tmp_path: Path) -> None:
    (tmp_path / "clusterqual.yaml").write_text(FILE + "memory: {}\n")
    workload = load_project(tmp_path / "clusterqual.yaml", nodes=2).workload
    rung = ladder(tmp_path, "def answer(rung): return found(rung)").rungs[0].rung
    parts = by_arithmetic(workload, rung, reason="").parts
    size = workload.model.parameters * 4
    assert (parts["parameters"], parts["gradients"], parts["optimizer"]) == (size, size, 2 * size)

"""A folder that has all that the commands of the pages speak of: a suite, project files, recorded runs, evidence."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from logs_made import titan
from nccl_tests_made import runs
from pages_read import ROOT, blocks
from probe_made import killed_run
from project_files import SMALL
from recorded_made import PROJECT, TEST, recorded
from traces_made import document, kernel, launch, step, written

from pytest_clusterqual.folder.runs import RunFolder, Selected
from pytest_clusterqual.model.project import LauncherOptions
from pytest_clusterqual.report.project_file import project_file

RUNS = ("run", "old", "new", "good", "monday", "tuesday", "wednesday", "thursday", "friday", "tonight", "opened")
ELSEWHERE = (
    "clusterqual-runs/RUN", "clusterqual-runs/20261130T042859Z", "clusterqual-runs/20261201T015420Z", "runs/1",
    "runs/2", "runs/3", "RUN",
)  # fmt: skip
FABRIC = (
    "fabric: {links: {nic: 400 Gbit/s, nics_per_node: 8}, require: [{collective: all_reduce, busbw: '> 1 MB/s'}]}\n"
)
OTHER = "qualification/test_memory.py::test_memory[fsdp-2nodes]"


def make_site(folder: Path) -> None:
    """Fill `folder`; in it a run is measured, a log written and a key made already."""
    _suite(folder / "qualification")
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "clusterqual.yaml").write_text(SMALL.replace("global_batch: 4", "global_batch: 16") + FABRIC)
    (folder / "hosts.txt").write_text("gpu001\ngpu002\n")
    _recorded_runs(folder)
    _evidence(folder)


def whole_file(page: str) -> str:
    """The project file that a page shows in full, or nothing."""
    return next((block.text for block in blocks(page, "yaml") if "version: 1\n" in block.text), "")


def key_of(folder: Path) -> None:
    """An ssh key of the user's own, and the list of those that are trusted."""
    (folder / ".ssh").mkdir()
    key = folder / ".ssh" / "id_ed25519"
    made = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)]
    subprocess.run(made, check=True, stdin=subprocess.DEVNULL)
    (folder / "allowed_signers").write_text(f"qa@site {key.with_suffix('.pub').read_text()}")


def _suite(folder: Path) -> None:
    shutil.copytree(ROOT / "qualification", folder, ignore=shutil.ignore_patterns("__pycache__"))
    options = LauncherOptions(kind="ssh", hosts=tuple(f"gpu{number:03}" for number in range(1, 17)))
    text = project_file(options, (), name="site", hosts="gpu[001-016]", nodes=16)
    (folder / "clusterqual.yaml").write_text(text)


def _recorded_runs(folder: Path) -> None:
    first = recorded(folder / RUNS[0])
    first.select({TEST: Selected(criterion="memory", layout="ddp")})
    for name in (*RUNS[1:], "memory", *ELSEWHERE):
        shutil.copytree(first.path, folder / name)
    shutil.copytree(first.path, folder / "fabric")  # the other part of one qualification
    for name in ("records.jsonl", "measurements.jsonl", "tests.json"):
        file = folder / "fabric" / name
        file.write_text(file.read_text().replace(TEST, OTHER))
    assert RunFolder.open(folder / "fabric").records()[0].test == OTHER
    asked = PROJECT.replace("  data: {path: not-on-this-machine.bytes}\n", "")
    (folder / "other.yaml").write_text(asked)
    (folder / "opened" / "clusterqual.yaml").write_text(PROJECT)
    (folder / "stricter.yaml").write_text(asked.replace("<= 1 GiB", "<= 1 KiB"))


def _evidence(folder: Path) -> None:
    logs = runs(6)
    (folder / "run1.log").write_text("".join(logs[:3]))
    (folder / "run2.log").write_text("".join(logs[3:]))
    (folder / "result_1.txt").write_text(titan([1.0] * 30))
    (folder / "train.log").write_text("".join(f"step {n} loss 2.5 took 0.51s\n" for n in range(1, 41)))
    head, *rows = blocks("docs/points.md", "csv")[0].text.splitlines()
    (folder / "lora.csv").write_text("".join(f"{line}\n" for line in (head, *rows)))
    told = (f"{head},model,software", *(f"{row},llama2-70b,ngc24.09" for row in rows))
    (folder / "FILE.csv").write_text("".join(f"{line}\n" for line in told))
    told = {"Collective name": "allreduce", "Process Group Name": "0", "Process Group Ranks": "[0, 1]"}
    for rank in (0, 1):
        events = [
            step(1, 0, 1000), launch(1, 1), launch(2, 2), kernel("gemm", 0, 600, correlation=1),
            kernel("ncclDevKernel_AllReduce", 550, 100, correlation=2, **told),
        ]  # fmt: skip
        written(folder / f"trace-rank{rank}.json.gz", document(events, rank=rank))
    (folder / "run-17").mkdir()
    killed_run(folder / "run-17", ranks=2)

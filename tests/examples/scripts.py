"""The example scripts, and runs of them under torchrun as a user starts them."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from pytest_clusterqual.read.probe import probe_files, probe_lines

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TRAINERS = {"plain": "torch", "huggingface": "transformers", "lightning": "lightning"}  # example -> what it imports
STEPS, SAVE_EVERY, TOKENS = 16, 8, 32 * 128
# In every process of a script: the first one of a rank is killed at the moment it has told of a step. Whoever watched
# its file from outside might look when the run is over.
KILL = """\
import os, signal
write = os.write

def until_told(file, line):
    written = write(file, line)
    if b'"step":{after},"tokens"' in line:
        os.kill(os.getpid(), signal.SIGKILL)
    return written

if (os.environ.get("RANK"), os.environ.get("TORCHELASTIC_RESTART_COUNT")) == ("{rank}", "0"):
    os.write = until_told
"""


def skip_without_trainer(example: str) -> None:
    """Skip the test where the trainer of an example is not installed."""
    if importlib.util.find_spec(TRAINERS[example]) is None:
        pytest.skip(f"{TRAINERS[example]} is not installed, want: pip install 'pytest-clusterqual[examples]'")


def torchrun(
    example: str, folder: Path, *, ranks: int, restarts: int = 0, kill: tuple[int, int] | None = None
) -> subprocess.Popen[bytes]:
    """Start a script; it finds its checkpoints in `folder`, and its probes write to `folder`/probe.

    `kill` is a rank, and the step after which it is killed.
    """
    folder.mkdir()
    if kill:
        (folder / "sitecustomize.py").write_text(KILL.format(rank=kill[0], after=kill[1]))
    words = [
        "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", f"--max-restarts={restarts}",
        str(EXAMPLES / example / "train.py"),
        "--folder", str(folder / "own"), "--steps", str(STEPS), "--save-every", str(SAVE_EVERY),
    ]  # fmt: skip
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("CLUSTERQUAL_", "TORCHELASTIC_"))}
    # What torchrun's restarts need on gloo: without it the second attempt meets the keys of the first.
    environment |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), environment.get("PYTHONPATH")]))
    with (folder / "output").open("wb") as output:
        return subprocess.Popen(
            [sys.executable, *words], cwd=folder, stdout=output, stderr=subprocess.STDOUT,
            env={**environment, "CLUSTERQUAL_PROBE": str(folder / "probe")}, start_new_session=True,
        )  # fmt: skip


def blocks(page: str, language: str) -> list[str]:
    """What stands in the blocks of a page."""
    return re.findall(rf"```{language}\n(.*?)```", page, flags=re.DOTALL)


def labels(text: str) -> set[str]:
    """What the lines of an output begin with."""
    return {re.split(r"\s{2,}", line)[0] for line in text.splitlines() if re.match(r"[a-z]", line)}


def shell(command: str, folder: Path) -> str:
    """Run a command line of a page in `folder`; what it printed, once it has ended well."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "CLUSTERQUAL_", "COV_"))}
    path = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    ran = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", command], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False, env={**environment, "PATH": path, "COLUMNS": "100"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout
    return ran.stdout


def end(process: subprocess.Popen[bytes], folder: Path, within: float = 180) -> None:
    """Wait until it has ended well."""
    try:
        process.wait(within)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 0, (folder / "output").read_text()


def losses(folder: Path) -> list[dict[int, float]]:
    """Of each attempt the loss of every step that all ranks told, as the mean over them."""
    told: defaultdict[tuple[int, int], list[float]] = defaultdict(list)
    files = probe_files(folder / "probe", pytest.fail)
    for processes in files.values():
        for process in processes:
            for line in probe_lines(process, lambda _torn: None):
                if line.what == "loss" and line.value is not None:
                    told[process.start.attempt, line.step].append(line.value)
    attempts = range(max(attempt for attempt, _ in told) + 1)
    return [
        {step: sum(each) / len(each) for (of, step), each in told.items() if of == attempt and len(each) == len(files)}
        for attempt in attempts
    ]

"""The process beside a rank of a command: it starts it, hurts it at the wanted step, and tells how it ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rank_harness import until

from pytest_clusterqual.errors import LaunchError
from pytest_clusterqual.model.codec import to_json
from pytest_clusterqual.model.command import BESIDE, OUTPUT, OWN, PROBES, CommandProcess
from pytest_clusterqual.model.full_run import Failure
from pytest_clusterqual.rank.settings import Settings
from pytest_clusterqual.read.probe import probed_processes
from pytest_clusterqual.session.command_trouble import processes_of, steps_done

STEPS = """\
import time
from pytest_clusterqual.probe import Probe
probe = Probe()
for _ in range(2500):
    with probe.step():
        time.sleep(0.02)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (BESIDE, OUTPUT, OWN, PROBES):
        (tmp_path / "run" / name).mkdir(parents=True)
    return tmp_path / "run"


def start(place: Path, text: str, *, rank: int = 0, failure: Failure | None = None, **order: Any) -> Any:
    (place.parent / "script.py").write_text(text)
    told = {
        "folder": str(place), "home": str(place.parent), "failure": to_json(failure) if failure else None,
        "environment": {"MINE": "yes"}, "victim": "", "hang_timeout": 30.0, **order,
    }  # fmt: skip
    env = {**os.environ, **environment(place, rank=rank), "CLUSTERQUAL_COMMAND": json.dumps(told)}
    argv = [sys.executable, "-m", "pytest_clusterqual.rank", "command", "script.py", "word"]
    return subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, text=True)


def environment(scratch: Path, *, rank: int = 0) -> dict[str, str]:
    """What launcher and torchrun tell a rank."""
    return {
        "CLUSTERQUAL_STORE": "127.0.0.1:1", "CLUSTERQUAL_SECRET": "00", "CLUSTERQUAL_LAUNCH": "test",
        "CLUSTERQUAL_NODE": "node7", "CLUSTERQUAL_ADDRESS": "127.0.0.1", "CLUSTERQUAL_CORES": "",
        "CLUSTERQUAL_DEVICE": "cpu", "CLUSTERQUAL_SCRATCH": str(scratch), "RANK": str(rank), "LOCAL_RANK": "0",
        "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1",
    }  # fmt: skip


def left(process: Any) -> int:
    process.communicate(timeout=60)
    return int(process.returncode)


def ended(process: Any, folder: Path) -> tuple[int, str, CommandProcess]:
    _out, complained = process.communicate(timeout=60)
    (last,) = [each[-1] for each in processes_of(folder).values()]
    return process.returncode, complained, last


def test_the_command_runs_as_it_would_alone_and_its_end_is_told(folder: Path) -> None:
    text = "import os, sys\nprint(sys.argv[1:], os.environ['MINE'], os.getcwd(), 'CLUSTERQUAL_SECRET' in os.environ)\n"
    code, _, process = ended(start(folder, text + "held = bytearray(64 << 20)\n"), folder)
    assert (folder / OUTPUT / "rank0.log").read_text() == f"['word'] yes {folder.parent} False\n"
    assert code == 0
    assert (process.start.node, process.start.world, process.start.local_rank) == ("node7", 2, 0)
    assert process.start.versions["python"] == sys.version.split()[0]
    assert len(process.start.script) == 16
    assert process.end is not None
    assert (process.end.code, process.end.out_of_memory, process.end.said) == (0, False, "")
    assert process.end.host_peak > 64 << 20
    assert process.end.ended > process.start.began


def test_one_that_raises_is_told_with_its_last_lines(folder: Path) -> None:
    code, complained, process = ended(start(folder, "raise ValueError('no such shard')\n"), folder)
    assert process.end is not None
    assert (code, process.end.code) == (1, 1)
    assert process.end.said.endswith("ValueError: no such shard")
    assert "ValueError: no such shard" in complained, "the log of the node has it too"


def test_it_is_killed_once_its_own_lines_show_the_step_before(folder: Path) -> None:
    hurt = start(folder, STEPS, rank=1, failure=Failure(kind="kill_rank", step=5, target=1))
    code, _, process = ended(hurt, folder)
    assert process.end is not None
    assert (code, process.end.code) == (128 + signal.SIGKILL, -signal.SIGKILL)
    (lines,) = [each[0].lines for each in probed_processes(folder / PROBES).values()]
    assert [line.step for line in lines if line.what == "step"][:4] == [1, 2, 3, 4]
    (fault,) = [line for line in lines if line.what == "fault"]
    # It goes on while it is looked at: it may be some steps further.
    assert fault.name == "kill_rank"
    assert 5 <= fault.step <= 1 + max(line.step for line in lines[: lines.index(fault)] if line.what == "step")
    assert fault.at <= process.end.ended
    assert steps_done(folder / PROBES)[1] < 2500


WRAPPED = """\
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
sys.exit(subprocess.run([sys.executable, "steps.py"]).returncode)
"""


@pytest.mark.parametrize(("kind", "hang"), [("kill_rank", 30.0), ("hang_rank", 1.0)])
def test_what_the_script_has_started_is_hurt_with_it(folder: Path, kind: Any, hang: float) -> None:
    (folder.parent / "steps.py").write_text(STEPS)
    hurt = start(folder, WRAPPED, rank=1, failure=Failure(kind=kind, step=3, target=1), hang_timeout=hang)
    if kind == "hang_rank":
        assert until(lambda: _states(folder) == ["T", "T", "T"])
    code, _, process = ended(hurt, folder)
    assert process.end is not None and code == 128 + signal.SIGKILL
    gone = until(lambda: _states(folder) == [])
    _end_all(folder)
    assert gone, "no trainer lives on into the next attempt"


UNREAPED = """\
import os, time
child = os.fork()
held = bytearray(0 if child else 300 << 20)
time.sleep(2.0 if child else 60)
os._exit(0)
"""


def test_the_memory_of_what_nobody_reaps_counts(folder: Path) -> None:
    _, _, told = ended(start(folder, UNREAPED), folder)
    assert told.end is not None
    assert 300 << 20 < told.end.host_peak < 400 << 20
    _end_all(folder)


def test_another_rank_and_a_second_attempt_are_left_alone(folder: Path) -> None:
    short = STEPS.replace("2500", "8")
    failure = Failure(kind="kill_rank", step=3, target=1)
    assert left(start(folder, short, rank=0, failure=failure)) == 0
    (folder / BESIDE / "rank1-attempt0.start.json").write_text("{}")
    (folder / PROBES / "rank1-attempt0.jsonl").touch()
    assert left(start(folder, short, rank=1, failure=failure)) == 0
    assert (folder / BESIDE / "rank1-attempt1.end.json").exists()


def test_what_the_agent_tells_it_it_tells_the_command(folder: Path) -> None:
    text = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\nprint('up', flush=True)\n"
    process = start(folder, f"{text}time.sleep(60)\n")
    assert until(lambda: "up" in _text(folder / OUTPUT / "rank0.log"))
    process.terminate()
    code, _, told = ended(process, folder)
    assert told.end is not None
    assert (code, told.end.code) == (7, 7)


def test_the_command_goes_with_the_process_beside_it(folder: Path) -> None:
    process = start(folder, "import time\nprint('up', flush=True)\ntime.sleep(60)\n")
    assert until(lambda: "up" in _text(folder / OUTPUT / "rank0.log") and bool(processes_of(folder)))
    ((child,),) = processes_of(folder).values()
    process.kill()
    process.communicate()
    assert until(lambda: not Path(f"/proc/{child.start.pid}").exists())


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ({"folder": "/nowhere"}, "node7 does not see the folder of this run, /nowhere: put the run folder on storage "),
        ({"home": "/nowhere"}, "node7 has no folder /nowhere: the command is to run there on every node"),
    ],
)
def test_a_node_without_the_folders_says_so(folder: Path, order: dict[str, str], said: str) -> None:
    process = start(folder, "", **order)
    _out, complained = process.communicate(timeout=60)
    assert process.returncode == 1
    assert complained.startswith(said)
    assert not list((folder / BESIDE).iterdir())


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("RANK", None, "no RANK in its environment"),
        ("LOCAL_RANK", None, "no LOCAL_RANK in its environment"),
        ("WORLD_SIZE", "two", "WORLD_SIZE='two' in its environment"),
        ("LOCAL_WORLD_SIZE", "", "no LOCAL_WORLD_SIZE in its environment"),
    ],
)
def test_a_rank_that_nobody_told_which_it_is_says_what_must(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str | None, said: str
) -> None:
    for key, usual in environment(Path("/scratch")).items():
        monkeypatch.setenv(key, usual)
    monkeypatch.delenv("LOCAL_SIZE", raising=False)
    monkeypatch.delenv(name)
    if value is not None:
        monkeypatch.setenv(name, value)
    with pytest.raises(LaunchError, match=rf"node7: this rank has {said}: .* workload\.launcher_line, must set RANK, "):
        Settings.from_environment()


def test_the_digest_of_a_module_is_that_of_its_file(tmp_path: Path) -> None:
    from pytest_clusterqual.rank.command import _digest

    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("raise RuntimeError('nobody may import this')\n")
    (tmp_path / "package" / "train.py").write_text("print(1)\n")
    (tmp_path / "package" / "__main__.py").write_text("print(1)\n")
    (tmp_path / "alone.py").write_text("print(1)\n")
    found = {_digest(words, tmp_path) for words in (["-m", "package.train"], ["-m", "package"], ["alone.py"])}
    assert len(found) == 1 and "" not in found
    assert _digest(["-m", "package.nothing"], tmp_path) == _digest(["missing.py"], tmp_path) == ""


def _alive(folder: Path) -> list[int]:
    """Processes whose current folder is the test's."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cwd").readlink() == folder.parent:
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def _end_all(folder: Path) -> None:
    for pid in _alive(folder):
        os.kill(pid, signal.SIGKILL)


def _states(folder: Path) -> list[str]:
    stats = [Path(f"/proc/{pid}/stat") for pid in _alive(folder)]
    return [stat.read_text().rpartition(")")[2].split()[0] for stat in stats if stat.exists()]


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""

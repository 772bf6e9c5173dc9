"""The probe in a training script: what it writes, what survives a kill, and that it never disturbs the training."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from probe_made import written

from pytest_clusterqual import probe as probing
from pytest_clusterqual.errors import ClusterQualError
from pytest_clusterqual.probe import Probe, process_start
from pytest_clusterqual.read.probe import probe_files, probe_lines


@pytest.fixture(autouse=True)
def _no_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    launchers = [name for both in probing._LAUNCHERS for name in both]
    for name in (*launchers, "TORCHELASTIC_RESTART_COUNT", "CLUSTERQUAL_PROBE"):
        monkeypatch.delenv(name, raising=False)


def script(folder: Path, text: str, *, code: int, **environment: str) -> str:
    """Run a script of its own process under a probe; its standard error."""
    ran = subprocess.run(
        [sys.executable, "-c", "from pytest_clusterqual.probe import Probe\nprobe = Probe()\n" + text],
        env={**os.environ, "CLUSTERQUAL_PROBE": str(folder), **environment},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert ran.returncode == code, ran.stderr
    return ran.stderr


def test_every_span_and_mark_is_a_line(tmp_path: Path) -> None:
    probe = Probe(tmp_path)
    before = time.monotonic()
    with probe.compile():
        pass
    with probe.checkpoint("load"):
        pass
    probe.resumed(40)
    with probe.data():
        pass
    with probe.step(tokens=4096, sequences=2):
        time.sleep(0.02)
    with probe.checkpoint():
        pass
    with probe.hook('evaluation of "test"\n'):
        pass
    probe.done()
    probe.close()
    lines = written(tmp_path)
    assert [line.what for line in lines] == [
        "compile", "load", "resumed", "data", "step", "save", "hook", "done", "end",
    ]  # fmt: skip
    assert [line.step for line in lines] == [0, 0, 40, 0, 41, 41, 0, 41, 41]
    step, hook = lines[4], lines[6]
    assert (step.tokens, step.sequences, step.own, step.error, step.nested) == (4096, 2, None, "", False)
    assert hook.name == 'evaluation of "test"\n'
    assert step.seconds >= 0.02
    assert before - 1e-6 <= lines[0].at <= step.at <= step.at + step.seconds <= time.monotonic() + 1e-6


def test_the_first_line_says_whose_file_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    monkeypatch.setenv("CLUSTERQUAL_PROBE", str(tmp_path / "of this run"))
    Probe().close()
    (file,) = probe_files(tmp_path / "of this run", pytest.fail)[3]
    start = file.start
    assert (start.rank, start.world, start.restart, start.attempt, start.pid) == (3, 8, 2, 0, os.getpid())
    assert start.began < start.at <= time.monotonic()
    assert start.wall - start.at == pytest.approx(time.time() - time.monotonic(), abs=0.05)


def test_a_restarted_process_gets_a_file_of_its_own(tmp_path: Path) -> None:
    for _ in range(3):
        Probe(tmp_path, rank=1).close()
    assert [file.start.attempt for file in probe_files(tmp_path, pytest.fail)[1]] == [0, 1, 2]


def test_without_a_folder_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RANK", "not read")
    probe = Probe()
    assert not probe.on
    with pytest.raises(ZeroDivisionError), probe.data(), probe.step(tokens=1), probe.hook("x"), probe.compile():
        _ = 1 / 0
    with probe.checkpoint("load"):
        probe.resumed(3)
    assert probe.batches(loader := [1, 2]) is loader
    probe.done()
    probe.close()
    assert list(tmp_path.iterdir()) == []
    assert probe.step(tokens=1) is probe.data(), "no object is made for a span"


def test_what_is_inside_a_span_is_not_its_own(tmp_path: Path) -> None:
    probe = Probe(tmp_path)
    with probe.step():
        time.sleep(0.01)
        with probe.data():
            time.sleep(0.02)
        with probe.hook("norms"), probe.data():
            time.sleep(0.01)
    probe.close()
    data, again, hook, step, _end = written(tmp_path)
    assert [line.nested for line in (data, again, hook, step)] == [True, True, True, False]
    assert hook.own == pytest.approx(hook.seconds - again.seconds, abs=3e-6)
    assert step.own == pytest.approx(step.seconds - data.seconds - hook.seconds, abs=3e-6)


def test_batches_come_as_the_loader_gives_them_each_in_a_span(tmp_path: Path) -> None:
    class Slow:
        def __len__(self) -> int:
            return 3

        def __iter__(self) -> Iterator[int]:
            for batch in range(3):
                time.sleep(0.01)
                yield batch

    probe = Probe(tmp_path)
    batches = probe.batches(Slow())
    assert [*batches] == [*batches] == [0, 1, 2]
    assert len(batches) == 3  # type: ignore[arg-type]
    one_at_a_time = iter([7, 8, 9])
    assert [next(iter(probe.batches(one_at_a_time))) for _ in range(3)] == [7, 8, 9]
    for _ in probe.batches([1]):
        with probe.step():
            pass
    probe.close()
    *waits, wait, step, last, _end = written(tmp_path)
    assert [(line.what, line.nested) for line in (wait, step, last)] == [("data", 0), ("step", 0), ("data", 0)]
    # Each epoch asks once more, and is told that there is no other.
    assert [line.what for line in waits] == ["data"] * (4 + 4 + 3)
    assert [line.seconds >= 0.01 for line in waits] == [True, True, True, False] * 2 + [False] * 3
    assert [line.error for line in waits] == [""] * 11


def test_a_loader_that_fails_fails_as_without_a_probe(tmp_path: Path) -> None:
    def torn() -> Iterator[int]:
        yield 1
        raise OSError("file is gone")

    probe = Probe(tmp_path)
    batches = iter(probe.batches(torn()))
    assert next(batches) == 1
    with pytest.raises(OSError, match="file is gone"):
        next(batches)
    probe.close()
    assert [(line.what, line.error) for line in written(tmp_path)] == [("data", ""), ("data", "OSError"), ("end", "")]


def test_an_exception_is_written_and_goes_on(tmp_path: Path) -> None:
    probe = Probe(tmp_path)
    with probe.step():
        pass
    with pytest.raises(ConnectionError, match="peer"), probe.step(), probe.data():
        raise ConnectionError("closed by peer")
    with probe.step():
        pass
    probe.close()
    lines = written(tmp_path)
    assert [(line.what, line.step, line.error) for line in lines] == [
        ("step", 1, ""), ("data", 0, "ConnectionError"), ("step", 2, "ConnectionError"), ("step", 2, ""),
        ("end", 2, ""),
    ]  # fmt: skip


def test_a_step_may_have_the_number_that_the_script_gives_it(tmp_path: Path) -> None:
    probe = Probe(tmp_path)
    with probe.step(7):
        pass
    with probe.step():
        pass
    probe.close()
    assert [line.step for line in written(tmp_path)] == [7, 8, 8]


def test_a_wrong_kind_of_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r'^kind: got \'async\', want "save" or "load"$'):
        Probe().checkpoint("async")  # type: ignore[arg-type]


def test_sigkill_amid_a_step_loses_that_step_alone(tmp_path: Path) -> None:
    script(
        tmp_path,
        "import os, signal\n"
        "for number in range(1, 6):\n"
        "    with probe.step(tokens=10):\n"
        "        with probe.data():\n"
        "            pass\n"
        "        if number == 5:\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n",
        code=-signal.SIGKILL,
    )
    lines = written(tmp_path)
    assert [line.step for line in lines if line.what == "step"] == [1, 2, 3, 4]
    assert (len(lines), lines[-1].what) == (9, "data")


@pytest.mark.parametrize(
    ("ending", "code", "error"),
    [("", 0, ""), ("raise SystemExit(3)", 3, ""), ("raise RuntimeError('lost a peer')", 1, "RuntimeError")],
)
def test_a_process_that_ends_by_itself_says_how(tmp_path: Path, ending: str, code: int, error: str) -> None:
    script(tmp_path, ending, code=code)
    (line,) = written(tmp_path)
    assert (line.what, line.error) == ("end", error)


def test_a_forked_child_writes_nothing(tmp_path: Path) -> None:
    script(
        tmp_path,
        "import os, sys\n"
        "child = os.fork()\n"
        "with probe.hook('child' if child == 0 else 'parent'):\n"
        "    pass\n"
        "if child == 0:\n"
        "    sys.exit(0)\n"
        "os.waitpid(child, 0)\n",
        code=0,
    )
    assert [(line.what, line.name) for line in written(tmp_path)] == [("hook", "parent"), ("end", "")]


def test_a_full_disk_ends_the_writing_and_not_the_training(tmp_path: Path) -> None:
    told = script(
        tmp_path,
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "for _ in range(100):\n"
        "    with probe.step(tokens=10):\n"
        "        pass\n"
        "print('trained', file=__import__('sys').stderr)\n",
        code=0,
    )
    first, second = told.splitlines()
    assert first.startswith("clusterqual probe: ")
    assert first.endswith("; nothing more is written, training goes on")
    assert second == "trained"
    torn: list[str] = []
    lines = list(probe_lines(probe_files(tmp_path, torn.append)[0][0], torn.append))
    assert [line.step for line in lines] == list(range(1, len(lines) + 1))
    assert len(lines) > 5


def test_nobody_may_be_there_to_be_told_of_a_full_disk(tmp_path: Path) -> None:
    script(
        tmp_path,
        "import os, resource\n"
        "os.close(2)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "for _ in range(100):\n"
        "    with probe.step(tokens=10):\n"
        "        pass\n"
        "os._exit(7 if probe.on else 8)\n",
        code=8,
    )


def test_threads_write_whole_lines_and_are_background(tmp_path: Path) -> None:
    probe = Probe(tmp_path)

    def save() -> None:
        for _ in range(200):
            with probe.checkpoint(), probe.hook("staging"):
                pass

    threads = [threading.Thread(target=save) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        with probe.step(tokens=1):
            pass
    for thread in threads:
        thread.join()
    probe.close()
    lines = written(tmp_path)
    assert [line.step for line in lines if line.what == "step"] == list(range(1, 201))
    for what in ("save", "hook"):
        of_it = [line for line in lines if line.what == what]
        assert len(of_it) == 800
        assert all(line.background and line.nested == (what == "hook") for line in of_it)
    assert not any(line.background or line.nested for line in lines if line.what == "step")


@pytest.mark.parametrize(("rank", "wanted"), [("three", "got 'three'"), ("-1", "got '-1'")])
def test_a_rank_that_is_no_number_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: str, wanted: str
) -> None:
    monkeypatch.setenv("RANK", rank)
    with pytest.raises(ClusterQualError, match=f"RANK: {wanted}, want a whole number"):
        Probe(tmp_path)


def test_a_folder_that_cannot_be_written_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ClusterQualError, match=r"file/run: the probe cannot write here: .*CLUSTERQUAL_PROBE, or none"):
        Probe(tmp_path / "file" / "run")


def test_importing_it_loads_the_standard_library_and_nothing_else() -> None:
    code = (
        "import json, sys\n"
        "before = set(sys.modules)\n"
        "import pytest_clusterqual.probe\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = json.loads(ran.stdout)
    assert [name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names] == [
        "pytest_clusterqual", "pytest_clusterqual.errors", "pytest_clusterqual.probe",
    ]  # fmt: skip


def test_a_process_knows_when_it_began() -> None:
    code = (
        "import time; began = time.monotonic(); time.sleep(0.3)\n"
        "from pytest_clusterqual.probe import process_start\n"
        "print(began, process_start(), process_start(), time.monotonic())"
    )
    before = time.monotonic()
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    inside, first, second, after = map(float, answer)
    tick = 1.5 / os.sysconf("SC_CLK_TCK")
    assert before - tick <= first <= inside + tick
    # By two clocks that are read one after the other.
    assert first == pytest.approx(second, abs=max(after - inside - 0.3, 1e-3))


def test_without_the_system_s_word_a_process_begins_now(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_path: Path) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", absent)
    assert process_start() == pytest.approx(time.monotonic(), abs=0.05)

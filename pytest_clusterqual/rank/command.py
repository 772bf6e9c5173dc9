"""Beside each rank of a user's own command: start it, hurt it where that is wanted, and tell how it ended.

The command is a process of its own, so it runs as it would without this one. What is told goes into the folder of the
run, which all nodes and the session see: it outlives the processes, and no import of torch is paid for it.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import signal
import socket
import sys
import time
from collections.abc import Sequence
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NoReturn

from pytest_clusterqual.errors import ClusterQualError
from pytest_clusterqual.model.codec import to_json
from pytest_clusterqual.model.command import BESIDE, OUTPUT, PROBES, RankEnd, RankStart, probed_bytes
from pytest_clusterqual.probe import FOLDER
from pytest_clusterqual.rank.blows import Blow, end_in_order
from pytest_clusterqual.rank.control_groups import cgroup_limit, identity, out_of_memory_kills, proc_bytes
from pytest_clusterqual.rank.descendants import peak
from pytest_clusterqual.rank.load import LoadWatch
from pytest_clusterqual.rank.settings import Settings

ORDER = "CLUSTERQUAL_COMMAND"
# What a training script is likely to stand on; another version of it is another job.
_PACKAGES = (
    "torch", "pytest_clusterqual", "transformers", "accelerate", "lightning", "deepspeed", "megatron-core", "torchtitan"
)  # fmt: skip
_LOOK_SECONDS = 0.01  # between two looks at the steps of a rank that is to be hurt
_MEMORY_SECONDS = 1.0  # between two looks at the memory of what it has started
_LAST_LINES = 3000


def run(words: Sequence[str]) -> NoReturn:
    """Run `words` to their end and leave as they did.

    Raises:
        ClusterQualError: this node does not see the folder of the run, or the one where the command is to run.
    """
    settings = Settings.from_environment()
    order: dict[str, Any] = json.loads(os.environ.pop(ORDER))
    os.environ.pop("CLUSTERQUAL_SECRET")  # between session and ranks; no business of a script
    folder, home = Path(order["folder"]), Path(order["home"])
    _check_seen(settings.node, folder, home)
    if settings.cores:
        os.sched_setaffinity(0, settings.cores)
    name = _next_name(folder / BESIDE, settings.rank)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGTERM})
    output = folder / OUTPUT / f"rank{settings.rank}.log"
    kills, watch = out_of_memory_kills(), LoadWatch()
    child = _start(words, home, order["environment"], folder, output)
    _write(folder / BESIDE / f"{name}.start.json", _told(settings, name, words, home, child))
    blow = Blow.planned(order, folder, settings, name)
    status, usage, below = _wait(child, blow)
    ended = time.monotonic()
    code = os.waitstatus_to_exitcode(status)
    said = _tail(output) if code else ""
    end = RankEnd(
        code=code,
        ended=ended,
        out_of_memory=code == -signal.SIGKILL and out_of_memory_kills() > kills,
        host_peak=max(usage.ru_maxrss * 1024, below),
        probed=probed_bytes(folder / PROBES, settings.rank),
        taken=watch.taken(usage.ru_utime + usage.ru_stime),
        said=said,
    )
    _write(folder / BESIDE / f"{name}.end.json", end)
    if said:
        print(f"rank {settings.rank}, last lines of its output:\n{said}", file=sys.stderr)
    sys.exit(code if code >= 0 else 128 - code)


def _check_seen(node: str, folder: Path, home: Path) -> None:
    if not (folder / BESIDE).is_dir():  # the session has made it
        raise ClusterQualError(
            f"{node} does not see the folder of this run, {folder}: put the run folder on storage that all nodes "
            "share, with --qual-run-dir"
        )
    if not home.is_dir():
        raise ClusterQualError(f"{node} has no folder {home}: the command is to run there on every node")


def _next_name(beside: Path, rank: int) -> str:
    attempt = 0
    while (beside / f"rank{rank}-attempt{attempt}.start.json").exists():
        attempt += 1
    return f"rank{rank}-attempt{attempt}"


def _start(words: Sequence[str], home: Path, environment: dict[str, str], folder: Path, output: Path) -> int:
    """Fork, and become the command in the child, which goes when this process goes."""
    parent = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD, signal.SIGTERM})
        os.chdir(home)
        out = os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.dup2(out, 1)
        os.dup2(out, 2)
        hidden = {} if os.environ["CLUSTERQUAL_DEVICE"] == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}
        everything = {**os.environ, **hidden, **environment, FOLDER: str(folder / PROBES)}
        os.execve(sys.executable, [sys.executable, *words], everything)
    except OSError as error:
        print(f"cannot start {words[0]}: {error}", file=sys.stderr)
    os._exit(127)


def _wait(child: int, blow: Blow | None) -> tuple[int, Any, int]:
    """Pass SIGTERM on, as the agent sends it, until the command has ended.

    Returns:
        Its status, what it and what it reaped used, and the largest peak seen of a process below it, bytes: one that
        nobody reaps is in no account of the kernel.
    """
    below, looked = 0, time.monotonic()
    while True:
        caught = signal.sigtimedwait({signal.SIGCHLD, signal.SIGTERM}, _LOOK_SECONDS if blow else _MEMORY_SECONDS)
        if time.monotonic() - looked >= _MEMORY_SECONDS:
            below, looked = max(below, peak(child)), time.monotonic()
        if caught is not None and caught.si_signo == signal.SIGTERM:
            end_in_order(child)
        if blow is not None and blow.over(child):
            blow = None
        pid, status, usage = os.wait4(child, os.WNOHANG)
        if pid:
            return status, usage, below


def _told(settings: Settings, name: str, words: Sequence[str], home: Path, child: int) -> RankStart:
    proc = Path("/proc")
    limit = cgroup_limit(proc / "self" / "cgroup", Path("/sys/fs/cgroup"))
    return RankStart(
        rank=settings.rank, local_rank=settings.local_rank, world=settings.world_size,
        attempt=int(name.partition("attempt")[2]), node=settings.node, host=socket.gethostname(), pid=child,
        device=f"cuda:{settings.local_rank}" if settings.device == "cuda" else "cpu",
        cores=tuple(sorted(os.sched_getaffinity(0))), versions=_versions(), script=_digest(words, home),
        machine_memory=proc_bytes(proc / "meminfo", "MemTotal", "the memory of this machine is unknown"),
        group_memory=limit[0] if limit else None, group=identity(limit[1], proc) if limit else "",
        began=time.monotonic(),
    )  # fmt: skip


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _digest(words: Sequence[str], home: Path) -> str:
    """Of the script, or of the module's own file."""
    path = _module_file(words[1], home) if words[0] == "-m" else home / words[0]
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path else ""
    except OSError:
        return ""


def _module_file(name: str, home: Path) -> Path | None:
    """Found without importing the packages around it, which may take seconds."""
    places: Sequence[str] | None = [str(home), *sys.path]
    found = None
    for part in name.split("."):
        found = PathFinder.find_spec(part, places)
        if found is None:
            return None
        places = list(found.submodule_search_locations or [])
    if found is None or found.origin is None:
        return None
    return Path(places[0]) / "__main__.py" if places else Path(found.origin)


def _tail(output: Path) -> str:
    with output.open("rb") as file:
        file.seek(max(0, output.stat().st_size - _LAST_LINES))
        return file.read().decode(errors="replace").strip()


def _write(path: Path, words: RankStart | RankEnd) -> None:
    """Whole or not at all: the session may be reading."""
    made = path.with_suffix(".part")
    made.write_text(json.dumps(to_json(words)), encoding="utf-8")
    made.rename(path)

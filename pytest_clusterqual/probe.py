"""Where the time of a training script goes, written down by the script itself.

    from pytest_clusterqual.probe import Probe

    probe = Probe()                          # writes into the folder that CLUSTERQUAL_PROBE names
    ...
        with probe.data():
            batch = next(batches)
        with probe.step(tokens=65_536):
            train(batch)

Without a folder nothing is written and a span costs a function call, so the lines may stay in. Each process
appends to a file of its own, one line as each span ends: a process killed at any moment loses the spans that were
open, no other. Times are seconds of the host's monotonic clock; the first line ties it to the wall clock.

Standard library only, and safe to use from several threads. `clusterqual import probe` reads the folder.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import platform
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Generic, Literal, TypeVar

from pytest_clusterqual.errors import ClusterQualError

VERSION = 1  # of the lines
FOLDER = "CLUSTERQUAL_PROBE"
# Who tells a process its rank and the size of its world. Inside of an allocation MPI's launchers are started by srun.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)  # fmt: skip
_LONGEST = 1000  # characters of a name: who reads the lines refuses very long ones
_NOTHING = contextlib.nullcontext()
_Batch = TypeVar("_Batch")


class Probe:
    """One process of a training run; make it early, once.

    `folder` is one for all ranks and all restarts of a run, by default what CLUSTERQUAL_PROBE names; without
    either the probe is off. `rank` is by default RANK of the environment, as torchrun sets it, else what mpirun or srun
    tell, else 0.

    What the thread that made the probe does is the run; spans of other threads are its background. A forked
    child writes nothing. A disk that fills up or fails ends the writing, never the training.

    Raises:
        ClusterQualError: the folder cannot be written, or `rank` or a variable of the environment is no number.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, *, rank: int | None = None) -> None:
        self._file: int | None = None
        self._done = 0
        self._threads = _Threads()
        self._home = self._threads.open
        self._saving: deque[int] = deque()  # steps whose saves have begun, and were not told to be complete
        if chosen := folder or os.environ.get(FOLDER):
            told, world = _place()
            self._begin(Path(chosen), told if rank is None else _whole("Probe(rank=...)", str(rank)), world)

    @property
    def on(self) -> bool:
        """Whether anything is written."""
        return self._file is not None

    def step(
        self, number: int | None = None, *, tokens: int | None = None, sequences: int | None = None
    ) -> contextlib.AbstractContextManager[object]:
        """One optimizer step. `tokens` and `sequences` are those of the whole job, over all ranks.

        `number` counts from 1; by default it is one more than that of the last step that ended, see `resumed`.
        """
        if self._file is None:
            return _NOTHING
        number = self._done + 1 if number is None else int(number)
        rest = f',"step":{number}'
        if tokens is not None:
            rest += f',"tokens":{int(tokens)}'
        if sequences is not None:
            rest += f',"sequences":{int(sequences)}'
        return _Span(self, "step", rest, number)

    def data(self) -> contextlib.AbstractContextManager[object]:
        """Waiting for the next batch."""
        return _NOTHING if self._file is None else _Span(self, "data", "")

    def batches(self, loader: Iterable[_Batch]) -> Iterable[_Batch]:
        """What `loader` gives, with the wait for each batch in a span of `data`; the loader itself while it is off."""
        return loader if self._file is None else _Batches(self, loader)

    def checkpoint(self, kind: Literal["save", "load"] = "save") -> contextlib.AbstractContextManager[object]:
        """Saving a checkpoint, or loading one. In a thread of its own a save is told, and not taken for blocking.

        Raises:
            ValueError: another `kind`.
        """
        if kind not in ("save", "load"):
            raise ValueError(f'kind: got {kind!r}, want "save" or "load"')
        if self._file is None:
            return _NOTHING
        step, saves = self._done, kind == "save" and self._threads.open is self._home
        if saves:
            self._saving.append(step)
        return _Span(self, kind, f',"step":{step}', save=step if saves else None)

    def compile(self) -> contextlib.AbstractContextManager[object]:
        """Compiling, tuning, and whatever else happens only until the job is warm."""
        return _NOTHING if self._file is None else _Span(self, "compile", "")

    def hook(self, name: str) -> contextlib.AbstractContextManager[object]:
        """Anything else that has a name: evaluation, logging, garbage collection."""
        return _NOTHING if self._file is None else _Span(self, "hook", f',"name":{_text(name)}')

    def resumed(self, step: int) -> None:
        """Training goes on after `step`, as a checkpoint has it; later steps that were done before are lost."""
        if self._file is not None:
            self._done = int(step)
            self._mark("resumed", self._done)

    def stage(self, name: str, at: float | None = None) -> None:
        """Within a step: the part of it with this name is over, such as the forward pass; now, or `at` that time.

        Where ranks do not wait for each other before, it shows which of them came last. `at` is in seconds of
        `time.monotonic`, for work that a device tells of later; where that is not finite, nothing is written.
        """
        if self._file is not None and (at is None or math.isfinite(at)):
            self._mark("stage", self._done + 1, f',"name":{_text(name)}', at)

    def loss(self, value: float) -> None:
        """The loss of the last step that ended."""
        if self._file is not None:  # a loss may be on a device, which would have to be waited for
            self._mark("loss", self._done, f',"value":{_finite(value)}')

    def saved(self, step: int | None = None, *, size: int = 0) -> None:
        """This rank's part of the checkpoint of `step` is complete, `size` bytes of it.

        To be called where a background save ends, from whatever thread; a save that blocks is complete when it ends.
        `step` is by default that of the oldest save which is not yet complete; name it where a save may fail.
        """
        self._mark("saved", self._completed(step), f',"value":{int(size)}')

    def fault(self, name: str) -> None:
        """This process is about to be hurt on purpose; what its failure costs is counted from here."""
        self._mark("fault", self._done + 1, f',"name":{_text(name)}')

    def extra(self, size: int, step: int | None = None) -> None:
        """Host memory that the save of `step` (default: the last one) took until it was complete, bytes."""
        self._mark("extra", self._done if step is None else int(step), f',"value":{int(size)}')

    def done(self) -> None:
        """The work is finished; what follows is tidying up."""
        self._mark("done", self._done)

    def close(self) -> None:
        """Write that this process ends, and the most memory it had; happens by itself at the end of the interpreter."""
        if self._file is None:
            return
        raised = sys.exc_info()[0] or getattr(sys, "last_type", None)
        self._mark("end", self._done, f"{_peaks()}{_error(raised)}")
        self._let_go()
        atexit.unregister(self.close)

    def _completed(self, step: int | None) -> int:
        """The step whose save is complete, which is under way no more."""
        with contextlib.suppress(IndexError, ValueError):
            if step is None:
                return self._saving.popleft()
            self._saving.remove(step)
        return self._done if step is None else int(step)

    def _begin(self, folder: Path, rank: int, world: int) -> None:
        start = {
            "probe": VERSION, "rank": rank, "world": world, "host": platform.node(),
            "clock": _clock(), "pid": os.getpid(), "restart": _number("TORCHELASTIC_RESTART_COUNT", 0),
        }  # fmt: skip
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file, start["attempt"] = _new_file(folder, rank)
        except OSError as error:
            raise ClusterQualError(
                f"{folder}: the probe cannot write here: {error.strerror}; name another folder in {FOLDER}, or none"
            ) from error
        start |= {"began": round(process_start(), 6), "at": time.monotonic(), "wall": time.time()}
        self._write(json.dumps(start, separators=(",", ":")) + "\n")
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._let_go)

    def _mark(self, what: str, step: int, rest: str = "", at: float | None = None) -> None:
        if self._file is not None:
            at = time.monotonic() if at is None else at
            self._write(f'{{"what":"{what}","at":{at:.6f},"step":{step}{rest}}}\n')

    def _write(self, line: str) -> None:
        file = self._file
        if file is None:
            return
        encoded = line.encode()
        try:
            if os.write(file, encoded) == len(encoded):
                return
            why = "no space left"
        except OSError as error:
            why = str(error.strerror)
        self._let_go()
        with contextlib.suppress(OSError, ValueError):  # standard error may be closed
            print(f"clusterqual probe: {why}; nothing more is written, training goes on", file=sys.stderr)

    def _let_go(self) -> None:
        # Not closed: another thread may be about to write, and by then the number could be another file's.
        self._file = None


class _Open:
    """The spans that are open in one thread, in the order they began. Its seconds are those of the last of them."""

    def __init__(self) -> None:
        self._spans: list[_Span] = []
        self._since = 0.0  # until when its seconds are counted

    def enter(self, span: _Span, now: float) -> None:
        self._count(now)
        self._spans.append(span)

    def leave(self, span: _Span, now: float) -> bool:
        """Whether it was inside another one. Spans of coroutines and generators may end in any order."""
        self._count(now)
        outermost = self._spans[0] if self._spans else span
        if span in self._spans:  # one that is left twice is no reason to end a training
            self._spans.remove(span)
        return outermost is not span

    def _count(self, now: float) -> None:
        if self._spans:
            self._spans[-1].own += now - self._since
        self._since = now


class _Threads(threading.local):
    def __init__(self) -> None:
        self.open = _Open()


class _Span:
    """Seconds between entering and leaving, and how many of them are its `own`: in which it was the last to begin."""

    __slots__ = ("_number", "_open", "_probe", "_rest", "_save", "_start", "_what", "own")

    def __init__(
        self, probe: Probe, what: str, rest: str, number: int | None = None, *, save: int | None = None
    ) -> None:
        self._probe, self._what, self._rest, self._number, self._save = probe, what, rest, number, save

    def __enter__(self) -> None:
        self._open, self.own = self._probe._threads.open, 0.0
        self._start = time.monotonic()
        self._open.enter(self, self._start)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        now = time.monotonic()
        probe, rest, seconds = self._probe, self._rest, now - self._start
        nested = self._open.leave(self, now)
        if self.own < seconds:
            rest = f',"own":{self.own:.6f}{rest}'
        if nested:
            rest += ',"nested":true'
        if kind is not None:
            rest += _error(kind)
            if self._save is not None:
                probe._completed(self._save)  # nothing of it is under way
        elif self._number is not None:
            probe._done = self._number
        if self._open is not probe._home:
            rest += ',"background":true'
        probe._write(f'{{"what":"{self._what}","at":{self._start:.6f},"seconds":{seconds:.6f}{rest}}}\n')


class _Batches(Generic[_Batch]):
    """As often iterable as its loader is, and as long."""

    __slots__ = ("_loader", "_probe")

    def __init__(self, probe: Probe, loader: Iterable[_Batch]) -> None:
        self._probe, self._loader = probe, loader

    def __iter__(self) -> Iterator[_Batch]:
        ended = object()
        with self._probe.data():  # a loader may start processes first
            batches = iter(self._loader)
            batch = next(batches, ended)
        while batch is not ended:
            yield batch  # type: ignore[misc]
            with self._probe.data():
                batch = next(batches, ended)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]


def process_start() -> float:
    """When this process began, in seconds of the monotonic clock; now, where the system does not tell."""
    now = time.monotonic()
    try:
        # The command's name may hold blanks and brackets; the numbers begin after its last bracket.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        since_boot = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot
    except (OSError, ValueError, IndexError, AttributeError):
        return now
    return now - age if age >= 0 else now


def _clock() -> str:
    """What names the monotonic clock: only times of the same boot of the same host can be subtracted."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return platform.node()


def _new_file(folder: Path, rank: int) -> tuple[int, int]:
    """The first attempt of this rank that has no file yet: restarts of a scheduler are not counted by torchrun."""
    attempt = 0
    while True:
        path = folder / f"rank{rank}-attempt{attempt}.jsonl"
        try:
            return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644), attempt
        except FileExistsError:
            attempt += 1


def _place() -> tuple[int, int]:
    """Rank and size of the world, both from the same launcher; 0 where it does not tell."""
    rank, world = next((names for names in _LAUNCHERS if os.environ.get(names[0])), _LAUNCHERS[0])
    return _number(rank, 0), _number(world, 0)


def _number(variable: str, fallback: int) -> int:
    return _whole(variable, os.environ.get(variable) or str(fallback))


def _whole(where: str, text: str) -> int:
    if not text.isdecimal() or len(text) > 18:
        raise ClusterQualError(f"{where}: got {text!r}, want a whole number, as torchrun and other launchers set it")
    return int(text)


def _error(kind: type[BaseException] | None) -> str:
    return "" if kind is None else f',"error":{_text(kind.__name__)}'


def _text(name: object) -> str:
    """A name as every reader of JSON takes it: not endless, and without halves of characters."""
    return json.dumps(str(name)[:_LONGEST].encode(errors="replace").decode())


def _finite(value: float) -> str:
    """A number as JSON has it, which knows neither infinity nor what is no number."""
    number = float(value)
    return repr(number) if math.isfinite(number) else "null"


def _peaks() -> str:
    """The most memory that this process had: resident on the host, and on its device where torch used one."""
    found = {"host_peak": _host_peak(), "device_peak": _device_peak()}
    return "".join(f',"{name}":{size}' for name, size in found.items() if size is not None)


def _host_peak() -> int | None:
    try:
        line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    except (OSError, StopIteration, ValueError, IndexError):
        return None


def _device_peak() -> int | None:
    """The most that torch reserved on any device, if the script has imported it and used one."""
    torch = sys.modules.get("torch")
    try:
        if torch is None or not torch.cuda.is_initialized():
            return None
        # Not of the current one alone: a script may name its device in each call.
        return max(int(torch.cuda.max_memory_reserved(device)) for device in range(torch.cuda.device_count()))
    except Exception:  # whatever is wrong with the device, the script's end is no place to tell
        return None

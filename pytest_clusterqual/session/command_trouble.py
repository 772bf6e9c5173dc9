"""From what the processes beside the ranks of a command have written to one error that names who failed."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from pytest_clusterqual import units
from pytest_clusterqual.errors import JobError
from pytest_clusterqual.launch.agents import Launch
from pytest_clusterqual.launch.process import how_it_ended
from pytest_clusterqual.model.codec import from_json
from pytest_clusterqual.model.command import BESIDE, OUTPUT, PROBES, CommandProcess, RankEnd, RankStart
from pytest_clusterqual.session.trouble import tells_of_a_lost_peer

_NAME = re.compile(r"rank(\d+)-attempt(\d+)\.start\.json")
_PROBE = re.compile(r"rank(\d+)-attempt(\d+)\.jsonl")
_FAULT = re.compile(rb'"what": ?"fault"')
_LOOK_SECONDS = 0.05
# The processes beside the ranks tell how these ended while the agent is leaving, into storage that may be far away.
_NOTE_SECONDS = 3.0
_LAST_LINES = 3000  # bytes
_LAST_BYTES = 4096
_LOST, _RAISED, _KILLED = range(3)  # what the end of a rank is evidence of, weakest first
_MOST_OTHERS = 3
# What torch's allocators and the C library say at the end of a traceback.
_REFUSED = re.compile(r"OutOfMemoryError|DefaultCPUAllocator: can't allocate|MemoryError|std::bad_alloc")


def steps_done(probes: Path) -> dict[int, int]:
    """rank -> the last step that its probe's newest file tells of, from the end of the file."""
    newest: dict[int, tuple[int, Path]] = {}
    for path in probes.iterdir():
        if match := _PROBE.fullmatch(path.name):  # what else is in there its reader tells of
            rank, attempt = int(match[1]), int(match[2])
            newest[rank] = max(newest.get(rank, (-1, path)), (attempt, path))
    return {rank: _last_step(path) for rank, (_, path) in newest.items()}


def _last_step(path: Path) -> int:
    steps = re.findall(rb'"step":(\d+)', _end_of(path, _LAST_BYTES))
    return int(steps[-1]) if steps else 0


def _end_of(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - size))
        return file.read(size)


def struck(probes: Path) -> bool:
    """Whether a failure on purpose has struck by now; the command may have gone on for any number of lines since."""
    return any(_has_fault(path) for path in probes.glob("rank*-attempt*.jsonl"))


def _has_fault(path: Path) -> bool:
    with path.open("rb") as lines:
        return any(_FAULT.search(line) for line in lines)


def processes_of(folder: Path) -> dict[int, tuple[CommandProcess, ...]]:
    """rank -> its processes, first to last, as far as they have told by now."""
    found: dict[int, list[CommandProcess]] = {}
    named = sorted(
        (int(match[1]), int(match[2]), path)
        for path in (folder / BESIDE).iterdir()
        if (match := _NAME.match(path.name))
    )
    for rank, _attempt, path in named:
        ending = path.with_name(path.name.replace(".start.", ".end."))
        start = from_json(RankStart, json.loads(path.read_text(encoding="utf-8")), where=path.name)
        end = None
        if ending.exists():
            end = from_json(RankEnd, json.loads(ending.read_text(encoding="utf-8")), where=ending.name)
        found.setdefault(rank, []).append(CommandProcess(start=start, end=end))
    return {rank: tuple(processes) for rank, processes in found.items()}


def failure_of(launch: Launch, folder: Path, what: str, limit: float | None) -> JobError:
    """Name who failed, strongest evidence first: a lost node, a killed rank, one that raised by itself, one behind.

    `limit` is the seconds after which it was ended, None if it ended by itself.
    """
    lost = [p for p in launch.ended() if p.event("ended") is None] if limit is None else []
    last = _last_words(folder, any_ended=limit is None and not lost)
    bad = [process for process in last if process.end is not None and process.end.code]
    ended = f"did not end within its limit of {units.show(limit, units.SECONDS)}" if limit is not None else "failed"
    if lost:
        return JobError(
            f"{what} {ended}: " + "; ".join(launch.why(p) or f"{p.node.name} went away" for p in lost)
            + f"\nlast lines of {lost[0].node.name}:\n{lost[0].tail(3000).strip()}",
            culprits=[process.node.name for process in lost],
        )  # fmt: skip
    if limit is not None and not bad:
        return _late(last, folder, f"{what} {ended}", limit)
    guilty, others = _apart([process for process in bad if process.end and process.end.code != -signal.SIGTERM])
    if not guilty:
        return _not_begun(launch, last, f"{what} {ended}")
    told = [f"{process} {_how(process.end)}" for process in guilty if process.end]
    shown = next((p for p in (*guilty, *others) if p.end and p.end.said), None)
    lines = f"\nlast lines of {shown}:\n{shown.end.said}" if shown and shown.end else ""
    return JobError(
        f"{what} {ended}: {'; '.join(told)}{_besides(others)}{lines}", culprits=[str(process) for process in guilty],
        out_of_memory="; ".join(told) if all(p.end and _no_memory(p.end) for p in guilty) else "",
    )  # fmt: skip


def _apart(bad: Sequence[CommandProcess]) -> tuple[list[CommandProcess], list[CommandProcess]]:
    """Who failed by itself, and the others: by the strongest evidence, and on one host by who ended first."""
    if not bad:
        return [], []
    strength = [_strength(process.end) for process in bad if process.end]
    guilty = [process for process, its in zip(bad, strength, strict=True) if its == max(strength)]
    if max(strength) == _RAISED and not all(process.end and _no_memory(process.end) for process in guilty):
        # An error that reads like one of a lost peer may be the rank's own: then it came before the others.
        first = min(bad, key=_ended_at)
        if len({process.start.host for process in bad}) == 1 and _ended_at(first) < min(map(_ended_at, guilty)):
            guilty = [first, *guilty]
    others = [process for process in bad if process not in guilty]
    return guilty, sorted(others, key=lambda process: -_strength(process.end) if process.end else 0)


def _strength(end: RankEnd) -> int:
    """A watchdog aborts a rank that has lost its peer, so SIGABRT says no more than an error that tells of that."""
    if end.code < 0 and end.code != -signal.SIGABRT:
        return _KILLED
    return _RAISED if end.code > 0 and not tells_of_a_lost_peer(end.said) else _LOST


def _ended_at(process: CommandProcess) -> float:
    assert process.end is not None
    return process.end.ended


def _besides(others: Sequence[CommandProcess]) -> str:
    """The first few of those that ended badly as well; who raised by itself comes first."""
    if not others:
        return ""
    told = "; ".join(f"{process} {_how(process.end)}" for process in others[:_MOST_OTHERS] if process.end)
    left = len(others) - _MOST_OTHERS
    return f"; besides, {told}" + (f"; and {left} more" if left > 0 else "")


def _not_begun(launch: Launch, last: Sequence[CommandProcess], what: str) -> JobError:
    """Nobody's command ended badly, so a process beside one did: its node's log tells why."""
    begun = {process.start.node for process in last}
    missing = [process for process in launch.processes if process.node.name not in begun] or launch.processes
    names = [process.node.name for process in missing]
    return JobError(
        f"{what}: it did not begin on {', '.join(names)}\nlast lines of {names[0]}:\n{missing[0].tail(3000).strip()}",
        culprits=names,
    )


def _late(last: Sequence[CommandProcess], folder: Path, what: str, limit: float) -> JobError:
    if not last:
        return JobError(f"{what}: no rank has begun; what needs longer to start gets it with launcher.start_timeout")
    done = steps_done(folder / PROBES)
    behind = [process for process in last if done.get(process.start.rank, 0) < max(done.values(), default=0)]
    names = "; ".join(f"{process} has done {done.get(process.start.rank, 0)} steps" for process in behind or last)
    first = (behind or last)[0]
    return JobError(
        f"{what}: {names}; a run that needs longer gets it with workload.time_limit, now "
        f"{units.show(limit, units.SECONDS)}\nlast lines of {first}:\n{_printed(folder, first.start.rank)}",
        culprits=[str(process) for process in behind],
    )


def _printed(folder: Path, rank: int) -> str:
    output = folder / OUTPUT / f"rank{rank}.log"
    text = _end_of(output, _LAST_LINES) if output.exists() else b""
    return text.decode(errors="replace").strip() or "none"


def _last_words(folder: Path, *, any_ended: bool) -> list[CommandProcess]:
    """The last process of each rank, once those that ended badly have told so."""
    deadline = time.monotonic() + (_NOTE_SECONDS if any_ended else 0.0)
    while True:
        last = [processes[-1] for _, processes in sorted(processes_of(folder).items())]
        ended_badly = any(process.end and process.end.code for process in last)
        if (ended_badly and all(process.end for process in last)) or time.monotonic() > deadline:
            return last
        time.sleep(_LOOK_SECONDS)


def _how(end: RankEnd) -> str:
    if end.out_of_memory:
        return "was killed by the kernel for want of memory (SIGKILL, out of memory)"
    said = end.said.splitlines()[-1].strip() if end.said and end.code > 0 else ""
    return how_it_ended(end.code) + (f": {said}" if said else "")


def _no_memory(end: RankEnd) -> bool:
    return end.out_of_memory or (end.code > 0 and bool(_REFUSED.search(end.said)))

"""The one place where the session's processes are started and ended."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_clusterqual.errors import LaunchError
from pytest_clusterqual.launch.plan import NodePlan

# Guards tell of their node every second; a host under heavy load may fall behind by a few.
SILENCE_SECONDS = 20.0
_AGENT_SAW = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: (\d+)\)")


@dataclass(frozen=True, slots=True)
class Event:
    """Something a guard said: began, ended, failed; `data` as it was sent."""

    name: str
    data: dict[str, Any]


class NodeProcess:
    """The guard of one node, as the session sees it: a lifeline, events and a log file."""

    def __init__(self, node: NodePlan, argv: Sequence[str], order: dict[str, Any], log: Path) -> None:
        self.node = node
        self.log = log
        self._buffer = b""
        self.events: list[Event] = []
        self.samples: list[dict[str, Any]] = []
        self.heard = time.monotonic()
        try:
            with log.open("wb") as output:
                # A session of its own: Ctrl-C in the terminal reaches pytest alone, which ends the rest in order.
                self._process = subprocess.Popen(
                    list(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, start_new_session=True
                )
        except OSError as error:
            raise LaunchError(f"{node.name}: cannot start {argv[0]}: {error.strerror}") from None
        assert self._process.stdin is not None and self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            pass  # it is gone already; poll() and its log tell the rest

    def poll(self) -> int | None:
        """Read what the guard said; return its exit code once it has ended."""
        code = self._process.poll()
        assert self._process.stdout is not None
        while chunk := self._process.stdout.read(65536):
            self._buffer += chunk
            self.heard = time.monotonic()
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            try:
                data = json.loads(line)
                name = data.pop("event")
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # not the guard's word: a login banner, say; it is in nobody's way
            if name == "sample":
                self.samples.append(data)
            else:
                self.events.append(Event(name, data))
        return code

    @property
    def silent(self) -> bool:
        """True if a guard that was heard of has told nothing for too long: its host hangs, or the way to it is cut."""
        return self.event("began") is not None and time.monotonic() - self.heard > SILENCE_SECONDS

    def keep_alive(self) -> None:
        """Give the guard a sign of life; one that cannot be had is for `poll` to find out."""
        self._say(b"\n")

    def rank_states(self, timeout: float) -> dict[int, str] | None:
        """local rank -> what it is doing by the kernel's word; None if the guard does not answer in time."""
        self._say(b"?")
        deadline = time.monotonic() + timeout
        while (answer := self.event("ranks")) is None:
            if self.poll() is not None or time.monotonic() > deadline:
                return None
            time.sleep(0.02)
        return {int(rank): str(state) for rank, state in answer.data["states"].items()}

    def _say(self, word: bytes) -> None:
        assert self._process.stdin is not None
        try:
            os.write(self._process.stdin.fileno(), word)
        except (OSError, ValueError):
            pass

    def event(self, name: str) -> Event | None:
        """The first event of that name so far."""
        return next((event for event in self.events if event.name == name), None)

    def agent_saw(self) -> dict[int, int]:
        """local rank -> exit code of the ranks whose end the torchrun agent noted in its log."""
        found = _AGENT_SAW.findall(self.tail(200_000))
        return {int(local_rank): int(code) for code, local_rank, _pid in found}

    def tail(self, size: int = 2000) -> str:
        """The end of what agent and ranks printed on this node."""
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - size))
            return file.read().decode(errors="replace")

    def release(self) -> None:
        """Cut the lifeline: the guard kills what is below it and leaves."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except OSError:
            pass

    def reap(self, deadline: float) -> None:
        """Wait until `deadline` (monotonic) for the guard to leave, then kill it."""
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self.poll()
        assert self._process.stdout is not None
        self._process.stdout.close()


def how_it_ended(code: int) -> str:
    """An exit code in words; negative for a signal."""
    if code >= 0:
        return f"left with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _piped(argv: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a command with pipes to its three streams; reading what it says never waits."""
    try:
        process = subprocess.Popen(
            list(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
    except OSError as error:
        raise LaunchError(f"cannot start {argv[0]}: {error.strerror}") from None
    assert process.stdout is not None and process.stderr is not None
    for stream in (process.stdout, process.stderr):
        os.set_blocking(stream.fileno(), False)
    return process


class Held:
    """A command that holds something (an allocation) for as long as its standard input is open."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._process = _piped(argv)
        self.said = ""
        self.complained = ""

    def poll(self) -> int | None:
        """Read what it printed into `said` and `complained`; return its exit code once it has ended."""
        code = self._process.poll()
        assert self._process.stdout is not None and self._process.stderr is not None
        self.said += (self._process.stdout.read() or b"").decode(errors="replace")
        self.complained += (self._process.stderr.read() or b"").decode(errors="replace")
        return code

    def release(self, *, grace: float = 10.0) -> None:
        """Let go. May be called again."""
        process = self._process
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdin.close()
        try:
            process.wait(grace)
        except subprocess.TimeoutExpired:
            process.terminate()  # salloc passes it on and gives the allocation back
            try:
                process.wait(grace)
            except subprocess.TimeoutExpired:
                process.kill()  # Slurm then notices by itself that nobody holds the allocation
                process.wait()
        process.stdout.close()
        process.stderr.close()


@dataclass(frozen=True, slots=True)
class Output:
    """What a short command said; `code` is None if it did not end in time."""

    code: int | None
    out: str
    err: str


def ask(argv: Sequence[str], *, timeout: float, told: str = "") -> Output:
    """Run a short command of this machine to its end; `told` is its standard input."""
    try:
        done = subprocess.run(
            list(argv), input=told, capture_output=True, timeout=timeout, text=True, errors="replace", check=False
        )
    except subprocess.TimeoutExpired:
        return Output(None, "", f"{argv[0]} did not end within {timeout:g} s")
    except OSError as error:
        raise LaunchError(f"cannot start {argv[0]}: {error.strerror}") from None
    return Output(done.returncode, done.stdout, done.stderr)


class Dialogue:
    """A command that is spoken with line by line."""

    def __init__(self, argv: Sequence[str], first: bytes) -> None:
        """Start it and send `first`."""
        self._process = _piped(argv)
        self._unread = b""
        self._complained = b""
        self.send(first)

    def send(self, data: bytes) -> None:
        """Write to it; whoever is gone already is found out by `line`."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
            self._process.stdin.flush()
        except OSError:
            pass

    @property
    def over(self) -> bool:
        """True once it has ended; lines it said before may still be unread."""
        return self._process.poll() is not None

    def line(self, deadline: float) -> str | None:
        """Its next line; None if it ended or said none until `deadline` (monotonic)."""
        assert self._process.stdout is not None and self._process.stderr is not None
        while b"\n" not in self._unread:
            ended = self._process.poll() is not None
            self._complained += self._process.stderr.read() or b""
            said = self._process.stdout.read()
            self._unread += said or b""
            if not said:
                if ended or time.monotonic() > deadline:
                    return None
                select.select([self._process.stdout, self._process.stderr], [], [], 0.02)
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode(errors="replace")

    def end(self) -> tuple[int | None, str]:
        """End it; its exit code if it had ended by itself, and what it complained about."""
        code = self._process.poll()
        if code is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        _said, complained = self._process.communicate()
        return code, (self._complained + (complained or b"")).decode(errors="replace")

"""What `clusterqual doctor` asks of a host before anything is started there, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class Space:
    """One file system: bytes in all, and bytes that this user may still write."""

    path: str
    total: int
    free: int


@dataclass(frozen=True, kw_only=True, slots=True)
class HostCheck:
    """One host as the user who starts ranks finds it. None where it could not be told; `unread` says why.

    `torch` and `package` are the versions that `executable` would import, None where it finds none.
    `open_files`, its hard limit and `memlock` (bytes) are infinite without a limit. `cpus` are the
    logical CPUs this user may use, counted. `reverse_dns` is the seconds a reverse lookup of the
    host's own address takes; it was given up after five. `clock_offset` is the seconds the
    host's clock is ahead, known to +- `clock_error`. `boot` differs whenever the machine does.
    """

    node: str
    host: str
    user: str | None = None
    executable: str | None = None
    python: str | None = None
    torch: str | None = None
    package: str | None = None
    distribution: str | None = None
    kernel: str | None = None
    boot: str | None = None
    cpus: int | None = None
    open_files: float | None = None
    open_files_hard: float | None = None
    memlock: float | None = None
    shm: Space | None = None
    temp: Space | None = None
    cwd: Space | None = None
    reverse_dns: float | None = None
    clock_offset: float | None = None
    clock_error: float = 0.0
    settings: dict[str, str] = field(default_factory=dict)
    unread: tuple[str, ...] = ()


Fact = Literal["host", "python", "torch", "package", "clock", "shm", "files", "disk", "dns", "cpus", "gpus", "driver"]


@dataclass(frozen=True, kw_only=True, slots=True)
class HostProblem:
    """What is wrong with one `fact` of `nodes`, and the `remedy`, empty where `what` tells it already.

    A `warning` leaves ranks able to run there.
    """

    fact: Fact
    nodes: tuple[str, ...]
    what: str
    remedy: str = ""
    warning: bool = False

"""Sorting the events of a profiler trace: compute, communication, memory, and the steps and launches around them."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_clusterqual.model.trace import Collective
from pytest_clusterqual.read.trace_events import Event

Events = npt.NDArray[np.void]

_KERNELS = ("kernel", "concurrent_kernel", "mtia_ccp_events", "hpu_op", "Kernel")
_COPIES = ("gpu_memcpy", "gpu_memset", "Memcpy", "Memset")
_COMMUNICATION = "collective_comm"
_MAKERS = ("cuda", "xpu", "mtia", "privateuse1")
_HOST_CALLS = (*(f"{maker}_{kind}" for maker in _MAKERS for kind in ("runtime", "driver")), "Runtime")
_ANNOTATION, _OPERATOR = "user_annotation", "cpu_op"
# What else the host's part of a file is made of.
_HOST_ONLY = ("python_function", "fwdbwd")

# By the function's own name: what stands in its template arguments or parameters says nothing.
_COMMUNICATES = re.compile(
    r"nccl|rccl|msccl|oneccl|nvshmem|rocshmem|deep_?ep|userbuffers|cross_device_reduce|quick_?reduce"
    r"|(?<!block)(?<!warp)(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all)",
    re.IGNORECASE,
)
_COPIES_BY_NAME = re.compile(r"mem(?:cpy|set)", re.IGNORECASE)
_STEP = re.compile(r"ProfilerStep\s*#\s*([0-9]+)")

# Start and length in µs; the number that links an event to its launch, -1 without; its stream or thread; its place
# in `kernels` or `collectives`; the number of a collective in its process group, -1 without.
_WORK = np.dtype([(name, np.float64) for name in ("start", "length", "link", "stream", "kind", "number")])
_LAUNCH = np.dtype([("link", np.float64), ("start", np.float64)])

_Use = Callable[[Event], None]
_Row = tuple[Any, ...]


@functools.lru_cache(maxsize=4096)
def _own_name(kernel: str) -> str:
    """The name of a kernel's function without template arguments and parameters."""
    return re.split(r"[<(]", kernel.replace("(anonymous namespace)", ""), maxsplit=1)[0].removeprefix("void ")


class Table:
    """Rows that grow by blocks, for lists of objects take many times the memory of an array."""

    def __init__(self, kind: np.dtype[np.void]) -> None:
        self.rows: list[_Row] = []
        self._kind = kind
        self._blocks: list[Events] = []

    def pack(self) -> None:
        """What is no number becomes NaN."""
        if self.rows:
            try:
                block = np.array(self.rows, dtype=self._kind)
            except (TypeError, ValueError):
                block = np.array([tuple(map(_number, row)) for row in self.rows], dtype=self._kind)
            self._blocks.append(block)
            self.rows.clear()

    def all(self) -> Events:
        self.pack()
        return np.concatenate([np.empty(0, dtype=self._kind), *self._blocks])


def _number(cell: Any) -> float:
    return float(cell) if isinstance(cell, (int, float)) else np.nan


class Sorting:
    """Takes events as they come; those of `needless` categories need not.

    `steps` are the host's, by number, and `calls` its calls of collectives with their name; both
    have start and end in µs. `launches` tell when the host gave the device work.
    """

    def __init__(self, *, cpu: bool) -> None:
        self.cpu = cpu
        self.compute, self.communication, self.memory = Table(_WORK), Table(_WORK), Table(_WORK)
        self.launches = Table(_LAUNCH)
        self.kernels: list[str] = []
        self.collectives: dict[Collective, int] = {}
        self.steps: dict[int, tuple[float, float]] = {}
        self.calls: list[tuple[float, float, str]] = []
        self.gloo_threads: set[float] = set()
        self.devices: set[int | str] = set()
        self._shapes: dict[str, dict[_Row, int]] = {}
        self._others: dict[str, _Use] = {}
        self._uses: dict[str, _Use] = {_ANNOTATION: self._annotation}
        if cpu:
            self._uses[_OPERATOR] = self._operator
        else:
            self._uses |= dict.fromkeys(_KERNELS, self._kernel) | dict.fromkeys(_COPIES, self._copy)
            self._uses |= dict.fromkeys(_HOST_CALLS, self._host_call) | {_COMMUNICATION: self._collective}

    @property
    def needless(self) -> tuple[str, ...]:
        return _HOST_ONLY if self.cpu else (*_HOST_ONLY, _OPERATOR)

    def take(self, events: list[Event]) -> None:
        uses = self._uses
        for event in events:
            use = uses.get(event.category)
            if use is not None:
                use(event)
        for table in (self.compute, self.communication, self.memory, self.launches):
            table.pack()

    def work(self) -> tuple[Events, Events, Events]:
        """Compute, communication and memory."""
        return self.compute.all(), self.communication.all(), self.memory.all()

    def _kernel(self, event: Event) -> None:
        name, args = event.name, event.args
        shapes = self._shapes.get(name)
        if shapes is None:
            other = self._others.get(name) or self._other_use(name)
            if other is not None:
                self._others[name] = other
                other(event)
                return
            shapes = self._shapes[name] = {}
        if args.collective is not None:
            self._collective(event)
            return
        shape = (args.device, args.grid, args.block)
        place = shapes.get(shape)
        if place is None:
            place = shapes[shape] = len(self.kernels)
            self.kernels.append(name)
            if args.device is not None:
                self.devices.add(args.device)
        self.compute.rows.append((event.start, event.length, args.correlation, event.thread, place, -1))

    def _other_use(self, kernel: str) -> _Use | None:
        """What a kernel is by its name, None for computing."""
        name = _own_name(kernel)
        return self._collective if _COMMUNICATES.search(name) else self._copy if _COPIES_BY_NAME.match(name) else None

    def _collective(self, event: Event) -> None:
        args = event.args
        group = " ".join(str(told) for told in (args.group, args.ranks) if told is not None)
        self._communicate(event, str(args.collective or _own_name(event.name)), group)

    def _communicate(self, event: Event, name: str, group: str) -> None:
        args = event.args
        place = self.collectives.setdefault(Collective(name=name, group=group), len(self.collectives))
        number = int(args.number) if str(args.number).isdecimal() else -1
        self.communication.rows.append((event.start, event.length, args.correlation, event.thread, place, number))

    def _copy(self, event: Event) -> None:
        self.memory.rows.append((event.start, event.length, event.args.correlation, event.thread, 0, -1))

    def _host_call(self, event: Event) -> None:
        self.launches.rows.append((event.args.correlation, event.start))

    def _operator(self, event: Event) -> None:
        if event.name.startswith("aten::"):
            self.compute.rows.append((event.start, event.length, -1, event.thread, -1, -1))

    def _annotation(self, event: Event) -> None:
        name, start, end = event.name, event.start, event.start + event.length
        if math.isnan(end):
            return
        if step := _STEP.match(name):
            self.steps.setdefault(int(step[1]), (start, end))
        elif name.startswith("nccl:"):
            self.calls.append((start, end, name.removeprefix("nccl:")))
        elif self.cpu and name.startswith("gloo:"):
            self.gloo_threads.add(_number(event.thread))
            self._communicate(event, name.removeprefix("gloo:"), "")

"""What a node does while ranks measure on it: CPU, memory, NICs and GPUs, a look about every second.

A look must cost next to nothing beside the job, and whoever takes it must not hang with a driver
that hangs. Where there is an NVIDIA GPU, NVML is asked; the package for it is loaded then, and
without it there are no GPU figures.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# The bits of NVML's clock event reasons that slow a GPU down against its will.
THROTTLE = {
    0x04: "SW power cap",
    0x08: "HW slowdown",
    0x10: "sync boost",
    0x20: "SW thermal slowdown",
    0x40: "HW thermal slowdown",
    0x80: "HW power brake",
}
# In /proc/net/dev, behind the name: where the counters stand.
_INTERFACE = {"rx_bytes": 0, "rx_errors": 2, "rx_dropped": 3, "tx_bytes": 8, "tx_errors": 10, "tx_dropped": 11}
# Of an RDMA port, whose traffic passes the interface by; data are counted in words of four bytes.
_PORT = {
    "counters": (
        "port_rcv_data", "port_xmit_data", "symbol_error", "link_downed", "link_error_recovery", "port_rcv_errors",
        "port_xmit_discards", "port_xmit_wait",
    ),
    "hw_counters": ("out_of_sequence", "local_ack_timeout_err"),
}  # fmt: skip
_IN_WORDS = {"port_rcv_data": "rx_bytes", "port_xmit_data": "tx_bytes"}
_MOST_INTERFACES = 16
_MOST_COUNTS = 64  # keeps a sample below a page, which a pipe takes whole


class Sampler:
    """One node. Each `sample` tells how things are, and what counters grew by since the one before.

    `patience` is the seconds that one look may take; what takes longer is told by no sample.
    """

    def __init__(self, root: Path = Path("/"), *, patience: float = 0.5) -> None:
        self._root = root
        self._patience = patience
        self._node: _Node | None = None
        self._found: dict[str, Any] = {}
        self._thread: threading.Thread | None = None

    def sample(self) -> dict[str, Any]:
        """JSON values: `at` by the monotonic clock, `gauges` (a number, or one for each GPU), `counts` that grew,
        `throttle` (reason -> GPUs).
        """
        nothing: dict[str, Any] = {"gauges": {}, "counts": {}, "throttle": {}}
        if self._thread is not None and self._thread.is_alive():
            return nothing  # the look before still hangs
        self._found = nothing
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        self._thread.join(self._patience)
        return self._found

    def _look(self) -> None:
        try:
            if self._node is None:  # here, because the first word with a driver may hang like any other
                self._node = _Node(self._root)
            self._found = self._node.look()
        except (OSError, ValueError, IndexError):
            return  # a device or a file went away meanwhile


class _Node:
    """Where the figures of a node stand, and what the counters were at the look before."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._interfaces = _interfaces(root)
        self._ports = list(_port_files(root))
        self._gpus = _Gpus() if (root / "dev" / "nvidia0").exists() else None
        self._cpu = self._cpu_times()
        self._counters = self._read_counters()

    def look(self) -> dict[str, Any]:
        gauges: dict[str, Any] = {**self._cpu_shares(), "memory_available": self._memory_available()}
        throttle: dict[str, list[int]] = {}
        if self._gpus is not None:
            gauges |= self._gpus.gauges()
            throttle = self._gpus.throttle()
        before, self._counters = self._counters, self._read_counters()
        grown = {name: value - before.get(name, value) for name, value in self._counters.items()}
        return {
            "at": round(time.monotonic(), 3),
            "gauges": {name: value for name, value in gauges.items() if value not in (None, [])},
            "counts": _most_telling({name: value for name, value in grown.items() if value > 0}),
            "throttle": throttle,
        }

    def _cpu_times(self) -> list[int]:
        """User, nice, system, idle, iowait, irq, softirq, steal of all cores, in ticks."""
        with (self._root / "proc" / "stat").open() as file:
            return [int(ticks) for ticks in file.readline().split()[1:9]]

    def _cpu_shares(self) -> dict[str, float | None]:
        before, self._cpu = self._cpu, self._cpu_times()
        passed = [now - then for now, then in zip(self._cpu, before, strict=True)]
        if sum(passed) <= 0:
            return {}
        idle, steal = passed[3] + passed[4], passed[7]
        return {
            "cpu_busy": round((sum(passed) - idle - steal) / sum(passed), 4),
            "cpu_steal": round(steal / sum(passed), 4),
        }

    def _memory_available(self) -> int | None:
        with (self._root / "proc" / "meminfo").open() as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
        return None

    def _read_counters(self) -> dict[str, int]:
        counters: dict[str, int] = {}
        for line in (self._root / "proc" / "net" / "dev").read_text().splitlines()[2:]:
            name, _, numbers = line.partition(":")
            if name.strip() in self._interfaces:
                found = numbers.split()
                counters |= {f"{name.strip()}.{key}": int(found[place]) for key, place in _INTERFACE.items()}
        for name, path, factor in self._ports:
            if (number := _number(path)) is not None:
                counters[name] = number * factor
        return counters | (self._gpus.counters() if self._gpus is not None else {})


def _interfaces(root: Path) -> set[str]:
    """The network interfaces worth a look: those with a device behind them, or any but loopback if there is none."""
    folder = root / "sys" / "class" / "net"
    names = sorted(path.name for path in folder.iterdir() if path.name != "lo") if folder.is_dir() else []
    real = [name for name in names if (folder / name / "device").exists()]
    return set((real or names)[:_MOST_INTERFACES])


def _port_files(root: Path) -> Iterator[tuple[str, Path, int]]:
    """Name, file and factor of every counter of every RDMA port that is there."""
    for port in sorted((root / "sys" / "class" / "infiniband").glob("*/ports/*")):
        device = port.parent.parent.name + (f":{port.name}" if port.name != "1" else "")
        for folder, names in _PORT.items():
            for name in names:
                if (port / folder / name).exists():
                    told = _IN_WORDS.get(name, name)
                    yield f"{device}.{told}", port / folder / name, 4 if name in _IN_WORDS else 1


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _most_telling(counts: dict[str, int]) -> dict[str, int]:
    """Errors before traffic, and no more than a sample may hold."""
    order = sorted(counts, key=lambda name: (name.endswith(("_bytes", "_wait")), name))
    return {name: counts[name] for name in order[:_MOST_COUNTS]}


class _Gpus:
    """The GPUs of this node through NVML; none where that is not to be had."""

    def __init__(self) -> None:
        self._handles: dict[int, Any] = {}
        try:
            import pynvml as nvml
        except ImportError:
            return
        self._nvml = nvml
        try:
            nvml.nvmlInit()
            indices = range(nvml.nvmlDeviceGetCount())
        except nvml.NVMLError:
            return  # no driver, or one that does not answer
        for index in indices:
            try:
                self._handles[index] = nvml.nvmlDeviceGetHandleByIndex(index)
            except nvml.NVMLError:
                continue  # fallen off the bus: the others are still worth a look

    def gauges(self) -> dict[str, list[float]]:
        """A figure for each GPU that tells it: clock in Hz, temperature in degrees Celsius, power in watts."""
        if not self._handles:
            return {}
        nvml = self._nvml
        clocks = self._ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM)
        degrees = self._ask(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU)
        milliwatts = self._ask(nvml.nvmlDeviceGetPowerUsage)
        return {
            "gpu_clock": [value * 1_000_000 for value in clocks.values()],
            "gpu_temperature": list(degrees.values()),
            "gpu_power": [value / 1e3 for value in milliwatts.values()],
        }

    def throttle(self) -> dict[str, list[int]]:
        """Active reason -> the GPUs that it slows down."""
        if not self._handles:
            return {}
        nvml = self._nvml
        # Drivers before 535 have the older of the two names only, later packages drop it.
        masks = self._ask(nvml.nvmlDeviceGetCurrentClocksEventReasons) or self._ask(
            nvml.nvmlDeviceGetCurrentClocksThrottleReasons
        )
        slowed = {name: [index for index, mask in masks.items() if mask & bit] for bit, name in THROTTLE.items()}
        return {reason: gpus for reason, gpus in slowed.items() if gpus}

    def counters(self) -> dict[str, int]:
        """ECC errors since the driver was loaded that could not be corrected."""
        if not self._handles:
            return {}
        nvml = self._nvml
        kind = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
        errors = self._ask(nvml.nvmlDeviceGetTotalEccErrors, *kind)
        return {f"GPU{index}.uncorrected": count for index, count in errors.items()}

    def _ask(self, function: Callable[..., int], *args: Any) -> dict[int, int]:
        """One question to every GPU; one that does not answer is left out."""
        found = {}
        for index, handle in self._handles.items():
            try:
                found[index] = int(function(handle, *args))
            except self._nvml.NVMLError:
                continue
        return found

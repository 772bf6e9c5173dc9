"""What a node says of itself during a measurement: sampled, summed up, and told where it matters."""

from __future__ import annotations

import json
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

import pytest
from host_tree import cpus, files, interface, pci, rdma
from made import conditions, judgement, record

from pytest_clusterqual.launch import telemetry
from pytest_clusterqual.launch.telemetry import THROTTLE, Sampler
from pytest_clusterqual.model.codec import from_json, to_json
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.telemetry import POWER_CAP, NodeTelemetry, Range, summarize
from pytest_clusterqual.report.terminal import failure_message, summary

PAGE = 4096  # what a pipe takes whole


def stat(root: Path, *ticks: int) -> None:
    files(root / "proc", stat="cpu  " + " ".join(map(str, ticks)) + " 0 0\ncpu0 1 2 3")


def traffic(root: Path, **interfaces: tuple[int, ...]) -> None:
    """rx bytes, errors, drops and tx bytes, errors, drops of each interface."""
    lines = [
        "Inter-|   Receive  |  Transmit",
        " face |bytes packets errs drop fifo frame compressed multicast|bytes ...",
    ]
    for name, (rx, rx_errors, rx_drops, tx, tx_errors, tx_drops) in interfaces.items():
        lines.append(f"{name:>6}: {rx} 9 {rx_errors} {rx_drops} 0 0 0 0 {tx} 9 {tx_errors} {tx_drops} 0 0 0 0")
    (root / "proc/net").mkdir(parents=True, exist_ok=True)
    (root / "proc/net/dev").write_text("\n".join(lines) + "\n")


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A host with one NIC behind a device, one bridge, and no GPU."""
    cpus(tmp_path)
    stat(tmp_path, 100, 0, 100, 800, 0, 0, 0, 0)
    interface(tmp_path, "eth0", pci(tmp_path, "0000:18:00.0"))
    interface(tmp_path, "docker0")
    traffic(tmp_path, lo=(5, 0, 0, 5, 0, 0), eth0=(1000, 1, 0, 2000, 0, 0), docker0=(7, 0, 0, 7, 0, 0))
    return tmp_path


def sampler_of(root: Path) -> Sampler:
    """A sampler after its first look: the next one tells what has changed."""
    sampler = Sampler(root, patience=60)
    assert sampler.sample()["counts"] == {}
    return sampler


# -- one look ----------------------------------------------------------------------------------------


def test_this_machine_can_be_looked_at() -> None:
    before = time.monotonic()
    sample = Sampler(patience=60).sample()
    assert json.loads(json.dumps(sample)) == sample
    assert sample["gauges"]["memory_available"] > 0
    assert set(sample) == {"at", "gauges", "counts", "throttle"}
    assert before - 0.001 <= sample["at"] <= time.monotonic() + 0.001


def test_a_look_that_hangs_holds_nobody_up_and_the_next_one_does_not_wait_for_it(
    host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging, looks = threading.Event(), []
    nothing: dict[str, Any] = {"gauges": {}, "counts": {}, "throttle": {}}
    monkeypatch.setattr(telemetry, "_interfaces", lambda root: (looks.append(1), hanging.wait(30), set())[-1])
    sampler = Sampler(host, patience=0.1)
    assert [sampler.sample(), sampler.sample()] == [nothing, nothing]
    assert looks == [1]
    hanging.set()
    sampler._thread.join(30)  # type: ignore[union-attr]
    sampler._patience = 60
    assert sampler.sample()["gauges"]["memory_available"] == 1_000_000 * 1024


def test_a_file_that_goes_away_is_a_look_that_tells_nothing(host: Path) -> None:
    sampler = sampler_of(host)
    (host / "proc/meminfo").unlink()
    assert sampler.sample() == {"gauges": {}, "counts": {}, "throttle": {}}


def test_shares_of_the_cores_are_of_the_time_since_the_last_look(host: Path) -> None:
    sampler = sampler_of(host)
    stat(host, 140, 10, 120, 820, 5, 0, 0, 5)  # 100 ticks passed: 70 busy, 5 stolen, 25 idle or waiting
    assert sampler.sample()["gauges"] == {"cpu_busy": 0.7, "cpu_steal": 0.05, "memory_available": 1_000_000 * 1024}
    assert "cpu_busy" not in sampler.sample()["gauges"]  # no tick passed: nothing can be said
    stat(host, 140, 10, 120, 920, 5, 0, 0, 5)
    assert sampler.sample()["gauges"]["cpu_busy"] == 0.0


def test_counters_are_told_by_what_they_grew_and_only_then(host: Path) -> None:
    sampler = sampler_of(host)
    assert sampler.sample()["counts"] == {}
    traffic(host, eth0=(1500, 4, 0, 2000, 0, 2), docker0=(900, 9, 9, 9, 9, 9))
    assert sampler.sample()["counts"] == {"eth0.rx_bytes": 500, "eth0.rx_errors": 3, "eth0.tx_dropped": 2}
    assert sampler.sample()["counts"] == {}
    traffic(host, eth0=(0, 0, 0, 1, 0, 0))  # the driver was loaded again
    assert sampler.sample()["counts"] == {}


def test_where_no_interface_has_a_device_any_but_loopback_counts(tmp_path: Path) -> None:
    stat(tmp_path, 1, 1, 1, 1, 1, 1, 1, 1)
    files(tmp_path / "proc", meminfo="MemTotal: 1 kB")
    interface(tmp_path, "eth0")
    interface(tmp_path, "lo")
    traffic(tmp_path, lo=(5, 0, 0, 5, 0, 0), eth0=(10, 0, 0, 10, 0, 0))
    sampler = sampler_of(tmp_path)
    traffic(tmp_path, lo=(50, 0, 0, 50, 0, 0), eth0=(15, 0, 0, 10, 0, 0))
    assert sampler.sample()["counts"] == {"eth0.rx_bytes": 5}


def test_rdma_ports_count_what_passes_the_interface_by(host: Path) -> None:
    card = pci(host, "0000:29:00.0")
    counters = [rdma(host, "mlx5_0", card, port) / "counters" for port in ("1", "2")]
    for folder in counters:
        files(folder, port_rcv_data="100", symbol_error="0", link_downed="1", port_xmit_wait="7")
    files(counters[0].with_name("hw_counters"), out_of_sequence="0")
    sampler = sampler_of(host)
    files(counters[0], port_rcv_data="350", symbol_error="2", link_downed="2", port_xmit_wait="8")
    files(counters[1], symbol_error="broken")
    files(counters[0].with_name("hw_counters"), out_of_sequence="5")
    assert sampler.sample()["counts"] == {
        "mlx5_0.link_downed": 1, "mlx5_0.out_of_sequence": 5, "mlx5_0.symbol_error": 2,
        "mlx5_0.port_xmit_wait": 1, "mlx5_0.rx_bytes": 1000,  # words of four bytes
    }  # fmt: skip


# -- GPUs --------------------------------------------------------------------------------------------


class NoAnswer(Exception):
    pass


def nvml(gpus: list[dict[str, Any]]) -> types.ModuleType:
    """A stand-in for NVIDIA's package: each GPU is what it would answer; what is missing is not supported."""

    def ask(key: str) -> Any:
        def answer(gpu: dict[str, Any], *_: object) -> Any:
            if key not in gpu:
                raise NoAnswer
            return gpu[key]

        return answer

    def handle(index: int) -> dict[str, Any]:
        if gpus[index].get("lost"):
            raise NoAnswer
        return gpus[index]

    module = types.ModuleType("pynvml")
    module.__dict__.update(
        NVMLError=NoAnswer, nvmlInit=lambda: None, nvmlDeviceGetCount=lambda: len(gpus),
        nvmlDeviceGetHandleByIndex=handle, nvmlDeviceGetClockInfo=ask("clock"), NVML_CLOCK_SM=1,
        nvmlDeviceGetTemperature=ask("heat"), NVML_TEMPERATURE_GPU=0, nvmlDeviceGetPowerUsage=ask("power"),
        nvmlDeviceGetCurrentClocksEventReasons=ask("reasons"), nvmlDeviceGetCurrentClocksThrottleReasons=ask("old"),
        nvmlDeviceGetTotalEccErrors=ask("ecc"), NVML_MEMORY_ERROR_TYPE_UNCORRECTED=1, NVML_VOLATILE_ECC=0,
    )  # fmt: skip
    return module


def with_gpus(host: Path, monkeypatch: pytest.MonkeyPatch, gpus: list[dict[str, Any]]) -> Sampler:
    files(host / "dev", nvidia0="")
    monkeypatch.setitem(sys.modules, "pynvml", nvml(gpus))
    return sampler_of(host)


def test_gpus_tell_clock_heat_power_what_slows_them_and_broken_memory(
    host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus: list[dict[str, Any]] = [
        {"clock": 1980, "heat": 61, "power": 650_500, "reasons": 0x1, "ecc": 0},
        {"clock": 1200, "heat": 92, "power": 420_000, "reasons": 0x48, "ecc": 4},
        {"lost": True},
        {"heat": 30, "old": 0x4},
    ]
    sampler = with_gpus(host, monkeypatch, gpus)
    gpus[1]["ecc"] = 6
    sample = sampler.sample()
    assert sample["gauges"] == {
        "gpu_clock": [1980e6, 1200e6], "gpu_temperature": [61, 92, 30], "gpu_power": [650.5, 420.0],
        "memory_available": 1_000_000 * 1024,
    }  # fmt: skip
    assert sample["throttle"] == {"HW slowdown": [1], "HW thermal slowdown": [1]}
    assert sample["counts"] == {"GPU1.uncorrected": 2}


def test_an_old_driver_is_asked_by_the_old_name(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_gpus(host, monkeypatch, [{"old": 0x20}]).sample()["throttle"] == {"SW thermal slowdown": [0]}


def test_without_a_driver_or_without_the_package_there_are_no_gpu_figures(
    host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = sampler_of(host).sample()["gauges"].keys()
    files(host / "dev", nvidia0="")
    pytest.importorskip("pynvml")
    assert sampler_of(host).sample()["gauges"].keys() == quiet  # the real package, and no library below it
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert sampler_of(host).sample()["gauges"].keys() == quiet


def test_the_bits_are_nvidias_and_none_is_harmless() -> None:
    real = pytest.importorskip("pynvml")
    prefix = "nvmlClocksEventReason"
    assert {bit: name.replace(" ", "").lower() for bit, name in THROTTLE.items()} == {
        getattr(real, f"{prefix}{name}"): name.lower().replace("brakeslowdown", "brake")
        for name in ("SwPowerCap", "HwSlowdown", "SyncBoost", "SwThermalSlowdown", "HwThermalSlowdown",
                     "HwPowerBrakeSlowdown")
    }  # fmt: skip


def test_the_largest_node_at_its_worst_fits_in_one_page(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [{"clock": 1980, "heat": 92, "power": 650_123, "reasons": 0xFF, "ecc": 10**6} for _ in range(16)]
    names = [f"enp{i}s0f{i}np{i}" for i in range(40)]
    for i, name in enumerate(names):
        interface(host, name, pci(host, f"0000:{i:02x}:01.0"))
        port = rdma(host, f"mlx5_{i}", host)
        files(port / "counters", port_rcv_data="0", symbol_error="0", link_downed="0", port_rcv_errors="0")
    traffic(host, **dict.fromkeys(names, (0,) * 6))
    sampler = with_gpus(host, monkeypatch, gpus)
    traffic(host, **dict.fromkeys(names, (10**15,) * 6))
    for i in range(40):
        folder = host / f"sys/class/infiniband/mlx5_{i}/ports/1/counters"
        files(folder, port_rcv_data=f"{10**15}", symbol_error=f"{10**9}", link_downed="99", port_rcv_errors=f"{10**9}")
    sample = sampler.sample()
    assert len(json.dumps({"event": "sample", **sample})) < PAGE
    assert not any(name.endswith("_bytes") for name in sample["counts"])  # errors are told first


# -- a measurement's worth of looks --------------------------------------------------------------------


def look(counts: dict[str, int] | None = None, throttle: dict[str, list[int]] | None = None, **gauges: Any) -> Any:
    return {"gauges": gauges, "counts": counts or {}, "throttle": throttle or {}}


def test_looks_become_ranges_sums_and_reasons() -> None:
    told = summarize(
        [
            look({"eth0.rx_errors": 2}, cpu_busy=0.9, gpu_clock=[1980e6, 1500e6]),
            look({"eth0.rx_errors": 1, "eth0.rx_bytes": 7}, {"HW slowdown": [2]}, cpu_busy=0.2, gpu_clock=[1980e6]),
            look({}, {"HW thermal slowdown": [2], "HW slowdown": [2], POWER_CAP: [3]}, memory_available=5),
        ],
        node="node3",
    )
    assert told == NodeTelemetry(
        node="node3",
        samples=3,
        ranges={
            "cpu_busy": Range(low=0.2, high=0.9), "gpu_clock": Range(low=1500e6, high=1980e6),
            "memory_available": Range(low=5, high=5),
        },
        counts={"eth0.rx_errors": 3, "eth0.rx_bytes": 7},
        throttle={"GPU2": ("HW slowdown", "HW thermal slowdown"), "GPU3": (POWER_CAP,)},
    )  # fmt: skip
    assert told.throttled == {"GPU2": ("HW slowdown", "HW thermal slowdown")}


def test_spells_are_the_looks_in_a_row_that_saw_a_device_throttled() -> None:
    def look(at: float, **throttle: list[int]) -> dict[str, Any]:
        return {"at": at, "gauges": {}, "counts": {}, "throttle": throttle}

    nothing: dict[str, Any] = {"gauges": {}, "counts": {}, "throttle": {}}  # it took too long to look
    told = summarize(
        [look(1.0), look(2.0, heat=[0]), nothing, look(3.0, heat=[0, 1]), look(4.0, heat=[1], power=[0]), look(5.0),
         look(6.0, heat=[1]), look(7.0, **{POWER_CAP: [1]})],
        node="n",
    )  # fmt: skip
    assert told.spells == {"GPU0": ((2.0, 4.0),), "GPU1": ((3.0, 4.0), (6.0, 6.0))}
    assert from_json(NodeTelemetry, to_json(told)) == told


def test_no_look_is_no_range() -> None:
    assert summarize([], node="n") == NodeTelemetry(node="n", samples=0)


def test_real_looks_are_summed_up(host: Path) -> None:
    sampler = sampler_of(host)
    told = summarize([sampler.sample() for _ in range(3)], node="n")
    assert (told.samples, told.ranges["memory_available"].low) == (3, 1_000_000 * 1024)


def test_conditions_keep_it_and_older_records_without_it_are_read() -> None:
    with_it = conditions(telemetry=(NodeTelemetry(node="node0", samples=2, ranges={"cpu_busy": Range(low=0, high=1)}),))
    written = json.loads(json.dumps(to_json(with_it)))
    assert from_json(Conditions, written) == with_it
    del written["telemetry"]
    assert from_json(Conditions, written).telemetry == ()


# -- what a person reads -------------------------------------------------------------------------------

HOT = (
    NodeTelemetry(node="node3", samples=9, throttle={"GPU2": ("HW thermal slowdown",), "GPU5": (POWER_CAP,)}),
    NodeTelemetry(node="node4", samples=9, throttle={"GPU0": (POWER_CAP,)}),
)
NOTE = "node3 was throttled (GPU2: HW thermal slowdown): slow timings may come from heat or power, not from the job"


def test_a_failing_test_says_that_a_node_was_throttled() -> None:
    assert f"note {NOTE}" in failure_message([judgement()], conditions(telemetry=HOT)).splitlines()
    assert "throttled" not in failure_message([judgement()], conditions(telemetry=HOT[1:]))


def test_the_summary_says_it_once_for_all_measurements() -> None:
    hotter = (NodeTelemetry(node="node3", samples=9, throttle={"GPU2": ("HW power brake", "HW thermal slowdown")}),)
    records = [record(under=conditions(telemetry=HOT)), record(under=conditions(telemetry=hotter))]
    text = " ".join(summary(records, run_folder="runs/1", simulated=False, width=200).split())
    assert text.count("was throttled") == 1
    assert "node3 was throttled (GPU2: HW thermal slowdown; GPU2: HW power brake)" in text

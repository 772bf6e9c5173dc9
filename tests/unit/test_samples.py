"""Measurements lie on disk: found when a run is opened, read when they are asked for, however large they are."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fabric_made import cluster, exchanged_by, swept
from full_run_made import killed_run, ladders, measured
from made import RUN, STARTED, memory_measurement, record
from recorded_made import TEST, recorded
from run_made import with_telemetry

from pytest_clusterqual.errors import RunFolderError
from pytest_clusterqual.folder import lines
from pytest_clusterqual.folder.runs import RunFolder
from pytest_clusterqual.folder.samples import Stored, line_of
from pytest_clusterqual.model.codec import from_json, to_json
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.fabric import CollectiveTiming, FabricMeasurement, RankFabric, SynchronizationMeasurement
from pytest_clusterqual.model.figures import Figures
from pytest_clusterqual.model.hardware import Gpu, NodeHardware
from pytest_clusterqual.model.hardware import Path as Between
from pytest_clusterqual.model.measurement import Measurement, NodesMeasurement
from pytest_clusterqual.model.training import RankTraining, ScalingMeasurement, ScalingRun
from pytest_clusterqual.recorded.judging import judge_again, own_project
from pytest_clusterqual.report.plots import write_plots

MEASURED, RECORDED = "measurements.jsonl", "records.jsonl"


def long_one(first: float = 1.0) -> Measurement:
    """Of 200 kB: its line is longer than what is read to find the next one."""
    return memory_measurement(losses=(first, *(0.1 + step / 7 for step in range(5000))))


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", run=RUN, environment={}, simulated=True)


def measurements_of(folder: RunFolder) -> dict[str, tuple[str, str, Measurement]]:
    return dict(RunFolder.open(folder.path).measurements())


def test_what_nobody_asks_for_is_not_read(folder: RunFolder) -> None:
    for first in (1.0, 2.0, 3.0):
        folder.add_measurement("memory", f"t{first}", long_one(first))
    path = folder.path / MEASURED
    content = path.read_bytes()
    second = content.index(b"\n") + 1
    path.write_bytes(content[: second + 100_000] + b"?" + content[second + 100_001 :])
    found = RunFolder.open(folder.path).measurements()
    assert found.tests() == {"m0001": "t1.0", "m0002": "t2.0", "m0003": "t3.0"}
    assert found["m0003"] == ("t3.0", "memory", long_one(3.0))
    with pytest.raises(RunFolderError, match=r"measurements\.jsonl:2: not JSON"):
        found["m0002"]


def test_what_is_on_disk_is_not_in_memory_as_well(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = long_one()

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(RunFolderError, match="No space left"):
            folder.add_measurement("memory", "a", ours)
    assert folder.measurements()["m0001"][2] is ours, "nobody else has it"
    folder.add_measurement("memory", "b", long_one(2.0))
    for name, expected in (("m0001", ours), ("m0002", long_one(2.0))):
        assert folder.measurements()[name][2] == expected
        assert folder.measurements()[name][2] is not folder.measurements()[name][2]


@pytest.mark.parametrize("size", [b"17", b"1", b"999999999", b"0"])
def test_a_size_that_is_not_true_hides_no_line(folder: RunFolder, size: bytes) -> None:
    for first in (1.0, 2.0, 3.0):
        folder.add_measurement("memory", f"t{first}", long_one(first))
    before = measurements_of(folder)
    path = folder.path / MEASURED
    path.write_bytes(b"".join(with_size(line, size) for line in path.read_bytes().splitlines(keepends=True)))
    assert measurements_of(folder) == before


def with_size(line: bytes, size: bytes) -> bytes:
    before, _, after = line.partition(b'"size": ')
    return before + b'"size": ' + size + after[after.index(b",") :]


def test_a_size_that_leads_over_other_lines_is_no_measurement(folder: RunFolder) -> None:
    for first in (1.0, 2.0):
        folder.add_measurement("memory", f"t{first}", long_one(first))
    path = folder.path / MEASURED
    content = path.read_bytes()
    both = content.partition(b'"measurement": ')[2].removesuffix(b"}\n")
    path.write_bytes(with_size(content, str(len(both)).encode()))
    with pytest.raises(RunFolderError, match=r"measurements\.jsonl:1: not JSON"):
        measurements_of(folder)


def test_a_file_that_was_replaced_meanwhile_is_told(folder: RunFolder) -> None:
    for first in (1.0, 2.0):
        folder.add_measurement("memory", f"t{first}", long_one(first))
    found, path = RunFolder.open(folder.path).measurements(), folder.path / MEASURED
    path.write_bytes(b"".join(reversed(path.read_bytes().splitlines(keepends=True))))
    with pytest.raises(RunFolderError, match=r"jsonl:1: is not m0001 any more: the file was replaced; open it again"):
        found["m0001"]


def test_measurements_of_parts_are_in_the_order_of_time(folder: RunFolder) -> None:
    for part, started in (("gw0", 3.0), ("gw1", 1.0), ("", 2.0)):
        RunFolder.open(folder.path, part=part).add_measurement("memory", "t", replace(long_one(), started=started))
    before = measurements_of(folder)
    assert list(before) == ["gw1-m0001", "m0001", "gw0-m0001"]
    folder.merge()
    assert list(measurements_of(folder).items()) == list(before.items())


def test_a_folder_of_an_earlier_release_opens(folder: RunFolder) -> None:
    """Its measurements did not say their size, the first ones no kind, and each record had all of its conditions."""
    at = with_telemetry(cluster(4))
    told = [each for name in ("m0001", "m0002") for each in swept_records(replace(at, layout=name), name)]
    made: list[Measurement] = [long_one(), exchanged_by(4)]
    inside: list[dict[str, Any]] = [
        {"schema": 1, "id": "m0001", "test": "t1", "criterion": "memory", "measurement": to_json(made[0])},
        {
            "schema": 1,
            "id": "m0002",
            "test": "t2",
            "criterion": "fabric",
            "measurement": to_json(made[1]),
            "kind": "pairs",
        },
    ]
    (folder.path / MEASURED).write_text("".join(json.dumps(each) + "\n" for each in inside))
    (folder.path / RECORDED).write_text("".join(json.dumps(to_json(each)) + "\n" for each in told))
    again = RunFolder.open(folder.path)
    assert again.records() == told
    assert len({id(each.conditions) for each in again.records()}) == 2
    assert dict(again.measurements()) == {"m0001": ("t1", "memory", made[0]), "m0002": ("t2", "fabric", made[1])}
    assert again.add_measurement("memory", "t3", long_one(3.0)) == "m0003"
    assert RunFolder.open(folder.path).measurements()["m0003"] == ("t3", "memory", long_one(3.0))


def swept_records(at: Conditions, name: str) -> list[Any]:
    return [replace(each, measurement=name) for each in swept("test_fabric[x]", at)]


def test_of_the_records_of_a_measurement_one_has_what_is_long(folder: RunFolder) -> None:
    at = with_telemetry(cluster(4))
    other = replace(at, layout="fsdp")
    told = [*swept_records(at, "m0001"), *swept_records(other, "m0001"), *swept_records(at, "m0002"), record(under=at)]
    for each in told:
        folder.add_record(each)
    again = RunFolder.open(folder.path)
    assert again.records() == folder.records() == told
    assert len({id(each.conditions) for each in again.records()}) == 4
    written = [json.loads(line) for line in (folder.path / RECORDED).read_text().splitlines()]
    assert [n for n, line in enumerate(written) if "telemetry" in line["conditions"]] == [0, 21, 42, 63]
    assert all(line["conditions"]["hosts"] == list(at.hosts) for line in written)


def test_who_goes_on_with_a_run_leaves_nothing_out_at_first(folder: RunFolder) -> None:
    """What this process has not written itself may be torn off, or come later in the order of time."""
    at = with_telemetry(cluster(4))
    for part in ("", "gw0"):
        RunFolder.open(folder.path, part=part).add_record(record(under=at))
    for name in (RECORDED, "records-gw0.jsonl"):
        assert "telemetry" in json.loads((folder.path / name).read_text())["conditions"]


def test_a_record_that_waits_for_room_has_its_conditions_too(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    part, at = RunFolder.open(folder.path, part="gw0"), with_telemetry(cluster(4))
    part.add_record(record(under=at))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "no")))
        with pytest.raises(RunFolderError):
            part.add_record(record(under=at, label="4 MiB"))
    part.refresh()
    assert part.records() == [record(under=at), record(under=at, label="4 MiB")]


def kinds() -> Iterator[tuple[str, Measurement]]:
    at, timing = cluster(2), CollectiveTiming(bytes=4, iterations=2, seconds=(0.5, 1), wrong=0, instances=(0.25,))
    rank = RankFabric(rank=0, group_size=2, timings=(timing,))
    trained = RankTraining(
        rank=0, warmup_seconds=(1.0,), step_seconds=(0.5,), data_seconds=(0.1,), work_seconds=0.5, tokens_per_step=9,
        losses=(5.0,), data_digest="x", unknown=("data",),
    )  # fmt: skip
    apart = ladders({0: 0.1, 1: 0.2}, held=0.2, step=0.3, rounds=2)
    node = NodeHardware(
        node="a", host="b", gpus=(Gpu(index=0, memory=80),), paths=(Between(one="GPU0", other="NIC0", kind="PIX"),)
    )
    yield "nodes", NodesMeasurement(nodes=(node,), started=1.0, seconds=2.0)
    yield "memory", memory_measurement()
    yield (
        "fabric",
        FabricMeasurement(conditions=with_telemetry(at), rounds=((rank,),), started=1.0, seconds=2.0, groups=((0, 1),)),
    )
    yield "fabric", exchanged_by(3)
    yield "fabric", SynchronizationMeasurement(conditions=at, rounds=apart, started=STARTED, seconds=1.0)
    yield (
        "scaling",
        ScalingMeasurement(
            conditions=at, runs=(ScalingRun(conditions=at, ranks=(trained,)),), started=1.0, seconds=1.0, apart=apart
        ),
    )
    yield "full_run", measured(killed_run(), apart=apart)


@pytest.mark.parametrize(("criterion", "made"), list(kinds()), ids=lambda value: type(value).__name__)
def test_for_pictures_a_measurement_is_read_at_once(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, criterion: str, made: Measurement
) -> None:
    folder.add_measurement(criterion, "t", made)
    strict = folder.measurements()["m0001"]
    with monkeypatch.context() as patch:
        patch.setattr(lines, "strictly", None)
        assert folder.measurements(quick=True)["m0001"] == strict == ("t", criterion, made)


def test_what_cannot_be_read_at_once_is_read_strictly(folder: RunFolder) -> None:
    folder.add_measurement("memory", "t", memory_measurement(losses=(float("nan"), 1.0)))
    assert str(folder.measurements(quick=True)["m0001"][2].ranks[0].losses) == "(nan, 1.0)"  # type: ignore[union-attr]


def test_figures_of_many_ranks_are_as_a_dict_of_them(folder: RunFolder) -> None:
    figures = {str(rank): rank / 7 for rank in range(100)}
    for _ in range(2):
        folder.add_record(record(per_rank=figures))
    one, two = (each.judgement.per_rank for each in RunFolder.open(folder.path).records())
    assert isinstance(one, Figures), "eight bytes a figure"
    assert one == figures and figures == one and dict(one) == figures and to_json(one) == figures
    assert (one["99"], one.get("100"), len(one), list(one)) == (99 / 7, None, 100, list(figures))
    assert all(a is b for a, b in zip(one, two, strict=True)), "each of thousands of records has the same names"
    assert from_json(dict[str, float], {**figures, "0": "nan"})["1"] == 1 / 7


def test_a_run_is_judged_again_by_what_its_records_rest_on(tmp_path: Path) -> None:
    """The measurement of an attempt that was replaced is not even read."""
    run = recorded(tmp_path / "run")
    run.begin_attempt()
    name = run.add_measurement("memory", TEST, memory_measurement())
    run.add_record(replace(run.records()[0], measurement=name, attempt=2))
    path = run.path / MEASURED
    path.write_bytes(path.read_bytes().replace(b'"ranks"', b'"roots"', 1))
    again = RunFolder.open(run.path)
    assert {each.measurement for each in judge_again(again, own_project(again))} == {"m0002"}
    with pytest.raises(RunFolderError, match=r"jsonl:1: measurement.*: got unknown field 'roots'"):
        again.measurements()["m0001"]


class Counted(Mapping[str, Any]):
    """Says who was asked for."""

    def __init__(self, inside: Mapping[str, Any]) -> None:
        self.inside, self.asked = inside, list[str]()

    def __getitem__(self, name: str) -> Any:
        self.asked.append(name)
        return self.inside[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.inside)

    def __len__(self) -> int:
        return len(self.inside)


def test_pictures_read_what_they_need_and_nothing_twice(tmp_path: Path) -> None:
    """A sweep in the world that missed nothing needs no sample; one in groups of a layout needs to know the groups."""
    at, missed = cluster(4), cluster(4, group="ddp.dp")
    rank = RankFabric(rank=0, group_size=2, timings=())
    made = FabricMeasurement(
        conditions=missed, rounds=((rank,),), started=1.0, seconds=1.0, pairs=exchanged_by(4).pairs
    )
    told = [
        *swept_records(at, "m0001"),
        *[
            replace(each, measurement="m0002", test="test_fabric[y]")
            for each in swept("test_fabric[y]", missed, plateau=1e9)
        ],
    ]
    found = Counted({"m0001": ("x", "fabric", made), "m0002": ("y", "fabric", made)})
    plots, missing = write_plots(told, found, tmp_path)
    assert (len(plots), missing, found.asked) == (5, "", ["m0002"])


def test_a_line_says_how_long_it_is() -> None:
    stored = Stored(identity="m0001", test='"size": 3, "measurement": ', criterion="memory", kind="memory")
    line = line_of(stored, memory_measurement())
    value = json.loads(line)
    assert list(value)[-2:] == ["size", "measurement"] and value["started"] == STARTED
    assert line.endswith(b', "measurement": ' + line[-1 - value["size"] : -1] + b"}")
    assert json.loads(line[-1 - value["size"] : -1]) == value["measurement"]

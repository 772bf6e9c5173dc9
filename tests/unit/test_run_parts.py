"""Several processes write one run folder: each has files of its own, and what is read is one run."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made import RUN, STARTED, memory_measurement
from made import record as any_record

from pytest_clusterqual.errors import RunFolderError
from pytest_clusterqual.folder.runs import RunFolder, Selected
from pytest_clusterqual.model.record import Record


@pytest.fixture
def main(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, run=RUN, environment={}, simulated=True)


def record(test: str, *, started: float = STARTED, attempt: int = 1) -> Record:
    return replace(any_record(), test=test, started=started, attempt=attempt)


def part(main: RunFolder, name: str) -> RunFolder:
    return RunFolder.open(main.path, part=name)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_parts_write_files_of_their_own_and_are_read_in_the_order_of_time(main: RunFolder) -> None:
    one, two = part(main, "gw0"), part(main, "gw10")
    main.add_record(record("crashed", started=3.0))
    two.add_record(record("b", started=2.0))
    one.add_record(record("c", started=4.0))
    one.add_record(record("a", started=1.0))
    assert names(main.path) >= {"records-gw0.jsonl", "records-gw10.jsonl"}
    assert [r.test for r in RunFolder.open(main.path).records()] == ["a", "b", "crashed", "c"]


def test_ids_tell_the_part_and_go_on_after_a_merge(main: RunFolder) -> None:
    one, two = part(main, "gw0"), part(main, "gw1")
    assert [one.add_measurement("memory", "a", memory_measurement()) for _ in range(2)] == ["gw0-m0001", "gw0-m0002"]
    assert two.add_measurement("memory", "b", memory_measurement()) == "gw1-m0001"
    assert main.add_measurement("memory", "c", memory_measurement()) == "m0001"
    main.merge()
    assert part(main, "gw1").add_measurement("memory", "b", memory_measurement()) == "gw1-m0002"
    assert RunFolder.open(main.path).add_measurement("memory", "b", memory_measurement()) == "m0002"


def test_a_merge_leaves_what_one_process_would_have_left(main: RunFolder) -> None:
    one = part(main, "gw0")
    one.add_measurement("memory", "a", memory_measurement(losses=(float("nan"), 1.0)))
    one.add_record(record("a"))
    part(main, "gw1").add_record(record("b", started=1.0))
    before = RunFolder.open(main.path)
    measured = repr(dict(before.measurements()))  # NaN is unequal to itself
    main.merge()
    assert names(main.path) == {"environment.json", "measurements.jsonl", "records.jsonl", "tests.json"}
    after = RunFolder.open(main.path)
    assert after.records() == before.records() == [record("b", started=1.0), record("a")]
    assert repr(dict(after.measurements())) == measured


def test_a_merge_that_was_cut_short_counts_nothing_twice(main: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    part(main, "gw0").add_measurement("memory", "a", memory_measurement())
    part(main, "gw0").add_record(record("a"))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", fails)
        with pytest.raises(RunFolderError, match=r"measurements\.jsonl: cannot be written: Input/output error"):
            main.merge()
    assert "measurements-gw0.jsonl" in names(main.path)
    for _ in range(2):
        again = RunFolder.open(main.path)
        assert (list(again.measurements()), again.records()) == (["gw0-m0001"], [record("a")])
        main.merge()


def fails(*_: Any, **__: Any) -> Any:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_what_a_kill_cut_off_is_told_and_set_aside(main: RunFolder) -> None:
    part(main, "gw0").add_record(record("a"))
    for name in ("records.jsonl", "records-gw0.jsonl"):
        with open(main.path / name, "ab") as file:
            file.write(b'{"torn')
    assert RunFolder.open(main.path).torn == (f"{main.path}/records.jsonl:1", f"{main.path}/records-gw0.jsonl:2")
    main.merge()
    assert (main.path / "records.jsonl.torn").read_bytes() == b'{"torn\n' * 2
    assert (RunFolder.open(main.path).torn, RunFolder.open(main.path).records()) == ((), [record("a")])


def test_a_malformed_part_is_named_and_nothing_is_lost(main: RunFolder) -> None:
    part(main, "gw0").add_record(record("a"))
    with open(main.path / "records-gw0.jsonl", "ab") as file:
        file.write(b"[]\n")
    for attempt in (main.merge, lambda: RunFolder.open(main.path)):
        with pytest.raises(RunFolderError, match=r"records-gw0\.jsonl:2: got list, want a JSON object"):
            attempt()
    assert (main.path / "records-gw0.jsonl").read_bytes().count(b"\n") == 2


def test_a_part_learns_what_the_others_recorded(main: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = part(main, "gw0"), part(main, "gw1")
    two.add_record(record("b", started=1.0))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fails)
        with pytest.raises(RunFolderError, match="Input/output error"):
            one.add_record(record("a", started=2.0))
    assert [r.test for r in one.records()] == ["a"]
    one.refresh()
    assert [r.test for r in one.records()] == ["b", "a"], "its own record that is not on disk yet is not forgotten"


def test_the_last_attempt_counts_wherever_it_was_recorded(main: RunFolder) -> None:
    part(main, "gw0").add_record(record("a", started=9.0, attempt=1))
    part(main, "gw1").add_record(record("a", started=1.0, attempt=2))
    assert [r.attempt for r in RunFolder.open(main.path).records()] == [2]


def test_the_tests_of_all_attempts_are_known(main: RunFolder) -> None:
    assert main.tests == {}
    main.select({"a": Selected(criterion="memory", layout="ddp"), "b": Selected(criterion="own")})
    part(main, "gw0").select({"b": Selected(criterion="own", node="node0")})
    assert RunFolder.open(main.path).tests == {
        "a": Selected(criterion="memory", layout="ddp"), "b": Selected(criterion="own", node="node0"),
    }  # fmt: skip
    (main.path / "tests.json").write_text('{"schema": 1, "tests": {"a": 3}}')
    with pytest.raises(RunFolderError, match=r"tests\.json: tests\.a: got 3, want Selected; restore the file"):
        _ = main.tests

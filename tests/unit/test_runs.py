"""The run folder keeps everything, says what is wrong with it, and survives kills and full disks."""

from __future__ import annotations

import errno
import json
import os
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from made import RUN, conditions, memory_measurement, record, whole_run, without_value

from pytest_clusterqual.errors import RunFolderError
from pytest_clusterqual.folder.places import default_path
from pytest_clusterqual.folder.runs import RunFolder
from pytest_clusterqual.model.record import SCHEMA, Verdict
from pytest_clusterqual.model.variables import environment_variables

ENVIRONMENT = {
    "project": "demo",
    "argv": ["pytest", "--nodes", "2"],
    "versions": {"torch": "2.13.0"},
    "hosts": ["node0"],
    "started": "2026-11-30T01:48:24Z",
}


def made(path: Path) -> RunFolder:
    return RunFolder.create(path, run=RUN, environment=ENVIRONMENT, simulated=True)


def fails_with(number: int) -> Any:
    def fail(*_args: Any, **_keywords: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


def test_what_was_added_is_read_back_equal(tmp_path: Path) -> None:
    folder = made(tmp_path / "runs" / "a")
    first = folder.add_measurement("memory", "test_memory[ddp]", memory_measurement())
    second = folder.add_measurement("memory", "test_memory[fsdp]", memory_measurement(losses=(float("nan"), 1.0)))
    for each in whole_run():
        folder.add_record(each)

    again = RunFolder.open(tmp_path / "runs" / "a")
    assert (first, second) == ("m0001", "m0002")
    assert again.records() == folder.records() == whole_run()
    assert list(again.measurements()) == ["m0001", "m0002"]
    assert again.measurements()["m0001"] == ("test_memory[ddp]", "memory", memory_measurement())
    assert repr(dict(again.measurements())) == repr(dict(folder.measurements()))  # NaN is unequal to itself
    assert (again.run, again.simulated, again.torn, again.unsaved) == (RUN, True, (), 0)
    assert again.environment == {"schema": SCHEMA, "run": RUN, "simulated": True, **ENVIRONMENT}


def test_every_line_is_on_disk_when_the_call_returns(tmp_path: Path) -> None:
    folder = made(tmp_path / "a")
    folder.add_measurement("memory", "t", memory_measurement())
    line = json.loads((tmp_path / "a" / "measurements.jsonl").read_text())
    assert set(line) == {"schema", "id", "test", "criterion", "kind", "started", "size", "measurement"}
    folder.add_record(record())
    assert (tmp_path / "a" / "records.jsonl").read_text().count("\n") == 1


def test_lines_are_forced_out_of_the_systems_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, forced, fsync = made(tmp_path), [], os.fsync

    def watched(descriptor: int) -> None:
        forced.append((os.fstat(descriptor).st_ino, os.fstat(descriptor).st_size))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    folder.add_record(record())
    folder.add_measurement("memory", "t", memory_measurement())
    files = [os.stat(tmp_path / name) for name in ("records.jsonl", "measurements.jsonl")]
    assert forced == [(file.st_ino, file.st_size) for file in files]


def test_a_line_that_could_not_be_forced_out_is_written_again_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fails_with(errno.EIO))
        with pytest.raises(RunFolderError, match="Input/output error"):
            folder.add_record(record(value=1.0))
    folder.add_record(record(value=2.0))
    assert RunFolder.open(tmp_path).records() == [record(value=1.0), record(value=2.0)]


def test_the_folder_may_be_there_already_if_it_is_empty(tmp_path: Path) -> None:
    made(tmp_path)
    names = {"environment.json", "records.jsonl", "measurements.jsonl", "tests.json"}
    assert {path.name for path in tmp_path.iterdir()} == names


def test_a_reopened_folder_goes_on(tmp_path: Path) -> None:
    made(tmp_path).add_measurement("memory", "t", memory_measurement())
    again = RunFolder.open(tmp_path)
    assert again.add_measurement("memory", "t", memory_measurement()) == "m0002"
    assert list(RunFolder.open(tmp_path).measurements()) == ["m0001", "m0002"]


def test_folder_that_holds_a_run_is_refused(tmp_path: Path) -> None:
    made(tmp_path).add_record(record())
    with pytest.raises(RunFolderError) as caught:
        made(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}: already holds a run; give another folder with --qual-run-dir, or move this one away"
    )
    assert RunFolder.open(tmp_path).records() == [record()]


def test_folder_with_other_files_is_refused_and_untouched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(RunFolderError) as caught:
        made(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}: is not empty (it holds 'thesis.tex') and not a run folder; "
        "give another folder with --qual-run-dir, new or empty"
    )
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_no_run_is_written_into_another(tmp_path: Path) -> None:
    made(tmp_path)
    for inside in (tmp_path / "ranks", tmp_path / "ranks" / ".." / "a" / "b"):
        with pytest.raises(RunFolderError) as caught:
            made(inside)
        why = f"lies in the run folder {tmp_path}, which holds evidence; give another folder with --qual-run-dir"
        assert str(caught.value) == f"{inside}: {why}"
    assert not (tmp_path / "a").exists()


def test_of_two_runs_that_start_at_once_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path)
    monkeypatch.setattr(
        "pytest_clusterqual.folder.places._refuse_what_is_not_empty", lambda path: None
    )  # both looked before
    with pytest.raises(RunFolderError, match="already holds a run"):
        made(tmp_path)


def test_a_file_in_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    with pytest.raises(RunFolderError, match=r"a: cannot be written: File exists; there is a file of that name: give"):
        made(tmp_path / "a")
    with pytest.raises(RunFolderError, match="Not a directory; a part of the path is not a folder"):
        made(tmp_path / "a" / "b")


def test_environment_keeps_what_identifies_the_run(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, run=RUN, environment={"run": "other", "schema": 9}, simulated=True)
    folder.update_environment({"hosts": ("node0", "node1"), "simulated": False, "run": "x"})
    again = RunFolder.open(tmp_path)
    assert (again.run, again.simulated, again.environment["schema"]) == (RUN, True, SCHEMA)
    assert again.environment["hosts"] == ["node0", "node1"]


def test_environment_is_the_old_or_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made(tmp_path)
    before = (tmp_path / "environment.json").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fails_with(errno.EIO))
        with pytest.raises(RunFolderError, match=r"environment\.json: cannot be written: Input/output error; check"):
            folder.update_environment({"hosts": ["node9"]})
    assert (tmp_path / "environment.json").read_bytes() == before
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("file", ["records.jsonl", "measurements.jsonl"])
def test_a_kill_while_writing_loses_only_that_line(tmp_path: Path, file: str) -> None:
    folder = made(tmp_path)
    for losses in ((1.0,), (2.0,)):
        folder.add_record(record(value=losses[0]))
        folder.add_measurement("memory", "t", memory_measurement(losses=losses))
    whole = (tmp_path / file).read_bytes()
    last = whole[whole.index(b"\n") + 1 :]

    for kept in [*range(0, len(last), 97), 1, len(last) - 2, len(last) - 1]:
        (tmp_path / file).write_bytes(whole[: len(whole) - len(last) + kept])
        again = RunFolder.open(tmp_path)
        complete = kept == len(last) - 1  # only the line's end is missing
        count = len(again.records() if file == "records.jsonl" else again.measurements())
        assert count == (2 if complete else 1)
        assert again.torn == (() if kept == 0 or complete else (f"{tmp_path / file}:2",))

        again.add_record(record(value=3.0))
        again.add_measurement("memory", "t", memory_measurement(losses=(3.0,)))
        after = RunFolder.open(tmp_path)
        assert after.records() == again.records()
        assert after.measurements() == again.measurements()
        assert after.torn == ()
        for name in ("records.jsonl", "measurements.jsonl"):
            (tmp_path / name).write_bytes(b"".join((tmp_path / name).read_bytes().splitlines(keepends=True)[:1]))


def test_a_torn_line_is_set_aside_not_thrown_away(tmp_path: Path) -> None:
    made(tmp_path)
    (tmp_path / "records.jsonl").write_bytes(b'{"schema": 1, "te')
    RunFolder.open(tmp_path).add_record(record())
    assert (tmp_path / "records.jsonl.torn").read_bytes() == b'{"schema": 1, "te\n'
    assert RunFolder.open(tmp_path).records() == [record()]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"schema": 1, "te', r"records.jsonl:2: not JSON \(.*\); restore the file, or remove this line"),
        (b"", r"records.jsonl:2: not JSON"),
        (b"\xff{}", r"records.jsonl:2: not JSON"),
        (b'{"schema": NaN}', r"records.jsonl:2: not JSON \(NaN is not JSON\)"),
        (b"[1]", r"records.jsonl:2: got list, want a JSON object"),
        (b'{"schema": 7}', r"records.jsonl:2: got schema 7, want 1; read this run with the version of .* that wrote"),
        (b'{"schema": true}', r"records.jsonl:2: got schema True, want 1"),
        (b"{}", r"records.jsonl:2: got schema None, want 1"),
        (b'{"schema": 1}', r"records.jsonl:2: the field 'run' is missing; restore the file"),
        (b"[" * 100_000, r"records.jsonl:2: not JSON"),
    ],
)
def test_any_other_bad_line_is_named(tmp_path: Path, line: bytes, message: str) -> None:
    folder = made(tmp_path)
    folder.add_record(record())
    with open(tmp_path / "records.jsonl", "ab") as file:
        file.write(line + b"\n")
    folder.add_record(record())
    with pytest.raises(RunFolderError, match=message):
        RunFolder.open(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"criterion": "taste"}, "1: criterion: got 'taste', want nodes, memory, fabric, scaling, full_run"),
        ({"criterion": "fabric"}, "1: kind: got 'memory', want fabric, pairs, placement"),
        (
            {"criterion": "fabric", "kind": "pairs"},
            "1: measurement: got unknown field 'out_of_memory', want conditions, pairs",
        ),
        ({"criterion": "memory", "kind": "eval"}, "1: kind: got 'eval', want memory"),
        ({"id": "../x"}, "1: id: got '../x', want an id such as 'm0001'"),
        ({"extra": 1}, "1: got the fields schema, id, test, criterion, kind, started, size, measurement, extra, want"),
        ({"test": 5}, "1: got the fields"),
    ],
)
def test_a_bad_measurement_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    made(tmp_path).add_measurement("memory", "t", memory_measurement())
    line = json.loads((tmp_path / "measurements.jsonl").read_text())
    (tmp_path / "measurements.jsonl").write_text(json.dumps({**line, **change}) + "\n")
    with pytest.raises(RunFolderError) as caught:
        dict(RunFolder.open(tmp_path).measurements())
    assert str(caught.value).startswith(f"{tmp_path / 'measurements.jsonl'}:{message}")


def test_a_number_that_no_float_holds_is_named(tmp_path: Path) -> None:
    made(tmp_path).add_record(record(seconds=4.25))
    text = (tmp_path / "records.jsonl").read_text()
    (tmp_path / "records.jsonl").write_text(text.replace("4.25", "1" + "0" * 400))
    with pytest.raises(RunFolderError, match=r"records.jsonl:1: int too large to convert to float; restore the file"):
        RunFolder.open(tmp_path)


def test_the_same_id_twice_is_refused(tmp_path: Path) -> None:
    made(tmp_path).add_measurement("memory", "t", memory_measurement())
    path = tmp_path / "measurements.jsonl"
    path.write_bytes(path.read_bytes() * 2)
    with pytest.raises(RunFolderError, match=r"measurements.jsonl:2: id: got 'm0001', want .* that no other line has"):
        RunFolder.open(tmp_path)


def test_what_is_not_a_run_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"is not a run folder \(environment.json is missing\); give the folder"):
        RunFolder.open(tmp_path)
    (tmp_path / "environment.json").write_text('{\n "run": "a",\n "schema": 2}')
    with pytest.raises(RunFolderError, match=r"environment.json:3: got schema 2, want 1"):
        RunFolder.open(tmp_path)
    (tmp_path / "environment.json").write_text('{"run": "a", "schema": 1, "simulated": "no"}')
    with pytest.raises(RunFolderError, match=r"environment.json: simulated: got 'no', want bool"):
        RunFolder.open(tmp_path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_loses_nothing_that_was_recorded(tmp_path: Path) -> None:
    folder = made(tmp_path)
    path = tmp_path / "records.jsonl"
    path.unlink()
    path.symlink_to("/dev/full")
    with pytest.raises(RunFolderError) as caught:
        folder.add_record(record(value=1.0))
    assert str(caught.value) == (
        f"{path}: cannot be written: No space left on device; "
        "free some space, or give another folder with --qual-run-dir"
    )
    assert folder.records() == [record(value=1.0)]
    assert folder.unsaved == 1

    path.unlink()  # there is space again
    folder.add_record(record(value=2.0))
    assert folder.unsaved == 0
    assert RunFolder.open(tmp_path).records() == [record(value=1.0), record(value=2.0)]


def test_half_a_line_on_a_full_disk_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made(tmp_path)
    folder.add_record(record(value=1.0))
    before, write = (tmp_path / "records.jsonl").read_bytes(), os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda file, data: write(file, data[: len(data) // 2]))
        with pytest.raises(RunFolderError, match="No space left on device"):
            folder.add_record(record(value=2.0))
    assert (tmp_path / "records.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EROFS, "Read-only file system; the file system is read-only: give another folder with --qual-run-dir"),
        (errno.EACCES, "Permission denied; give another folder with --qual-run-dir that this user may write"),
        (errno.ENOENT, "No such file or directory; the folder was removed or renamed meanwhile: put it back"),
        (errno.EIO, "Input/output error; check the file system, or give another folder with --qual-run-dir"),
    ],
)
def test_why_it_cannot_be_written_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
) -> None:
    folder = made(tmp_path / "a")
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fails_with(number))
        with pytest.raises(RunFolderError) as appended:
            folder.add_measurement("memory", "t", memory_measurement())
        with pytest.raises(RunFolderError) as created:
            made(tmp_path / "b")
    assert str(appended.value) == f"{tmp_path / 'a' / 'measurements.jsonl'}: cannot be written: {remedy}"
    assert str(created.value) == f"{tmp_path / 'b'}: cannot be written: {remedy}"
    assert list(folder.measurements()) == ["m0001"]


def test_a_folder_that_could_not_be_made_whole_can_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fails_with(errno.ENOSPC))
        with pytest.raises(RunFolderError, match=r"environment.json: cannot be written: No space left"):
            made(tmp_path)
    assert list(tmp_path.iterdir()) == []
    made(tmp_path)


def test_environment_variables_are_the_useful_ones_without_secrets() -> None:
    kept = {
        "NCCL_DEBUG": "INFO",
        "GLOO_SOCKET_IFNAME": "eth0",
        "TORCH_NCCL_BLOCKING_WAIT": "1",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "0",
        "SLURM_JOB_ID": "7",
    }
    dropped = {
        "HOME": "/root",
        "AWS_ACCESS": "x",
        "SLURM_JWT": "x",
        "SLURM_CRED_TOKEN": "x",
        "NCCL_api_key": "x",
        "TORCH_HUB_PASSWORD": "x",
        "CUDA_SECRET": "x",
        "SLURM_CREDENTIALS": "x",
        "MY_NCCL_DEBUG": "x",
        "TORCH_PROXY": "http://me:hunter2@proxy:80",
        "nccl_debug": "x",
    }
    assert environment_variables({**dropped, **kept}) == kept


def test_default_path_is_the_time_in_utc_and_never_taken(tmp_path: Path) -> None:
    now = datetime(2026, 11, 30, 2, 48, 24, tzinfo=timezone(timedelta(hours=1)))
    first = default_path(tmp_path, now)
    assert first == tmp_path / "20261130T014824Z"
    made(first)
    second = default_path(tmp_path, now)
    assert second.name == "20261130T014824Z-2"
    made(second)
    assert default_path(tmp_path, now).name == "20261130T014824Z-3"


def test_conditions_cross_the_file_unchanged(tmp_path: Path) -> None:
    unusual = record(under=conditions(hosts=("a\x1b[2J", "b\u2028c"), bytes=4096, layout=None))
    made(tmp_path).add_record(unusual)
    assert RunFolder.open(tmp_path).records() == [unusual]


def test_records_of_one_measurement_share_its_conditions(tmp_path: Path) -> None:
    """Those of a thousand nodes are megabytes: each line has them, memory has them once."""
    ours, others = conditions(layout="ddp"), conditions(layout="fsdp")
    none = without_value("test_x", "scaling", Verdict.ERROR, 'said "conditions": null, and died')
    told = [record(under=ours), record(under=ours, label="4 MiB"), none, record(under=ours), record(under=others)]
    folder = made(tmp_path)
    for each in told:
        folder.add_record(each)
    again = RunFolder.open(tmp_path).records()
    assert again == told
    assert again[0].conditions is again[1].conditions and again[2].conditions is None


def test_conditions_that_are_written_otherwise_are_read_as_well(tmp_path: Path) -> None:
    folder = made(tmp_path)
    for each in (record(), record(label="4 MiB")):
        folder.add_record(each)
    path = tmp_path / "records.jsonl"
    lines = map(json.loads, path.read_text().splitlines())
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    assert RunFolder.open(tmp_path).records() == folder.records()


def test_a_line_of_the_first_version_has_the_kind_of_its_criterion(tmp_path: Path) -> None:
    made(tmp_path).add_measurement("memory", "t", memory_measurement())
    path = tmp_path / "measurements.jsonl"
    line = json.loads(path.read_text())
    del line["kind"]
    path.write_text(json.dumps(line) + "\n")
    assert RunFolder.open(tmp_path).measurements() == {"m0001": ("t", "memory", memory_measurement())}

"""Folders that several processes read: the ledger is the same as from one, and so are errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from probe_made import killed_run

from pytest_clusterqual.commands import probe_import
from pytest_clusterqual.commands.probe_import import import_probe
from pytest_clusterqual.errors import MeasurementError, ReadError


def test_several_processes_make_the_ledger_of_one(tmp_path: Path) -> None:
    killed_run(tmp_path, ranks=5)
    torn = tmp_path / "rank3-attempt0.jsonl"
    torn.write_bytes(torn.read_bytes() + b'{"what":"st')
    alone = import_probe(tmp_path, processes=1)
    assert import_probe(tmp_path, processes=2) == alone
    assert [rank.rank for rank in alone.ranks] == list(range(5))
    assert f"{torn}:" in alone.warnings[0]


def test_a_folder_is_shared_out_by_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed_run(tmp_path, ranks=2)
    asked: list[int] = []

    class Pool(probe_import.ProcessPoolExecutor):
        def __init__(self, processes: int, *rest: object) -> None:
            asked.append(processes)
            super().__init__(processes, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(probe_import, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(probe_import.os, "sched_getaffinity", lambda _: range(64))
    small = import_probe(tmp_path)
    assert asked == []
    monkeypatch.setattr(probe_import, "_ALONE", 100)
    assert import_probe(tmp_path) == small
    assert asked == [2], "not more than there are ranks"


def test_what_is_wrong_in_a_file_comes_back_from_the_process_that_read_it(tmp_path: Path) -> None:
    killed_run(tmp_path, ranks=3)
    file = tmp_path / "rank1-attempt0.jsonl"
    file.write_text(file.read_text() + '{"what":"sleep","at":1.0}\n')
    with pytest.raises(ReadError, match=rf"{file}:\d+: is no line of a probe"):
        import_probe(tmp_path, processes=2)


def test_ranks_that_contradict_themselves_do_so_in_any_process(tmp_path: Path) -> None:
    killed_run(tmp_path, ranks=2)
    again = tmp_path / "rank1-attempt2.jsonl"
    again.write_text((tmp_path / "rank1-attempt0.jsonl").read_text().replace('"attempt":0', '"attempt":2', 1))
    with pytest.raises(MeasurementError, match="rank 1: attempt 2 on vm began"):
        import_probe(tmp_path, processes=2)

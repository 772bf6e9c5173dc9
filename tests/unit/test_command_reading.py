"""What a run of a command left behind: whole, or refused with what is missing and how to mend it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from command_made import GIB, JOB, begins, ends, left_behind, made_folder, probes, step
from logs_made import megatron

from pytest_clusterqual.errors import ClusterQualError, MeasurementError, ReadError
from pytest_clusterqual.measure.command import _steps_done
from pytest_clusterqual.measure.command_reading import logged, probed, rank_memory, trained
from pytest_clusterqual.model.command import OUTPUT, PROBES


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = made_folder(tmp_path / "run")
    for rank in (0, 1):
        begins(made, rank)
        ends(made, rank)
    return made


def test_the_lines_of_every_rank_are_read(folder: Path) -> None:
    for rank in (0, 1):
        probes(folder, rank, step(1, tokens=64), step(2, tokens=64))
    run = left_behind(folder)
    assert {rank: len(each[0].lines) for rank, each in probed(run, JOB).items()} == {0: 2, 1: 2}
    first, second = trained(run, JOB, warmup=1)
    assert (first.rank, second.rank) == (0, 1)
    assert first.step_seconds == (1.0,)
    assert first.tokens_per_step == 64


def test_a_command_without_a_probe_is_told_what_to_write(folder: Path) -> None:
    with pytest.raises(MeasurementError, match=r"wrote nothing through a probe.*write with probe\.step.*workload\.log"):
        probed(left_behind(folder), JOB)


def test_a_folder_of_probes_that_the_command_took_away_is_told(folder: Path) -> None:
    (folder / PROBES).rmdir()
    with pytest.raises(MeasurementError, match=r"own: .*, the folder of its probes, is gone: the command has"):
        probed(left_behind(folder), JOB)


def test_a_rank_that_wrote_nothing_is_named(folder: Path) -> None:
    probes(folder, 0, step(1))
    with pytest.raises(MeasurementError, match=r"1 of 2 ranks wrote through a probe, rank 1 did not; make a Probe\(\)"):
        probed(left_behind(folder), JOB)


def test_a_world_of_one_is_an_error(folder: Path) -> None:
    probes(folder, 0, step(1), world=1)
    probes(folder, 1, step(1))
    with pytest.raises(MeasurementError, match="a probe wrote as rank 0 of 1, asked were 2 ranks"):
        probed(left_behind(folder), JOB)


def test_a_probe_in_a_worker_of_the_script_is_found_out(folder: Path) -> None:
    for rank in (0, 1):
        probes(folder, rank, step(1))
    probes(folder, 1, attempt=1)
    with pytest.raises(MeasurementError, match=r"2 processes wrote as rank 1, torchrun started 1; make one Probe\(\)"):
        probed(left_behind(folder), JOB)


def test_steps_are_counted_from_one_and_are_those_that_were_wanted(folder: Path) -> None:
    for rank in (0, 1):
        probes(folder, rank, step(1), step(2))
    told = probed(left_behind(folder), JOB)
    assert _steps_done(told, None, "run") == _steps_done(told, 2, "run") == 2
    with pytest.raises(MeasurementError, match=r"it did 2 steps, \{steps\} told it to do 3"):
        _steps_done(told, 3, "run")
    for rank in (0, 1):
        probes(folder, rank, step(0), step(1))
    with pytest.raises(MeasurementError, match=r"its first step is 0; probe\.step\(number\) counts from 1"):
        _steps_done(probed(left_behind(folder), JOB), None, "run")
    for rank in (0, 1):
        probes(folder, rank)
    with pytest.raises(MeasurementError, match=r"its probe tells of no step; write with probe\.step"):
        _steps_done(probed(left_behind(folder), JOB), None, "run")


def test_the_log_of_rank_0_is_read_where_the_file_says_so(folder: Path) -> None:
    (folder / OUTPUT / "rank0.log").write_text("hello\n" + "".join(f"step {n} took 0.5 s\n" for n in range(1, 5)))
    job = replace(JOB, log=True, pattern=r"step (?P<step>\d+) took (?P<seconds>[\d.]+) s")
    (rank,) = trained(left_behind(folder), job, warmup=1)
    assert (rank.rank, rank.step_seconds) == (0, (0.5, 0.5, 0.5))
    with pytest.raises(ReadError) as error:
        trained(left_behind(folder), replace(job, pattern=None), warmup=1)
    assert "own: none of 2 ranks printed a step that can be read; " in str(error.value)
    assert "no line of 5 tells of a step" in str(error.value)
    assert "workload.log.pattern: 'step (?P<step>" in str(error.value)
    assert "--pattern" not in str(error.value)
    with pytest.raises(ReadError, match=r"rank0\.log: workload\.log\.pattern .* is found in none of 5 lines"):
        trained(left_behind(folder), replace(job, pattern=r"nothing (?P<step>\d+)"), warmup=1)


def test_the_log_is_of_the_rank_whose_lines_tell_most_steps(folder: Path) -> None:
    """Megatron-LM prints from its last rank."""
    (folder / OUTPUT / "rank0.log").write_text("  world_size ...................... 2\n")
    (folder / OUTPUT / "rank1.log").write_text(megatron([2.0, 1.0, 1.0]))
    (rank,) = trained(left_behind(folder), replace(JOB, log=True), warmup=10)
    assert (rank.rank, rank.otherwise) == (1, ("as the log of rank 1 tells them (Megatron-LM)",))
    (folder / OUTPUT / "rank0.log").write_text(megatron([2.0, 1.0, 1.0]))
    assert trained(left_behind(folder), replace(JOB, log=True), warmup=10)[0].rank == 0


OWN = r"step (?P<step>\d+) loss (?P<loss>[\d.]+) (?P<seconds>[\d.]+) s"


def own_lines(steps: Iterable[int], loss: float = 3.0, seconds: float = 0.5) -> str:
    return "".join(f"step {n} loss {loss - n / 100:.2f} {seconds} s\n" for n in steps)


def test_of_ranks_that_log_as_many_steps_the_slowest_counts(folder: Path) -> None:
    for rank, seconds in ((0, 0.5), (1, 1.0)):
        (folder / OUTPUT / f"rank{rank}.log").write_text(own_lines(range(1, 11), seconds=seconds))
    (rank,) = trained(left_behind(folder), replace(JOB, log=True, pattern=OWN), warmup=1)
    assert (rank.rank, rank.step_seconds) == (1, (1.0,) * 9)
    assert rank.otherwise == ("as the log of rank 1 tells them (workload.log.pattern)",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (own_lines(range(1, 11)) + own_lines(range(1, 11), 2.0), "rank0.log:11: step 1 stands there again"),
        (own_lines(range(1, 11)) + own_lines(range(5, 11), 2.0), "rank0.log:11 its steps go back; have them count on"),
        ("".join(own_lines([n]) + own_lines([n], 2.0) for n in range(1, 9)), "rank0.log:2: step 1 stands there again"),
    ],
    ids=["epochs", "a restart", "microbatches"],
)
def test_steps_of_a_rank_that_count_anew_are_refused(folder: Path, text: str, message: str) -> None:
    """In a log of several ranks they would be lines of others."""
    (folder / OUTPUT / "rank0.log").write_text(text)
    with pytest.raises(ClusterQualError, match=message):
        trained(left_behind(folder), replace(JOB, log=True, pattern=OWN), warmup=1)
    assert logged(left_behind(folder), replace(JOB, log=True, pattern=OWN)).attempts, "enough for Memory"


def test_a_line_that_a_rank_prints_twice_counts_once(folder: Path) -> None:
    """As two handlers of one logger do."""
    (folder / OUTPUT / "rank0.log").write_text("".join(own_lines([n]) * 2 for n in range(1, 9)))
    (rank,) = trained(left_behind(folder), replace(JOB, log=True, pattern=OWN), warmup=1)
    assert len(rank.step_seconds) == 7


def test_memory_on_a_host_is_the_share_of_each_rank(folder: Path) -> None:
    run = left_behind(folder)
    found = rank_memory(run, run.last[1], (), None)
    assert (found.step_peaks, found.device_used, found.limit) == ((GIB,), GIB, 4 * GIB)
    assert found.limit_from == "MemTotal / 2 ranks on this machine"
    for rank in (0, 1):
        begins(folder, rank, group_memory=3 * GIB, group="one")
    run = left_behind(folder)
    limit = rank_memory(run, run.last[0], (), None)
    assert (limit.limit, limit.limit_from) == (3 * GIB // 2, "control group limit / 2 ranks under it")


def test_memory_on_a_device_is_what_the_probe_tells_of_it(folder: Path) -> None:
    for rank in (0, 1):
        begins(folder, rank, device="cuda:0")
        probes(folder, rank, step(1), {"what": "end", "at": 5.0, "step": 1, "device_peak": 5 * GIB})
    run = left_behind(folder)
    told = probed(run, JOB)
    found = rank_memory(run, run.last[0], told[0], 80 * GIB)
    assert (found.step_peaks, found.device_used, found.limit) == ((5 * GIB,), 0, 80 * GIB)
    with pytest.raises(MeasurementError, match="it is not known how much memory its GPU has"):
        rank_memory(run, run.last[0], told[0], None)
    with pytest.raises(MeasurementError, match="its probe tells no peak of its device, which nobody else knows"):
        rank_memory(run, run.last[0], (), 80 * GIB)

"""Real output of nccl-tests, where it is present: what a careful engineer reads from it, and what is refused."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from captures import CASES, capture

from pytest_clusterqual.errors import ReadError
from pytest_clusterqual.model.busbw import busbw_factor
from pytest_clusterqual.read.nccl_tests import read_nccl_tests
from pytest_clusterqual.read.reported import ReportedRun


class Right(NamedTuple):
    """`peak` is the greatest busbw out of place (GB/s), `largest` that at the largest size; sizes in bytes."""

    rows: int
    peak: tuple[float, int]
    largest: tuple[float, int]
    ranks: int
    hosts: int = 0
    collective: str = "all_reduce"
    named: bool = True
    problem: str = ""


GIB = 1 << 30
CUT, FEW = "the log is cut, or the program died", "sizes were asked for"
RIGHT = {
    "aws_p4de_2n_srun_prefix.txt": Right(29, (78.33, 2 * GIB), (78.33, 2 * GIB), 16, problem=CUT),
    "aws_p5_2n_srun_prefix.txt": Right(32, (487.09, 16 * GIB), (487.09, 16 * GIB), 16, problem=CUT),
    "coreweave_gb200_1rack.txt": Right(5, (839.16, 4 * GIB), (834.57, 8 * GIB), 72),
    "coreweave_gb200_20racks.txt": Right(6, (405.74, 16 * GIB), (405.74, 16 * GIB), 1440),
    "coreweave_h100_64gpu.txt": Right(5, (386.56, 8 * GIB), (386.56, 8 * GIB), 96, problem=FEW),
    "dstack_gcp_a4_2n.txt": Right(11, (683.52, 8 * GIB), (683.52, 8 * GIB), 16, problem=FEW),
    "dstack_nebius_2n.txt": Right(31, (467.54, 8 * GIB), (467.54, 8 * GIB), 16),
    "gcp_a3mega_2n_16r.txt": Right(31, (338.82, 8 * GIB), (338.82, 8 * GIB), 16, hosts=2),
    "nccl1435_allgather_gpu01.txt": Right(
        7, (125.56, 100663296), (119.64, 117440512), 2, collective="all_gather", named=False, problem=CUT
    ),
    "nccl1453_collapse_above_32MiB_rank_tags.txt": Right(10, (29.50, 1 << 25), (5.31, 1 << 29), 24, problem=CUT),
    "nccl340_2gpu_redopless_layout.txt": Right(
        12, (21.40, 1 << 26), (20.34, 1 << 27), 2, collective="all_gather", named=False
    ),
    "ncclt232_h100_2n2r_tree_4nic.txt": Right(5, (41.31, 1 << 25), (41.31, 1 << 25), 2, named=False, problem=CUT),
    "ncclt252_ring_8r_4nic.txt": Right(5, (97.37, 4 * GIB), (95.10, 8 * GIB), 8),
    "ncclt78_v100_8n_allreduce.txt": Right(2, (4.33, 1 << 28), (4.32, 1 << 29), 64),
    "oke_a100_2n_no_avg_line.txt": Right(4, (189.60, 8 * GIB), (189.60, 8 * GIB), 16),
    "superbench_nccl_allreduce.log": Right(32, (235.26, 8 * GIB), (235.26, 8 * GIB), 8, hosts=1),
    "superbench_nccl_alltoall.log": Right(
        29, (224.31, 8 * GIB), (224.31, 8 * GIB), 8, hosts=1, collective="all_to_all", named=False
    ),
    "superbench_nccl_broadcast.log": Right(
        32, (232.81, 8 * GIB), (232.81, 8 * GIB), 8, hosts=1, collective="broadcast"
    ),
    "superbench_nccl_reduce.log": Right(32, (230.99, 4 * GIB), (228.38, 8 * GIB), 8, hosts=1, collective="reduce"),
}


def read(name: str, collective: str | None = None) -> tuple[ReportedRun, ...]:
    return read_nccl_tests(capture(f"nccl_tests/{name}"), name, collective=collective)


@pytest.mark.parametrize("name", RIGHT)
def test_a_real_run_reads_as_an_engineer_reads_it(name: str) -> None:
    right = RIGHT[name]
    (run,) = read(name, None if right.named else right.collective)
    assert run.collective == right.collective
    assert len(run.sweep.timings) == right.rows
    assert run.fits[0] <= right.ranks <= run.fits[1]
    assert len(set(run.hosts)) == right.hosts
    factor = busbw_factor(right.collective, right.ranks)
    rates = [(t.bytes / t.seconds * factor / 1e9, t.bytes) for t in run.sweep.timings if t.seconds]
    for rate, wanted in ((max(rates), right.peak), (max(rates, key=lambda each: each[1]), right.largest)):
        assert rate == (pytest.approx(wanted[0], rel=2e-3), wanted[1])
    assert run.sweep.out_of_bounds == 0
    assert {t.wrong for t in run.sweep.timings} <= {0, None}
    assert len(run.problems) == bool(right.problem)
    assert all(right.problem in problem for problem in run.problems)


def test_without_a_name_rows_that_two_collectives_share_ask_for_it() -> None:
    (run,) = read("superbench_nccl_alltoall.log")
    assert run.collective is None
    assert "this may be all_gather or all_to_all, and the text does not say; name it" in run.problems[0]


def test_results_that_were_not_checked_are_told_apart_from_good_ones() -> None:
    (run,) = read("superbench_nccl_allreduce.log")
    assert {timing.wrong for timing in run.sweep.timings} == {None}


REFUSED = {
    "coreweave_gb200_2racks.txt": "busbw 493.94 GB/s does not follow from size 536870912 B, 2.16 ms and 144 ranks",
    "pytorch84803_1gpu_allreduce.txt": "this rank ran alone",
    "nccl1222_h100_4n_2193_vs_2203.txt": "nccl1222_h100_4n_2193_vs_2203.txt:13: a run begins here, but no row of it",
    "ncclt252_before_after_acs.txt": "a run begins here, but no row of it follows",
    "ncclt7_2018_out_of_bounds_248_failed.txt": "a run begins here, but no row of it follows",
    "k8stester503_p5_mpirun_tag_padded.txt": "the log is cut",
    "J_shape_fixture_d_minimal.json": "size 17179869184 B has no figures, so it tells nothing",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_whole_run_is_refused(name: str) -> None:
    assert REFUSED[name] in "\n".join(problem for run in read(name) for problem in run.problems)


def test_two_runs_of_one_paste_are_not_merged() -> None:
    whole, cut = read("nccl1222_h100_4n_2193_vs_2203.txt")
    assert (len(whole.sweep.timings), whole.fits, len(cut.sweep.timings)) == (5, (32, 32), 0)


@pytest.mark.parametrize("name", ["nccl2001_gh200_wrong_1MiB_prose.md", "ncclt318_json_proposal.txt"])
def test_prose_and_foreign_json_are_no_run(name: str) -> None:
    with pytest.raises(ReadError, match="want what all_reduce_perf or another program"):
        read(name)


def test_every_capture_has_an_answer() -> None:
    if not CASES.is_dir():
        pytest.skip("the collection of real captures is not here")
    present = {path.name for path in (CASES / "nccl_tests").iterdir()}
    assert present == {*RIGHT, *REFUSED, "nccl2001_gh200_wrong_1MiB_prose.md", "ncclt318_json_proposal.txt"}

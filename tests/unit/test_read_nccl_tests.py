"""What nccl-tests prints reads the same however it was pasted; what is cut, mixed or damaged says so."""

from __future__ import annotations

import pytest
from captures import damaged
from hypothesis import given, settings
from nccl_tests_made import MIB, SIZES, config, devices, footer, header, log, row, steady

from pytest_clusterqual.errors import ReadError
from pytest_clusterqual.read.nccl_tests import read_nccl_tests
from pytest_clusterqual.read.reported import ReportedRun

GOOD = log()
DRESSES = {
    "as printed": GOOD,
    "srun -l": "".join(f" 0: {line}" for line in GOOD.splitlines(keepends=True)),
    "mpirun --tag-output": "".join(f"[1,0]<stdout>:{line}" for line in GOOD.splitlines(keepends=True)),
    "mpiexec -prepend-rank, also inside the rows": GOOD.replace("\n", "\n[0] ").replace("      -1", "      -1[0]"),
    "colours": GOOD.replace("#wrong", "\x1b[31m#wrong\x1b[0m").replace("float", "\x1b[1mfloat\x1b[0m"),
    "no marks": GOOD.replace("#", ""),
    "windows, padded": GOOD.replace("\n", "   \r\n"),
    "NCCL_DEBUG=INFO": GOOD.replace(
        row("all_reduce", 16, 2 * MIB, steady(2 * MIB)),
        "gpu001:3442:3442 [0] NCCL INFO Launch mode Parallel\n" + row("all_reduce", 16, 2 * MIB, steady(2 * MIB)),
    ),
    "timestamps": "\n".join(line + "  2026-11-30 01:48:24" * (" float " in line) for line in GOOD.split("\n")),
    "the average left out": "".join(line for line in GOOD.splitlines(keepends=True) if "Avg" not in line),
    "a shell around it": f"$ mpirun -np 16 ./build/all_reduce_perf -b 1M -e 16M -f 2\n{GOOD}\n$ exit\n",
}


def read(text: str, **how: str) -> tuple[ReportedRun, ...]:
    return read_nccl_tests(text, "x.log", **how)


def only(text: str, **how: str) -> ReportedRun:
    (run,) = read(text, **how)
    return run


def problems(text: str, **how: str) -> str:
    return "\n".join(problem for run in read(text, **how) for problem in run.problems)


@pytest.mark.parametrize("dress", DRESSES)
def test_one_run_reads_the_same_however_it_was_pasted(dress: str) -> None:
    run = only(DRESSES[dress])
    assert run.problems == ()
    assert (run.collective, run.variant, run.tool) == ("all_reduce", "", "nccl-tests")
    assert (run.fits, run.hosts) == ((16, 16), ("gpu001",) * 8 + ("gpu002",) * 8)
    assert run.device == "NVIDIA H100 80GB HBM3"
    assert run.versions == {"nccl-tests": "2.17.9", "nccl": "2.29.3"}
    assert [timing.bytes for timing in run.sweep.timings] == list(SIZES)
    assert [timing.wrong for timing in run.sweep.timings] == [0] * len(SIZES)
    for timing in run.sweep.timings:
        assert timing.seconds == timing.seconds_in_place == pytest.approx(steady(timing.bytes), rel=1e-3)


@pytest.mark.parametrize("ranks", [2, 8, 72, 1440])
@pytest.mark.parametrize("old", [False, True], ids=["new", "old"])
@pytest.mark.parametrize(
    "collective", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "broadcast"]
)
def test_rows_of_every_collective_tell_themselves_or_ask_for_the_name(collective: str, old: bool, ranks: int) -> None:
    sizes = [ranks * MIB * 2**i for i in range(4)]
    rows = [row(collective, ranks, size, steady(size), old=old) for size in sizes]
    text = header(old) + "\n".join([*rows, ""]) + footer()
    if old and collective == "broadcast":
        text = text.replace("float", "float       0")  # its old rows name a root and no operation
    run = only(text, collective=collective)
    assert run.problems == ()
    assert run.fits[0] <= ranks <= run.fits[1]
    exact = collective in ("all_gather", "reduce_scatter", "all_to_all") or (collective == "all_reduce" and ranks < 100)
    assert (run.fits == (ranks, ranks)) == exact
    unnamed = only(text)
    if unnamed.collective is None:
        assert "name it with --collective" in unnamed.problems[0]
        assert collective in unnamed.problems[0]
    else:
        assert unnamed.collective == collective


def test_without_a_list_the_figures_tell_the_number_of_ranks() -> None:
    run = only(log(listed=False, named=False))
    assert (run.collective, run.fits, run.hosts) == ("all_reduce", (16, 16), ())


def test_the_old_column_of_errors_is_no_count_of_wrong_elements() -> None:
    run = only(log(old=True, wrong="2e-06"))
    assert run.problems == ()
    assert {timing.wrong for timing in run.sweep.timings} == {0}
    assert only(log(old=True, wrong="2e-06", out_of_bounds=7)).sweep.out_of_bounds == 7


def test_wrong_elements_of_both_halves_are_kept_and_unchecked_ones_are_none() -> None:
    assert {t.wrong for t in only(log(wrong="3", wrong_in_place="4")).sweep.timings} == {7}
    assert {t.wrong for t in only(log("all_to_all", wrong_in_place="N/A")).sweep.timings} == {0}
    assert {t.wrong for t in only(log(wrong="N/A")).sweep.timings} == {None}
    assert {t.wrong for t in only(log(wrong="12*")).sweep.timings} == {24}  # as rccl-tests marks it


def test_the_per_iteration_report_has_more_columns_in_both_halves() -> None:
    each = row("all_reduce", 16, MIB, 30e-6, 40e-6).rsplit(maxsplit=4)
    more = " 27.1 44.2 43.9 2.31 "
    run = only(header() + more.join([each[0], " ".join(each[1:])]) + more + "\n" + footer())
    assert run.problems == ()
    assert [(t.seconds, t.seconds_in_place) for t in run.sweep.timings] == [(30e-6, 40e-6)]


def test_sizes_below_one_element_a_rank_are_no_size() -> None:
    zero = f"           0             0     float    none      -1{'     1.63    0.00    0.00    N/A' * 2}\n"
    text = log("all_gather", named=True)
    first = row("all_gather", 16, SIZES[0], steady(SIZES[0]))
    text = text.replace(first, zero * 2 + first).replace(config(), config((MIB // 4, *SIZES[1:])))
    run = only(text)
    assert run.problems == ()
    assert [t.bytes for t in run.sweep.timings] == list(SIZES)


def test_several_runs_of_one_file_are_several_sweeps() -> None:
    first, second, third = read(GOOD + log("all_gather") + log(version="2.20.3"))
    assert [run.collective for run in (first, second, third)] == ["all_reduce", "all_gather", "all_reduce"]
    assert [run.versions["nccl"] for run in (first, second, third)] == ["2.29.3", "2.29.3", "2.20.3"]
    assert not any(run.problems for run in (first, second, third))


def test_a_run_over_types_or_in_cycles_is_several_sweeps() -> None:
    table = "\n".join(row("all_reduce", 16, size, steady(size)) for size in SIZES)
    rows = [row("all_reduce", 16, size, steady(size), element="bfloat16", width=2) for size in SIZES]
    whole = config() + devices(2, 8) + header()
    one, two, three = read(f"{whole}{table}\n{table}\n" + "\n".join(rows) + "\n" + footer())
    assert [run.variant for run in (one, two, three)] == ["", "", "bfloat16"]
    assert not any(run.problems for run in (one, two, three))


def test_rccl_tests_prints_the_same_with_words_of_its_own() -> None:
    text = log(named=False).replace("# Using devices", "rccl-tests: Version develop:448c4c7\n# Using devices")
    text = text.replace("NCCL version 2.29.3+cuda13.1", "RCCL version : 2.22.3-HEAD:7d8d67c\nHIP version  : 6.4.43484")
    text = (
        text.replace(" Group  0", "").replace(":00]", ":00.0]").replace("NVIDIA H100 80GB HBM3", "AMD Instinct MI300X")
    )
    run = only(text)
    assert run.problems == ()
    assert (run.tool, run.device) == ("rccl-tests", "AMD Instinct MI300X")
    assert run.versions == {"rccl-tests": "develop:448c4c7", "rccl": "2.22.3-HEAD:7d8d67c"}


FAULTS = {
    "no end": (GOOD.partition("# Out of")[0], "x.log:30: no `Out of bounds values` follows: the log is cut"),
    "a row missing": (
        GOOD.replace(row("all_reduce", 16, 4 * MIB, steady(4 * MIB)) + "\n", ""),
        "x.log:26: 5 sizes were asked for, 4 are there: the log is cut",
    ),
    "a row cut": (GOOD[: GOOD.index("# Out of") - 20], "x.log:30: the row of size 16777216 B cannot be read: it has"),
    "a word in a row": (
        GOOD.replace("   30.49 ", "   oops  ", 1),
        "got 'oops', want a figure",
    ),
    "a root that is none": (GOOD.replace("     -1 ", "    --1 ", 1), "cannot be read: it has 9 figures"),
    "no rows": (config() + devices(2, 8) + header(), "x.log:1: a run begins here, but no row of it follows"),
    "busbw of other ranks": (
        GOOD.replace(devices(2, 8), devices(4, 8)),
        "x.log:42: busbw 64.49 GB/s does not follow from size 1048576 B, 30.5 us and 32 ranks in all_reduce",
    ),
    "busbw of one row": (
        log(listed=False).replace(" 151.40 ", " 141.40 ", 1),
        "does not follow from size 8388608 B",
    ),
    "shares of other ranks": (
        log("all_gather").replace(devices(2, 8), devices(4, 8)),
        "16 shares make up the size, but 32 ranks are listed",
    ),
    "alone by the list": (log(nodes=1, local=1), "x.log:11: this rank ran alone, so nothing was communicated"),
    "alone by the figures": (log(nodes=1, local=1, listed=False), "this rank ran alone"),
    "another program": (
        GOOD.replace("starting: all_reduce", "starting: all_gather"),
        "these are no rows of all_gather, but of all_reduce",
    ),
    "groups": (GOOD.replace("Rank 15 Group  0", "Rank 15 Group  1"), "runs in several groups are not read"),
}
MIXED = {
    "rows of two in turns": "".join(
        line * (2 if " float " in line else 1) for line in GOOD.splitlines(keepends=True)
    ),
    "headers of two, then rows": config() + devices(1, 1) + config() + devices(1, 1) + GOOD.partition(header())[2],
    "two tables begun": GOOD.replace(header(), header() * 2),
    "two lists of ranks": GOOD.replace(devices(2, 8), devices(2, 8) * 2),
    "two ends": GOOD.replace(footer(), footer() * 2),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_cut_or_damaged_is_told_with_its_line(fault: str) -> None:
    text, message = FAULTS[fault]
    assert message in problems(text)


@pytest.mark.parametrize("mix", MIXED)
def test_the_output_of_several_processes_is_not_read_as_one(mix: str) -> None:
    assert "the output of several processes is mixed" in problems(MIXED[mix])


def test_a_name_that_contradicts_the_text_is_refused() -> None:
    assert "this is all_reduce by its own word, told was all_gather" in problems(GOOD, collective="all_gather")


@pytest.mark.parametrize("text", ["", "hello\n", "NCCL version 2.29.3\n", "8 2 float\n"])
def test_text_without_a_table_is_refused(text: str) -> None:
    with pytest.raises(ReadError, match=r"x\.log: got .*, want what all_reduce_perf or another program"):
        read(text)


@given(damaged(GOOD, log("all_to_all", wrong_in_place="N/A"), log(old=True)))
@settings(max_examples=150, deadline=None)
def test_damaged_text_is_read_or_refused_and_never_gives_a_time_below_zero(text: str) -> None:
    try:
        found = read(text)
    except ReadError:
        return
    for run in found:
        assert all(t.bytes > 0 and (t.seconds or 1) > 0 for t in run.sweep.timings)


@given(damaged(GOOD))
@settings(max_examples=100, deadline=None)
def test_damaged_text_without_a_problem_has_all_sizes(text: str) -> None:
    try:
        found = read(text)
    except ReadError:
        return
    for run in found:
        if not run.problems and config() in text:
            assert len(run.sweep.timings) == len(SIZES)

"""The JSON of nccl-tests: the same run as the text, and of its environment only what may be kept."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nccl_tests_made import MIB, SIZES, report, steady

from pytest_clusterqual.errors import ReadError
from pytest_clusterqual.read.nccl_tests import read_nccl_tests
from pytest_clusterqual.read.reported import ReportedRun


def only(value: dict[str, Any], **how: str) -> ReportedRun:
    (run,) = read_nccl_tests(json.dumps(value), "x.json", **how)
    return run


def test_it_tells_what_the_text_tells() -> None:
    run = only(report())
    assert run.problems == ()
    assert (run.collective, run.fits, run.tool) == ("all_reduce", (16, 16), "nccl-tests")
    assert run.hosts == ("gpu001",) * 8 + ("gpu002",) * 8  # one entry a process, each of eight ranks
    assert (run.device, run.versions) == ("NVIDIA H100 80GB HBM3", {"nccl": "2.29.3"})
    assert [(t.bytes, t.wrong) for t in run.sweep.timings] == [(size, 0) for size in SIZES]
    assert run.sweep.timings[0].seconds == pytest.approx(steady(MIB))
    assert run.sweep.source == "x.json: results[0]"


def test_of_the_environment_only_what_steers_the_run_is_kept() -> None:
    env = ["NCCL_ALGO=Ring", "HOME=/root", "AWS_SECRET_ACCESS_KEY=1", "NCCL_TOKEN=2", "SLURM_NNODES=2", "PATH"]
    assert only(report(env=env)).variables == {"NCCL_ALGO": "Ring", "SLURM_NNODES": "2"}


def test_results_that_were_not_checked_are_none() -> None:
    assert {t.wrong for t in only(report(wrong=None)).sweep.timings} == {None}
    assert {t.wrong for t in only(report(wrong=2.0)).sweep.timings} == {4}


def test_wrong_values_of_the_whole_run_are_kept() -> None:
    assert only(report(out_of_bounds={"count": 248, "okay": "false"})).sweep.out_of_bounds == 248


@pytest.mark.parametrize(("code", "version"), [(22903, "2.29.3"), (21801, "2.18.1"), (2804, "2.8.4")])
def test_versions_are_as_nccl_counts_them(code: int, version: str) -> None:
    assert only(report(nccl_version=code)).versions == {"nccl": version}


def changed(index: int, half: str, **figures: Any) -> dict[str, Any]:
    value = report()
    value["results"][index][half].update(figures)
    return value


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "cut before its end": ({k: v for k, v in report().items() if k != "out_of_bounds"}, "no `Out of bounds values`"),
    "a size missing": (report(results=report()["results"][:3]), "5 sizes were asked for, 3 are there"),
    "no results": (report(results=[]), "a run begins here, but no row of it follows"),
    "a size alone": (report(results=[{"size": MIB}]), "x.json: results[0]: size 1048576 B has no figures"),
    "nan": (changed(1, "in_place", time="nan"), 'x.json: results[1]: time: got "nan", want a number'),
    "no time": (changed(1, "in_place", time=0.0), "x.json: results[1]: got a time of 0.0 us, want one above 0"),
    "busbw": (changed(2, "out_of_place", bus_bw=1.0), "x.json: results[2]: busbw 1 GB/s does not follow from"),
    "unknown type": (report(results=[{**report()["results"][0], "type": "f4"}]), 'got the type "f4", want one of'),
    "cputime": (report(results=[{**report()["results"][0], "in_place": {"cpu_time": 1.0}}]), "time: got null"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_missing_or_contradicts_is_told(fault: str) -> None:
    value, message = FAULTS[fault]
    assert message in "\n".join(only(value).problems)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (json.dumps(report())[:-40], "x.json: got JSON that ends early or is damaged"),
        ('{"benchmark": []}', "x.json: got JSON without a list of results"),
        ('{"results": {"8": 1}}', "x.json: got JSON without a list of results"),
    ],
)
def test_what_is_no_report_is_refused(text: str, message: str) -> None:
    with pytest.raises(ReadError, match=message):
        read_nccl_tests(text, "x.json")


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(key=st.sampled_from(sorted(report())), value=anything)
@settings(max_examples=100, deadline=None)
def test_any_value_anywhere_is_read_or_refused(key: str, value: Any) -> None:
    try:
        run = only({**report(), key: value})
    except ReadError:
        return
    assert run.problems or [t.bytes for t in run.sweep.timings] == list(SIZES)

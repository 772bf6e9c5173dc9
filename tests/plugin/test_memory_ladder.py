"""The memory ladder of a small job on real ranks: one rung runs out of memory, the next ones fit and are timed."""

from __future__ import annotations

from typing import Any

import pytest
from sites import SMALL, Run, make_site, nothing_left

from pytest_clusterqual.folder.runs import RunFolder
from pytest_clusterqual.model.memory import MemoryLadderMeasurement

pytestmark = pytest.mark.slow

# Of a whole microbatch the tensors take 43 MiB, of half of it 29 MiB.
JOB = {
    "model": {"layers": 4, "hidden": 128, "heads": 4, "kv_heads": 4, "ffn": 384, "vocab": 256},
    "sequence_length": 128, "microbatch": 4, "global_batch": 8, "steps": 2,
}  # fmt: skip
MEMORY = {"steps": 2, "ladder": True, "device_memory": "36 MiB", "budget": "1 s", "require": [{"peak": "<= 1 GiB"}]}
RUNGS = ["one device", "microbatch 2", "microbatch 1", "recompute selective", "recompute full", "2 nodes"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    site = make_site(tmp_path_factory.mktemp("site"))
    site.configure({"workload": {**SMALL["workload"], **JOB}, "memory": MEMORY})
    made = site.run("-k", "memory", "-rs")
    assert nothing_left(site.path)
    return made


def told(run: Run, quantity: str) -> dict[str, Any]:
    found = [r["judgement"] for r in run.records if r["test"].endswith("test_memory[ladder]")]
    return {judgement["label"]: judgement for judgement in found if judgement["quantity"] == quantity}


def test_one_rung_is_out_of_memory_and_the_next_ones_fit(run: Run) -> None:
    fits = told(run, "fits")
    assert list(fits) == RUNGS, run.out
    assert [fits[name]["value"] for name in RUNGS] == [0, 1, 1, 1, 1, 1]
    assert "rank 0 on node0 could not allocate " in fits["one device"]["reason"]
    assert "rank 1" not in fits["one device"]["reason"]
    (first,) = told(run, "first_fit")
    assert first == "microbatch 2"


def test_what_fits_has_its_memory_and_its_price(run: Run) -> None:
    peaks, prices = told(run, "peak"), told(run, "price")
    assert list(peaks) == list(prices) == RUNGS[1:]
    assert peaks["recompute full"]["value"] < peaks["microbatch 1"]["value"] < peaks["microbatch 2"]["value"]
    assert all(sum(peak["parts"].values()) == peak["value"] for peak in peaks.values())
    assert peaks["2 nodes"]["parts"]["optimizer"] < 0.6 * peaks["microbatch 1"]["parts"]["optimizer"]
    assert min(price["value"] for price in prices.values()) == 1


def test_the_rungs_do_the_same_job_on_as_many_ranks_as_they_say(run: Run) -> None:
    (ladder,) = [m for _, _, m in RunFolder.open(run.folder).measurements().values() if hasattr(m, "rungs")]
    assert isinstance(ladder, MemoryLadderMeasurement)
    for result in ladder.rungs[1:]:
        assert {len(timed.ranks) for timed in result.runs} == {result.rung.ranks}
        assert {timed.conditions.ranks for timed in result.runs} == {result.rung.ranks}
        assert result.runs[0].ranks[0].losses == pytest.approx(ladder.rungs[1].runs[0].ranks[0].losses, rel=1e-4)
    assert ladder.rungs[-1].rank_nodes == ("node0", "node1")


def test_the_ladder_is_no_verdict_and_blocks_nothing(run: Run) -> None:
    assert run.code == 0, run.out
    assert "1 passed, 1 skipped" in run.out
    assert run.verdicts("memory")[0] == "PASS"
    assert "one device           no" in run.out
    assert "one device runs out of memory; microbatch 2 fits" in " ".join(run.out.split())

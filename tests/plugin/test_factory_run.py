"""The example of a factory, unchanged, qualified on two simulated nodes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from sites import Run, make_site, nothing_left

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "factory"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    site = make_site(tmp_path_factory.mktemp("site"))
    for name in ("images.py", "clusterqual.yaml"):
        shutil.copy(EXAMPLE / name, site.path)
    made = site.run()
    assert nothing_left(site.path)
    return made


def of(run: Run, criterion: str, quantity: str) -> list[dict[str, Any]]:
    judgements = [r["judgement"] for r in run.records if r["criterion"] == criterion]
    return [judgement for judgement in judgements if judgement["quantity"] == quantity]


def test_memory_scaling_and_full_run_have_verdicts(run: Run) -> None:
    assert run.code == 0, run.out
    for criterion, passes in {"memory": 2, "fabric": 9, "scaling": 1, "full_run": 3}.items():
        verdicts = run.verdicts(criterion)
        assert verdicts.count("PASS") == passes, criterion
        assert set(verdicts) == {"PASS", "MEASURED"}, criterion


def test_the_step_is_taken_apart_and_its_data_are_seen(run: Run) -> None:
    (lost,) = of(run, "scaling", "lost_time")
    assert sum(lost["parts"].values()) == pytest.approx(lost["value"])
    for criterion in ("scaling", "full_run"):
        assert all(stall["value"] is not None for stall in of(run, criterion, "data_stall"))
        assert of(run, criterion, "data_stall")


def test_nothing_is_said_of_tokens_that_samples_do_not_have(run: Run) -> None:
    units = {r["judgement"]["unit"] for r in run.records if r["judgement"]["value"] is not None}
    assert "s" in units
    assert "tokens/s" not in units
    assert "tokens/s" not in run.out

"""Several ways to save one job, side by side in the terminal."""

from __future__ import annotations

from made import conditions, passed, record

from pytest_clusterqual.model.record import Record, Verdict
from pytest_clusterqual.report.saving import saving_lines
from pytest_clusterqual.report.terminal import summary


def way(name: str, loss: float, *, test: str = "", layout: str = "ddp", nodes: int = 2) -> list[Record]:
    under = conditions(layout=layout, nodes=nodes, ranks=nodes)
    case = f"test_full_run[{layout}-{nodes}nodes-{test or name}]"
    figures = {
        ("checkpoint_blocking", "s"): loss * 2, ("checkpoint_completion", "s"): 1.5,
        ("checkpoint_inflation", "1"): 0.25, ("goodput", "1"): 0.875,
    }  # fmt: skip
    made = [
        passed(case, "full_run", under=under, quantity=quantity, unit=unit, value=value, label="", interval=None,
               requirement=None)
        for (quantity, unit), value in figures.items()
    ]  # fmt: skip
    loses = record(
        case, "full_run", under=under, quantity="checkpoint_loss", label=name, value=loss, unit="1", interval=None,
        verdict=Verdict.MEASURED, requirement=None, findings=(),
    )  # fmt: skip
    return [*made, loses]


def test_the_way_that_loses_least_comes_first() -> None:
    records = [*way("sync-every10", 0.05), *way("async-every10", 0.0125)]
    assert list(saving_lines(records)) == [
        "ddp-2nodes: async-every10 loses 1.25 % (blocking 25 ms, completion 1.5 s, inflation 25 %, goodput 87.5 %); "
        "sync-every10 loses 5 % (blocking 100 ms, completion 1.5 s, inflation 25 %, goodput 87.5 %)"
    ]
    shown = summary(records, run_folder="runs/1", simulated=False, width=100)
    assert "saving    ddp-2nodes: async-every10 loses 1.25 % (blocking 25 ms" in shown


def test_one_way_has_nothing_beside_it() -> None:
    assert not list(saving_lines(way("sync-every10", 0.05)))
    again = [*way("sync-every10", 0.05, test="kill_rank"), *way("sync-every10", 0.06, test="raise_rank")]
    assert not list(saving_lines(again)), "the same way in two runs"
    apart = [*way("sync-every10", 0.05), *way("async-every10", 0.05, layout="fsdp"), *way("async-every5", 0.1, nodes=4)]
    assert not list(saving_lines(apart)), "other jobs"

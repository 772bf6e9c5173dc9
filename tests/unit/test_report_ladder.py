"""The memory ladder in the terminal: a block of one line a rung."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from judge_made import require
from made import record
from rich.cells import cell_len
from rungs_made import DEVICE, MICRO, NODES, RECOMPUTE, SHARD, TENSOR, fits, impossible, ladder, starved

from pytest_clusterqual.judge.memory.ladder import judge_memory_ladder
from pytest_clusterqual.model.memory import RungResult
from pytest_clusterqual.model.record import Record
from pytest_clusterqual.report.terminal import failure_message, summary

M = ladder(
    starved(DEVICE), fits(MICRO, 90, 0.20), fits(RECOMPUTE, 70, 0.26), fits(SHARD, 60, 0.13), impossible(TENSOR),
    RungResult(rung=NODES, untried="enough"),
)  # fmt: skip
JUDGED = judge_memory_ladder(M, [require("memory", "headroom", ">= 20 %")])
BLOCK = """\
    rung            fits       peak    headroom  step time  price
    one device      no         -       -         -          -
    microbatch 1    yes        90 MiB  10 %      200 ms     1.54 [1.48, 1.59]
    recompute full  yes        70 MiB  30 %      260 ms     2 [1.94, 2.06]
    shard           yes        60 MiB  40 %      130 ms     1
    tensor 2        not tried  -       -         -          -
    2 nodes         not tried  -       -         -          -"""


def records() -> list[Record]:
    made = record("test_memory[ladder]", "memory", under=M.conditions)
    return [
        Record(**{**{name: getattr(made, name) for name in made.__slots__}, "judgement": judgement})
        for judgement in JUDGED
    ]


def shown(width: int, more: Sequence[Record] = ()) -> list[str]:
    return summary([*records(), *more], run_folder="run", simulated=False, width=width).splitlines()


def test_a_ladder_is_one_row_and_a_line_a_rung() -> None:
    lines = shown(100)
    at = lines.index("memory")
    assert lines[at + 1].split() == ["ladder", "first_fit", "recompute", "full", "1", "node", "-", "MEASURED"]
    block = BLOCK.splitlines()
    assert [line.split() for line in lines[at + 2 : at + 2 + len(block)]] == [line.split() for line in block]
    assert lines[at + 2 + len(block)] == "", "nothing else of it is in the table"


@pytest.mark.parametrize(("width", "without"), [(72, "["), (60, "step time")])
def test_what_matters_least_is_left_out_first(width: int, without: str) -> None:
    lines = shown(width)
    first = next(number for number, line in enumerate(lines) if line.startswith("    rung"))
    block = lines[first : lines.index("")]
    assert max(map(cell_len, lines)) <= width
    assert block[0].split()[:2] == ["rung", "fits"] and block[0].endswith("price")
    assert without not in "\n".join(block)
    assert len(block) == 1 + len(M.rungs)


def test_the_reason_of_the_skipped_test_names_the_first_fit_and_what_the_ladder_shows() -> None:
    first, *others = failure_message(JUDGED, M.conditions).splitlines()
    assert first == "MEASURED without a requirement: first_fit recompute full 1 node"
    assert others[-1].startswith("note this job (memory ladder): one device runs out of memory; recompute full fits")

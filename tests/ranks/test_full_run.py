"""A full run: what is logged survives a kill, and training goes on as if nothing had happened."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rank_harness import DDP, FSDP, TINY, run_ranks

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.model.codec import from_json, to_json
from pytest_clusterqual.model.measurement import RankRun
from pytest_clusterqual.rank.full_run import EventLog, process_start, read_events, run

STEPS, EVERY, KILL_AT = 9, 3, 8


def attempt(ctx: Any, *, events: str, **arguments: Any) -> Any:
    return run(ctx, events=f"{events}/events-{ctx.global_rank}.jsonl", **arguments)


def plan(tmp_path: Path, name: str, **changes: Any) -> dict[str, Any]:
    usual = {
        "workload": to_json(TINY), "layout": DDP, "steps": STEPS, "checkpoint_every": EVERY, "checkpoint_mode": "async",
        "kill_rank": None, "kill_step": 0, "folder": str(tmp_path / name / "checkpoints"),
        "events": str(tmp_path / name),
    }  # fmt: skip
    (tmp_path / name / "checkpoints").mkdir(parents=True, exist_ok=True)  # as the session does
    return {**usual, **changes}


def test_a_checkpoint_folder_that_a_node_does_not_see_is_told(tmp_path: Path) -> None:
    usual = plan(tmp_path, "unseen", folder=str(tmp_path / "elsewhere"))
    answers = run_ranks(attempt, tmp_path, nodes=["a"], **usual)
    assert "a does not see the checkpoint folder" in answers[0]
    assert "full_run.checkpoint.folder" in answers[0]


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "mode"), [(DDP, "async"), (FSDP, "sync")], ids=["ddp-async", "fsdp-sync"])
def test_losses_after_a_kill_are_those_of_an_undisturbed_run(tmp_path: Path, layout: Any, mode: str) -> None:
    usual = plan(tmp_path, "undisturbed", layout=layout, checkpoint_mode=mode)
    undisturbed = [from_json(RankRun, answer) for answer in run_ranks(attempt, tmp_path, nodes=["a", "b"], **usual)]
    killing = plan(tmp_path, "killed", layout=layout, checkpoint_mode=mode, kill_rank=1, kill_step=KILL_AT)
    survivor, killed = run_ranks(attempt, tmp_path, nodes=["a", "b"], survive_death=True, **killing)
    assert killed is None
    assert survivor.startswith("RuntimeError")
    resumed = [from_json(RankRun, answer) for answer in run_ranks(attempt, tmp_path, nodes=["a", "b"], **killing)]

    for rank, (before, after) in enumerate(zip(undisturbed, resumed, strict=True)):
        assert before.rank == after.rank == rank
        assert list(before.losses) == [str(step) for step in range(1, STEPS + 1)]
        assert after.losses == before.losses
        assert after.losses["1"] == pytest.approx(math.log(TINY.model.vocab), rel=0.02)  # nothing is learned yet
        assert after.data_digest == before.data_digest
        marks = [(mark.kind, mark.attempt, mark.step) for mark in after.marks if mark.kind != "saved"]
        # A background save of step 6 may or may not be complete at the kill; that of step 3 is.
        last = next(mark.step for mark in after.marks if (mark.kind, mark.attempt) == ("resumed", 1))
        assert last in ((6,) if mode == "sync" else (3, 6))
        last_of_first = ("killed", 0, KILL_AT) if rank == 1 else ("failed", 0, 0)
        assert marks == [
            ("started", 0, 0), ("resumed", 0, 0), last_of_first,
            ("started", 1, 0), ("resumed", 1, last), ("done", 1, STEPS),
        ]  # fmt: skip
        saved = [(mark.attempt, mark.step) for mark in after.marks if mark.kind == "saved"]
        assert saved[0] == (0, 3)
        assert saved[-1] == (1, 9)
        done = [(span.attempt, span.step) for span in after.spans if span.kind == "step"]
        assert done == [(0, step) for step in range(1, KILL_AT)] + [(1, step) for step in range(last + 1, STEPS + 1)]
    for kind, count in {"init": 2, "load": 2, "finish": 1, "teardown": 1}.items():
        assert sum(span.kind == kind for span in resumed[0].spans) == count


@pytest.mark.slow
def test_spans_of_one_attempt_do_not_overlap_and_lie_within_the_run(tmp_path: Path) -> None:
    before = time.monotonic()
    for answer in run_ranks(attempt, tmp_path, nodes=["a", "b"], **plan(tmp_path, "run")):
        result = from_json(RankRun, answer)
        spans = sorted(result.spans, key=lambda span: span.start)
        assert all(one.end <= following.start for one, following in itertools.pairwise(spans))
        assert all(span.start < span.end for span in spans)
        assert spans[0].kind == "init"
        # The kernel knows the start of a process to a tick of 10 ms.
        assert before - 0.01 <= spans[0].start == result.began
        assert result.ended <= time.monotonic()
        busy = sum(span.end - span.start for span in spans)
        assert busy > 0.95 * (spans[-1].end - spans[0].start)


def test_a_log_counts_attempts_and_outlives_torn_lines(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "events.jsonl"
    log = EventLog(path)
    log.mark("started", at=1.0)
    log.span("step", 2.0, 3.0, step=1)
    log.loss(1, 5.5)
    log.close()
    with path.open("ab") as file:
        file.write(b'{"span": {"kind": "st')
    again = EventLog(path)
    assert (log.attempt, again.attempt) == (0, 1)
    again.mark("started", at=4.0)
    again.loss(1, 5.25)
    again.close()
    marks, spans, losses = read_events(path)
    assert [(mark.kind, mark.attempt, mark.at) for mark in marks] == [("started", 0, 1.0), ("started", 1, 4.0)]
    assert [(span.kind, span.step, span.end) for span in spans] == [("step", 1, 3.0)]
    assert losses == {"1": 5.25}


def test_a_span_that_ends_with_an_exception_is_not_logged(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events")
    with pytest.raises(KeyError), log.spanning("load"):
        raise KeyError
    with log.spanning("load"):
        pass
    log.close()
    assert len(read_events(tmp_path / "events")[1]) == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"mark": {"kind": "born", "attempt": 0, "at": 1.0}}', "mark.kind: got 'born', want"),
        ('{"span": {"kind": "step"}}', "span: the field 'attempt' is missing"),
        ('{"loss": {"step": 1}}', "'value'"),
    ],
)
def test_a_whole_line_that_is_no_event_is_an_error(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "events"
    path.write_text("\n" + line + "\n")
    with pytest.raises(MeasurementError, match=f"{path}:2: .*{message}"):
        read_events(path)


def test_a_process_knows_when_it_began() -> None:
    code = (
        "import time; began = time.monotonic(); time.sleep(0.3)\n"
        "from pytest_clusterqual.rank.full_run import process_start\n"
        "print(began, process_start(), process_start())"
    )
    before = time.monotonic()
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    inside, first, second = map(float, answer)
    tick = 1.5 / os.sysconf("SC_CLK_TCK")
    assert before - tick <= first <= inside + tick
    assert inside - first < 1.0
    assert first == pytest.approx(second, abs=1e-3)


def test_without_the_system_s_word_a_process_begins_now(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_path: Path) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", absent)
    assert process_start() == pytest.approx(time.monotonic(), abs=0.05)

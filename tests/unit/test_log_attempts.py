"""Lines that stand again: another rank's, or of a step done again; and what no log can tell of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

import pytest
from logs_made import at, bar, megatron, nemo_line, read, titan, titan_line, trainer, written

from pytest_clusterqual.model.log import TrainingLog
from pytest_clusterqual.read.training_log import read_training_log

OWN = r"step (?P<step>\d+) loss (?P<loss>\S+) (?P<milliseconds>[\d.,]+) ms"
LOADING = "loading checkpoint at step 20\n"
SIX_PREFIXES = [
    "[rank{}]:",
    "[default{}]:",
    "{}: ",
    "[1,{}]<stdout>:",
    "[prterun-n1-55@1,{}]<stdout>: ",
    "[pod/w{}/c] ",
]


def lines(steps: Iterable[int], *, rank: int = 0, prefix: str = "", began: float | None = None) -> list[str]:
    """A step a second, with the loss and the time of this rank; the local losses of ranks differ."""
    return [
        f"{prefix.format(rank)}{'' if began is None else at(began + step) + ' '}"
        f"step {step} loss {3 + rank - step / 1000:.4f} {300 + (7 * step + 3 * rank) % 20}.0 ms\n"
        for step in steps
    ]


def by_blocks(ranks: Iterable[list[str]], size: int) -> str:
    """As ranks write into one file: `size` lines of each in turn, 1 where nothing is buffered."""
    blocks = ([each[n : n + size] for n in range(0, len(each), size)] for each in ranks)
    return "".join(
        itertools.chain.from_iterable(itertools.chain(*turn) for turn in itertools.zip_longest(*blocks, fillvalue=[]))
    )


def cut_blocks(ranks: Iterable[list[str]], size: int) -> str:
    """The same in bytes: a block ends in the middle of a line."""
    texts = ["".join(each) for each in ranks]
    return "".join(text[n : n + size] for n in range(0, max(map(len, texts)), size) for text in texts)


def spans(log: TrainingLog) -> list[tuple[int, int]]:
    return [(attempt[0].step, attempt[-1].step) for attempt in log.attempts]


@pytest.mark.parametrize("size", [1, 20])
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("prefix", ["", "(Worker pid=1{}, ip=10.0.0.1) "])
def test_blocks_of_ranks_without_a_name_are_no_restart(tmp_path: Path, size: int, ranks: int, prefix: str) -> None:
    text = by_blocks([lines(range(1, 61), rank=rank, prefix=prefix) for rank in range(ranks)], size)
    log = read(tmp_path, text, OWN)
    assert spans(log) == [(1, 60)]
    assert {step.copies for step in log.attempts[0]} == {ranks - 1}
    assert not any("stands there again" in note for note in log.notes)


@pytest.mark.parametrize("began", [None, 0.0])
def test_blocks_that_end_in_the_middle_of_a_line(tmp_path: Path, began: float | None) -> None:
    text = cut_blocks([lines(range(1, 301), rank=rank, began=began) for rank in range(2)], 2048)
    assert spans(read(tmp_path, text, OWN)) == [(1, 300)]
    cut = cut_blocks([titan([2.0] * 50, prefix="", began=began).splitlines(keepends=True) for began in (0, 0.3)], 1024)
    assert spans(read(tmp_path, cut)) == [(10, 500)]


def test_every_rank_tells_in_its_block_that_it_loads(tmp_path: Path) -> None:
    text = by_blocks([[LOADING, *lines(range(1, 60), rank=rank)] for rank in range(2)], 20)
    assert spans(read(tmp_path, text, OWN)) == [(1, 59)]


@pytest.mark.parametrize("told", [LOADING * 2, ""])
@pytest.mark.parametrize("prefix", ["", *SIX_PREFIXES])
def test_ranks_that_resume(tmp_path: Path, told: str, prefix: str) -> None:
    """With local losses, without a clock."""
    one, two = (
        by_blocks([lines(steps, rank=rank, prefix=prefix) for rank in range(3)], 1)
        for steps in (range(1, 51), range(21, 71))
    )
    log = read(tmp_path, one + told + two, OWN)
    assert spans(log) == [(1, 50), (21, 70)]
    assert {step.copies for attempt in log.attempts for step in attempt} == {2}
    assert all(bool(step.printer) == bool(prefix) for attempt in log.attempts for step in attempt)
    assert any("not which rank printed" in note for note in log.notes) == (not prefix)


def test_a_rank_that_begins_with_the_first_step_again(tmp_path: Path) -> None:
    text = "".join([*lines(range(1, 41), prefix="[rank0]:"), *lines(range(1, 51), prefix="[rank0]:")])
    assert spans(read(tmp_path, text, OWN)) == [(1, 40), (1, 50)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (" successfully loaded checkpoint from /x [ t 1/1, p 1/1 ] at iteration 90", True),
        ("Loading the checkpoint from outputs/checkpoint/step-90.", True),
        ("Restored all states from the checkpoint at /x/last.ckpt", True),
        ("  Continuing training from checkpoint, will skip to saved global_step", True),
        ("Resuming training from out", True),
        ("[default] Worker group FAILED. 2/3 attempts left; will restart worker group", True),
        ("E0301 10:00:00 failed (exitcode: 1) local_rank: 0 (pid: 7) of binary: python", True),
        ("srun: error: n1: task 3: Exited with exit code 1", True),
        ("saved checkpoint to out/step-90", False), ("will not load any checkpoints and will start from random", False),
        ("  load ............................ /x/checkpoint", False), ("loading the tokenizer", False),
        ("resume: False", False), ("Loading checkpoint shards: " + bar(2, 2, 1, 0.5), False),
    ],
)  # fmt: skip
def test_lines_that_speak_of_a_restart(tmp_path: Path, text: str, told: bool) -> None:
    log = read(tmp_path, "".join([*lines(range(10, 60, 10)), f"{text}\n", *lines(range(50, 90, 10), rank=1)]), OWN)
    assert len(log.attempts) == 1 + told


def test_ranks_that_resume_behind_buffers_that_were_flushed_late(tmp_path: Path) -> None:
    one = by_blocks([lines(range(1, 101)), lines(range(1, 81), rank=1)], 40)
    two = by_blocks([lines(range(81, 141)), lines(range(81, 141), rank=1)], 40)
    told = "Traceback (most recent call last):\nW0301 Sending process 12 closing signal SIGTERM\n" + LOADING
    assert spans(read(tmp_path, one + told + two, OWN)) == [(1, 100), (81, 140)]


def test_a_restart_at_the_last_step_that_was_logged(tmp_path: Path) -> None:
    one, two = lines(range(10, 101, 10)), lines(range(100, 201, 10), rank=1)
    log = read(tmp_path, "".join([*one, "Traceback (most recent call last):\n", *two]), OWN)
    assert spans(log) == [(10, 100), (100, 200)]
    assert log.notes == ()
    silent = read(tmp_path, "".join([*one, *two]), OWN)
    assert spans(silent) == [(10, 200)]
    (note,) = silent.notes
    assert note.startswith(
        f"{tmp_path / 'train.log'}:11: step 100 stands there again, and nothing tells whether it was"
    )
    assert note.endswith("it counts as told once more")


def test_restarts_that_no_line_speaks_of(tmp_path: Path) -> None:
    """One rank prints, for the first step stands once; so what stands again was done again."""
    steps = (range(1, 51), range(21, 51), range(21, 51), range(21, 71))
    log = read(tmp_path, "".join(itertools.chain(*map(lines, steps))), OWN)
    assert (spans(log), log.notes) == ([(1, 50), (21, 50), (21, 50), (21, 70)], ())
    soon = read(tmp_path, "".join(itertools.chain(*map(lines, (range(1, 51), range(2, 51))))), OWN)
    assert spans(soon) == [(1, 50), (2, 50)]
    crashed = [*lines(range(1, 6)), "Traceback (most recent call last):\n", *lines(range(1, 51), rank=1)]
    assert spans(read(tmp_path, "".join([*crashed, *lines(range(21, 71))]), OWN)) == [(1, 5), (1, 50), (21, 70)]


@pytest.mark.parametrize(
    ("between", "rank", "attempts", "counts"),
    [
        ("", 0, 1, "told once more"), ("", 1, 1, "told once more"),
        ("Traceback (most recent call last):\n", 0, 2, "done again"),
        ("Traceback (most recent call last):\n", 1, 2, None),
    ],
)  # fmt: skip
def test_the_same_steps_from_the_first_on(
    tmp_path: Path, between: str, rank: int, attempts: int, counts: str | None
) -> None:
    """Two ranks, two epochs, or twice the same: without a line about a restart and other losses it is not known."""
    log = read(tmp_path, "".join([*lines(range(1, 41)), between, *lines(range(1, 41), rank=rank)]), OWN)
    assert len(log.attempts) == attempts
    doubts = [note.rpartition(" counts as ")[2] for note in log.notes if "stands there again" in note]
    assert doubts == ([counts] if counts else [])


def test_steps_that_count_anew_with_a_clock_may_be_those_of_an_epoch(tmp_path: Path) -> None:
    log = read(tmp_path, "".join([*lines(range(1, 41), began=0), *lines(range(1, 41), began=100)]), OWN)
    assert spans(log) == [(1, 40), (1, 40)]
    assert [note.rpartition(" counts as ")[2] for note in log.notes] == ["done again"]


def test_clocks_of_hosts_that_differ_in_one_file(tmp_path: Path) -> None:
    text = by_blocks([lines(range(1, 41), rank=rank, began=20.0 * rank) for rank in range(2)], 1)
    assert spans(read(tmp_path, text, OWN)) == [(1, 40)]


def test_a_time_of_day_that_is_earlier_is_another_day_or_late(tmp_path: Path) -> None:
    def day(steps: Iterable[int], hour: int) -> list[str]:
        return [f"[{hour:02d}:{n // 60:02d}:{n % 60:02d}] {line}" for n, line in zip(steps, lines(steps), strict=True)]

    resumed = [*day(range(10, 101, 10), 18), *day([96], 9), *day(range(100, 151, 10), 9)]
    assert spans(read(tmp_path, "".join(resumed), OWN)) == [(10, 100), (96, 150)]
    late = [line for line in day(range(1, 41), 18) if "step 7 " not in line]
    assert spans(read(tmp_path, "".join([*late, *day([7], 18)]), OWN)) == [(1, 40)]


def test_lines_about_a_step_that_are_of_something_else(tmp_path: Path) -> None:
    told = lines(range(1, 41))
    told[19:20] = [told[19], "eval " + lines([20], rank=2)[0]]
    log = read(tmp_path, "".join(told), OWN)
    assert spans(log) == [(1, 40)]
    assert "step 20 stands there again" in log.notes[0]


@pytest.mark.parametrize("prefix", ["", "[rank0]:"])
def test_parts_of_a_step_are_not_taken_for_ranks_in_silence(tmp_path: Path, prefix: str) -> None:
    text = "".join(f"{prefix}step {step} loss 2.{part} 100.{part} ms\n" for step in range(1, 9) for part in range(4))
    log = read(tmp_path, text, OWN)
    assert spans(log) == [(1, 8)]
    assert [note.partition(":")[0] for note in log.notes] == [
        "4 lines tell of each step and not which rank printed them"
    ]


def test_a_second_file_without_a_clock(tmp_path: Path) -> None:
    """One of another rank begins with the same step; one that begins later is of what came after a restart."""
    one = written(tmp_path, "".join(lines(range(1, 51))), "one")
    later = written(tmp_path, "".join(lines(range(21, 71))), "later")
    beside = written(tmp_path, "".join(lines(range(1, 51), rank=1)), "beside")
    assert spans(read_training_log([one, later], OWN)) == [(1, 50), (21, 70)]
    assert spans(read_training_log([one, one], OWN)) == [(1, 50)]
    unclear = read_training_log([one, beside], OWN)
    assert spans(unclear) == [(1, 50), (1, 50)]
    assert "step 1 stands there again" in unclear.notes[0]


def test_trainers_that_resume_without_a_clock(tmp_path: Path) -> None:
    loaded = "Restored all states from the checkpoint\n"
    nemo = [
        "".join(nemo_line(n, 2 + n / scale) for n in steps) for scale, steps in ((99, range(9)), (88, range(5, 12)))
    ]
    assert spans(read(tmp_path, loaded.join(nemo))) == spans(read(tmp_path, "".join(nemo))) == [(0, 8), (5, 11)]
    again = megatron([2.7] * 5) + " loading checkpoint from x at iteration 40\n" + megatron([2.71] * 5, first=40)
    assert spans(read(tmp_path, again)) == [(10, 50), (50, 90)]


def test_a_bar_that_is_drawn_again_goes_on_and_one_of_a_new_process_does_not(tmp_path: Path) -> None:
    drawn = ["\r" + bar(n, 20, 12 * n, 12.0) for n in range(13)]
    waited = ["\r{'eval_loss': 2.0}\r", *("\r" + bar(n, 20, 12 * n + 40, 12.0) for n in range(12, 21))]
    assert spans(read(tmp_path, "".join(drawn + waited))) == [(0, 20)]
    resumed = ["\r" + bar(n, 20, 12 * (n - 8), 12.0) for n in range(8, 21)]
    log = read(tmp_path, "".join([*drawn, "Traceback (most recent call last):\n", *resumed]))
    assert [[step.step for step in each if step.over] for each in log.attempts] == [[*range(1, 13)], [*range(9, 21)]]
    assert spans(read(tmp_path, "".join(drawn + resumed))) == spans(log)
    whole = trainer(12, 3.0)
    assert len(read(tmp_path, whole + "Traceback (most recent call last):\n" + whole).attempts) == 2


def test_a_line_that_was_cut_takes_no_figure_of_another(tmp_path: Path) -> None:
    cut = titan_line(10, 20, tps=1000, loss=5.0)[:100]
    other = titan_line(20, 40, tps=2000, loss=4.0, prefix="[rank1]:")
    (attempt,) = read(tmp_path, cut + other).attempts
    assert [(step.step, step.loss, step.device_rate) for step in attempt] == [(20, 4.0, 2000)]
    assert attempt[0].moment is not None
    assert attempt[0].moment.at % 60 == pytest.approx((30.25 + 40) % 60)
    checked = f"[rank0]:[titan] {at(21)} - root - INFO - validate step: 10  loss:  7.1  memory: 4.6GiB(6.1%)  tps: 9\n"
    assert spans(read(tmp_path, f"{cut}\n{checked}{titan_line(20, 40, tps=2000)}")) == [(20, 20)]

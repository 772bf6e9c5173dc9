"""Training logs: each family's lines, prefixes, copies, wrapped lines, resumed runs, and what is no step."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from captures import damaged
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from logs_made import (
    TITAN_HEAD,
    at,
    bar,
    megatron,
    megatron_line,
    nemo_line,
    read,
    steps_of,
    titan,
    titan_line,
    trainer,
    written,
)

from pytest_clusterqual.errors import MeasurementError, ReadError
from pytest_clusterqual.judge.full_run.logged import logged_run
from pytest_clusterqual.read.training_log import read_training_log
from pytest_clusterqual.report.log_table import log_report

LITGPT = (
    "Epoch 1 | iter 1 step 0 | loss train: 1.646, val: n/a | iter time: 820.31 ms\n"
    "Epoch 1 | iter 2 step 1 | loss train: 1.660, val: n/a | iter time: 548.72 ms (step)\n"
    "Epoch 1 | iter 3 step 1 | loss train: 1.687, val: n/a | iter time: 300.07 ms\n"
    "Epoch 1 | iter 4 step 2 | loss train: 1.597, val: n/a | iter time: 595.27 ms (step)\n"
)
NANOGPT = (
    "tokens per iteration will be: 491,520\n"
    "step 0: train loss 10.9886, val loss 10.9898\n"
    "iter 0: loss 10.9886, time 45713.63ms, mfu -100.00%\n"
    "iter 10: loss 10.5412, time 2641.50ms, mfu 31.02%\n"
    "saving checkpoint to out\n"
    "iter 20: loss nan, time 2640.11ms, mfu 31.05%\n"
)
LLMC = "".join(
    f"step    {step}/19560 | loss 11.011329 (+nanz)| norm 15.3497 (+nanz)| lr 8.57e-07 | {ms} ms | 42.6% bf16 MFU | "
    f"{rate} tok/s\n"
    for step, ms, rate in [(1, 3056.36, 171540), (2, 2748.91, 190725)]
)
KARPATHY = "step   37 | loss: 6.021473 | lr 3.1e-05 | norm: 0.8123 | dt: 338.20ms | tok/sec: 1550242.13\n"


def test_torchtitan(tmp_path: Path) -> None:
    log = read(tmp_path, titan([3.0, 2.0, 2.0], color=True))
    assert (log.family, log.told.global_batch, log.told.sequence_length, log.told.devices) == ("torchtitan", 8, 2048, 8)
    (attempt,) = log.attempts
    assert [(step.step, step.over, step.device_rate, step.loss) for step in attempt] == [
        (10, 10, 683, 8.9), (20, 10, 1024, 8.8), (30, 10, 1024, 8.7),
    ]  # fmt: skip
    assert attempt[0].memory == pytest.approx(47.61 * 1024**3)
    assert (attempt[0].place.line, log.unread) == (3, ())


@pytest.mark.parametrize(
    ("mesh", "devices"),
    [
        ("Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]", 8),
        ("Building device mesh with parallelism: pp=2, dp_replicate=1, dp_shard=4, cp=1, tp=2, ep=4, etp=1", 16),
    ],
)
def test_devices_of_the_mesh(mesh: str, devices: int, tmp_path: Path) -> None:
    text = titan([3.0]).replace("Building 1-D device mesh with ['dp_shard'], [8]", mesh)
    assert read(tmp_path, text).told.devices == devices


def test_validation_of_torchtitan_is_no_step(tmp_path: Path) -> None:
    told = (
        f"[rank0]:[titan] {at(61)} - root - INFO - validate step: 20  loss:  7.1000  memory: 4.61GiB(6.15%)  tps: 9\n"
    )
    log = read(tmp_path, titan([3.0, 2.0]) + told)
    assert [step.step for step in steps_of(log)] == [10, 20]
    assert [(event.kind, event.place.line) for event in log.events] == [("evaluation", 5)]


def test_the_first_line_of_torchtitan_stands_for_one_step(tmp_path: Path) -> None:
    first = TITAN_HEAD.format(p="", at=at(0)) + titan_line(1, 20, tps=100)
    rest = "".join(titan_line(step, 20 + 2 * step, tps=1024) for step in range(10, 60, 10))
    assert [step.over for step in steps_of(read(tmp_path, first + rest))] == [1, 9, 10, 10, 10, 10]


def test_megatron(tmp_path: Path) -> None:
    text = megatron([5.8, 2.7, 2.7]) + megatron_line(40, 2700, loss="nan", skipped=3)
    memory = (
        "[Rank 4] (after 1 iterations) memory (MB) | allocated: 9.5 | max allocated: 100.0 | reserved: 9.0[Rank 2] "
    )
    log = read(tmp_path, text + f"{memory}(after 1 iterations) memory (MB) | allocated: 9.5 | max allocated: 200.0 |\n")
    assert (log.family, log.told.sequence_length, log.told.devices, log.memory) == (
        "Megatron-LM",
        1024,
        64,
        200 * 1024**2,
    )
    found = steps_of(log)
    assert [(step.step, step.over, step.seconds, step.samples) for step in found] == [
        (10, 10, 5.8, 128), (20, 10, 2.7, 128), (30, 10, 2.7, 128), (40, 10, 2.7, 128),
    ]  # fmt: skip
    assert (found[0].loss, str(found[3].loss), found[3].skipped) == (10.43863, "nan", 3)


def test_megatron_in_seconds(tmp_path: Path) -> None:
    text = megatron([5.8, 2.7]).replace("(ms): 5800.0", "(s): 5.80").replace("(ms): 2700.0", "(s): 2.70")
    assert [step.seconds for step in steps_of(read(tmp_path, text))] == [5.8, 2.7]


@pytest.mark.parametrize("width", [60, 80, 132, 200])
def test_wrapped_lines_are_one_line(tmp_path: Path, width: int) -> None:
    whole = megatron([5.8, 2.7, 2.7])
    wrapped = "\n".join(line[at : at + width] for line in whole.splitlines() for at in range(0, len(line), width))
    assert [(step.step, step.seconds, step.samples, step.loss) for step in steps_of(read(tmp_path, wrapped))] == [
        (10, 5.8, 128, 10.43863), (20, 2.7, 128, 10.43863), (30, 2.7, 128, 10.43863),
    ]  # fmt: skip


def test_a_line_that_was_cut_off_is_not_glued_to_the_next(tmp_path: Path) -> None:
    whole = titan_line(10, 20, tps=1000, loss=5.0)
    log = read(tmp_path, titan_line(10, 20, tps=1000, loss=5.0)[:80] + "\n" + titan_line(20, 40, tps=2000, loss=4.0))
    assert [(step.step, step.loss, step.device_rate) for step in steps_of(log)] == [(20, 4.0, 2000)]
    assert [each.example for each in log.unread] == [whole[8:80].strip()]


def test_nemo_counts_global_steps(tmp_path: Path) -> None:
    text = (
        nemo_line(19, 46.86, epoch=1, iteration=0)
        + nemo_line(20, 46.9, epoch=1, iteration=1)
        + nemo_line(21, 46.8, epoch=2, iteration=0)
    )
    ray = "".join(f"(pretraining, pid=4112) {line}\n" for line in text.splitlines())
    log = read(tmp_path, ray)
    assert [(step.step, step.over, step.seconds, step.samples) for step in steps_of(log)] == [
        (19, 1, 46.86, 128), (20, 1, 46.9, 128), (21, 1, 46.8, 128),
    ]  # fmt: skip
    assert (log.family, log.memory, len(log.attempts)) == ("NeMo", 115792977920, 1)


def test_steps_in_json(tmp_path: Path) -> None:
    nemo = (
        'DLLL {"elapsedtime": "1.0", "step": "PARAMETER", "data": {"cfg/global_batch_size": 8, "cfg/seq_length": 64}}\n'
    )
    nemo += "".join(
        f'DLLL {{"timestamp": "1.2", "elapsedtime": "{30 + 2 * n}.5", "type": "LOG", "step": {n}, '
        f'"data": {{"reduced_train_loss": NaN, "global_step": {n}.0, "train_step_timing in s": 2.0}}}}\n'
        for n in range(3)
    )
    log = read(tmp_path, nemo)
    assert (log.told.global_batch, log.told.sequence_length, log.family) == (8, 64, "NeMo")
    assert [(step.step, step.seconds, str(step.loss)) for step in steps_of(log)] == [(n, 2.0, "nan") for n in range(3)]
    assert [step.moment.at for step in steps_of(log) if step.moment] == [30.5, 32.5, 34.5]


@pytest.mark.parametrize("unit", [8, 512])
def test_mlperf_counts_samples_or_tokens(tmp_path: Path, unit: int) -> None:
    head = "".join(
        f':::MLLOG {{"time_ms": 1, "key": "{name}", "value": {value}, "metadata": {{"lineno": 3}}}}\n'
        for name, value in (("global_batch_size", 8), ("max_sequence_length", 64))
    )
    lines = "".join(
        f':::MLLOG {{"time_ms": {n * 2000}, "key": "tracked_stats", "value": {{"train_step_timing in s": 2.0}}, '
        f'"metadata": {{"step": {n * unit}}}}}\n'
        for n in range(1, 4)
    )
    assert [step.step for step in steps_of(read(tmp_path, head + lines))] == [1, 2, 3]


def test_trainer_tells_its_steps_by_its_bar_and_losses_between(tmp_path: Path) -> None:
    log = read(tmp_path, trainer(20, 3.0))
    assert (log.family, log.told.global_batch, log.told.steps) == ("Hugging Face Trainer", 64, 20)
    assert (log.told.took, log.told.done, len(log.attempts)) == (60, 20, 1)
    found = steps_of(log)
    assert [step.step for step in found] == list(range(21))
    assert {step.step: step.loss for step in found if step.loss is not None} == {5: 3.95, 10: 3.9, 15: 3.85, 20: 3.8}
    assert [step.moment.at for step in found if step.moment] == [3.0 * step for step in range(21)]


def test_bars_inside_the_training_bar_are_no_steps(tmp_path: Path) -> None:
    inside = "".join("\r" + bar(step, 8, step, 1.0) for step in range(1, 9))
    loading = bar(2, 2, 1, 0.5, name="Loading checkpoint shards: ") + "\n"
    text = trainer(20, 3.0).replace("\r" + bar(11, 20, 33, 3.0), inside + "\r" + bar(11, 20, 33, 3.0))
    assert [step.step for step in steps_of(read(tmp_path, loading + text))] == list(range(21))
    bare = "\n".join(line for line in text.splitlines() if "optimization" not in line)
    assert [step.step for step in steps_of(read(tmp_path, bare))] == list(range(21))


@pytest.mark.parametrize("rate", [", 110MB/s", ", 1.2kB/s", ", 12.5 GiB/s", ", ?B/s", ", 1.50s/MB"])
def test_bars_of_a_download_are_no_steps(tmp_path: Path, rate: str) -> None:
    loading = "".join(f"\r{bar(n, 90, 10 * n, 1.0).partition(', ')[0]}{rate}]" for n in range(1, 91))
    assert [step.step for step in steps_of(read(tmp_path, f"{loading}\n{trainer(20, 3.0)}"))] == list(range(21))
    with pytest.raises(ReadError, match="tells of a step in the form of"):
        read(tmp_path, loading)


def test_bars_without_a_line_of_their_own(tmp_path: Path) -> None:
    """tqdm writes no carriage return where its file is no terminal, and what follows is glued to it."""
    log = read(
        tmp_path,
        bar(1, 9, 20, 20) + bar(2, 9, 40, 20) + "{'eval_loss': 9.5}{'loss': 1.5, 'epoch': 0.2}" + bar(3, 9, 60, 20),
    )
    assert [(step.step, step.loss) for step in steps_of(log)] == [(1, None), (2, 1.5), (3, None)]


def test_a_step_behind_hours_of_a_bar_on_one_line(tmp_path: Path) -> None:
    drawn = "\r".join(bar(n, 90, n, 1, name="Loading: ") for n in range(91))
    log = read(tmp_path, drawn + "\r" + titan_line(10, 20, tps=1000))
    assert [(step.step, step.printer) for step in steps_of(log)] == [(10, "rank 0")]
    assert (log.lines, log.family) == (92, "torchtitan")


def test_work_of_a_step_from_the_tokens_that_the_trainer_has_seen(tmp_path: Path) -> None:
    text = trainer(20, 3.0)
    for step in (5, 10, 15, 20):
        text = text.replace(
            f"'loss': {4 - step / 100},", f"'loss': {4 - step / 100}, 'num_input_tokens_seen': {step * 4096},"
        )
    assert read(tmp_path, text).told.tokens_per_step == 4096


def test_a_resumed_bar_does_not_count_what_it_skipped(tmp_path: Path) -> None:
    text = "\r".join(
        ["  0%|          | 0/1000 [00:00<?, ?it/s]", *(bar(500 + n, 1000, n * 30, 30) for n in range(1, 12))]
    )
    log = read(tmp_path, text)
    assert [step.step for step in steps_of(log)] == list(range(501, 512))
    assert log.told.took is None


@pytest.mark.parametrize("each", [0.5, 2.0])
def test_iterations_a_second_are_not_seconds_an_iteration(tmp_path: Path, each: float) -> None:
    """The rate of a bar only says whether its count began at 0."""
    text = "\r".join(bar(n, 400, n * each, each) for n in range(100, 400, 20))
    assert read(tmp_path, text).told.took == pytest.approx(380 * each)
    run = logged_run(read(tmp_path, text))
    assert run.seconds is not None
    assert run.seconds.value == pytest.approx(each)


def test_lightning_counts_batches_over_epochs(tmp_path: Path) -> None:
    text = "".join(
        "\r" + bar(n, 30, 2 * n, 2.0, name=f"Epoch {epoch}: ", rest=f", loss={5 - n / 30:.3f}, v_num=1")
        for epoch in (0, 1) for n in range(31)
    )  # fmt: skip
    log = read(tmp_path, text + "\rValidation DataLoader 0: : 51it [00:20,  2.53it/s]\n")
    assert (log.family, len(log.attempts)) == ("Lightning", 1)
    assert [step.step for step in steps_of(log)] == list(range(61))
    assert "batches of an epoch" in log.notes[0]


def test_microbatches_of_litgpt_are_no_steps(tmp_path: Path) -> None:
    log = read(tmp_path, LITGPT)
    assert [(step.step, step.seconds, step.loss) for step in steps_of(log)] == [
        (1, pytest.approx(1.36903), 1.66), (2, pytest.approx(0.89534), 1.597),
    ]  # fmt: skip
    assert log.unread == ()
    some = "".join(line for line in LITGPT.splitlines(keepends=True) if "(step)" in line)
    assert [step.seconds for step in steps_of(read(tmp_path, some))] == [None, None]


def test_nanogpt_tells_the_time_of_its_last_step(tmp_path: Path) -> None:
    log = read(tmp_path, NANOGPT)
    assert [(step.step, step.over, step.seconds) for step in steps_of(log)] == [
        (0, 1, pytest.approx(45.71363)), (10, 1, 2.6415), (20, 1, pytest.approx(2.64011)),
    ]  # fmt: skip
    assert (log.told.tokens_per_step, [event.kind for event in log.events]) == (491520, ["evaluation", "checkpoint"])


@pytest.mark.parametrize(
    ("text", "seconds", "tokens"), [(LLMC, [3.05636, 2.74891], 524288), (KARPATHY, [0.3382], 524292)]
)
def test_work_of_a_step_from_its_rate_and_time(tmp_path: Path, text: str, seconds: list[float], tokens: float) -> None:
    found = steps_of(read(tmp_path, text))
    assert [step.seconds for step in found] == pytest.approx(seconds)
    assert [step.tokens for step in found] == pytest.approx([tokens] * len(found), rel=1e-4)


def test_lines_of_every_rank_count_once(tmp_path: Path) -> None:
    lines = titan([3.0, 2.0, 2.0]).splitlines(keepends=True)
    text = "".join(f"{task}: {line}" for line in lines for task in (1, 0, 3, 2))
    log = read(tmp_path, text)
    assert [(step.step, step.copies) for step in steps_of(log)] == [(10, 3), (20, 3), (30, 3)]
    assert steps_of(log)[0].printer == "task 1 rank 0"
    bare = "".join(line.removeprefix("[rank0]:") * 4 for line in lines)
    assert [(step.step, step.copies) for step in steps_of(read(tmp_path, bare))] == [(10, 3), (20, 3), (30, 3)]


def test_the_slowest_rank_counts(tmp_path: Path) -> None:
    pattern = r"step (?P<step>\d+), ce (?P<loss>\S+), .*cuda:(?P<rank>\d) (?P<memory_gb>\S+)GB, (?P<seconds>\S+) sec"
    text = "".join(
        f"step {step}, ce {rank}.5, mem:cuda:{rank} 6.{rank}GB, {seconds} sec/step\n"
        for step, rank, seconds in [(37, 1, 3.2), (37, 0, 3.4), (38, 0, 3.5), (37, 2, 3.3), (38, 2, 3.6), (38, 1, 3.5)]
    )
    log = read(tmp_path, text, pattern)
    assert [(step.step, step.seconds) for step in steps_of(log)] == [(37, 3.4), (38, 3.6)]
    assert (log.family, len(log.attempts), log.memory) == ("--pattern", 1, pytest.approx(6.2e9))


def test_a_file_of_each_rank(tmp_path: Path) -> None:
    files = [written(tmp_path, titan([3.0, 2.0, 2.0], prefix=f"[rank{rank}]:"), f"{rank}.log") for rank in (0, 1)]
    log = read_training_log(files)
    assert [[(step.step, step.copies) for step in attempt] for attempt in log.attempts] == [[(10, 1), (20, 1), (30, 1)]]


def test_clocks_of_hosts_differ(tmp_path: Path) -> None:
    files = [written(tmp_path, titan([3.0, 2.0], began=20.0 * rank), f"{rank}.log") for rank in (0, 1)]
    assert [[step.copies for step in attempt] for attempt in read_training_log(files).attempts] == [[1, 1]]


@pytest.mark.parametrize("files", [1, 2])
def test_a_resumed_log_is_a_second_attempt(tmp_path: Path, files: int) -> None:
    one, two = titan([2.0] * 5), titan([2.0] * 5, first=20, began=400)
    log = read_training_log(
        [written(tmp_path, one + two)] if files == 1 else [written(tmp_path, one, "a"), written(tmp_path, two, "b")]
    )
    assert [[step.step for step in attempt] for attempt in log.attempts] == [[10, 20, 30, 40, 50], [30, 40, 50, 60, 70]]
    assert [step.copies for step in steps_of(log)] == [0] * 10


def test_a_resumed_log_of_several_ranks_has_two_attempts(tmp_path: Path) -> None:
    def all_ranks(text: str) -> str:
        return "".join(f"{task}: {line}" for line in text.splitlines(keepends=True) for task in range(3))

    log = read(tmp_path, all_ranks(titan([2.0] * 5)) + all_ranks(titan([2.0] * 5, first=20, began=400)))
    assert [[(step.step, step.copies) for step in attempt] for attempt in log.attempts] == [
        [(step, 2) for step in range(10, 60, 10)], [(step, 2) for step in range(30, 80, 10)],
    ]  # fmt: skip


def test_a_mean_after_a_restart_is_over_as_many_steps_as_before(tmp_path: Path) -> None:
    log = read(tmp_path, megatron([2.7] * 5) + megatron([2.71] * 5, first=30))
    assert [[step.over for step in attempt] for attempt in log.attempts] == [[10] * 5, [10] * 5]


def test_what_is_not_read_is_counted_and_shown(tmp_path: Path) -> None:
    noise = "".join(f"NCCL version 2.27.{n}+cuda12.9\n" for n in range(5)) + "\n\nhello\n"
    log = read(tmp_path, noise + titan([2.0]))
    assert [(each.count, each.place.line, each.example) for each in log.unread] == [
        (5, 1, "NCCL version 2.27.0+cuda12.9"), (1, 8, "hello"),
    ]  # fmt: skip
    assert log.lines == 9


def test_a_batch_told_in_two_ways_is_none(tmp_path: Path) -> None:
    log = read(tmp_path, titan([2.0]) + titan([2.0], first=10).replace("global batch size 8", "global batch size 16"))
    assert (log.told.global_batch, log.told.sequence_length) == (None, 2048)
    assert log.notes == ("the log tells global batch 8 and 16: it is of more than one regime, so none is taken",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no line of 0 tells of a step in the form of torchtitan, Megatron-LM"),
        (b"\x00\x01\x02", "got binary data"),
        (b"{'loss': 2.1, 'epoch': 0.1}\n", "want the log of a run with disable_tqdm=False"),
    ],
)
def test_files_without_a_step(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.log").write_bytes(content)
    with pytest.raises(ReadError) as error:
        read_training_log([tmp_path / "a.log"])
    assert message in str(error.value)
    with pytest.raises(ReadError, match="cannot be read: No such file"):
        read_training_log([tmp_path / "missing.log"])


TEXTS = (
    titan([3.0, 2.0, 2.0]), megatron([5.8, 2.7]), nemo_line(1, 2.0), trainer(6, 3.0), LITGPT, NANOGPT, LLMC, KARPATHY,
    'DLLL {"timestamp": "1.2", "elapsedtime": "4.3", "step": 0, "data": {"train_step_timing in s": 1e2}}\n',
    ':::MLLOG {"time_ms": 1728322530205, "key": "tracked_stats", "value": {"train_step_timing in s": 18.1}, '
    '"metadata": {"step": 4194304}}\n',
)  # fmt: skip


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    text=damaged(*TEXTS),
    more=damaged(*TEXTS),
    pattern=st.sampled_from([None, None, r"(?P<step>\S+) (?P<seconds>[\d.]+)"]),
)
def test_any_text_is_read_or_refused(text: str, more: str, pattern: str | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            log = read(Path(folder), (text + more).encode(errors="replace").decode(), pattern)
        except ReadError:
            return
        assert all(step.step >= 0 or pattern for step in steps_of(log))
        with suppress(MeasurementError):  # a log that tells other work
            log_report(logged_run(log, tokens_per_step=1024), width=80)
        log_report(logged_run(log), width=60)

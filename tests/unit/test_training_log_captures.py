"""Training logs of real jobs, held against what is known of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from captures import CASES, capture

from pytest_clusterqual.judge.full_run.logged import logged_run
from pytest_clusterqual.model.log import LoggedRun
from pytest_clusterqual.read.training_log import read_training_log

PER_RANK = (
    r"step (?P<step>\d+), ce (?P<loss>[\d.]+).*mem_usage:cuda:(?P<rank>\d+) (?P<memory_gb>[\d.]+)GB, "
    r"(?P<seconds>[\d.]+) sec/step"
)


def run_of(name: str, pattern: str | None = None, tokens: float | None = None) -> LoggedRun:
    capture(f"train_logs/{name}")  # skips without the collection
    return logged_run(read_training_log([Path(CASES / "train_logs" / name)], pattern), tokens_per_step=tokens)


def seconds_of(run: LoggedRun) -> float:
    assert run.seconds is not None
    return run.seconds.value


def test_megatron_of_16_nodes_without_its_warm_up() -> None:
    run = run_of("bigscience_megatron_gpt2_n16.out")
    assert (run.log.family, run.attempts[0].warm_up, run.seconds and run.seconds.lines) == ("Megatron-LM", 10, 8)
    assert seconds_of(run) == pytest.approx(2.74005)
    assert (run.tokens_per_step, run.log.told.devices, run.skipped) == (4 * 1024, 64, 19)
    assert sum(each.count for each in run.log.unread) > 1600


def test_mlperf_counts_tokens_where_others_count_steps() -> None:
    run = run_of("mlperf_gpt3_eos_n32_256gpu.txt")
    (attempt,) = run.log.attempts
    assert ([step.step for step in attempt], run.tokens_per_step) == (list(range(1, 289)), 2048 * 2048)
    assert seconds_of(run) == pytest.approx(18.374, abs=5e-4)
    told = [step.seconds for step in attempt if step.seconds is not None]
    assert (min(told), max(told)) == (pytest.approx(18.104, abs=5e-4), pytest.approx(19.190, abs=5e-4))
    # Evaluation after 12 steps, then every 12, as the log says; the last pause is the end of the run.
    assert len(run.pauses) == 23
    assert {pause.told for pause in run.pauses} == {("evaluation",)}


def test_nemo_of_which_lines_tell_a_running_mean() -> None:
    run = run_of("gcp_nemo_dllogger.json")
    assert run.timed_by == "by the clock between the lines"
    assert seconds_of(run) == pytest.approx(25.4, abs=0.1)
    assert [(pause.after, round(pause.seconds)) for pause in run.pauses] == [(45, 34), (46, 236)]
    assert [pause.told for pause in run.pauses] == [(), ()]
    assert run.rates["samples"].value == pytest.approx(2048 / seconds_of(run))


def test_nemo_under_ray_counts_global_steps() -> None:
    run = run_of("aws_nemo2_ray_lines.txt")
    assert [step.step for step in run.log.attempts[0]] == [19, 29, 45, 46, 48]
    assert 46.8 <= seconds_of(run) <= 47.2
    assert (len(run.attempts), run.rates["samples"].value) == (1, pytest.approx(512 / seconds_of(run)))
    assert [event.kind for event in run.log.events] == ["checkpoint"] * len(run.log.events)


def test_nemo_progress_bar_with_another_glued_to_it() -> None:
    run = run_of("aws_nemo1_progress_line.txt")
    assert (run.log.attempts[0][0].step, seconds_of(run)) == (2000, 1.9)
    assert "an interval of the step time: 1 steady line" in run.missing[0]


def test_trainer_whose_lines_four_ranks_print() -> None:
    run = run_of("bigscience_hf_trainer_ds_n4_tail.txt")
    told = run.log.told
    assert (told.done, told.took, told.global_batch) == (16, 919.097, 64)
    assert told.took / told.done == pytest.approx(57.44, abs=0.01)
    assert 54 < seconds_of(run) < 60
    assert [step.step for step in run.log.attempts[0]] == list(range(17))
    assert len(run.attempts) == 1


def test_torchtitan_of_four_tasks_is_one_measurement() -> None:
    run = run_of("torchtitan708_4n_srun_prefix.txt")
    (step,) = run.log.attempts[0]
    assert (step.step, step.copies, step.device_rate) == (10, 3, 1786)
    assert (run.seconds, run.tokens_per_step) == (None, 32 * 8192)
    assert any("where the warm-up ends" in sentence for sentence in run.missing)


def test_torchtitan_tells_the_rate_of_one_device() -> None:
    run = run_of("torchtitan929_single_node.txt")
    assert run.device_rate is not None
    assert 2800 <= run.device_rate.value <= 2950
    assert run.device_rate.lines == 4  # without the step that compiled
    assert (run.rates, seconds_of(run)) == ({}, pytest.approx(2.79, abs=0.01))
    assert run_of("torchtitan929_single_node.txt", tokens=8192).rates["tokens"].value == pytest.approx(2932, abs=5)


def test_llmc_on_a_cpu() -> None:
    run = run_of("llmc_cpu_readme.txt")
    assert [step.step for step in run.log.attempts[0]] == [0, 1, 2, 3, 39]
    assert run.warnings == ("no line tells of steps 4-38",)


def test_a_bar_glued_to_a_line_tells_only_the_whole() -> None:
    run = run_of("openpi624_jax_tqdm_ckpt.txt")
    told = run.log.told
    assert (run.seconds, told.done, told.took) == (None, 5004, 7 * 3600 + 2 * 60 + 19)
    assert run.log.events[0].kind == "checkpoint"


def test_unordered_lines_of_every_rank_by_a_pattern() -> None:
    run = run_of("returnn1485_per_rank_steps.txt", PER_RANK)
    assert [(step.step, step.seconds, step.copies) for step in run.log.attempts[0]] == [(37, 3.446, 3), (38, 3.513, 3)]
    assert len(run.attempts) == 1

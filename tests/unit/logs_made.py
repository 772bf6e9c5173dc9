"""Logs in the form of real trainers, of runs that never were: given times, losses, copies and restarts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from pytest_clusterqual.model.log import LoggedStep, TrainingLog
from pytest_clusterqual.read.training_log import read_training_log

START = datetime(2026, 3, 1, 22, 59, 30, 250000)
TITAN_HEAD = (
    "{p}{at} - root - INFO - Building 1-D device mesh with ['dp_shard'], [8]\n"
    "{p}{at} - root - INFO - Training starts at step 1, with local batch size 1, global batch size 8, "
    "sequence length 2048, total steps 1000 (warmup 200)\n"
)


def written(folder: Path, text: str, name: str = "train.log") -> Path:
    file = folder / name
    file.write_bytes(text.encode())
    return file


def read(folder: Path, text: str, pattern: str | None = None) -> TrainingLog:
    return read_training_log([written(folder, text)], pattern)


def steps_of(log: TrainingLog) -> list[LoggedStep]:
    return [step for attempt in log.attempts for step in attempt]


def at(seconds: float) -> str:
    return (START + timedelta(seconds=seconds)).strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]


def titan_line(
    step: int, now: float, *, tps: float, loss: float = 8.0, prefix: str = "[rank0]:", color: bool = False
) -> str:
    red, green, off = ("\x1b[31m", "\x1b[32m", "\x1b[39m") if color else ("", "", "")
    return (
        f"{prefix}[titan] {at(now)} - root - INFO - {red}step: {step:2}  {green}loss: {loss:7.4f}  "
        f"grad_norm:  0.5000  memory: 47.61GiB(60.15%)  tps: {round(tps):,}  tflops: 161.76  mfu: 51.85%{off}\n"
    )


def titan(times: Sequence[float], *, every: int = 10, tokens: int = 16384, devices: int = 8, first: int = 0,
          began: float = 0.0, prefix: str = "[rank0]:", color: bool = False) -> str:  # fmt: skip
    """A line at the end of each `every` steps; `times` are the seconds of one step in each."""
    text, now = TITAN_HEAD.format(p=prefix, at=at(began)), began
    for number, seconds in enumerate(times, 1):
        now += seconds * every
        text += titan_line(
            first + number * every,
            now,
            tps=tokens / seconds / devices,
            loss=9 - number / 10,
            prefix=prefix,
            color=color,
        )
    return text


def megatron_line(
    step: int, ms: float, *, batch: int = 128, loss: str = "1.043863E+01", skipped: int = 0, stamp: str = ""
) -> str:
    return (
        f" {stamp}iteration {step:8d}/    5000 | consumed samples: {step * batch:12d} | "
        f"elapsed time per iteration (ms): {ms:.1f} | throughput per GPU (TFLOP/s/GPU): 80.2 | "
        f"learning rate: 6.976744E-08 | global batch size: {batch:5d} | lm loss: {loss} | "
        f"loss scale: 1.0 | grad norm: 26.203 | number of skipped iterations: {skipped:3d} | "
        "number of nan iterations:   0 |\n"
    )


def megatron(times: Iterable[float], *, every: int = 10, first: int = 0, batch: int = 128) -> str:
    head = f"  seq_length {'.' * 38} 1024\n  world_size {'.' * 38} 64\n"
    return head + "".join(
        megatron_line(first + number * every, seconds * 1e3, batch=batch) for number, seconds in enumerate(times, 1)
    )


def nemo_line(step: int, seconds: float, *, epoch: int = 0, iteration: int | None = None) -> str:
    return (
        f"Training epoch {epoch}, iteration {step if iteration is None else iteration}/99 | lr: 6.897e-06 | "
        f"global_batch_size: 128 | global_step: {step} | max_memory_reserved: 127785762816 | max_memory_allocated: "
        f"115792977920 | reduced_train_loss: 11.96 | train_step_timing in s: {seconds:.4g} | "
        f"TFLOPS_per_GPU: 1.249e+03 | consumed_samples: {(step + 1) * 128}\n"
    )


def bar(done: int, total: int, seconds: float, each: float, *, name: str = "", rest: str = "") -> str:
    minutes, left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    clock = f"{hours}:{minutes:02d}:{left:02d}" if hours else f"{minutes:02d}:{left:02d}"
    rate = f"{each:.2f}s/it" if each >= 1 else f"{1 / each:.2f}it/s"
    drawn = f"{done * 100 // total:3d}%|{'█' * (done * 10 // total):10}|"
    return f"{name}{drawn} {done}/{total} [{clock}<10:00, {rate:>9}{rest}]"


def trainer(count: int, each: float, *, total: int | None = None, log_every: int = 5) -> str:
    """Hugging Face's Trainer with its bar on one line, and a dictionary every few steps."""
    total = total or count
    text = "  Total train batch size (w. parallel, distributed & accumulation) = 64\n"
    text += f"  Total optimization steps = {total}\n"
    text += f"\r  0%|          | 0/{total} [00:00<?, ?it/s]"
    for step in range(1, count + 1):
        text += "\r" + bar(step, total, step * each, each)
        if step % log_every == 0:
            told = f"'loss': {4 - step / 100}, 'grad_norm': 1.25, 'learning_rate': 5e-05, 'epoch': 0.1"
            text += f"\r{' ' * 60}\r\r{{{told}}}\n"
            text += "\r" + bar(step, total, step * each, each)
    text += (
        f"\n{{'train_runtime': {count * each}, 'train_samples_per_second': 1.088, 'train_loss': 3.5, 'epoch': 1.0}}\n"
    )
    return text

"""The callbacks of the examples where a Trainer goes by epochs and accumulates: every step is told once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from scripts import EXAMPLES, skip_without_trainer

from pytest_clusterqual.read.probe import probe_files, probe_lines

# Two epochs of five batches each, two of them a step, so that the last step of an epoch has but one.
BY_EPOCHS = {
    "huggingface": """
text = train.Text()
some = [text[i] for i in range(10)]
arguments = train.TrainingArguments(
    output_dir="own", num_train_epochs=2, per_device_train_batch_size=2, gradient_accumulation_steps=2,
    eval_strategy="epoch", save_strategy="epoch", logging_strategy="no", report_to="none", use_cpu=True,
)
model = train.LlamaForCausalLM(train.LlamaConfig(
    vocab_size=256, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
))
train.ProbedTrainer(model, arguments, train_dataset=some, eval_dataset=some, tokens=512).train()
""",
    "lightning": """
from torch.utils.data import DataLoader, Subset
reader = train.Reader(width=16, layers=1)
some = Subset(reader.text, range(10))
trainer = train.ProbedTrainer(
    accelerator="cpu", max_epochs=2, accumulate_grad_batches=2, logger=False, num_sanity_val_steps=2,
    callbacks=[train.Watch(tokens=512, resumes=False), train.ModelCheckpoint("own")],
)
trainer.fit(reader, train.probe.batches(DataLoader(some, 2)), DataLoader(some, 2))
""",
}


@pytest.mark.parametrize("example", BY_EPOCHS)
def test_steps_evaluations_and_saves_are_told_once(example: str, tmp_path: Path) -> None:
    skip_without_trainer(example)
    ran = subprocess.run(
        [sys.executable, "-c", "import train\n" + BY_EPOCHS[example]],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=180,
        env={**os.environ, "PYTHONPATH": str(EXAMPLES / example), "CLUSTERQUAL_PROBE": str(tmp_path / "probe")},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout
    (process,) = probe_files(tmp_path / "probe", pytest.fail)[0]
    lines = list(probe_lines(process, pytest.fail))
    assert [(line.step, line.tokens) for line in lines if line.what == "step"] == [(step, 512) for step in range(1, 7)]
    assert [line.step for line in lines if line.what == "save"] == [3, 6]
    assert [line.what for line in lines[-2:]] == ["done", "end"]
    evaluations = {line.at for line in lines if line.name == "evaluation"}
    between = [line.at + line.seconds for line in lines if line.what == "step" and line.step in (3, 6)]
    assert all(any(at >= ended for at in evaluations) for ended in between), "after each epoch"

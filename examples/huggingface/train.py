"""Hugging Face's Trainer on a small Llama, made on the spot, that learns Python's own standard library.

`ProbedTrainer` and `Watch` are all that is there for Clusterqual; they fit any script that has a Trainer.

    torchrun --nproc-per-node 2 train.py --folder run
"""

import argparse
import os
from contextlib import ExitStack
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from pytest_clusterqual.probe import Probe

LENGTH, BATCH, MICROBATCH = 128, 32, 8  # tokens of a sequence; sequences of a step over all ranks, and of a forward

probe = Probe()


class Watch(TrainerCallback):
    """Tells the probe what the Trainer does, one thing after the other: steps, and what follows them."""

    def __init__(self):
        self.open = ExitStack()

    def begins(self, span):
        self.open.close()
        self.open.enter_context(span)

    def on_train_begin(self, args, state, control, **_):
        self.open.close()
        probe.resumed(state.global_step)

    def on_step_end(self, args, state, control, **_):
        if not control.should_log:  # else the step lasts until its loss is read
            self.goes_on(args, state, control)

    def on_log(self, args, state, control, logs, **_):
        if "loss" in logs:  # that of steps; an evaluation has another
            self.goes_on(args, state, control)
            probe.loss(logs["loss"])

    def goes_on(self, args, state, control, **_):
        self.open.close()
        if control.should_evaluate:
            self.begins(probe.hook("evaluation"))
        elif control.should_save:
            self.begins(probe.checkpoint())

    on_evaluate = on_save = on_epoch_end = goes_on

    def on_train_end(self, args, state, control, **_):
        probe.done()


class ProbedTrainer(Trainer):
    """A step begins where its data are asked for; `tokens` are those of a step on all ranks."""

    def __init__(self, *args, tokens, **kwargs):
        self.watch, self.tokens = Watch(), tokens
        super().__init__(*args, callbacks=[self.watch], **kwargs)

    def get_batch_samples(self, epoch_iterator, *args, **kwargs):
        self.watch.begins(probe.step(self.state.global_step + 1, tokens=self.tokens))
        return super().get_batch_samples(iter(probe.batches(epoch_iterator)), *args, **kwargs)


class Text(Dataset):
    """Sample `i` is a piece of the text, also as its own labels: the model shifts them by itself."""

    def __init__(self):
        files = sorted(Path(os.__file__).parent.glob("*.py"))
        self.text = torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8)

    def __len__(self):
        return len(self.text) // LENGTH

    def __getitem__(self, i):
        piece = self.text[i * LENGTH : (i + 1) * LENGTH].long()
        return {"input_ids": piece, "labels": piece}


def last_complete(folder):
    """The checkpoint to go on from, or None. A kill while one is saved leaves it without its state, written last."""
    complete = [path.parent for path in folder.glob("checkpoint-*/trainer_state.json")]
    return max(complete, key=lambda path: int(path.name.rpartition("-")[2]), default=None)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path("run"), help="for the checkpoints")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--save-every", type=int, default=10)
    options = parser.parse_args()

    gpu = torch.cuda.is_available()
    arguments = TrainingArguments(
        output_dir=str(options.folder), max_steps=options.steps, per_device_train_batch_size=MICROBATCH,
        gradient_accumulation_steps=BATCH // (MICROBATCH * int(os.environ["WORLD_SIZE"])),
        learning_rate=1e-3, seed=1, logging_steps=1, eval_strategy="steps", eval_steps=options.steps // 2,
        save_steps=options.save_every, save_total_limit=2, report_to="none", dataloader_pin_memory=gpu,
        use_cpu=not gpu,  # else every rank on CPU trains alone, with no more than a warning
    )  # fmt: skip
    torch.manual_seed(1)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=256, hidden_size=128, intermediate_size=384, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=LENGTH,
    ))  # fmt: skip
    text = Text()
    sequences = arguments.train_batch_size * arguments.gradient_accumulation_steps * arguments.world_size
    trainer = ProbedTrainer(
        model, arguments, train_dataset=text, eval_dataset=[text[i] for i in range(16)], tokens=sequences * LENGTH
    )
    if saved := last_complete(options.folder):
        trainer.watch.begins(probe.checkpoint("load"))
    trainer.train(resume_from_checkpoint=saved and str(saved))


if __name__ == "__main__":
    main()

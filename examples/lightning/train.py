"""Lightning's Trainer on a small convolution that learns Python's own standard library, byte after byte.

`ProbedTrainer`, `Watch` and `probe.batches` are all that is there for Clusterqual.

    torchrun --nproc-per-node 2 train.py --folder run
"""

import argparse
import os
from contextlib import ExitStack
from pathlib import Path

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, Dataset

from pytest_clusterqual.probe import Probe

LENGTH, BATCH = 128, 32  # tokens of a sequence; sequences of a step, over all ranks

probe = Probe()


class Watch(Callback):
    """Tells the probe what the Trainer does: a step goes until the next one, less data, evaluation, saves inside it."""

    def __init__(self, tokens, *, resumes):
        self.tokens, self.resumes = tokens, resumes
        self.outer, self.inner = ExitStack(), ExitStack()
        self.done, self.loss = 0, 0.0

    def setup(self, trainer, module, stage):
        if self.resumes:
            self.outer.enter_context(probe.checkpoint("load"))

    def on_train_start(self, trainer, module):
        self.outer.close()
        probe.resumed(trainer.global_step)
        self.begin_step(trainer.global_step)

    def begin_step(self, done):
        self.done, self.loss = done, 0.0
        self.outer.enter_context(probe.step(done + 1, tokens=self.tokens))

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.loss += float(outputs["loss"])  # of accumulated batches each is its share
        if trainer.global_step > self.done:
            self.outer.close()
            probe.loss(self.loss)
            self.begin_step(trainer.global_step)

    def on_validation_start(self, trainer, module):
        self.inner.enter_context(probe.hook("evaluation"))

    def on_validation_end(self, trainer, module):
        self.inner.close()

    def on_train_end(self, trainer, module):
        probe.done()


class ProbedTrainer(Trainer):
    """Tells saving from the rest of the time between two steps."""

    def save_checkpoint(self, *args, **kwargs):
        with probe.checkpoint():
            super().save_checkpoint(*args, **kwargs)


class Text(Dataset):
    """Sample `i` is a piece of the text, and at each place the byte that follows."""

    def __init__(self):
        files = sorted(Path(os.__file__).parent.glob("*.py"))
        self.text = torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8)

    def __getitem__(self, i):
        at = i * LENGTH % (len(self.text) - LENGTH)
        piece = self.text[at : at + LENGTH + 1].long()
        return piece[:-1], piece[1:]


class Reader(LightningModule):
    def __init__(self, width=128, layers=4):
        super().__init__()
        self.bytes = nn.Embedding(256, width)
        self.layers = nn.ModuleList(nn.Conv1d(width, width, 4) for _ in range(layers))
        self.guess = nn.Linear(width, 256)
        self.text = Text()

    def training_step(self, batch, batch_idx):
        text, following = batch
        read = self.bytes(text).transpose(1, 2)
        for layer in self.layers:
            read = read + torch.relu(layer(nn.functional.pad(read, (3, 0))))  # of what comes before alone
        return nn.functional.cross_entropy(self.guess(read.transpose(1, 2)).flatten(0, 1), following.flatten())

    def validation_step(self, batch, batch_idx):
        self.log("validation", self.training_step(batch, batch_idx), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)

    def train_dataloader(self):
        """Each step has the same samples on any world, and a resumed run goes on with those it has not seen."""
        world = self.trainer.world_size
        first, last = self.trainer.global_step * BATCH + self.trainer.global_rank, 10**9
        return probe.batches(DataLoader(self.text, BATCH // world, sampler=range(first, last, world)))

    def val_dataloader(self):
        return DataLoader(self.text, 8, sampler=range(16))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path("run"), help="for the checkpoint")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--save-every", type=int, default=10)
    options = parser.parse_args()

    world, local = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    torch.manual_seed(1)
    saving = ModelCheckpoint(
        options.folder, "last", every_n_train_steps=options.save_every, enable_version_counter=False
    )
    saved = options.folder / "last.ckpt"
    watch = Watch(tokens=BATCH * LENGTH, resumes=saved.exists())
    trainer = ProbedTrainer(
        devices=local, num_nodes=world // local, max_steps=options.steps, callbacks=[watch, saving], logger=False,
        num_sanity_val_steps=0, val_check_interval=options.steps // 2, check_val_every_n_epoch=None,
        use_distributed_sampler=False,
    )  # fmt: skip
    trainer.fit(Reader(), ckpt_path=saved if saved.exists() else None)
    if torch.distributed.is_initialized():  # left to the interpreter's end, gloo aborts now and then
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()

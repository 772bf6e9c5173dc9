"""A training script as many are: a small transformer learns Python's own standard library, byte after byte.

DistributedDataParallel, a checkpoint every few steps, resumption; on CPU or GPU, with any number of ranks that divides
the batch. The lines with `probe` are all that is there for Clusterqual.

    torchrun --nproc-per-node 2 train.py --folder run
"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from pytest_clusterqual.probe import Probe

LENGTH, BATCH = 128, 32  # tokens of a sequence; sequences of a step, over all ranks


class Text(Dataset):
    """Sample `i` is a piece of the text, and at each place the byte that follows."""

    def __init__(self):
        files = sorted(Path(os.__file__).parent.glob("*.py"))
        self.text = torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8)

    def __getitem__(self, i):
        at = i * LENGTH % (len(self.text) - LENGTH)
        piece = self.text[at : at + LENGTH + 1].long()
        return piece[:-1], piece[1:]


class Reader(nn.Module):
    def __init__(self, width=128, layers=2):
        super().__init__()
        self.bytes = nn.Embedding(256, width)
        self.places = nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, 4, 3 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.guess = nn.Linear(width, 256)

    def forward(self, text):
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1], device=text.device)
        read = self.bytes(text) + self.places.weight[: text.shape[1]]
        return self.guess(self.layers(read, mask=mask, is_causal=True))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path("run"), help="for the checkpoint")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--save-every", type=int, default=10)
    options = parser.parse_args()

    probe = Probe()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group()
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = DistributedDataParallel(Reader().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    saved, done = options.folder / "checkpoint.pt", 0
    if saved.exists():
        with probe.checkpoint("load"):
            state = torch.load(saved, map_location=device, weights_only=True)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            done = state["done"]
        probe.resumed(done)

    mine = range(done * BATCH + rank, options.steps * BATCH, world)  # each step has the same samples on any world
    batches = DataLoader(Text(), BATCH // world, sampler=mine)
    for step, (text, following) in enumerate(probe.batches(batches), done + 1):
        began = time.perf_counter()
        with probe.step(step, tokens=BATCH * LENGTH):
            guesses = model(text.to(device)).flatten(0, 1)
            loss = nn.functional.cross_entropy(guesses, following.to(device).flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            reached = loss.item()
        probe.loss(reached)
        if rank == 0:
            print(f"step {step} loss {reached:.4f} {1000 * (time.perf_counter() - began):.1f} ms", flush=True)
        if step % options.save_every == 0:
            with probe.checkpoint():
                if rank == 0:
                    options.folder.mkdir(parents=True, exist_ok=True)
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "done": step}
                    torch.save(state, saved.with_suffix(".new"))
                    saved.with_suffix(".new").rename(saved)
                dist.barrier()
    probe.done()
    dist.barrier()  # gloo aborts now and then if its group is destroyed while a peer is at the last exchange
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""A convolutional network as a factory gives it; `workload.factory: images:make` in the project file beside it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_clusterqual.own import TrainingJob

SIZE, CLASSES = 16, 4


class Block(nn.Module):
    """The unit of sharding and of activation checkpointing: `workload.blocks` names it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, channels)  # of each picture by itself, so that the number of ranks changes nothing
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.relu(self.first(self.norm(x))))


class Net(nn.Module):
    def __init__(self, channels: int, blocks: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.blocks = nn.Sequential(*(Block(channels) for _ in range(blocks)))
        self.head = nn.Linear(channels, CLASSES)

    def forward(self, pictures: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(pictures)).mean((2, 3)))


def picture(number: int) -> dict[str, Tensor]:
    """Sample `number`, the same wherever it is read: noise, of one colour more the more its class."""
    kind = number % CLASSES
    pixels = torch.randn(3, SIZE, SIZE, generator=torch.Generator().manual_seed(number))
    pixels[0] += kind
    return {"picture": pixels, "kind": torch.tensor(kind)}


def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch["picture"]), batch["kind"])


def make(channels: int = 16, blocks: int = 2, rate: float = 0.05) -> TrainingJob:
    return TrainingJob(
        model=lambda: Net(channels, blocks),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=rate, momentum=0.9),
        loss=loss,
        data=picture,
    )

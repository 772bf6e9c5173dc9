"""Jobs of users' own, as their factories give them."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_clusterqual.own import TrainingJob

FEATURES, CLASSES = 8, 4


class Block(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm, self.wide, self.narrow = (
            nn.LayerNorm(width),
            nn.Linear(width, 3 * width),
            nn.Linear(3 * width, width),
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.narrow(self.dropout(F.gelu(self.wide(self.norm(x)))))


class Net(nn.Module):
    def __init__(self, width: int, depth: int, dropout: float) -> None:
        super().__init__()
        self.into = nn.Linear(FEATURES, width)
        self.blocks = nn.ModuleList(Block(width, dropout) for _ in range(depth))
        self.out = nn.Linear(width, CLASSES)
        self.register_buffer("scale", torch.full((), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(x)
        for block in self.blocks:
            x = block(x)
        return self.out(x) * self.scale


def sample(number: int) -> tuple[Tensor, int]:
    features = torch.randn(FEATURES, generator=torch.Generator().manual_seed(number))
    return features, int(features[:CLASSES].argmax())


def loss(model: nn.Module, batch: Any) -> Tensor:
    features, kinds = batch
    return F.cross_entropy(model(features), kinds)


def fill(name: str, whole: Tensor) -> None:
    if name == "scale":
        whole.fill_(2.0)
    elif whole.dim() == 1:
        whole.fill_(1.0 if "norm.weight" in name else 0.0)
    else:
        whole.normal_(0.0, 0.3 / math.sqrt(whole.shape[1]))


def make(width: int = 15, depth: int = 2, dropout: float = 0.0, **changes: Any) -> TrainingJob:
    """15: nothing divides by the number of ranks."""
    usual: dict[str, Any] = {
        "model": lambda: Net(width, depth, dropout),
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        "loss": loss,
        "data": sample,
    }
    return TrainingJob(**{**usual, **changes})


def on_meta() -> TrainingJob:
    return make(initialize=fill)


class Known:
    """A data set of ten samples."""

    def __init__(self, shift: int = 0) -> None:
        self.shift = shift

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> dict[str, int]:
        if not 0 <= index < 10:
            raise IndexError(index)
        return {"number": index + self.shift}


def known(shift: int = 0) -> TrainingJob:
    return make(data=Known(shift))


def another_thing() -> str:
    return "a model"


def wrong_model() -> TrainingJob:
    return make(model=lambda: "a model")


def wrong_optimizer() -> TrainingJob:
    return make(optimizer=list)


def wrong_loss() -> TrainingJob:
    return make(loss=lambda model, batch: model(batch[0]))


def no_loss() -> TrainingJob:
    return make(loss=lambda model, batch: 1.0)

"""What a training job is made of: the reference transformer and its data, or what a user's factory gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from pytest_clusterqual.model.workload import Workload
from pytest_clusterqual.rank.data import Batch, Data
from pytest_clusterqual.rank.factory import Own
from pytest_clusterqual.rank.meshes import Place
from pytest_clusterqual.rank.reference import Reference

if TYPE_CHECKING:
    from pytest_clusterqual.rank.jobs import Context


class Recipe(Protocol):
    """The parts of a job, and how its model is spread. What is done with them in a step is the same for all."""

    def data(self, ctx: Context) -> Data:
        """The samples of the run."""

    def drawn(self, here: Place) -> list[nn.Module]:
        """The stages of the model on this rank, spread as the layout says."""

    def fill(self, stage: nn.Module, device: torch.device) -> None:
        """Give a stage that is drawn its memory on the device, and its values, as far as it has none."""

    def optimizer(self, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
        """That of all parameters of this rank."""

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        """What the model makes of one microbatch, in the precision of the job."""

    def loss(self, made: Any, batch: Batch) -> Tensor:
        """The mean loss of the microbatch from what `forward` made, in full precision."""


def recipe_of(workload: Workload) -> Recipe:
    """That of the workload.

    Raises:
        ClusterQualError: its factory cannot be used.
    """
    return Reference(workload) if workload.factory is None else Own(workload, workload.factory)

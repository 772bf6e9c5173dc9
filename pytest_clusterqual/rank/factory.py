"""A user's own job: what the function named by `workload.factory` gives, copied or sharded as the layout says."""

from __future__ import annotations

import functools
import hashlib
import inspect
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import default_collate

from pytest_clusterqual.errors import ClusterQualError
from pytest_clusterqual.model.workload import Factory, Workload
from pytest_clusterqual.own import TrainingJob
from pytest_clusterqual.rank import data_parallel
from pytest_clusterqual.rank.data import DIGEST_SAMPLES, Batch, Data, mixed
from pytest_clusterqual.rank.jobs import resolve
from pytest_clusterqual.rank.meshes import Place
from pytest_clusterqual.rank.recompute import recompute
from pytest_clusterqual.rank.transformer import WRAPPED

if TYPE_CHECKING:
    from pytest_clusterqual.rank.jobs import Context


class Own:
    """A `Recipe`."""

    def __init__(self, workload: Workload, factory: Factory) -> None:
        self._workload, self._factory = workload, factory
        self._job = made(factory)

    def data(self, ctx: Context) -> OwnData:
        return OwnData(self._job, self._factory, self._workload, ctx.device)

    def drawn(self, here: Place) -> list[nn.Module]:
        layout = here.layout
        torch.manual_seed(self._workload.seed)
        with torch.device("meta" if self._job.initialize else "cpu"):
            model = self._job.model()
        self._check("the model", model, nn.Module)
        kinds = self._blocks(model)
        recompute(model, layout.activation_checkpointing, kinds, random=True)
        if not layout.bucketed:
            data_parallel.spread(model, list(_outermost(model, kinds)), here, self._workload.precision)
        return [model]

    def fill(self, stage: nn.Module, device: torch.device) -> None:
        if self._job.initialize is None:
            stage.to(device)
        else:
            stage.to_empty(device=device)
            _initialize(stage, self._job.initialize, self._workload.seed)

    def optimizer(self, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
        optimizer = self._job.optimizer([parameter for parameter in parameters if parameter.requires_grad])
        self._check("the optimizer", optimizer, torch.optim.Optimizer)
        return optimizer

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        """All of the loss: what is the model's and what is not is for the user's function to know."""
        loss = self._job.loss(model, batch)
        self._check("the loss", loss, Tensor)
        if loss.dim():
            raise ClusterQualError(
                f"{self._factory.name}: the loss has the shape {tuple(loss.shape)}, want a scalar: the mean of the "
                "microbatch"
            )
        return loss

    def loss(self, made: Tensor, batch: Batch) -> Tensor:
        return made.float()

    def _blocks(self, model: nn.Module) -> tuple[type[nn.Module], ...]:
        there = {type(module) for module in model.modules()}
        names = sorted({kind.__name__ for kind in there})
        for name in self._factory.blocks:
            if name not in names:
                raise ClusterQualError(
                    f"workload.blocks: got {name}, want classes of modules in the model of {self._factory.name}: "
                    f"{', '.join(names)}"
                )
        return tuple(kind for kind in there if kind.__name__ in self._factory.blocks)

    def _check(self, what: str, found: object, wanted: type) -> None:
        if not isinstance(found, wanted):
            raise ClusterQualError(
                f"{self._factory.name}: {what} is a {type(found).__name__}, want a torch {wanted.__name__}"
            )


@functools.cache
def made(factory: Factory) -> TrainingJob:
    """What the user's function returns; it is called once in a process.

    Raises:
        ClusterQualError: there is no such function, it does not take the arguments, or returns something else.
    """
    make = resolve(factory.name)
    try:
        inspect.signature(make).bind(**factory.arguments)
    except TypeError as error:
        raise ClusterQualError(f"workload.arguments: {factory.name} does not take them: {error}") from None
    found = make(**factory.arguments)
    if not isinstance(found, TrainingJob):
        raise ClusterQualError(
            f"{factory.name} returned a {type(found).__name__}, want a pytest_clusterqual.own.TrainingJob"
        )
    return found


class OwnData(Data):
    """Samples of the user's own: of a function of their number, or of a data set in the order of the seed."""

    def __init__(self, job: TrainingJob, factory: Factory, workload: Workload, device: torch.device) -> None:
        super().__init__(workload, device)
        self._sample: Callable[[int], Any]
        if callable(job.data):
            self._sample = job.data
        else:
            samples, size, seed = job.data, len(job.data), workload.seed
            if not size:
                raise ClusterQualError(f"{factory.name}: data is a data set without samples, want at least one")
            self._sample = lambda number: samples[mixed(seed, number) % size]
        self._collate = job.collate or default_collate
        self.digest = self._digest(factory)

    def read(self, numbers: Sequence[int]) -> Batch:
        """What the user's `collate`, or torch's, makes of these samples."""
        return self._collate([self._sample(number) for number in numbers])

    def _digest(self, factory: Factory) -> str:
        """Of the file with the factory, and of samples from all over the fixed work."""
        state = hashlib.sha256()
        source = sys.modules[factory.name.partition(":")[0]].__file__
        if source is not None:  # it was not made on the spot
            state.update(Path(source).read_bytes())
        work = self._workload
        for index in range(DIGEST_SAMPLES):
            number = work.global_batch + work.steps * work.global_batch * index // DIGEST_SAMPLES
            for leaf in tree_leaves(self.read([number])):
                state.update(_bytes(leaf))
        return state.hexdigest()[:16]


def _bytes(leaf: Any) -> bytes:
    if not isinstance(leaf, Tensor):
        return repr(leaf).encode()
    raw: bytes = leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return struct.pack("<q", leaf.numel()) + raw


def _outermost(model: nn.Module, kinds: tuple[type[nn.Module], ...]) -> Iterator[nn.Module]:
    """The modules of these classes, inner ones first, each with what makes it repeat its forward."""
    found = [module for module in model.modules() if module is not model and isinstance(_unwrapped(module), kinds)]
    inside = {id(_unwrapped(module)) for module in found if isinstance(module, CheckpointWrapper)}
    return (module for module in reversed(found) if id(module) not in inside)


def _unwrapped(module: nn.Module) -> nn.Module:
    inner: nn.Module = module._checkpoint_wrapped_module if isinstance(module, CheckpointWrapper) else module
    return inner


@torch.no_grad()
def _initialize(model: nn.Module, initialize: Callable[[str, Tensor], object], seed: int) -> None:
    """Fill parameters and buffers one by one, each whole, of which this rank keeps its part."""
    for number, (name, tensor) in enumerate([*model.named_parameters(), *model.named_buffers()]):
        whole = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        torch.manual_seed(seed * 100_003 + number)
        initialize(name.replace(WRAPPED, ""), whole)
        if isinstance(tensor, DTensor):
            # No source rank: every rank holds the same whole, so nothing has to be sent.
            whole = distribute_tensor(whole, tensor.device_mesh, tensor.placements, src_data_rank=None)
        tensor.copy_(whole)

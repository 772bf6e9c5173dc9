"""A training job of your own, run by this package's loop in every layout that applies.

    from pytest_clusterqual.own import TrainingJob

    def make(width: int = 64) -> TrainingJob:
        return TrainingJob(
            model=lambda: Net(width),
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
            loss=lambda model, batch: cross_entropy(model(batch["image"]), batch["label"]),
            data=read_sample,                # number -> {"image": ..., "label": ...}
        )

`workload.factory: "module:make"` in the project file names the function. It is called once in every rank's process, so
leave what costs time to the functions in it. Each step does the same work whatever the layout and the number of ranks:
without dropout and batch statistics its losses are the same, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer


class Samples(Protocol):
    """A data set that can be read anywhere, such as a map-style one of torch."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingJob:
    """What the job is made of. Nothing in it needs to know of ranks.

    `model` makes the model; the random numbers it draws are the same on all ranks, and it may be asked for several.
    `optimizer` gets the parameters of a rank, which may be shards, and makes their optimizer.

    `loss` gets a model, to be called and not looked into, and one microbatch, and returns the mean loss of its
    samples, a scalar. In bf16 and fp16 it is called under autocast; the sharded model has its parameters cast instead.

    `data` reads one sample: a function of its number in the whole run, or a data set, of which the seed then gives the
    order. It must give the same sample on every rank and each time. `collate` makes a microbatch of a list of samples;
    left out, torch's default stacks tensors, arrays and numbers, also in tuples and dicts.

    `initialize` is for models that no host holds once per rank: the model is then made on the meta device, and each
    parameter and each buffer of it is filled by this, by name, whole and on the device, before it is spread.
    """

    model: Callable[[], nn.Module]
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]
    loss: Callable[[nn.Module, Any], Tensor]
    data: Callable[[int], Any] | Samples
    collate: Callable[[Sequence[Any]], Any] | None = None
    initialize: Callable[[str, Tensor], object] | None = None

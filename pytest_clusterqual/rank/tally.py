"""The bytes of all tensors of a job that computes nothing: fake tensors have sizes and lives, but no values."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _current_graph_task_id
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor
from torch.distributed._tools import fake_collectives  # noqa: F401  # it tells fake tensors what collectives give
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from pytest_clusterqual.rank.lives import Lives

CUDA_BLOCK = 512  # bytes; torch's CUDA allocator rounds every tensor up to whole ones
NO_BACKWARD = -1
BUFFERS = ("c10d", "fsdp")  # kinds of operations that make no activations
# What gloo does in a copy of the whole array.
COPYING = (
    torch.ops.c10d._allgather_base_.default,
    torch.ops.c10d._reduce_scatter_base_.default,
    torch.ops._c10d_functional.all_gather_into_tensor.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
)


class Sent(dist.Work):
    """Keeps what was sent until somebody waits for it, as the work of a real backend does."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__()
        self._tensors = tensors

    def wait(self, *_patience: Any) -> bool:
        self._tensors = ()
        return True


class Aside(AbstractContextManager[None]):
    """Inside, DTensor tries operations on whole tensors to learn their shapes; a real job holds no such thing."""

    entered = False

    def __enter__(self) -> None:
        self.entered = True

    def __exit__(self, *_raised: Any) -> None:
        self.entered = False


class Tally(TorchDispatchMode):
    """Counts what is made while it is entered, inside of a fake mode; `device` is whose allocator it follows.

    What the job asks of values is answered as if all went well, and a router spreads its tokens evenly. Those
    counts are real numbers, and so is all that is made of numbers alone.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = device
        self._lives = Lives()
        self._watched: dict[int, weakref.ref[Any]] = {}
        self._sent: list[Sent] = []
        self._aside = Aside()
        self._stepping = False
        self._undo = ExitStack()

    def __enter__(self) -> Tally:
        resize = self._resized(torch.UntypedStorage.resize_)
        self._undo.enter_context(_replaced(torch.UntypedStorage, "resize_", resize))
        self._undo.enter_context(_replaced(ShardingPropagator, "_fake_mode_lock", self._aside))
        for register, stepping in (
            (register_optimizer_step_pre_hook, True),
            (register_optimizer_step_post_hook, False),
        ):
            self._undo.callback(register(lambda *_, now=stepping: setattr(self, "_stepping", now)).remove)
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        self._undo.close()

    def begin(self) -> None:
        """From here on the peak is looked for."""
        self._sent.clear()
        self._lives.begin()

    def peak(self, known: Mapping[str, Iterable[Tensor]]) -> dict[str, int]:
        """Bytes held at the peak, by part; `known` tells the parts of tensors that are held at the end of a step.

        Of all others, what forward passes made are ``activations``, also when they are repeated, the rest ``other``.
        """
        found = self._lives.parts({_local(tensor): part for part, tensors in known.items() for tensor in tensors})
        return {part: found.get(part, 0) for part in known}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it comes again with the tensors of this rank
        if self._aside.entered:
            return func(*args, **(kwargs or {}))
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if given and all(map(_is_number, given)):
            return _really(func, args, kwargs or {})
        made = self._made(func, args, kwargs or {})
        part = "activations" if self._is_forward(func) else "other"
        fake = [tensor for tensor in tree_leaves(made) if isinstance(tensor, FakeTensor)]
        for tensor in fake:
            if tensor.device.type != "meta":
                self._see(tensor.untyped_storage(), part)
        self._lives.look(self._besides(func, [*given, *fake]))
        return made

    def _made(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func is torch.ops.aten.bincount.default:
            tokens, _weights, experts = args
            return _even_counts(tokens.numel(), experts)
        if func is torch.ops._c10d_functional.wait_tensor.default:
            return args[0]  # torch's rule for fake tensors would make another one
        if func is torch.ops.c10d.send.default:
            self._sent.append(Sent(args[0]))
            return self._sent[-1].boxed()
        try:
            return func(*args, **kwargs)
        except DataDependentOutputException:
            # No gradient has overflowed (a float), every stage of the pipeline votes yes (a whole number).
            return 0.0 if args[0].is_floating_point() else 1

    def _besides(self, func: Any, tensors: Sequence[Tensor]) -> int:
        """Bytes that an operation on `tensors` holds while it runs, and that none of them shows."""
        if self._device == "cpu" and func in COPYING:
            return max(tensor.nbytes for tensor in tensors)
        return 0

    def _is_forward(self, func: Any) -> bool:
        """True for what a forward pass does, also where its gradient is its own affair, or where it is repeated."""
        if func.namespace in BUFFERS:
            return False
        return torch.is_grad_enabled() or not (self._stepping or _current_graph_task_id() != NO_BACKWARD)

    def _see(self, storage: torch.UntypedStorage, part: str) -> None:
        key = storage._cdata
        if key not in self._lives:
            self._watched[key] = weakref.ref(storage, lambda _gone: self._gone(key))
            self._lives.start(key, self._size(storage), part)

    def _gone(self, key: int) -> None:
        del self._watched[key]
        self._lives.end(key)

    def _size(self, storage: torch.UntypedStorage) -> int:
        size = storage.nbytes()
        return -(-size // CUDA_BLOCK) * CUDA_BLOCK if self._device == "cuda" else size

    def _resized(self, resize: Any) -> Any:
        """`resize`, counted: FSDP keeps its tensors, and takes their memory away while they are not needed."""

        def resize_(storage: torch.UntypedStorage, size: int) -> Any:
            answer = resize(storage, size)
            if (key := storage._cdata) in self._lives:
                self._lives.end(key)
                self._lives.start(key, self._size(storage), "other")
                self._lives.look()
            return answer

        return resize_


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    genuine = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, genuine)


def _local(tensor: Tensor) -> int:
    """The key of this rank's part of a tensor."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    key: int = local.untyped_storage()._cdata
    return key


def _is_number(tensor: Tensor) -> bool:
    return not isinstance(tensor, FakeTensor) and tensor.device.type == "cpu" and not tensor.is_floating_point()


def _really(func: Any, args: Any, kwargs: Any) -> Any:
    with _disable_current_modes():
        made = func(*args, **kwargs)
        if func is torch.ops.c10d.alltoall_base_.default:
            args[0].copy_(args[1])  # the fake backend sends nothing; every rank sends what this one sends
        return made


def _even_counts(tokens: int, experts: int) -> Tensor:
    with _disable_current_modes():
        counts = torch.full((experts,), tokens // experts)
        counts[: tokens % experts] += 1
        return counts

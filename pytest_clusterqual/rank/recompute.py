"""Activation checkpointing: memory bought with a second forward of every layer."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from pytest_clusterqual.rank.experts import uncounted

COMMUNICATION = "_c10d_functional"
DEAR = {
    torch.ops.aten.mm.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
}


def recompute(
    model: nn.Module,
    kind: Literal["none", "selective", "full"],
    regions: tuple[type[nn.Module], ...],
    *,
    random: bool = False,
) -> None:
    """Keep less for the gradients: of every region only its input, or also the results that are dear to repeat.

    `random`: a region may draw random numbers, and must draw the same ones again.
    """
    if kind == "none":
        return
    contexts = {"full": _everything, "selective": _what_is_cheap}[kind]
    apply_activation_checkpointing(
        model,
        checkpoint_wrapper_fn=partial(checkpoint_wrapper, preserve_rng_state=random, context_fn=contexts),
        check_fn=lambda module: isinstance(module, regions),
    )


def _everything() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    return nullcontext(), uncounted()


def _what_is_cheap() -> Any:
    return create_selective_checkpoint_contexts(_policy)


def _policy(_context: Any, operation: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    dear = operation in DEAR or operation.namespace == COMMUNICATION
    return CheckpointPolicy.MUST_SAVE if dear else CheckpointPolicy.PREFER_RECOMPUTE

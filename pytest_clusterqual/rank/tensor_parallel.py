"""Tensor parallelism: ranks split every matrix between them, and between the matrices the sequence."""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from pytest_clusterqual.rank.transformer import FeedForward, Transformer

SEQUENCE = Shard(1)  # of (batch, sequence, hidden)


def split(model: Transformer, mesh: DeviceMesh) -> None:
    """Spread the parameters of `model` over `mesh`; its logits stay split by the vocabulary.

    Experts are not split: tensor ranks route their own parts of the sequence.
    """
    plan: dict[str, ParallelStyle] = {}
    if model.embedding is not None:
        plan["embedding"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=SEQUENCE)
    if model.head is not None:
        plan["norm"] = SequenceParallel()
        plan["head"] = ColwiseParallel(input_layouts=SEQUENCE, use_local_output=False)
    for layer, block in model.blocks.items():
        parts: dict[str, ParallelStyle] = {
            "attention_norm": SequenceParallel(),
            "attention": PrepareModuleInput(
                input_layouts=(SEQUENCE, None, None), desired_input_layouts=(Replicate(), None, None)
            ),
            "attention.query": ColwiseParallel(),
            "attention.key": ColwiseParallel(),
            "attention.value": ColwiseParallel(),
            "attention.output": RowwiseParallel(output_layouts=SEQUENCE),
            "feed_forward_norm": SequenceParallel(),
        }
        if isinstance(block.feed_forward, FeedForward):
            parts |= {
                "feed_forward": PrepareModuleInput(input_layouts=SEQUENCE, desired_input_layouts=Replicate()),
                "feed_forward.gate": ColwiseParallel(),
                "feed_forward.up": ColwiseParallel(),
                "feed_forward.down": RowwiseParallel(output_layouts=SEQUENCE),
            }
        else:
            parts["feed_forward_norm"] = SequenceParallel(use_local_output=True)
            parts["feed_forward.router"] = SequenceParallel(use_local_output=True)
        plan |= {f"blocks.{layer}.{name}": style for name, style in parts.items()}
    parallelize_module(model, mesh, plan)

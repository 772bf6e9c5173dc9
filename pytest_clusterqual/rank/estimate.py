"""Memory of the exact job without its hardware: ``python -m pytest_clusterqual.rank.estimate``, no launcher.

Reads a line of JSON from standard input, an `EstimateRequest`, and writes one for each of its rungs: an
`Estimate`, or the problem in words. The rank alone is there; all the others are torch's fake backend.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from pytest_clusterqual.errors import ClusterQualError
from pytest_clusterqual.model.codec import from_json, to_json
from pytest_clusterqual.model.estimate import Estimate, EstimateRequest
from pytest_clusterqual.model.groups import Mesh
from pytest_clusterqual.model.memory import Rung
from pytest_clusterqual.model.workload import Workload
from pytest_clusterqual.rank.jobs import Context
from pytest_clusterqual.rank.layouts import drawn, filled
from pytest_clusterqual.rank.tally import Tally

# The first microbatch makes gradients, the last one exchanges them; all between them are alike.
ENOUGH_TURNS = 3
TOKEN_BYTES = 8  # int64


def main() -> None:
    torch.set_num_threads(1)
    request = from_json(EstimateRequest, json.loads(sys.stdin.readline()), where="request")
    for rung in request.rungs:
        try:
            answer = {"estimate": to_json(estimate(request.workload, rung, device=request.device))}
        except Exception as error:  # whatever torch cannot do with fake tensors costs this rung only
            text = str(error).partition("\n")[0]
            answer = {"problem": text if isinstance(error, ClusterQualError) else f"{type(error).__name__}: {text}"}
        print(json.dumps(answer), flush=True)


def estimate(workload: Workload, rung: Rung, *, device: str) -> Estimate:
    """The second optimizer step of the fullest rank, as `device` (cpu or cuda) would hold its tensors.

    Ranks of one pipeline stage hold the same, or the first one most where parameters do not divide. Of all
    stages the first one has most layers and microbatches, or the last one its logits.

    Raises:
        ClusterQualError: the job cannot be done that way.
    """
    work = replace(workload, microbatch=rung.microbatch)
    if device == "cuda" and work.optimizer and work.optimizer.implementation == "default":
        work = replace(work, optimizer=replace(work.optimizer, implementation="foreach"))  # torch's own choice there
    found = []
    for rank in {0, rung.ranks - rung.ranks // rung.layout.pipeline}:
        with _world_of_one(rung, rank) as ctx:
            found.append((_parts(ctx, work, rung, device), rank))
    parts, rank = max(found, key=lambda each: sum(each[0].values()))
    return Estimate(peak=sum(parts.values()), parts=parts, rank=rank, method="fake tensors")


def _parts(ctx: Context, workload: Workload, rung: Rung, device: str) -> dict[str, int]:
    drawing = drawn(ctx, workload, rung.layout)
    short, left_out = _shortened(workload, drawing.place.shape)
    with FakeTensorMode(allow_non_fake_inputs=True), Tally(device) as tally:
        job = filled(ctx, short, drawing)
        shape = (short.microbatch, short.sequence_length)
        for _ in range(2):  # the first one makes the state of the optimizer
            batches = [
                (torch.empty(shape, dtype=torch.int64), torch.empty(shape, dtype=torch.int64))
                for _ in range(short.accumulation(job.data_ranks))
            ]
            tally.begin()
            job.step(batches)
        found = tally.peak({**job.held(), "activations": (), "other": itertools.chain(*batches)})
    return {part: size + left_out.get(part, 0) for part, size in found.items()}


def _shortened(workload: Workload, shape: Mesh) -> tuple[Workload, dict[str, int]]:
    """The job with no more microbatches than change something, and by part the bytes of the other ones' tokens.

    Those of a pipeline stay, for its stages hold many of them at once.
    """
    left_out = workload.accumulation(shape.data) - ENOUGH_TURNS
    if shape.pipeline > 1 or left_out <= 0:
        return workload, {}
    read = left_out * workload.microbatch * workload.sequence_length * 2 * TOKEN_BYTES  # inputs and targets
    own = read // shape.context if shape.context > 1 else 0  # copies of this rank's part
    short = replace(workload, global_batch=workload.microbatch * shape.data * ENOUGH_TURNS)
    return short, {"activations": own, "other": read}


@contextmanager
def _world_of_one(rung: Rung, rank: int) -> Iterator[Context]:
    """`rank` as it is among the others of the rung, none of whom is there."""
    world, per_node = rung.ranks, rung.per_node
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    try:
        group: Any = dist.group.WORLD
        nodes = tuple(f"node{each // per_node}" for each in range(world))
        yield Context(
            rank=rank, global_rank=rank, local_rank=rank % per_node, node=nodes[rank], nproc_per_node=per_node,
            device=torch.device("cpu"), backend="fake", group=group, members=tuple(range(world)), nodes=nodes,
            ranks_on_host=per_node, scratch=Path(),
        )  # fmt: skip
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

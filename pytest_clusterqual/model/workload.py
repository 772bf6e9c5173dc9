"""The exact job, and how it is spread over ranks."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pytest_clusterqual.model.codec import to_json


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """A decoder-only transformer: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

    With `experts`, each layer has that many feed-forwards of `ffn`, and a router that sends every
    token to `top_k` of them.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    experts: int = 0
    top_k: int = 1

    @property
    def parameters(self) -> int:
        """Number of parameters: untied embeddings, two norms a layer and a final one, no biases."""
        block = sum(math.prod(shape) for shape in self.block().values())
        return self.layers * block + 2 * self.vocab * self.hidden + self.hidden

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every parameter, in the order in which the model uses them."""
        blocks = {
            f"blocks.{layer}.{name}": shape for layer in range(self.layers) for name, shape in self.block().items()
        }
        table = (self.vocab, self.hidden)
        return {"embedding.weight": table, **blocks, "norm.weight": (self.hidden,), "head.weight": table}

    def block(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of the parameters of one layer; a matrix is (out, in)."""
        narrow = self.kv_heads * (self.hidden // self.heads)
        experts = [f"feed_forward.experts.{number}" for number in range(self.experts)]
        router = {"feed_forward.router.weight": (self.experts, self.hidden)} if experts else {}
        return {
            "attention_norm.weight": (self.hidden,),
            "attention.query.weight": (self.hidden, self.hidden),
            "attention.key.weight": (narrow, self.hidden),
            "attention.value.weight": (narrow, self.hidden),
            "attention.output.weight": (self.hidden, self.hidden),
            "feed_forward_norm.weight": (self.hidden,),
            **router,
            **{
                f"{name}.{matrix}.weight": (self.hidden, self.ffn) if matrix == "down" else (self.ffn, self.hidden)
                for name in experts or ["feed_forward"]
                for matrix in ("gate", "up", "down")
            },
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Optimizer:
    """`implementation` is torch's own: one kernel a step (fused), one an operation (foreach), or as torch chooses."""

    name: Literal["adamw"]
    lr: float
    implementation: Literal["default", "foreach", "fused"] = "default"


@dataclass(frozen=True, kw_only=True, slots=True)
class Factory:
    """The user's own function that gives model, optimizer, loss and data; see `pytest_clusterqual.own`.

    `name` is ``module:function``, called on every rank with `arguments` by name. `blocks` are names of classes in
    its model: the units of sharding and of activation checkpointing.
    """

    name: str
    arguments: dict[str, Any] = field(default_factory=dict, hash=False)
    blocks: tuple[str, ...] = ()

    def misfits(self, layout: Layout) -> Iterator[tuple[str, str]]:
        """What of the layout cannot be done to a model that is not known: its key, what was got and what is wanted."""
        for name in ("tensor", "pipeline", "context", "expert"):
            if (degree := getattr(layout, name)) > 1:
                whole = "the model of a factory is copied or sharded, it is not known how to cut it"
                yield name, f"got {degree}, want 1: {whole}"
        kind = layout.activation_checkpointing
        if kind == "selective":
            yield (
                "activation_checkpointing",
                "got selective, want full: it is not known which results are dear to repeat",
            )
        elif kind == "full" and not self.blocks:
            text = "want workload.blocks with the names of the classes whose forward is to be repeated"
            yield "activation_checkpointing", f"got full, {text}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Loader:
    """How a rank reads: `workers` processes, or a thread where there are none, prepare `prefetch` steps ahead each.

    With no step ahead, data are read when a step wants them.
    """

    workers: int = 0
    prefetch: int = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """The fixed work: `steps` optimizer steps of `global_batch` sequences each.

    `microbatch` is in sequences per rank and forward, `global_batch` in sequences per optimizer
    step. `data_path` None means the bytes of the standard library's own sources.

    With a `factory` there is neither `model` nor `optimizer`, a sequence is one sample of its data, and
    `sequence_length`, the tokens in it, may be 0: not known.
    """

    model: ModelShape | None = None
    optimizer: Optimizer | None = None
    factory: Factory | None = None
    precision: Literal["fp32", "bf16", "fp16"]
    sequence_length: int = 0
    microbatch: int
    global_batch: int
    steps: int
    seed: int
    data_path: str | None = None
    loader: Loader = Loader()

    @property
    def shape(self) -> ModelShape:
        """The model's, as far as it is known before it runs.

        Raises:
            ValueError: a factory makes the model.
        """
        if self.model is None:
            assert self.factory is not None
            raise ValueError(f"the shape of its model is not known before {self.factory.name} has made it")
        return self.model

    @property
    def experts(self) -> int:
        """Experts of each layer; 0 where there are none."""
        return self.model.experts if self.model else 0

    @property
    def tokens_per_step(self) -> int:
        """0 where they are not known."""
        return self.global_batch * self.sequence_length

    @property
    def fixed_work(self) -> int:
        """Tokens of the whole fixed work."""
        return self.steps * self.tokens_per_step

    def misfits(self, layout: Layout) -> Iterator[tuple[str, str]]:
        """Why a layout cannot spread this job: its key, what was got and what is wanted."""
        if self.factory is not None:
            return self.factory.misfits(layout)
        return layout.misfits(self.shape, self.sequence_length)

    def accumulation(self, data_ranks: int) -> int:
        """Forward passes per optimizer step on each of `data_ranks` data-parallel ranks.

        Raises:
            ValueError: the global batch does not divide, so that many ranks cannot do this exact job.
        """
        per_forward = self.microbatch * data_ranks
        if self.global_batch % per_forward:
            raise ValueError(
                f"global_batch {self.global_batch} is not a multiple of microbatch {self.microbatch} x "
                f"{data_ranks} data-parallel ranks = {per_forward}"
            )
        return self.global_batch // per_forward

    def fingerprint(self, *, versions: Mapping[str, str], data_digest: str) -> str:
        """Sixteen hex digits that change whenever the job, its data or its software does.

        Only measurements with the same fingerprint may be compared. The layout is not part of
        it: comparing layouts of one job is the point. Neither is the data's path: its digest is. Nor how
        the data are read: each step gets the same ones.
        """
        job = {key: value for key, value in to_json(self).items() if key not in ("data_path", "loader")}
        text = json.dumps([job, dict(sorted(versions.items())), data_digest], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """How the job is spread: plain data parallel unless something else is said.

    `fsdp` shards parameters, gradients and optimizer over the data ranks (full), leaves the gathered
    parameters in place between forward and backward (grad-op), or shards within a node only and
    replicates across (hybrid). `tensor`, `pipeline`, `context` and `expert` are degrees; what they
    leave of the ranks is data parallel. Experts lie on data ranks. Each rank of a pipeline has
    `stages_per_rank` stages, more than one only where the `schedule` interleaves them.
    `activation_checkpointing` repeats the forward of a layer for its gradients: all of it (full), or
    what is cheap (selective), keeping results of matrix products, attention and communication.
    """

    name: str
    fsdp: Literal["full", "grad-op", "hybrid"] | None = None
    activation_checkpointing: Literal["none", "selective", "full"] = "none"
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    schedule: Literal["1f1b", "gpipe", "interleaved"] = "1f1b"
    stages_per_rank: int = 1

    @property
    def stages(self) -> int:
        """Parts that the layers are cut into."""
        return self.pipeline * self.stages_per_rank

    def stages_of(self, rank: int) -> range:
        """Numbers of the stages that a rank of the pipeline has."""
        return range(rank, self.stages, self.pipeline)

    def layers_of(self, stage: int, layers: int) -> range:
        """The layers of a stage; the first stages have one more where they do not divide."""
        size, more = divmod(layers, self.stages)
        first = stage * size + min(stage, more)
        return range(first, first + size + (stage < more))

    @property
    def bucketed(self) -> bool:
        """True for whole and equal copies, whose gradients DDP sums in buckets; all else is FSDP2's, block by block."""
        return self.fsdp is None and self.tensor == 1 and self.expert == 1

    @property
    def unreplaceable(self) -> str:
        """What of this layout communicates in a way that cannot be left out of a step; empty if nothing does."""
        odd = [name for name in ("tensor", "pipeline", "context", "expert") if getattr(self, name) > 1]
        return ", ".join(odd + (["fsdp: hybrid"] if self.fsdp == "hybrid" else []))

    def misfits(self, model: ModelShape, sequence_length: int) -> Iterator[tuple[str, str]]:
        """What the layout cuts and is not there in that many equal parts: its key, what was got and what is wanted."""
        for name in ("heads", "kv_heads") if model.experts else ("heads", "kv_heads", "ffn"):
            if getattr(model, name) % self.tensor:
                yield "tensor", f"got {self.tensor}, want a divisor of workload.model.{name} {getattr(model, name)}"
        if self.pipeline > model.layers:
            yield "pipeline", f"got {self.pipeline}, want at most workload.model.layers {model.layers}"
        elif self.stages > model.layers:
            text = f"want pipeline x stages_per_rank = {self.stages} to be at most workload.model.layers {model.layers}"
            yield "stages_per_rank", f"got {self.stages_per_rank}, {text}"
        if self.expert > 1 and not model.experts:
            yield "expert", f"got {self.expert}, want 1: workload.model.experts is 0"
        elif model.experts % self.expert:
            yield "expert", f"got {self.expert}, want a divisor of workload.model.experts {model.experts}"
        if sequence_length % (parts := self.context * self.tensor):
            key = "context" if self.context > 1 else "tensor"
            text = f"want context x tensor = {parts} to divide workload.sequence_length {sequence_length}"
            yield key, f"got {getattr(self, key)}, {text}"

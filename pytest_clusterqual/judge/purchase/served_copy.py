"""One copy of a served model on so many devices: what it holds, and how fast it can be at most. Arithmetic only."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pytest_clusterqual import units
from pytest_clusterqual.model.purchase import WEIGHT_BYTES, Fit, NodeType, ServedModel, Weights
from pytest_clusterqual.model.requirement import Requirement

_CACHE_BYTES = {"bf16": 2, "fp8": 1}


@dataclass(frozen=True, kw_only=True, slots=True)
class Copy:
    """One copy on `stages` nodes with `tensor` devices in each. Bytes are those of the fullest device."""

    model: ServedModel
    weights: Weights
    node: NodeType
    allowed: Requirement
    tensor: int = 1
    stages: int = 1

    @property
    def layers(self) -> int:
        return -(-self.model.layers // self.stages)

    @property
    def heads(self) -> int:
        """KV heads on a device; where there are more devices than heads, heads are copied."""
        return max(self.model.kv_heads // self.tensor, 1)

    @property
    def whole_bytes(self) -> float:
        """All weights, wherever they are."""
        return self.model.parameters * WEIGHT_BYTES[self.weights]

    @property
    def weight_bytes(self) -> float:
        return self.whole_bytes * self.layers / self.model.layers / self.tensor

    @property
    def share(self) -> float:
        return self.weight_bytes / self.node.device_memory

    @property
    def sequence_bytes(self) -> float:
        """What a sequence of full length takes of the cache."""
        model = self.model
        a_token = model.latent or 2 * self.heads * model.head_size
        return float(self.layers * a_token * _CACHE_BYTES[model.kv_cache] * model.context)

    @property
    def held(self) -> int:
        """Sequences of full length that have room at a time, of those wanted."""
        free = self.node.device_memory - self.weight_bytes
        return 0 if free < 0 else min(math.floor(free / self.sequence_bytes), self.model.sequences)

    @property
    def fit(self) -> Fit:
        if self.held < 1:
            return "no"
        return "fits" if self.allowed.met_by(self.share) else "tight"

    @property
    def copies(self) -> int:
        """Copies that hold all sequences at a time."""
        return -(-self.model.sequences // self.held)

    def nodes(self, copies: int) -> int:
        return -(-copies // (self.node.devices // self.tensor)) * self.stages

    def rate(self, copies: int) -> float | None:
        """Tokens/s of all `copies` at most: every token reads the active weights and the whole cache once.

        All sequences of a copy share a read of the weights, and each token passes one stage after the other.
        """
        if self.node.memory_rate is None:
            return None
        sequences = -(-self.model.sequences // copies)
        weights = self.model.active / self.model.parameters * self.weight_bytes
        read = max(weights + sequences * self.sequence_bytes, self.stages * (weights + self.sequence_bytes))
        step = read / self.node.memory_rate
        if self.node.flops is not None:
            step = max(step, 2 * self.model.active * sequences / (self.tensor * self.node.flops))
        return self.model.sequences / step

    def sizes(self) -> str:
        """The arithmetic in words."""
        model, size = self.model, units.show_decimal
        text = f"{model.parameters / 1e9:g}e9 parameters x {WEIGHT_BYTES[self.weights]:g} B = {size(self.whole_bytes)}"
        if self.stages > 1:
            text += f" x {self.layers} of {model.layers} layers"
        if self.tensor > 1:
            text += f" / {self.tensor}"
        if self.stages * self.tensor > 1:
            text += f" = {size(self.weight_bytes)}"
        what = "" if self.allowed.met_by(self.share) else f", wanted {self.allowed.text}"
        text += f" = {units.show_share(self.share)} of {size(self.node.device_memory)}{what}"
        return text if self.weight_bytes > self.node.device_memory else f"{text}; {self._cache()}"

    def _cache(self) -> str:
        model, size = self.model, units.show_decimal
        numbers = f"{model.latent} latent numbers" if model.latent else f"2 x {self._heads()} x {model.head_size}"
        kind = f"{_CACHE_BYTES[model.kv_cache]} B"
        text = f"KV cache {self.layers} layers x {numbers} x {kind} x {model.context} tokens"
        room = size(self.node.device_memory - self.weight_bytes)
        return f"{text} = {size(self.sequence_bytes)} a sequence, {room} left for {self.held} of {model.sequences}"

    def _heads(self) -> str:
        heads = self.model.kv_heads
        if self.tensor <= heads:
            return f"{heads} heads / {self.tensor}" if self.tensor > 1 else f"{heads} heads"
        return f"1 head (there are {heads} for {self.tensor} devices, so heads are copied)"

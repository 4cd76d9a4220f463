"""Does it fit? Said before anything is loaded."""

from __future__ import annotations

from math import prod

from ostinato.device.traits import Traits
from ostinato.errors.model import NotEnoughMemory
from ostinato.host.limits import available_memory
from ostinato.ir.dtype import DType
from ostinato.models.contract import Model

HEADROOM = 1 << 27
"""Bytes left to everything but weights and KV: the interpreter, a step's temporaries."""


def weight_bytes(model: Model, traits: Traits) -> int:
    """Bytes of the packed weights on a device of these traits."""
    total = 0
    for tensor in model.weights.values():
        stored = (
            traits.weight_layouts[tensor.encoding].stored
            if tensor.encoding in traits.weight_layouts
            else None
        )
        encoding = stored or tensor.encoding
        total += prod(tensor.shape) * encoding.block_bytes // encoding.block
    return total


def kv_bytes_per_position(model: Model, dtype: DType) -> int:
    """Bytes that one position takes in all layers."""
    return sum(layer.kv_heads * (layer.k_dim + layer.v_dim) for layer in model.config.kv) * dtype.nbytes


def check_memory(model: Model, traits: Traits, context: int, kv_dtype: DType) -> None:
    """Raises NotEnoughMemory when weights and a full KV cache exceed what is free; silent where the system
    doesn't tell."""
    free = available_memory()
    if free is None:
        return
    fixed = weight_bytes(model, traits) + HEADROOM
    per_position = kv_bytes_per_position(model, kv_dtype)
    need = fixed + per_position * context
    if need > free:
        raise NotEnoughMemory(need, free, context, max(0, (free - fixed) // per_position))

"""Does it fit? Said before anything is loaded. And how many rows of a prompt fit into one step."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

from ostinato.decode.kv_cache import slab_shapes
from ostinato.decode.request import CHUNK
from ostinato.device.traits import SlabLayout, Traits, WeightLayout
from ostinato.errors.model import NotEnoughMemory
from ostinato.host.limits import available_memory
from ostinato.ir.dtype import DType
from ostinato.ir.encoding import Encoding
from ostinato.models.contract import Model

HEADROOM = 1 << 26
"""Bytes left to what no shape of the model decides: the tokenizer, plans, the interpreter's own growth."""
SCORES = 1 << 24
"""Attention scores of one prefill step, heads · rows · attended positions, where a device keeps them all at
once: the longer the context has grown, the fewer rows run at once."""
SCORE_COPIES, ROW_COPIES, KV_COPIES = 3, 7, 2
"""How often a step holds its scores, its widest rows, and one layer's keys and values in float32. At most:
the reference device, measured, holds 2.1 to 2.4, 4.1 and 1.2; the CPU device none, 6.5 and none."""
LOGIT_BYTES = 48
"""For each token of the vocabulary: its logit, and what the sampler makes of it in float64."""


def keeps_scores(traits: Traits) -> bool:
    """Whether attention runs by its definition, and holds all of a step's scores: a device with a kernel of
    its own for it has a few at a time."""
    return "attend" not in traits.regions


def prefill_rows(model: Model, traits: Traits, length: int) -> int:
    """Rows of the next prefill step after `length` positions: CHUNK, or so many that there are at most SCORES
    scores, where those are kept, unless one row alone has more."""
    if not keeps_scores(traits):
        return CHUNK
    return max(1, min(CHUNK, SCORES // (model.config.heads * (length + CHUNK))))


def weight_bytes(model: Model, traits: Traits) -> int:
    """Bytes of the packed weights on a device of these traits, each packed by itself: those that are joined
    may have less to fill up."""
    total = 0
    for tensor in model.weights.values():
        layout = traits.layout(tensor.encoding, len(tensor.shape)) or WeightLayout("", tensor.encoding)
        total += layout.nbytes(tensor.shape)
    return total


def kv_bytes(model: Model, layout: SlabLayout, context: int) -> int:
    """Bytes of the KV cache of a context, all of it touched."""
    return sum(
        layout.nbytes(shape, role)
        for layer in model.config.kv
        for shape, role in zip(slab_shapes(layer, context), "kv", strict=True)
    )


def step_bytes(model: Model, traits: Traits) -> Callable[[int], int]:
    """For a context, the most bytes that any step of the token loop takes beside weights and KV.

    Not counted are pages of held plans that no step has touched.
    """
    config = model.config
    specs = model.family.weight_specs(config).values()
    widest = max((n for spec in specs if spec.layer is not None for n in spec.shape), default=0)
    kv_floats = max((layer.kv_heads * (layer.k_dim + layer.v_dim) for layer in config.kv), default=0)

    def needed(context: int) -> int:
        rows = min(CHUNK, context)
        floats = ROW_COPIES * rows * widest
        if keeps_scores(traits):
            scores = min(config.heads * rows * context, max(SCORES, config.heads * context))
            floats += SCORE_COPIES * scores + KV_COPIES * kv_floats * context
        return floats * DType.F32.nbytes + LOGIT_BYTES * config.vocab_size

    return needed


def bytes_needed(model: Model, traits: Traits, kv_dtype: Encoding) -> Callable[[int], int]:
    """For a context, the bytes of weights, a full KV cache, the largest step and HEADROOM."""
    # A KV type that the device lacks is refused when a cache is made.
    layout = traits.kv_layouts.get(kv_dtype) or SlabLayout(kv_dtype, kv_dtype)
    fixed, step = weight_bytes(model, traits) + HEADROOM, step_bytes(model, traits)
    return lambda context: fixed + kv_bytes(model, layout, context) + step(context)


def check_memory(model: Model, traits: Traits, context: int, kv_dtype: Encoding) -> None:
    """Raises NotEnoughMemory when weights, a full KV cache and the largest step exceed what is free; silent
    where the system doesn't tell."""
    free = available_memory()
    if free is None:
        return
    needed = bytes_needed(model, traits, kv_dtype)
    if needed(context) > free:
        # Each position takes a byte at least.
        fits = bisect_right(range(1, min(context, free) + 1), free, key=needed)
        raise NotEnoughMemory(needed(context), free, context, fits)

"""Entry points: one step of a model over a KV cache."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from ostinato.decode.kv_cache import KvCache
from ostinato.decode.step import StepGraph, build_step, step_env
from ostinato.decode.want import All, Argmax, Hidden, Last, Rows, Want, out_rows
from ostinato.device.storage import Storage
from ostinato.device.traits import WritePath
from ostinato.errors.decode import CacheMismatch, EmptyStep, TokenOutOfRange
from ostinato.ir.location import Location
from ostinato.ir.shape import NodeId
from ostinato.models.contract import Model
from ostinato.models.rope import rope_tables
from ostinato.runtime.context import Bindings, InferenceContext

Array = npt.NDArray[Any]
F32Array = npt.NDArray[np.float32]


@overload
def forward_with_kv_context(
    model: Model, tokens: Sequence[int], cache: KvCache, context: InferenceContext, *, want: Argmax
) -> int: ...
@overload
def forward_with_kv_context(
    model: Model,
    tokens: Sequence[int],
    cache: KvCache,
    context: InferenceContext,
    *,
    want: Last | All | Rows | Hidden = ...,
) -> F32Array: ...
def forward_with_kv_context(
    model: Model,
    tokens: Sequence[int],
    cache: KvCache,
    context: InferenceContext,
    *,
    want: Want = Last(),  # noqa: B008  a frozen value
    write_path: WritePath | None = None,
) -> F32Array | int:
    """Run `tokens` after what `cache` holds, planning the step anew, and return what `want` asks for.

    Last → float32 `[vocab]` · All → `[seq, vocab]` · Rows → `[n, vocab]` · Hidden → `[seq, dim]` ·
    Argmax → int. The result is the caller's. `write_path` forces one on a device of another.

    Raises EmptyStep, TokenOutOfRange, CapacityExceeded, CacheMismatch, RowOutOfRange before anything runs.
    Whatever is raised, `cache` attends the same positions as before; its length grows only on success.
    """
    ids = check_tokens(model, tokens)
    check_cache(model, cache)
    cache.check_room(len(ids))
    selected = out_rows(want, len(ids))
    path = write_path or context.devices.device(context.location).traits.write_path
    step = build_step(model, cache.capacity, cache.dtype, path)
    bindings = Bindings(
        weights=model.weights,
        slabs=_slab_bindings(step, cache),
        data=step_data(step, model, ids, cache.length, selected),
    )
    root = {Argmax: step.argmax, Hidden: step.hidden}.get(type(want), step.logits)
    (result,) = context.realize(
        step.graph,
        [root],
        bindings,
        step_env(path, cache.length, len(ids), len(selected)),
        hints=_hints(step, model, cache),
    )
    cache.advance(len(ids))
    return _shaped(want, result)


def check_tokens(model: Model, tokens: Sequence[int]) -> npt.NDArray[np.int64]:
    """Token ids as int64 `[seq]`; raises EmptyStep or TokenOutOfRange."""
    vocab_size = model.config.vocab_size
    ids = [operator.index(token) for token in tokens]
    if not ids:
        raise EmptyStep()
    for token in ids:
        if not 0 <= token < vocab_size:
            raise TokenOutOfRange(token, vocab_size)
    return np.asarray(ids, np.int64)


def check_cache(model: Model, cache: KvCache) -> None:
    """Raises CacheMismatch naming the first difference between the cache and the model's KV geometry."""
    expected = model.config.kv
    if len(cache.geometry) != len(expected):
        raise CacheMismatch("layers", str(len(expected)), str(len(cache.geometry)))
    for i, (mine, theirs) in enumerate(zip(expected, cache.geometry, strict=True)):
        for field in ("kv_heads", "k_dim", "v_dim", "window"):
            if getattr(mine, field) != getattr(theirs, field):
                raise CacheMismatch(
                    f"layer {i} {field}", str(getattr(mine, field)), str(getattr(theirs, field))
                )


def step_data(
    step: StepGraph, model: Model, ids: npt.NDArray[np.int64], start: int, selected: Sequence[int]
) -> Mapping[NodeId, Array]:
    """This step's own data. The mask is left out: the shipped families attend by position alone."""
    cos, sin = rope_tables(model.config.ropes, start, len(ids))
    data: dict[NodeId, Array] = {
        step.token_ids: ids,
        step.rope_cos: cos,
        step.rope_sin: sin,
        step.out_rows: np.asarray(selected, np.int64),
    }
    if step.start is not None and step.count is not None:
        data[step.start] = np.asarray(start, np.int64)
        data[step.count] = np.asarray(len(ids), np.int64)
    return data


def _slab_bindings(step: StepGraph, cache: KvCache) -> Mapping[NodeId, Storage]:
    bound: dict[NodeId, Storage] = {}
    for layer, (k_node, v_node) in enumerate(step.slabs):
        bound[k_node], bound[v_node] = cache.slabs(layer)
    return bound


def _hints(step: StepGraph, model: Model, cache: KvCache) -> Mapping[NodeId, Location]:
    """A layer's weights live where its slabs do."""
    places = cache.locations()
    hints = {node: places[i] for i, pair in enumerate(step.slabs) for node in pair}
    for name, spec in model.family.weight_specs(model.config).items():
        if spec.layer is not None:
            hints[step.weights[name]] = places[spec.layer]
    return hints


def _shaped(want: Want, result: Array) -> F32Array | int:
    if isinstance(want, Argmax):
        return int(result[0])
    return result[0] if isinstance(want, Last) else result

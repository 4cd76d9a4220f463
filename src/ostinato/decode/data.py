"""One step's own data: what is bound anew for every token."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ostinato.decode.step import StepGraph
from ostinato.errors.decode import EmptyStep, TokenDataMismatch, TokenOutOfRange
from ostinato.ir.shape import NodeId
from ostinato.models.contract import Model
from ostinato.models.rope import RopeTable, rope_table

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class DecodeTokenData:
    """token_ids `[rows]` int64; rope_cos and rope_sin `[n_ropes, rows, rot/2]`; mask `[rows, capacity]`
    where the plan reads one; offset, the first row's position, on the device_offset path alone."""

    token_ids: Array
    rope_cos: Array
    rope_sin: Array
    mask: Array | None = None
    offset: int | None = None


def token_data(step: StepGraph, model: Model, ids: npt.NDArray[np.int64], start: int) -> DecodeTokenData:
    """The data of a step whose rows `ids` stand at positions start, start + 1, …"""
    return data_of_rows(step, rope_table(model.config.ropes), ids, start)


def data_of_rows(
    step: StepGraph, ropes: RopeTable, ids: npt.NDArray[np.int64], start: int
) -> DecodeTokenData:
    """The same with the model's ropes at hand."""
    cos, sin = ropes.rows(start, len(ids))
    mask = causal_mask(len(ids), start, step.capacity) if step.mask_is_live else None
    return DecodeTokenData(ids, cos, sin, mask, None if step.start is None else start)


def causal_mask(rows: int, start: int, capacity: int) -> npt.NDArray[np.float32]:
    """0 where a row attends a position, -inf elsewhere: float32 `[rows, capacity]`."""
    at, cells = np.arange(start, start + rows)[:, None], np.arange(capacity)[None, :]
    return np.where(cells <= at, np.float32(0.0), np.float32(-np.inf))


def data_by_node(step: StepGraph, data: DecodeTokenData) -> dict[NodeId, Array]:
    """The data under the nodes that read it; raises TokenDataMismatch for a live field left out, or an
    offset on the symbolic path."""
    if step.mask_is_live and data.mask is None:
        raise TokenDataMismatch("mask", f"float32 [rows, {step.capacity}]", "None")
    if (step.start is None) != (data.offset is None):
        expected = "None on the symbolic path" if step.start is None else "the position of the first row"
        raise TokenDataMismatch("offset", expected, repr(data.offset))
    nodes: dict[NodeId, Array] = {
        step.token_ids: data.token_ids,
        step.rope_cos: data.rope_cos,
        step.rope_sin: data.rope_sin,
    }
    if step.mask_is_live and data.mask is not None:
        nodes[step.mask] = data.mask
    if step.start is not None:
        nodes[step.start] = np.asarray(data.offset, np.int64)
    return nodes


def varying(step: StepGraph) -> Sequence[NodeId]:
    """The nodes of what differs from token to token: those of `data_by_node`, read or not."""
    nodes = [step.token_ids, step.rope_cos, step.rope_sin, step.mask]
    return nodes if step.start is None else [*nodes, step.start]


def shape_data(step: StepGraph, count: int, selected: Sequence[int]) -> Mapping[NodeId, Array]:
    """What says how many rows count and whose logits are wanted; the same for every token of a decode."""
    nodes: dict[NodeId, Array] = {step.out_rows: np.asarray(selected, np.int64)}
    if step.count is not None:
        nodes[step.count] = np.asarray(count, np.int64)
    return nodes


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

"""What a family is written against, and what it provides.

A family file holds, in this order: a frozen Config with `from_gguf`; `weight_specs(config)`; `block`;
`forward(config, weights, step, kv)`, the final normed hidden rows; `head(config, weights, hidden)`, the
logits. It names no slab, cache, device or loop; where its rows stand it reads from `StepInputs`, if it must.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ostinato.formats.gguf import GgufFile
from ostinato.formats.safetensors import Checkpoint
from ostinato.ir.symbols import SymId
from ostinato.ir.tensor import Tensor
from ostinato.models.rope import RopeSpec
from ostinato.runtime.weights import WeightSet


@dataclass(frozen=True, slots=True)
class LayerKv:
    """One layer's KV geometry. `window`: how many positions a row attends, itself included; None is all."""

    kv_heads: int
    k_dim: int
    v_dim: int
    window: int | None = None


@dataclass(frozen=True, slots=True)
class StepInputs:
    """One step's data as a family sees it.

    token_ids `[rows]` int64; rope_cos and rope_sin `[n_ropes, rows, rot/2]`, for the positions of the rows;
    mask `[rows, capacity]` float32, additive, for families that need one of their own. `start` is the
    position of the first row and `count` how many rows are written, each a rank-0 int64 tensor or a symbol:
    for families that embed positions. `KvView` and the ropes know them without being told.
    """

    token_ids: Tensor
    rope_cos: Tensor
    rope_sin: Tensor
    start: Tensor | SymId
    count: Tensor | SymId
    mask: Tensor


class KvView(Protocol):
    """One layer's keys and values."""

    def append(self, k: Tensor, v: Tensor) -> None:
        """k `[rows, kv_heads, k_dim]`, v `[rows, kv_heads, v_dim]` join the sequence."""

    def attend(self, q: Tensor, *, window: int | None, scale: float, mask: Tensor | None = None) -> Tensor:
        """Causal attention of q `[rows, heads, k_dim]` over the sequence → `[rows, heads · v_dim]`."""


RowOrder = Callable[[], npt.NDArray[np.intp]]


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """One weight: its shape (row-major), its names in GGUF files and in Hugging Face checkpoints, and its
    layer (None: no layer's own).

    `gguf_rows` gives, for each row of the definition, the row of the GGUF tensor that holds it, where files
    store rows in another order, or several weights in one tensor (whose shape is then `gguf_shape`).
    """

    shape: tuple[int, ...]
    gguf: str
    hf: str
    layer: int | None = None
    gguf_rows: RowOrder | None = None
    gguf_shape: tuple[int, ...] | None = None


class FamilyConfig(Protocol):
    """What every Config has: a frozen dataclass with all numbers that shape the graph."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def context_length(self) -> int:
        """The longest context the model was trained for."""

    @property
    def n_layers(self) -> int: ...
    @property
    def heads(self) -> int:
        """Query heads, of the layer that has most: a step's attention scores are heads · rows · positions."""

    @property
    def kv(self) -> tuple[LayerKv, ...]:
        """KV geometry, layer by layer."""

    @property
    def ropes(self) -> tuple[RopeSpec, ...]:
        """The rotary embeddings the family uses, all of one width."""


Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class Family:
    """A model family: functions over its own Config type (`Any` here, since each family has another).

    What has a default may be left out; FamilyIncomplete is raised where it would be needed.
    """

    name: str
    gguf_architectures: tuple[str, ...]
    from_gguf: Callable[[GgufFile], Any]
    weight_specs: Callable[[Any], Mapping[str, WeightSpec]]
    forward: Callable[[Any, Weights, StepInputs, Sequence[KvView]], Tensor]
    head: Callable[[Any, Weights, Tensor], Tensor]
    hf_architectures: tuple[str, ...] = ()
    from_hf: Callable[[Checkpoint], Any] | None = None
    """The Config of a Hugging Face folder."""
    to_gguf: Callable[[Any], Mapping[str, Any]] | None = None
    """The Config as GGUF metadata; `from_gguf` reads it back, given the tensors and the tokenizer."""
    ignored: Callable[[Any, str], bool] = lambda config, name: False
    """(config, name): a file's tensor that the definition doesn't need, such as a buffer."""


@dataclass(frozen=True, slots=True)
class ShapeKey:
    """Names the model whose weights a plan bakes in: family, weight-set instance, and the whole Config with
    every structural number, norm eps and rope setting."""

    family: str
    weight_set: int
    config: Any


@dataclass(frozen=True, eq=False)
class Model:
    """A loaded model: read-only weights and their description. Holds no cache, no device, no plan."""

    family: Family
    config: FamilyConfig
    weights: WeightSet
    path: Path

    @property
    def shape_key(self) -> ShapeKey:
        return ShapeKey(self.family.name, self.weights.id, self.config)

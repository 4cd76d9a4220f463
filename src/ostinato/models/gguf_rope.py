"""Rope settings as GGUF files hold them."""

from __future__ import annotations

import math

import numpy as np

from ostinato.errors.formats import ModelFormatError
from ostinato.errors.model import UnsupportedModel
from ostinato.formats.encodings import codec
from ostinato.formats.gguf import GgufFile
from ostinato.models.checks import one_of
from ostinato.models.rope import RopeSpec

FACTORS = "rope_freqs.weight"
"""A tensor of one divisor a pair: how GGUF files carry the "llama3" scaling."""


def rope_from_gguf(file: GgufFile, prefix: str, head_dim: int) -> RopeSpec:
    """The rope of a family whose keys start with `prefix`; raises UnsupportedModel for other scalings."""
    meta = file.metadata
    rot = one_of(meta, f"{prefix}.rope.dimension_count", *range(2, head_dim + 1, 2), default=head_dim)
    base = meta.number(f"{prefix}.rope.freq_base", 10000.0)
    kind = meta.text(f"{prefix}.rope.scaling.type", "none")
    linear = meta.number(f"{prefix}.rope.scale_linear", 1.0)
    if kind == "linear":
        linear = meta.number(f"{prefix}.rope.scaling.factor", linear)
    elif kind not in ("none", "llama3"):
        raise UnsupportedModel(str(file.path), f"{prefix}.rope.scaling.type", "none, linear, llama3", kind)
    for key, value in (("freq_base", base), ("scaling.factor", linear)):
        if not (math.isfinite(value) and value > 0):
            raise ModelFormatError(meta.file, f"{prefix}.rope.{key}", "a positive number", str(value))
    return RopeSpec(base, rot, linear, _factors(file, rot))


def _factors(file: GgufFile, rot: int) -> tuple[float, ...]:
    tensor = file.tensors.get(FACTORS)
    if tensor is None:
        return ()
    if tensor.shape != (rot // 2,):
        raise ModelFormatError(str(file.path), FACTORS, str([rot // 2]), str(list(tensor.shape)))
    values = codec(tensor.encoding, tensor=FACTORS, file=str(file.path)).decode(file.data(tensor))
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise ModelFormatError(str(file.path), FACTORS, "positive numbers", "others")
    return tuple(float(value) for value in values)

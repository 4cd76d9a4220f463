"""Rope settings as GGUF files hold them."""

from __future__ import annotations

import math

import numpy as np

from ostinato.errors.formats import ModelFormatError
from ostinato.errors.model import UnsupportedModel
from ostinato.formats.encodings import codec
from ostinato.formats.gguf import GgufFile
from ostinato.models.checks import in_range, require
from ostinato.models.rope import RopeSpec

FACTORS = "rope_freqs.weight"
"""A tensor of one divisor a pair: how GGUF files carry the "llama3" scaling."""


def rope_from_gguf(file: GgufFile, prefix: str, head_dim: int) -> RopeSpec:
    """The rope of a family whose keys start with `prefix`, read as llama.cpp reads it (llama-model.cpp,
    load_hparams; llama-context.cpp): a scaling without a type is linear, its factor stands under
    `rope.scaling.factor` or the older `rope.scale_linear`, a factor of 0 is none, and the type "none" never
    scales. Raises ModelFormatError, and UnsupportedModel for other scalings.
    """
    meta = file.metadata
    key = f"{prefix}.rope.dimension_count"
    rot = in_range(meta, key, high=head_dim, default=head_dim)
    if rot % 2:
        raise ModelFormatError(meta.file, key, "an even number", str(rot))
    base = meta.number(f"{prefix}.rope.freq_base", 10000.0)
    kind = meta.text(f"{prefix}.rope.scaling.type", "linear")
    if kind not in ("none", "linear"):
        raise UnsupportedModel(str(file.path), f"{prefix}.rope.scaling.type", "none, linear", kind)
    key = f"{prefix}.rope.scaling.attn_factor"
    require(meta, key, meta.number(key, 1.0), 1.0)
    factor = meta.number(f"{prefix}.rope.scaling.factor", meta.number(f"{prefix}.rope.scale_linear", 0.0))
    linear = 1.0 if kind == "none" or factor == 0.0 else factor
    for key, value in (("freq_base", base), ("scaling.factor", linear)):
        if not (math.isfinite(value) and value > 0):
            raise ModelFormatError(meta.file, f"{prefix}.rope.{key}", "a positive number", str(value))
    return RopeSpec(base, rot, linear, _factors(file, rot))


def rope_to_gguf(rope: RopeSpec, prefix: str) -> dict[str, str | int | float]:
    """The metadata of a rope; its factors are the tensor `FACTORS`."""
    metadata: dict[str, str | int | float] = {
        f"{prefix}.rope.dimension_count": rope.rot,
        f"{prefix}.rope.freq_base": rope.base,
    }
    if rope.linear != 1.0:
        metadata[f"{prefix}.rope.scaling.type"] = "linear"
        metadata[f"{prefix}.rope.scaling.factor"] = rope.linear
    return metadata


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

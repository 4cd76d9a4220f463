"""Rope settings as Hugging Face's config.json holds them."""

from __future__ import annotations

import math

import numpy as np

from ostinato.errors.formats import ModelFormatError
from ostinato.errors.model import UnsupportedModel
from ostinato.formats.safetensors import Config
from ostinato.models.rope import RopeSpec


def rope_from_hf(config: Config, head_dim: int, default_part: float = 1.0) -> RopeSpec:
    """The rope of a config: `rope_parameters` (newer files), or `rope_theta` and `rope_scaling`.

    `default_part` is the rotated part of a head where the file doesn't say. Raises ModelFormatError for
    numbers that make no rope, UnsupportedModel for scalings other than default, linear and llama3.
    """
    settings = config.section("rope_parameters") or config.section("rope_scaling") or config
    base = settings.number("rope_theta", config.number("rope_theta", 10000.0))
    part = settings.number("partial_rotary_factor", config.number("partial_rotary_factor", default_part))
    kind = "default"
    if settings is not config:
        kind = settings.text("rope_type", settings.text("type", "default"))
    rot = int(head_dim * part) if 0.0 < part <= 1.0 else 0
    _require(config, "partial_rotary_factor", part, 0 < rot <= head_dim and rot % 2 == 0)
    _require(config, "rope_theta", base, math.isfinite(base) and base > 0)
    if kind == "default":
        return RopeSpec(base, rot)
    if kind not in ("linear", "llama3"):
        raise UnsupportedModel(config.file, "rope_type", "default, linear, llama3", kind)
    factor = settings.number("factor")
    _require(config, "factor", factor, 0.0 < factor < 1e9)
    if kind == "linear":
        return RopeSpec(base, rot, linear=factor)
    trained = settings.integer("original_max_position_embeddings")
    low, high = settings.number("low_freq_factor"), settings.number("high_freq_factor")
    _require(config, "original_max_position_embeddings", trained, trained > 0)
    _require(config, "low_freq_factor", low, math.isfinite(high) and 0 < low < high)
    return RopeSpec(base, rot, factors=llama3_factors(base, rot, factor, low, high, trained))


def llama3_factors(
    base: float, rot: int, factor: float, low: float, high: float, trained: int
) -> tuple[float, ...]:
    """Llama 3.1's scaling as one divisor a pair (Hugging Face's "llama3" rope type): 1 for wavelengths below
    trained/high, `factor` for those above trained/low, interpolated between them."""
    turns = trained * RopeSpec(base, rot).frequencies() / (2 * math.pi)  # over the trained context, [rot/2]
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    factors = 1.0 / ((1.0 - smooth) / factor + smooth)
    # float32, as GGUF files hold them: both sources give the same model
    return tuple(float(value) for value in factors.astype(np.float32))


def _require(config: Config, key: str, value: float, holds: bool) -> None:
    if not holds:
        raise ModelFormatError(config.file, key, "a number that makes a rope", str(value))

"""Loading: what is read, and every way a file can disagree with its own description."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from rewrite import rewrite

from ostinato.decode.forward import forward_with_kv_context
from ostinato.decode.kv_cache import KvCache
from ostinato.decode.want import All
from ostinato.errors import (
    MissingTensors,
    ModelFileMissing,
    ModelFormatError,
    TensorShapeMismatch,
    UnexpectedTensors,
    UnknownArchitecture,
    UnsupportedEncoding,
    UnsupportedModel,
)
from ostinato.models import loader
from ostinato.models.loader import load_model
from ostinato.models.rope import RopeSpec, rope_table
from ostinato.runtime.context import InferenceContext
from sabotage import goes_red, nothing

F32 = np.float32


@pytest.fixture
def source(fixtures: Path) -> Path:
    return fixtures / "tiny-llama-grouped.gguf"


TENSORS: dict[str, tuple[type[Exception], Mapping[str, np.ndarray | None], str]] = {
    "missing": (MissingTensors, {"blk.1.ffn_up.weight": None}, "blk.1.ffn_up.weight"),
    "norm missing": (MissingTensors, {"output_norm.weight": None}, "output_norm.weight"),
    "half a bias": (MissingTensors, {"blk.0.attn_q.bias": np.zeros(32, F32)}, "blk.0.attn_k.bias"),
    "extra": (UnexpectedTensors, {"blk.0.attn_sinks.weight": np.zeros(4, F32)}, "attn_sinks"),
    "a layer too many": (UnexpectedTensors, {"blk.2.attn_q.weight": np.zeros((32, 32), F32)}, "blk.2"),
    "misshapen": (TensorShapeMismatch, {"blk.0.attn_k.weight": np.zeros((32, 32), F32)}, "[32, 32]"),
    "transposed": (TensorShapeMismatch, {"blk.0.ffn_up.weight": np.zeros((32, 64), F32)}, "[64, 32]"),
    "vocabulary": (TensorShapeMismatch, {"token_embd.weight": np.zeros((256, 32), F32)}, "260"),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_that_disagree_with_the_description(source: Path, tmp_path: Path, name: str) -> None:
    error, tensors, named = TENSORS[name]
    with pytest.raises(error) as caught:
        load_model(rewrite(source, tmp_path / "x.gguf", tensors=tensors))
    assert named in str(caught.value)
    assert caught.value.remedy  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["extra", "misshapen", "vocabulary"])
def test_without_the_check_the_disagreement_is_missed(
    source: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check() -> None:
        test_tensors_that_disagree_with_the_description(source, tmp_path, name)

    goes_red(monkeypatch, loader, "check_tensors", nothing, check)


METADATA: dict[str, tuple[type[Exception], dict[str, Any], str]] = {
    "architecture": (UnknownArchitecture, {"general.architecture": "gpt9"}, "'gpt9'; known: llama"),
    "no layers": (ModelFormatError, {"llama.block_count": None}, "llama.block_count"),
    "zero layers": (ModelFormatError, {"llama.block_count": 0}, "llama.block_count"),
    "absurd layers": (ModelFormatError, {"llama.block_count": 1 << 40}, "llama.block_count"),
    "layers as text": (ModelFormatError, {"llama.block_count": "2"}, "llama.block_count"),
    "more layers than tensors": (MissingTensors, {"llama.block_count": 3}, "blk.2.attn_q.weight"),
    "no context": (ModelFormatError, {"llama.context_length": None}, "llama.context_length"),
    "heads": (ModelFormatError, {"llama.attention.head_count": 3}, "head_count"),
    "kv heads": (ModelFormatError, {"llama.attention.head_count_kv": 3}, "head_count"),
    "value length": (ModelFormatError, {"llama.attention.value_length": 4}, "value_length"),
    "negative window": (ModelFormatError, {"llama.attention.sliding_window": -1}, "sliding_window"),
    "odd rope": (ModelFormatError, {"llama.rope.dimension_count": 3}, "dimension_count"),
    "wide rope": (ModelFormatError, {"llama.rope.dimension_count": 10}, "dimension_count"),
    "rope base": (ModelFormatError, {"llama.rope.freq_base": -1.0}, "freq_base"),
    "rope nan": (ModelFormatError, {"llama.rope.freq_base": float("nan")}, "freq_base"),
    "rope factor": (
        ModelFormatError,
        {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": -2.0},
        "scaling.factor",
    ),
    "rope factor without a type": (ModelFormatError, {"llama.rope.scaling.factor": -2.0}, "scaling.factor"),
    "rope attention": (UnsupportedModel, {"llama.rope.scaling.attn_factor": 1.5}, "attn_factor"),
    "rope kind": (UnsupportedModel, {"llama.rope.scaling.type": "yarn"}, "yarn"),
    "experts": (UnsupportedModel, {"llama.expert_count": 8}, "expert_count"),
    "eps": (ModelFormatError, {"llama.attention.layer_norm_rms_epsilon": None}, "layer_norm_rms_epsilon"),
    "tokens": (ModelFormatError, {"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens"),
}


@pytest.mark.parametrize("name", METADATA)
def test_metadata_that_makes_no_model(source: Path, tmp_path: Path, name: str) -> None:
    error, metadata, named = METADATA[name]
    with pytest.raises(error) as caught:
        load_model(rewrite(source, tmp_path / "x.gguf", metadata=metadata))
    assert named in str(caught.value)
    assert caught.value.remedy  # type: ignore[attr-defined]


SCALINGS: dict[str, tuple[dict[str, Any], float]] = {
    "nothing said": ({}, 1.0),
    "factor alone": ({"llama.rope.scaling.factor": 4.0}, 4.0),
    "old key alone": ({"llama.rope.scale_linear": 4.0}, 4.0),
    "linear": ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}, 4.0),
    "linear, old key": ({"llama.rope.scaling.type": "linear", "llama.rope.scale_linear": 4.0}, 4.0),
    "both keys": ({"llama.rope.scaling.factor": 4.0, "llama.rope.scale_linear": 2.0}, 4.0),
    "a factor of 0 is none": ({"llama.rope.scaling.factor": 0.0}, 1.0),
    "0 hides the old key": ({"llama.rope.scaling.factor": 0.0, "llama.rope.scale_linear": 2.0}, 1.0),
    "none, factor": ({"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0}, 1.0),
    "none, old key": ({"llama.rope.scaling.type": "none", "llama.rope.scale_linear": 4.0}, 1.0),
    "attention factor of 1": ({"llama.rope.scaling.attn_factor": 1.0}, 1.0),
}
"""As llama.cpp reads them (llama-model.cpp, load_hparams; llama-context.cpp)."""


@pytest.mark.parametrize("name", SCALINGS)
def test_rope_scaling(source: Path, tmp_path: Path, name: str) -> None:
    metadata, linear = SCALINGS[name]
    model = load_model(rewrite(source, tmp_path / "x.gguf", metadata=metadata))
    assert [rope.linear for rope in model.config.ropes] == [linear]


def test_rope_factors_must_fit(source: Path, tmp_path: Path) -> None:
    for values in (np.ones(3, F32), np.array([1, 1, 0, 1], F32), np.array([1, 1, np.nan, 1], F32)):
        with pytest.raises(ModelFormatError, match="rope_freqs"):
            load_model(rewrite(source, tmp_path / "x.gguf", tensors={"rope_freqs.weight": values}))


def test_an_encoding_without_a_codec_names_type_and_tensor(source: Path, tmp_path: Path) -> None:
    tensors = {"blk.1.ffn_down.weight": np.zeros((32, 64), np.float64)}
    with pytest.raises(UnsupportedEncoding, match=r"blk\.1\.ffn_down\.weight.*F64"):
        load_model(rewrite(source, tmp_path / "x.gguf", tensors=tensors))


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelFileMissing) as caught:
        load_model(tmp_path / "none.gguf")
    assert isinstance(caught.value, FileNotFoundError)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "F16", "BF16"])
def test_quantised_weights_decode_to_what_the_gguf_package_decodes(
    source: Path, tmp_path: Path, context: InferenceContext, kind: str
) -> None:
    """A quantised model equals, bit for bit, the F32 model of the package's dequantised weights."""
    number = gguf.GGMLQuantizationType[kind]
    whole = load_model(source)
    matrices = [n for n in _names(source) if n.endswith("weight") and "norm" not in n]
    quantised = rewrite(source, tmp_path / "q.gguf", quantize=dict.fromkeys(matrices, number))
    reader = gguf.GGUFReader(quantised)
    decoded = {
        t.name: gguf.quants.dequantize(t.data, t.tensor_type).reshape(tuple(reversed(t.shape.tolist())))
        for t in reader.tensors
        if t.name in matrices
    }
    plain = rewrite(source, tmp_path / "f.gguf", tensors=decoded)
    results = []
    for path in (quantised, plain):
        model = load_model(path)
        cache = KvCache.allocate(model, context, 8)
        results.append(forward_with_kv_context(model, [1, 2, 3, 4], cache, context, want=All()))
    np.testing.assert_array_equal(*results)
    cache = KvCache.allocate(whole, context, 8)
    exact = forward_with_kv_context(whole, [1, 2, 3, 4], cache, context, want=All())
    assert np.abs(exact - results[0]).max() > 0  # and it is another model than the exact one


def _names(path: Path) -> list[str]:
    return [tensor.name for tensor in gguf.GGUFReader(path).tensors]


def test_phi_with_fused_q_k_v_is_the_same_model(
    fixtures: Path, tmp_path: Path, context: InferenceContext
) -> None:
    source = fixtures / "tiny-phi.gguf"
    apart = {tensor.name: tensor.data for tensor in gguf.GGUFReader(source).tensors}
    changes: dict[str, np.ndarray | None] = {}
    for layer in range(2):
        for kind in ("weight", "bias"):
            names = [f"blk.{layer}.attn_{part}.{kind}" for part in "qkv"]
            changes |= dict.fromkeys(names)
            changes[f"blk.{layer}.attn_qkv.{kind}"] = np.concatenate([apart[name] for name in names])
    fused = load_model(rewrite(source, tmp_path / "fused.gguf", tensors=changes))
    assert fused.config.fused_qkv  # type: ignore[attr-defined]
    results = []
    for model in (load_model(source), fused):
        cache = KvCache.allocate(model, context, 8)
        results.append(forward_with_kv_context(model, [1, 2, 3, 4], cache, context, want=All()))
    np.testing.assert_array_equal(*results)
    changes["blk.0.attn_qkv.weight"] = np.zeros((65, 32), F32)
    with pytest.raises(TensorShapeMismatch):
        load_model(rewrite(source, tmp_path / "bad.gguf", tensors=changes))


def test_a_model_outlives_its_open_file(source: Path) -> None:
    model = load_model(source)
    assert model.weights["embedding"].rows().shape == (260, 128)
    assert model.config.n_layers == 2
    with pytest.raises(ValueError, match="read-only"):
        model.weights["embedding"].raw[0] = 1


def test_a_config_can_t_be_edited(tiny: Any) -> None:
    with pytest.raises(AttributeError):
        tiny.config.norm_eps = 1.0


def test_rope_rows() -> None:
    plain, linear = RopeSpec(100.0, 4), RopeSpec(100.0, 4, linear=2.0)
    factors = RopeSpec(100.0, 4, factors=(1.0, 4.0))
    cos, sin = rope_table((plain, linear, factors)).rows(3, 2)
    assert cos.shape == sin.shape == (3, 2, 2)
    for table, spec in enumerate(([1.0, 0.1], [0.5, 0.05], [1.0, 0.025])):
        for row in range(2):
            np.testing.assert_allclose(cos[table, row], np.cos(np.multiply(3 + row, spec)), rtol=1e-6)
            np.testing.assert_allclose(sin[table, row], np.sin(np.multiply(3 + row, spec)), rtol=1e-6)

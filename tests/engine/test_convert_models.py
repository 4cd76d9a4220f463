"""Converting: what comes out loads, is the same model, and other programs read it."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from ostinato.decode.forward import forward_with_kv_context
from ostinato.decode.kv_cache import KvCache
from ostinato.decode.want import All
from ostinato.engine import convert as convert_module
from ostinato.engine.convert import convert
from ostinato.engine.llm import LLM
from ostinato.errors import InvalidSetting, MissingTensors, NoEncoder
from ostinato.formats.gguf import GgufFile
from ostinato.generate.settings import Sampling
from ostinato.ir import encoding as enc
from ostinato.models.loader import load_model
from ostinato.runtime.context import InferenceContext

TOKENS = list(range(3, 35))
FOLDERS = ("tiny-llama-grouped", "tiny-llama-llama3", "tiny-phi")
FILES = (*(f"{name}.gguf" for name in FOLDERS), "tiny-llama-bias.gguf", "tiny-llama-linear.gguf")
GREEDY = Sampling(temperature=0.0)


def logits(path: Path, context: InferenceContext, weights: enc.Encoding | None = None) -> np.ndarray:
    model = load_model(path, weights=weights)
    cache = KvCache.allocate(model, context, len(TOKENS) + 3)
    first = forward_with_kv_context(model, TOKENS, cache, context, want=All())
    rest = [forward_with_kv_context(model, [token], cache, context)[None] for token in (5, 6, 7)]
    return np.concatenate([first, *rest])


@pytest.mark.parametrize("source", [*FOLDERS, *FILES])
def test_a_converted_model_is_the_same_model(
    fixtures: Path, tmp_path: Path, context: InferenceContext, source: str
) -> None:
    target = tmp_path / "out.gguf"
    convert(fixtures / source, target)
    np.testing.assert_array_equal(logits(target, context), logits(fixtures / source, context))
    configs = [load_model(path).config for path in (target, fixtures / source)]
    # GGUF holds eps in float32, which is what it is computed with
    assert replace(configs[0], norm_eps=0.0) == replace(configs[1], norm_eps=0.0)  # type: ignore[type-var,call-arg]
    assert np.float32(configs[0].norm_eps) == np.float32(configs[1].norm_eps)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_becomes_the_file_that_llama_cpp_s_converter_writes(
    fixtures: Path, tmp_path: Path, name: str
) -> None:
    """Tensor for tensor, and every key that both have."""
    target = tmp_path / "out.gguf"
    convert(fixtures / name, target)
    with GgufFile.open(target) as mine, GgufFile.open(fixtures / f"{name}.gguf") as theirs:
        assert set(mine.tensors) == set(theirs.tensors)
        for tensor in mine.tensors.values():
            other = theirs.tensors[tensor.name]
            assert (tensor.shape, tensor.encoding) == (other.shape, other.encoding)
            if tensor.name != "rope_freqs.weight":
                np.testing.assert_array_equal(mine.data(tensor), theirs.data(other))
        for key in set(mine.metadata) & set(theirs.metadata) - {"general.name"}:
            np.testing.assert_array_equal(mine.metadata[key], theirs.metadata[key], err_msg=key)
        assert mine.metadata["tokenizer.ggml.pre"] == "smollm"


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
@pytest.mark.parametrize("source", ["tiny-llama-grouped", "tiny-llama-grouped.gguf", "tiny-phi"])
def test_encoding(fixtures: Path, tmp_path: Path, context: InferenceContext, source: str, kind: str) -> None:
    """The gguf package reads the file, its matrices hold what the package itself makes of the floats, and
    quantising while loading gives the same logits."""
    target = tmp_path / "out.gguf"
    encoding = getattr(enc, kind)
    convert(fixtures / source, target, encoding)
    number = gguf.GGMLQuantizationType[kind]
    originals = {
        tensor.name: tensor.data
        for tensor in gguf.GGUFReader(fixtures / f"{source.removesuffix('.gguf')}.gguf").tensors
    }
    reader = gguf.GGUFReader(target)
    for tensor in reader.tensors:
        original = originals[tensor.name]
        if original.ndim == 1:
            assert tensor.tensor_type == gguf.GGMLQuantizationType.F32
            np.testing.assert_array_equal(tensor.data, original)
        else:
            assert tensor.tensor_type == number
            np.testing.assert_array_equal(
                np.asarray(tensor.data).view(np.uint8).reshape(-1),
                np.asarray(gguf.quants.quantize(original, number)).view(np.uint8).reshape(-1),
            )
    np.testing.assert_array_equal(logits(target, context), logits(fixtures / source, context, encoding))
    assert np.abs(logits(target, context) - logits(fixtures / source, context)).max() > 0


def test_a_quantised_file_becomes_floats_again(
    fixtures: Path, tmp_path: Path, context: InferenceContext
) -> None:
    convert(fixtures / "tiny-phi.gguf", tmp_path / "q.gguf", enc.Q4_0)
    convert(tmp_path / "q.gguf", tmp_path / "f.gguf", enc.F32)
    np.testing.assert_array_equal(logits(tmp_path / "f.gguf", context), logits(tmp_path / "q.gguf", context))


def test_what_can_t_be_written_leaves_nothing_behind(fixtures: Path, tmp_path: Path) -> None:
    with pytest.raises(NoEncoder, match="Q4_K, asked for all matrices"):
        convert(fixtures / "tiny-phi.gguf", tmp_path / "out.gguf", enc.Q4_K)
    source = tmp_path / "broken"
    source.mkdir()
    for file in (fixtures / "tiny-phi").iterdir():
        text = file.read_bytes()
        if file.name == "config.json":
            text = text.replace(b'"num_hidden_layers": 2', b'"num_hidden_layers": 3')
        (source / file.name).write_bytes(text)
    with pytest.raises(MissingTensors):
        convert(source, tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()


def test_a_failure_in_the_middle_keeps_the_old_file(
    fixtures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "out.gguf"
    target.write_bytes(b"precious")
    real = convert_module._target
    calls = []

    def failing(*arguments: object) -> enc.Encoding:
        calls.append(arguments)
        if len(calls) == 5:
            raise OSError("no space left")
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(convert_module, "_target", failing)
    with pytest.raises(OSError, match="no space"):
        convert(fixtures / "tiny-phi.gguf", target, enc.Q8_0)
    assert target.read_bytes() == b"precious"
    assert os.listdir(tmp_path) == ["out.gguf"]


@pytest.mark.parametrize("name", ["tiny-llama-grouped", "tiny-phi"])
def test_a_folder_talks_as_its_gguf_twin(fixtures: Path, tmp_path: Path, name: str) -> None:
    convert(fixtures / name, tmp_path / "out.gguf")
    texts = []
    for path in (fixtures / name, fixtures / f"{name}.gguf", tmp_path / "out.gguf"):
        llm = LLM(path, context=64)
        assert llm.has_chat_template
        texts.append((llm.encode_chat([{"role": "user", "content": "héllo <|im_end|> 123"}]),
                      llm.chat("he said hello", max_tokens=16, sampling=GREEDY).text()))  # fmt: skip
    assert texts[0] == texts[1] == texts[2]


def test_weights_are_quantised_while_loading(fixtures: Path) -> None:
    llm = LLM(fixtures / "tiny-phi", weights="Q8_0")
    kinds = {len(t.shape): t.encoding.name for t in llm.model.weights.values()}
    assert kinds == {1: "F32", 2: "Q8_0"}
    with pytest.raises(InvalidSetting, match="q9"):
        LLM(fixtures / "tiny-phi", weights="q9")


def test_a_folder_s_generation_config_is_a_suggestion(fixtures: Path, tmp_path: Path) -> None:
    for file in (fixtures / "tiny-phi").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "generation_config.json").write_text(
        '{"temperature": 0.5, "top_p": 7, "top_k": 20, "eos_token_id": [256, 258]}'
    )
    llm = LLM(tmp_path)
    assert llm.suggested == Sampling(temperature=0.5, top_k=20)
    assert llm.tokenizer.end_ids == {256, 258}


@pytest.mark.parametrize("change", ["ends", "strip"])
def test_more_of_a_tokenizer_than_gguf_has_keys_for(fixtures: Path, tmp_path: Path, change: str) -> None:
    source, target = tmp_path / "folder", tmp_path / "out.gguf"
    source.mkdir()
    for file in (fixtures / "tiny-phi").iterdir():
        (source / file.name).write_bytes(file.read_bytes())
    if change == "ends":
        ends = {"eos_token_id": [256, 257, 258, 97, 98]}
        (source / "generation_config.json").write_text(json.dumps(ends))
    else:
        tokenizer = json.loads((source / "tokenizer.json").read_text())
        tokenizer["added_tokens"][1]["rstrip"] = True
        (source / "tokenizer.json").write_text(json.dumps(tokenizer))
    convert(source, target)
    one, two = LLM(source), LLM(target)
    assert one.tokenizer.end_ids == two.tokenizer.end_ids
    text = "a <|im_start|>  b"
    assert one.tokenizer.encode(text, parse_special=True) == two.tokenizer.encode(text, parse_special=True)


@pytest.mark.parametrize("name", FOLDERS)
def test_other_readers_find_the_widths_that_they_insist_on(fixtures: Path, tmp_path: Path, name: str) -> None:
    """llama.cpp refuses a token id that isn't an unsigned 32-bit number, even for "no such token"."""
    convert(fixtures / name, tmp_path / "out.gguf")
    fields = gguf.GGUFReader(tmp_path / "out.gguf").fields
    ids = [field for key, field in fields.items() if key.endswith("_token_id")]
    assert len(ids) >= 3
    assert {field.types[0] for field in ids} == {gguf.GGUFValueType.UINT32}
    assert (tmp_path / "out.gguf").stat().st_mode & 0o044  # a file for others, like any that a person writes

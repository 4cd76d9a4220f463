"""What a report says about a file, compared with what the `gguf` package wrote."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ostinato.errors.checkpoint import GgufFolder
from ostinato.errors.formats import ModelFileMissing, ModelFormatError
from ostinato.errors.hub import ModelUnavailable
from ostinato.hub import ALIASES, DEFAULT_MODEL, resolve
from ostinato.hub.inspect import EncodingUse, inspect_model

gguf = pytest.importorskip("gguf")

TEMPLATE = "{% for m in messages %}\n\n  {{ m.role }}\n{{ m.content }}\n{% endfor %}\n" + "x" * 1000


@pytest.fixture
def write(tmp_path):
    """Writes a GGUF file of a few tensors after `fill` has put its metadata in."""

    def run(fill, architecture="llama"):
        path = tmp_path / "model.gguf"
        writer = gguf.GGUFWriter(path, architecture)
        fill(writer)
        q4 = gguf.quants.quantize(np.ones((4, 64), np.float32), gguf.GGMLQuantizationType.Q4_0)
        for name in ("a", "b"):
            writer.add_tensor(name, q4, raw_dtype=gguf.GGMLQuantizationType.Q4_0)
        writer.add_tensor("norm", np.ones(64, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return run


def test_a_full_report(write):
    def fill(writer):
        writer.add_name("Made Up 1B")
        writer.add_license("apache-2.0")
        writer.add_source_url("https://example.org/model")
        writer.add_organization("Example")
        writer.add_block_count(2)
        writer.add_context_length(4096)
        writer.add_embedding_length(64)
        writer.add_feed_forward_length([128, 256])
        writer.add_head_count(8)
        writer.add_head_count_kv([2, 2])
        writer.add_rope_freq_base(10000.0)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("smollm")
        writer.add_token_list(["a", "b", "c"])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_add_bos_token(True)
        writer.add_chat_template(TEMPLATE)

    path = write(fill)
    report = inspect_model(path)
    assert (report.path, report.file_size, report.format) == (str(path), path.stat().st_size, "GGUF 3")
    assert (report.architecture, report.name, report.licence) == ("llama", "Made Up 1B", "apache-2.0")
    assert report.source == "https://example.org/model"
    assert report.parameters == 2 * 4 * 64 + 64
    assert report.encodings == (
        EncodingUse("Q4_0", tensors=2, parameters=512, bytes=2 * 4 * 2 * 18),
        EncodingUse("F32", tensors=1, parameters=64, bytes=256),
    )
    assert report.bits_per_parameter == pytest.approx((288 + 256) * 8 / 576)
    assert (report.layers, report.hidden, report.heads) == (2, 64, 8)
    assert report.kv_heads == 2  # the same in every layer: said once
    assert report.feed_forward == (128, 256)
    assert (report.context_length, report.rope_base) == (4096, 10000.0)
    tokenizer = report.tokenizer
    assert (tokenizer.kind, tokenizer.pre, tokenizer.vocabulary) == ("gpt2", "smollm", 3)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.add_bos) == (1, 2, True)
    assert report.chat_template == "{% for m in messages %}\n{{ m.role }}\n{{ m.content }}\n..."
    assert json.loads(json.dumps(report.as_dict()))["encodings"][0]["name"] == "Q4_0"


def test_what_a_file_leaves_out_is_none(write):
    report = inspect_model(write(lambda writer: None))
    assert report.architecture == "llama"
    assert report.layers is report.name is report.chat_template is report.licence is report.source is None
    assert report.tokenizer.vocabulary is report.tokenizer.kind is None
    assert report.parameters == 576


def test_values_of_another_type_are_left_out(write):
    def fill(writer):
        writer.add_string("llama.block_count", "two")
        writer.add_bool("llama.context_length", True)
        writer.add_array("llama.attention.head_count", [1.5, 2.5])
        writer.add_array("llama.attention.head_count_kv", ["x"])
        writer.add_uint32("general.name", 7)
        writer.add_array("tokenizer.ggml.tokens", [1, 2])

    report = inspect_model(write(fill))
    assert report.layers is report.context_length is report.heads is report.kv_heads is report.name is None
    assert report.tokenizer.vocabulary is None


def test_a_strangers_text_cannot_reach_the_terminal(write):
    def fill(writer):
        writer.add_name("\x1b]0;owned\x07 a\nb\u202e" + "z" * 1000)
        writer.add_chat_template("\x1b[2J{{ x }}" + "y" * 1000)

    report = inspect_model(write(fill))
    assert all(c.isprintable() for c in report.name)
    assert len(report.name) < 200
    assert "\x1b" not in report.chat_template
    assert len(report.chat_template) < 200
    report.name.encode()


def test_a_file_that_is_none(tmp_path):
    with pytest.raises(ModelFileMissing):
        inspect_model(tmp_path / "no.gguf")
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(3))
    with pytest.raises(ModelFormatError):
        inspect_model(tmp_path / "bad.gguf")
    with pytest.raises(GgufFolder, match=r"bad\.gguf"):
        inspect_model(tmp_path)


def test_a_folder_of_safetensors(fixtures):
    report = inspect_model(fixtures / "tiny-phi")
    assert (report.format, report.architecture, report.layers) == ("safetensors", "PhiForCausalLM", 2)
    twin = inspect_model(fixtures / "tiny-phi.gguf")
    assert (report.parameters, report.encodings) == (twin.parameters, twin.encodings)
    assert (report.hidden, report.heads, report.kv_heads) == (twin.hidden, twin.heads, twin.kv_heads)
    assert (report.feed_forward, report.context_length) == (twin.feed_forward, twin.context_length)
    assert report.chat_template == twin.chat_template
    assert report.as_dict()["tokenizer"]["vocabulary"] == 260


@pytest.mark.model
def test_the_default_model():
    try:
        file = resolve(DEFAULT_MODEL, offline=True)
    except ModelUnavailable:
        pytest.skip("the default model is not cached")
    report = inspect_model(file.path)
    assert report.file_size == ALIASES[DEFAULT_MODEL].size
    assert report.licence == ALIASES[DEFAULT_MODEL].licence.lower()
    assert (report.architecture, report.parameters, report.layers) == ("llama", 134_515_008, 30)
    assert (report.heads, report.kv_heads, report.context_length) == (9, 3, 8192)
    assert [(use.name, use.tensors) for use in report.encodings] == [("Q4_1", 210), ("Q8_0", 1), ("F32", 61)]
    assert (report.tokenizer.kind, report.tokenizer.pre) == ("gpt2", "smollm")
    assert "<|im_start|>" in report.chat_template

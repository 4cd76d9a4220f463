"""The typed getters of a checkpoint's settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensorsbuilder import CONFIG, sharded, small, write

from ostinato.errors.formats import ModelFormatError
from ostinato.formats.safetensors import Checkpoint, Config


def test_a_hundred_levels(tmp_path: Path) -> None:
    deep = b'{"a":' + b"[" * 99 + b"]" * 99 + b"}"
    with Checkpoint.open(write(tmp_path, {**small(), "config.json": deep})) as checkpoint:
        assert isinstance(checkpoint.config["a"], list)


def test_config_getters(tmp_path: Path) -> None:
    with Checkpoint.open(write(tmp_path, small())) as checkpoint:
        config = checkpoint.config
        assert list(config) == list(CONFIG)
        assert len(config) == len(CONFIG)
        assert config["eos_token_id"] == [1, 2]
        assert config.file == str(tmp_path / "config.json")
        assert config.text("model_type") == "llama"
        assert config.integer("num_hidden_layers") == 2
        assert config.number("rms_norm_eps") == 1e-5
        assert type(config.number("rope_theta")) is float
        assert config.flag("tie_word_embeddings") is True
        assert config.texts("architectures") == ("LlamaForCausalLM",)
        assert config.integers("eos_token_id") == (1, 2)
        rope = config.section("rope_scaling")
        assert rope is not None
        assert rope.number("factor") == 8.0
        assert rope.numbers("long_factor") == (1.0, 2.5)
        assert repr(rope) == f"Config(4 keys of rope_scaling in {tmp_path / 'config.json'})"
        assert repr(config) == f"Config(11 keys of {tmp_path / 'config.json'})"
        assert checkpoint.generation_config.integers("eos_token_id") == (2,)
        assert checkpoint.generation_config.number("temperature") == 0.7


def test_no_generation_config(tmp_path: Path) -> None:
    with Checkpoint.open(write(tmp_path, sharded())) as checkpoint:
        assert dict(checkpoint.generation_config) == {}
        assert checkpoint.generation_config.number("temperature", None) is None


GETTERS = ("text", "integer", "number", "flag", "texts", "integers", "numbers")


@pytest.mark.parametrize("getter", GETTERS)
def test_defaults(getter: str) -> None:
    """A key that is missing or null has its default, and is an error without one."""
    config = Config({"here": None, "in": {"here": None}}, "c.json")
    default = object()
    for section, prefix in ((config, ""), (config.section("in"), "in.")):
        for key, got in (("here", "null"), ("away", "no such key")):
            assert getattr(section, getter)(key, default) is default
            assert getattr(section, getter)(key, None) is None
            with pytest.raises(ModelFormatError) as caught:
                getattr(section, getter)(key)
            assert (caught.value.file, caught.value.field, caught.value.got) == ("c.json", prefix + key, got)
            assert section is not None
            assert section.section(key) is None


WRONG = {
    "text": (1, True, ["a"], {}),
    "integer": (True, 1.0, "1", [1], 1 << 63, -(1 << 63) - 1),
    "number": (True, "1", float("nan"), float("inf"), [1.0]),
    "flag": (1, 0, "true", []),
    "texts": ("a", [1], [None], {}),
    "integers": (True, 1.5, "1", [1.0], [False], [1 << 63], {}),
    "numbers": (1.5, ["1"], [True], [float("nan")], [[1.0]]),
    "section": (1, "a", [{}]),
}


@pytest.mark.parametrize(("getter", "value"), [(g, v) for g, values in WRONG.items() for v in values])
def test_a_value_of_another_type(getter: str, value: object) -> None:
    config = Config({"a": {"b": {"key": value}}}, "c.json")
    inner = config.section("a").section("b")  # type: ignore[union-attr]
    with pytest.raises(ModelFormatError) as caught:
        getattr(inner, getter)("key")
    assert caught.value.file == "c.json"
    assert caught.value.field.startswith("a.b.key")
    assert caught.value.got
    assert f"c.json: {caught.value.field}: expected" in str(caught.value)
    if getter != "section":
        with pytest.raises(ModelFormatError):
            getattr(inner, getter)("key", value)  # a default is for missing keys


def test_a_list_names_the_wrong_item() -> None:
    with pytest.raises(ModelFormatError) as caught:
        Config({"layer_types": ["a", 7]}, "c.json").texts("layer_types")
    assert (caught.value.field, caught.value.got) == ("layer_types[1]", "7")

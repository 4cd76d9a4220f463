"""Descriptions of models, mutated value by value: every outcome is a model, or one of the errors that
SECURITY.md names."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from rewrite import rewrite

from ostinato import errors
from ostinato.errors import OstinatoError
from ostinato.formats.gguf import GgufFile
from ostinato.models.contract import Model
from ostinato.models.loader import load_model

NASTY: tuple[Any, ...] = (
    None, 0, 1, 2, 3, -1, 7, 31, 33, 64, 1 << 24, 1 << 31, (1 << 63) - 1, 0.0, -0.0, 1e-45, 3e38, -2.5,
    True, False, "", "llama", "0", "\u0000", "x" * 2000,
)  # fmt: skip
JSON_ONLY: tuple[Any, ...] = (1 << 70, 1e308, [], [1], ["a"], {}, {"rope_type": "yarn"}, {"factor": 0})


SECURITY = (Path(__file__).parents[2] / "SECURITY.md").read_text("utf-8")
REFUSALS: tuple[type[OstinatoError], ...] = (
    errors.ModelFormatError, errors.UnknownArchitecture, errors.UnsupportedModel, errors.UnsupportedEncoding,
    errors.MissingTensors, errors.UnexpectedTensors, errors.TensorShapeMismatch,
)  # fmt: skip


def test_these_are_the_errors_that_security_md_names() -> None:
    (sentence,) = re.findall(r"Every outcome is a model, or one of(.*?):", SECURITY, re.S)
    assert set(re.findall(r"`(\w+)`", sentence)) == {error.__name__ for error in REFUSALS}


def outcome(path: Path) -> str:
    try:
        model = load_model(path)
    except REFUSALS as error:
        return type(error).__name__ if str(error) and error.remedy else f"{type(error).__name__} says nothing"
    assert isinstance(model, Model)
    for name, tensor in model.weights.items():
        assert tensor.rows().size, name
    return "model"


@pytest.mark.parametrize("name", ["tiny-llama-grouped", "tiny-llama-llama3", "tiny-phi"])
def test_config_json(fixtures: Path, tmp_path: Path, name: str) -> None:
    for file in (fixtures / name).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((fixtures / name / "config.json").read_text())
    keys = [
        *config,
        "head_dim",
        "rope_scaling",
        "rope_theta",
        "partial_rotary_factor",
        "mlp_bias",
        "architectures",
    ]
    seen: Counter[str] = Counter()
    for key in dict.fromkeys(keys):
        for value in (*NASTY, *JSON_ONLY):
            (tmp_path / "config.json").write_text(json.dumps(config | {key: value}))
            seen[outcome(tmp_path)] += 1
    for key in config["rope_parameters"]:
        for value in (*NASTY, *JSON_ONLY):
            changed = config | {"rope_parameters": config["rope_parameters"] | {key: value}}
            (tmp_path / "config.json").write_text(json.dumps(changed))
            seen[outcome(tmp_path)] += 1
    assert seen["model"] > 50
    assert not [kind for kind in seen if "says nothing" in kind]
    assert {"ModelFormatError", "UnsupportedModel", "UnknownArchitecture", "MissingTensors"} <= set(seen)


@pytest.mark.parametrize("name", ["tiny-llama-grouped", "tiny-phi"])
def test_gguf_metadata(fixtures: Path, tmp_path: Path, name: str) -> None:
    source = fixtures / f"{name}.gguf"
    with GgufFile.open(source) as file:
        keys = [key for key in file.metadata if not key.startswith(("GGUF", "tokenizer"))]
    prefix = "phi2" if name == "tiny-phi" else "llama"
    keys += [f"{prefix}.rope.scaling.type", f"{prefix}.rope.scaling.factor", f"{prefix}.attention.key_length"]
    rng = random.Random(0)
    seen: Counter[str] = Counter()
    for key in keys:
        if key == "general.architecture":
            continue
        for value in rng.sample(NASTY, 9):
            seen[outcome(rewrite(source, tmp_path / "x.gguf", metadata={key: value}))] += 1
    assert seen["model"] > 5
    assert not [kind for kind in seen if "says nothing" in kind]
    assert "ModelFormatError" in seen

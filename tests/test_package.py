"""The package as a whole: its public names, its imports, its errors."""

from __future__ import annotations

import dataclasses
import importlib
import json
import logging
import pickle
import subprocess
import sys
from typing import Any, get_type_hints

import pytest

import ostinato
from ostinato import errors

# Frozen: a name that appears or goes is a decision, and a line in the changelog.
PUBLIC = [
    "All",
    "Argmax",
    "CapturedDecodeSession",
    "Conversation",
    "DType",
    "DecodeSession",
    "DecodeSlot",
    "DecodeTokenData",
    "Generation",
    "Hidden",
    "InferenceContext",
    "KvCache",
    "KvRebindSource",
    "LLM",
    "Last",
    "Location",
    "Model",
    "PlanValidity",
    "RebindRefusal",
    "Receipt",
    "Rows",
    "Sampling",
    "StepSession",
    "__version__",
    "errors",
    "forward_with_kv_context",
    "forward_with_kv_context_captured",
    "forward_with_kv_context_persistent",
    "load_model",
    "register_defaults",
]


def test_public_names() -> None:
    assert sorted(ostinato.__all__) == sorted(PUBLIC)
    for name in PUBLIC:
        assert getattr(ostinato, name) is not None
    assert set(PUBLIC) <= set(dir(ostinato))
    with pytest.raises(AttributeError, match="nosuch"):
        ostinato.nosuch  # noqa: B018


def test_type_checkers_see_the_same_names() -> None:
    import ast
    from pathlib import Path

    tree = ast.parse(Path(ostinato.__file__).read_text("utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imported = {
        alias.asname for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert imported == set(PUBLIC)


def test_importing_is_light() -> None:
    """Nothing heavy is loaded before it is used; a benchmark, not this test, says how long it takes."""
    code = "import sys, json; import ostinato; print(json.dumps(sorted(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    loaded = set(json.loads(out))
    heavy = {
        "numpy",
        "tokenizers",
        "jinja2",
        "click",
        "tqdm",
        "filelock",
        "platformdirs",
        "threadpoolctl",
        "llvmlite",
    }
    assert not loaded & heavy
    assert {name for name in loaded if name.startswith("ostinato")} == {"ostinato"}


def test_the_library_prints_nothing_and_leaves_the_root_logger_alone() -> None:
    assert any(isinstance(h, logging.NullHandler) for h in logging.getLogger("ostinato").handlers)
    code = (
        "import logging; before = list(logging.getLogger().handlers)\n"
        "from ostinato import LLM, load_model; LLM\n"
        "assert logging.getLogger().handlers == before"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == done.stderr == ""


ERRORS = [getattr(errors, name) for name in errors.__all__ if issubclass(getattr(errors, name), Exception)]
_EXAMPLES = {"int": 3, "str": "text", "bool": False, "tuple": ("a", "b"), "float": 1.5}


def example(hint: Any) -> Any:
    if hint in (int, str, bool, float):
        return _EXAMPLES[hint.__name__]
    text = str(hint)
    if "Attempt" in text:
        return (errors.Attempt("pip", "no network"),)
    if text.startswith("tuple[int"):
        return (3, 4)
    if text.startswith("tuple"):
        return ("a", "b")
    return 3 if "int" in text else "text"


@pytest.mark.parametrize("cls", ERRORS, ids=lambda cls: cls.__name__)
def test_errors_are_data(cls: type[errors.OstinatoError]) -> None:
    """Each cause has fields, a sentence made from them, a builtin base, and survives pickling."""
    assert issubclass(cls, errors.OstinatoError)
    if cls is errors.OstinatoError:
        return
    builtin = [
        base for base in cls.__mro__ if base.__module__ == "builtins" and base not in (object, BaseException)
    ]
    assert builtin[0] is not Exception, "derives from the builtin that a caller expects"
    hints = get_type_hints(cls)
    error = cls(**{field.name: example(hints[field.name]) for field in dataclasses.fields(cls)})  # type: ignore[arg-type]
    assert str(error) == error.message()
    assert len(str(error)) > 8
    assert isinstance(error.remedy, str)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is cls
    assert (str(again), again.remedy, again.fields()) == (str(error), error.remedy, error.fields())


def test_every_error_of_the_package_is_exported() -> None:
    import pkgutil

    found = set()
    for module in pkgutil.iter_modules(errors.__path__):
        for name, value in vars(importlib.import_module(f"ostinato.errors.{module.name}")).items():
            if isinstance(value, type) and issubclass(value, errors.OstinatoError):
                found.add(name)
    assert found <= set(errors.__all__)

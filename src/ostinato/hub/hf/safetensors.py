"""The files of a model that is kept as safetensors, and the refusal of pickled ones."""

from __future__ import annotations

import json

from ostinato.errors.huggingface import HubModelMissing, PickleRefused
from ostinato.hub.hf.names import Listing, is_safe

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

_BESIDE = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
_SUFFIX = ".safetensors"
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


def fixed_files(repo: str, files: Listing) -> tuple[str, ...]:
    """What is fetched whatever the weights are split into: settings, tokenizer, the weights or their index.

    Raises `PickleRefused`, `HubModelMissing`.
    """
    refuse_pickles(repo, files)
    weights = SINGLE if SINGLE in files else INDEX
    if weights not in files:
        raise HubModelMissing(repo)
    return (*(name for name in _BESIDE if name in files), weights)


def shards(repo: str, files: Listing, index: bytes) -> tuple[str, ...]:
    """The files that the `index` names, each once and all in the repository. Raises `HubModelMissing`.

    Format: `{"weight_map": {tensor: file}}`, as transformers writes it.
    """
    try:
        named = json.loads(index)["weight_map"].values()
        names = tuple(sorted(set(named)))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise HubModelMissing(repo, f"an {INDEX} that cannot be read") from None
    for name in names:
        require_shard(repo, files, name)
    return names


def require_shard(repo: str, files: Listing, name: object) -> None:
    """The guard of what an index may have fetched: safetensors files of the same repository."""
    good = isinstance(name, str) and is_safe(name) and name.endswith(_SUFFIX) and name in files
    if not good:
        raise HubModelMissing(repo, f"an {INDEX} that names {str(name)!r}, which is no {_SUFFIX} file of it")


def refuse_pickles(repo: str, files: Listing) -> None:
    """The guard against weights that run code when opened: they are not even fetched."""
    names = [file.name for file in files.files]
    pickled = tuple(name for name in names if name.lower().endswith(_PICKLED))
    if pickled and not any(name.endswith(_SUFFIX) for name in names):
        raise PickleRefused(repo, pickled)

"""The chat template of a Hugging Face model folder."""

from __future__ import annotations

import dataclasses
import os

from ostinato.errors.text import TokenizerFormatError
from ostinato.text.huggingface import named
from ostinato.text.huggingface.folder import Folder, expect

_CONFIG = "tokenizer_config.json"


@dataclasses.dataclass(frozen=True)
class TemplateSource:
    """What `ChatTemplate` is made from. `source` is None where the folder has no template."""

    source: str | None
    bos: str  # empty where the folder names none, as in transformers
    eos: str


def template_source(path: str | os.PathLike[str]) -> TemplateSource:
    """The template of `chat_template.jinja`, else of tokenizer_config.json (of several there the
    "default" one), and the texts of the tokens that it may name.

    Raises:
        TokenizerFormatError: a file is malformed.
        ModelFileUnreadable: the operating system refuses one.
    """
    folder = Folder(path)
    bos, eos = (named.token_text(folder, name) or "" for name in ("bos_token", "eos_token"))
    return TemplateSource(_source(folder), bos, eos)


def _source(folder: Folder) -> str | None:
    if folder.has("chat_template.jinja"):
        return folder.text("chat_template.jinja")
    found = folder.json(_CONFIG).get("chat_template")
    if found is None or isinstance(found, str):
        return found
    if not isinstance(found, list):
        raise TokenizerFormatError("chat_template", "a text or a list", type(found).__name__, file=_CONFIG)
    templates = {}
    for index, entry in enumerate(found):
        key = f"chat_template[{index}]"
        entry = expect(entry, dict, key, _CONFIG)
        name = expect(entry.get("name"), str, f"{key}.name", _CONFIG)
        templates[name] = expect(entry.get("template"), str, f"{key}.template", _CONFIG)
    return templates.get("default")

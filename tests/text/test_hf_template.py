"""Where a folder's chat template comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hf_support import write_folder

from ostinato.errors.text import TokenizerFormatError
from ostinato.text import ChatTemplate
from ostinato.text.huggingface.template import TemplateSource, template_source

NAMED = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]


@pytest.mark.parametrize(
    ("config", "source"),
    [
        ({}, None),
        ({"chat_template": None}, None),
        ({"chat_template": "text"}, "text"),
        ({"chat_template": NAMED}, "plain"),
        ({"chat_template": NAMED[:1]}, None),
        ({"chat_template": []}, None),
    ],
)
def test_of_the_configuration(tmp_path: Path, config: Any, source: str | None) -> None:
    assert template_source(tmp_path) == TemplateSource(None, "", "")
    assert template_source(write_folder(tmp_path, tokenizer_config=config)).source == source
    (tmp_path / "chat_template.jinja").write_text("of the file é", encoding="utf-8")
    assert template_source(tmp_path).source == "of the file é"


def test_tokens_for_rendering(tmp_path: Path) -> None:
    config = {"bos_token": {"content": "<s>"}, "chat_template": "{{ bos_token }}|{{ eos_token }}"}
    write_folder(tmp_path, tokenizer_config=config, special_tokens_map={"eos_token": "</s>"})
    found = template_source(tmp_path)
    assert found.source is not None
    assert ChatTemplate(found.source, bos=found.bos, eos=found.eos).render([]) == "<s>|</s>"


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"chat_template": 5}, "chat_template"),
        ({"chat_template": ["x"]}, "chat_template[0]"),
        ({"chat_template": [{"template": "x"}]}, "chat_template[0].name"),
        ({"chat_template": [{"name": "default", "template": 1}]}, "chat_template[0].template"),
        ({"bos_token": []}, "bos_token"),
    ],
)
def test_broken_configurations(tmp_path: Path, config: Any, key: str) -> None:
    with pytest.raises(TokenizerFormatError) as caught:
        template_source(write_folder(tmp_path, tokenizer_config=config))
    assert (caught.value.key, caught.value.file) == (key, "tokenizer_config.json")


def test_a_template_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(TokenizerFormatError):
        template_source(tmp_path)

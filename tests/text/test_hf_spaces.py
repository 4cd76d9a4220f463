"""How the folder's own rules cut and change text, compared with the `tokenizers` library."""

from __future__ import annotations

from pathlib import Path

import pytest
from hf_support import (
    BYTES_ONLY,
    METASPACE,
    Json,
    bytes_json,
    check_like_library,
    folder_tokenizer,
    pieces_json,
    split,
)


@pytest.mark.parametrize("scheme", ["always", "first", "never"])
@pytest.mark.parametrize("words", [False, True])
def test_metaspace(tmp_path: Path, scheme: str, words: bool) -> None:
    metaspace = {**METASPACE, "prepend_scheme": scheme, "split": words}
    description = pieces_json(normalizer=None, pre_tokenizer=metaspace)
    made = folder_tokenizer(tmp_path, description)
    check_like_library(made, description)
    assert made.decode(made.encode("ab a")) == "ab a"
    assert made.decode(made.encode("ab")[-1:], continuation=True) == ("ab" if scheme == "never" else " ab")


def test_metaspace_of_older_days(tmp_path: Path) -> None:
    metaspace = {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True}
    description = pieces_json(normalizer=None, pre_tokenizer=metaspace)
    check_like_library(folder_tokenizer(tmp_path, description), description)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}},
        {
            "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            "pre_tokenizer": {
                "type": "Split",
                "pattern": {"String": " "},
                "behavior": "MergedWithPrevious",
                "invert": False,
            },
        },
    ],
)
def test_spaces_by_normalizers(tmp_path: Path, changes: Json) -> None:
    description = pieces_json(**changes)
    check_like_library(folder_tokenizer(tmp_path, description), description)


@pytest.mark.parametrize(
    "changes",
    [
        {"pre_tokenizer": {**BYTES_ONLY, "add_prefix_space": True}},
        {"pre_tokenizer": {**BYTES_ONLY, "use_regex": True}},
        {
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [
                    {"type": "Punctuation", "behavior": "Contiguous"},
                    {"type": "Sequence", "pretokenizers": [BYTES_ONLY]},
                    {"type": "Digits", "individual_digits": False},
                    split("[0-9][0-9][0-9]"),
                ],
            }
        },
        {"normalizer": {"type": "NFC"}},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKD"}, {"type": "Lowercase"}]}},
        {"normalizer": {"type": "Sequence", "normalizers": []}},
    ],
)
def test_the_files_own_cuts(tmp_path: Path, changes: Json) -> None:
    description = bytes_json(**changes)
    check_like_library(folder_tokenizer(tmp_path, description), description)


def test_markers_that_swallow_white_space(tmp_path: Path) -> None:
    for build in (bytes_json, pieces_json):
        description = build()
        description["added_tokens"][1]["rstrip"] = True
        description["added_tokens"][2]["lstrip"] = True
        check_like_library(folder_tokenizer(tmp_path, description), description)

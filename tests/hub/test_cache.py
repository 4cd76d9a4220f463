"""Listing and removing what is cached."""

from __future__ import annotations

import pytest
from hubindex import CONTENT

from ostinato.errors.hub import ModelNotCached, OutsideCache
from ostinato.hub import list_models, remove, resolve


def test_nothing_is_cached_at_first(cache):
    assert list_models() == []
    assert not cache.exists()


def test_what_is_listed(index, cache):
    index.publish()
    path = resolve("tiny").path
    (cache / "old.gguf").write_bytes(b"x")
    old, tiny = list_models()
    assert (tiny.name, tiny.alias, tiny.path, tiny.size) == ("tiny", "tiny", path, len(CONTENT))
    assert (tiny.source, tiny.verified) == ("pip", True)
    assert (old.name, old.alias, old.size, old.source, old.verified) == ("old", None, 1, "unknown", False)


@pytest.mark.parametrize("by", ["name", "file name", "path"])
def test_a_removed_model_is_gone_and_can_come_back(index, cache, by):
    index.publish()
    path = resolve("tiny").path
    reference = {"name": "tiny", "file name": "tiny.gguf", "path": str(path)}[by]
    assert remove(reference).size == len(CONTENT)
    assert [p.name for p in cache.iterdir()] == [".tiny.lock"]
    assert list_models() == []
    assert resolve("tiny").source == "pip"


@pytest.mark.parametrize("reference", ["never", "", ".gguf", "nul\0", ".tiny.lock", "tiny.json"])
def test_what_is_not_cached_cannot_be_removed(index, reference):
    index.publish()
    resolve("tiny")
    with pytest.raises(ModelNotCached) as caught:
        remove(reference)
    assert caught.value.cached == ("tiny",)
    assert isinstance(caught.value, FileNotFoundError)
    assert [model.name for model in list_models()] == ["tiny"]


def test_an_alias_that_is_not_cached(cache):
    with pytest.raises(ModelNotCached):
        remove("smollm2")
    assert not cache.exists()


def test_removing_a_link_keeps_what_it_points_to(cache, tmp_path):
    (tmp_path / "mine.gguf").write_bytes(b"x")
    cache.mkdir(parents=True)
    (cache / "link.gguf").symlink_to(tmp_path / "mine.gguf")
    remove("link")
    assert (tmp_path / "mine.gguf").exists()


def test_a_cache_that_is_itself_a_link_works(index, cache, tmp_path):
    (tmp_path / "big disk").mkdir()
    cache.parent.mkdir()
    cache.symlink_to(tmp_path / "big disk")
    index.publish()
    assert resolve("tiny").path == cache / "tiny.gguf"
    remove("tiny")
    assert list_models() == []


def test_a_folder_called_like_a_model_is_neither_listed_nor_removed(cache):
    (cache / "dir.gguf").mkdir(parents=True)
    assert list_models() == []
    with pytest.raises(ModelNotCached):
        remove("dir")


def test_outside_is_refused_before_it_is_looked_at(cache, tmp_path):
    with pytest.raises(OutsideCache):
        remove(str(tmp_path / "not even there.gguf"))

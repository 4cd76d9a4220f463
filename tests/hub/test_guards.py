"""Each guard of this layer, and the proof that its check fails without it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ostinato.errors.host import NotEnoughDiskSpace
from ostinato.errors.hub import ChecksumMismatch, ModelUnavailable, OutsideCache
from ostinato.hub import cache as hub_cache
from ostinato.hub import checksum, remove, resolve, space, tools

FAILED = (AssertionError, pytest.fail.Exception)


def check_a_wrong_file_is_refused(index, cache: Path) -> None:
    index.publish(shipped=b"GGUF of a stranger")
    with pytest.raises(ChecksumMismatch):
        resolve("tiny")
    assert not (cache / "tiny.gguf").exists()


def check_a_wrong_cached_file_is_refused(index, cache: Path) -> None:
    index.publish()
    cache.mkdir(parents=True)
    (cache / "tiny.gguf").write_bytes(b"GGUF of a stranger")
    with pytest.raises(ModelUnavailable):
        resolve("tiny", offline=True)


def check_a_full_disk_is_refused(index, monkeypatch) -> None:
    index.publish()
    usage = type(shutil.disk_usage("/"))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**12, 10**12, 1000))
    with pytest.raises(NotEnoughDiskSpace):
        resolve("tiny")


def check_nothing_outside_is_removed(cache: Path, form: str) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    outside = cache.parent.parent / "precious.gguf"
    outside.write_bytes(b"mine")
    (cache / "sub").mkdir(exist_ok=True)
    (cache / "sub" / "model.gguf").write_bytes(b"mine too")
    (cache / "way-out").unlink(missing_ok=True)
    (cache / "way-out").symlink_to(outside.parent)
    reference = {
        "relative": "../../precious",
        "relative file": "../../precious.gguf",
        "absolute": str(outside),
        "through itself": "../models/../../precious",
        "through a link": "way-out/precious",
        "deeper": "sub/model",
    }[form]
    with pytest.raises(OutsideCache):
        remove(reference)
    assert outside.exists()
    assert (cache / "sub" / "model.gguf").exists()


FORMS = ["relative", "relative file", "absolute", "through itself", "through a link", "deeper"]


def check_no_credential_is_shown(index, uv) -> None:
    uv(index.publish(), fails=True)
    with pytest.raises(ModelUnavailable) as caught:
        resolve("tiny")
    assert "not found at" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_wrong_file_is_refused(index, cache):
    check_a_wrong_file_is_refused(index, cache)


def test_sabotaged_checksum_of_what_arrives(index, cache, monkeypatch):
    monkeypatch.setattr(checksum, "require_sha256", lambda *args: None)
    with pytest.raises(FAILED):
        check_a_wrong_file_is_refused(index, cache)


def test_a_wrong_cached_file_is_refused(index, cache):
    check_a_wrong_cached_file_is_refused(index, cache)


def test_sabotaged_checksum_of_what_is_there(index, cache, monkeypatch):
    monkeypatch.setattr(checksum, "matches", lambda *args: True)
    with pytest.raises(FAILED):
        check_a_wrong_cached_file_is_refused(index, cache)


def test_a_full_disk_is_refused(index, monkeypatch):
    check_a_full_disk_is_refused(index, monkeypatch)


def test_sabotaged_free_space(index, monkeypatch):
    monkeypatch.setattr(space, "require_free_space", lambda *args: None)
    with pytest.raises(FAILED):
        check_a_full_disk_is_refused(index, monkeypatch)


@pytest.mark.parametrize("form", FORMS)
def test_nothing_outside_is_removed(cache, form):
    check_nothing_outside_is_removed(cache, form)


@pytest.mark.parametrize("form", FORMS)
def test_sabotaged_containment(cache, monkeypatch, form):
    monkeypatch.setattr(hub_cache, "require_inside", lambda *args: None)
    with pytest.raises(FAILED):
        check_nothing_outside_is_removed(cache, form)


def test_no_credential_is_shown(index, uv):
    check_no_credential_is_shown(index, uv)


def test_sabotaged_scrubber(index, uv, monkeypatch):
    monkeypatch.setattr(tools, "scrub", lambda text: text)
    with pytest.raises(FAILED):
        check_no_credential_is_shown(index, uv)

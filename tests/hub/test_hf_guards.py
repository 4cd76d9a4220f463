"""Each guard between a reference to Hugging Face and its files; its check fails without it."""

from __future__ import annotations

import logging
import shutil

import huggingface_hub.errors
import pytest
from hfstub import SIGNATURE, TOKEN

from ostinato.errors.huggingface import (
    HubAccessDenied,
    HubChoiceNeeded,
    HubDiskFull,
    HubDownloadFailed,
    HubModelMissing,
    HubRevisionMissing,
    HubUnreachable,
    MalformedHubReference,
    PickleRefused,
)
from ostinato.hub import progress, resolve
from ostinato.hub.hf import client, failures, gguf, names, reference, safetensors
from ostinato.hub.hf import resolve as hf_resolve
from ostinato.hub.hf.names import RepoFile
from sabotage import goes_red, nothing


@pytest.mark.parametrize("text", ["hf:../..", "hf:org/na me", "hf:org/..", "hf:a/b/c"])
def test_repository_names_are_validated(text, monkeypatch, hub):
    def check():
        with pytest.raises(MalformedHubReference):
            resolve(text)
        assert hub.seen == []

    goes_red(monkeypatch, reference, "require_repo_id", nothing, check, expect=HubUnreachable)


@pytest.mark.parametrize("text", ["hf:org/name@../../x", "hf:org/name@a b"])
def test_revisions_are_validated(text, monkeypatch, hub):
    def check():
        with pytest.raises(MalformedHubReference):
            resolve(text)

    goes_red(monkeypatch, reference, "require_revision", nothing, check, expect=HubAccessDenied)


@pytest.mark.parametrize("text", ["hf:org/name:../x.gguf", "hf:org/name:a b"])
def test_selectors_are_validated(text, monkeypatch, hub):
    def check():
        with pytest.raises(MalformedHubReference):
            resolve(text)

    goes_red(monkeypatch, reference, "require_selector", nothing, check, expect=HubAccessDenied)


def test_names_of_a_listing_are_validated(monkeypatch):
    def check():
        assert names.listing("c", [RepoFile("../x.gguf", 1)]).files == ()

    goes_red(monkeypatch, names, "is_safe", lambda name: True, check)


def test_a_commit_is_validated(monkeypatch, hub, tmp_path):
    hub.publish("org/name", {"a.gguf": b"GGUF"})
    hub.commit_name = "../../out"

    def check():
        with pytest.raises(HubUnreachable, match="names no commit"):
            resolve("hf:org/name")

    goes_red(monkeypatch, client, "is_commit", lambda text: True, check, expect=HubRevisionMissing)


def test_nothing_is_guessed(monkeypatch, hub):
    hub.publish("org/name", {"a-Q8_0.gguf": b"GGUF", "b-Q8_0.gguf": b"GGUF"})

    def check():
        for text in ("hf:org/name", "hf:org/name:Q8_0"):
            with pytest.raises(HubChoiceNeeded):
                resolve(text)

    goes_red(monkeypatch, gguf, "require_one", lambda options, *_: options[0], check)


def test_helper_files_are_told_apart(monkeypatch, hub):
    hub.publish("org/name", {"a-Q8_0.gguf": b"GGUF", "mmproj-a-f16.gguf": b"GGUF"})

    def check():
        assert resolve("hf:org/name").path.name == "a-Q8_0.gguf"

    goes_red(monkeypatch, gguf, "is_helper", lambda name: False, check, expect=HubChoiceNeeded)


def test_pickles_are_refused(monkeypatch, hub):
    hub.publish("org/name", {"pytorch_model.bin": b"p", "config.json": b"{}"})

    def check():
        with pytest.raises(PickleRefused):
            resolve("hf:org/name")

    goes_red(monkeypatch, safetensors, "refuse_pickles", nothing, check, expect=HubModelMissing)


def test_an_index_fetches_no_code(monkeypatch, hub):
    index = b'{"weight_map": {"a": "evil.py"}}'
    hub.publish("org/name", {"model.safetensors.index.json": index, "a.safetensors": b"", "evil.py": b""})

    def check():
        with pytest.raises(HubModelMissing):
            resolve("hf:org/name")
        assert not hub.asked(word="evil.py")

    goes_red(monkeypatch, safetensors, "require_shard", nothing, check)


def test_a_gated_repository_is_explained(monkeypatch, hub):
    hub.publish("org/name", {"a.gguf": b"GGUF"}, needs="gated")

    def check():
        with pytest.raises(HubAccessDenied) as caught:
            resolve("hf:org/name")
        assert "Ask for access" in caught.value.remedy

    raw = huggingface_hub.errors.GatedRepoError
    goes_red(monkeypatch, failures, "explain_denial", lambda error, reference: error, check, expect=raw)


def test_a_full_disk_is_refused(monkeypatch, hub):
    hub.publish("org/name", {"a.gguf": b"GGUF"})
    usage = type(shutil.disk_usage("/"))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**12, 10**12, 1000))

    def check():
        with pytest.raises(HubDiskFull):
            resolve("hf:org/name")

    goes_red(monkeypatch, hf_resolve, "require_room", nothing, check)


def test_no_token_is_told(monkeypatch, hub, tmp_path):
    """A server may repeat the token that it was sent; this one is known to the client's file alone."""
    secret = "0auth-without-a-known-shape"
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "token").write_text(secret)
    hub.status, hub.answer_headers = 403, {"X-Error-Message": f"{secret} and {TOKEN} are not allowed"}

    def check():
        with pytest.raises(HubAccessDenied) as caught:
            resolve("hf:org/name")
        for told in (str(caught.value), repr(caught.value), caught.value.remedy):
            assert secret not in told
            assert TOKEN not in told
        assert "not allowed" in str(caught.value)

    goes_red(monkeypatch, failures, "clean", lambda text: text, check)


def test_no_signed_address_is_logged(monkeypatch, hub):
    """The client logs where a download broke off, to a handler of its own."""
    lines: list[str] = []

    class Log(logging.Handler):
        def emit(self, record):
            lines.append(record.getMessage())

    log = logging.getLogger("huggingface_hub")
    log.addHandler(handler := Log())
    monkeypatch.setattr(progress, "watched", lambda wanted: wanted)
    hub.publish("org/name", {"a.gguf": b"GGUF"})
    theirs = logging.getLogger("huggingface_hub.file_download")

    def fetch(repo, name, **options):
        theirs.warning("Error while downloading from %s", f"{hub.elsewhere}/a.gguf?Signature={SIGNATURE}")
        raise OSError("enough")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", fetch)

    def check():
        lines.clear()
        for watching in (False, True):
            with pytest.raises(HubDownloadFailed):
                resolve("hf:org/name", progress=watching)
        assert lines == [f"Error while downloading from {hub.elsewhere}/..."]

    try:
        goes_red(monkeypatch, failures, "clean", lambda text: text, check)
    finally:
        log.removeHandler(handler)

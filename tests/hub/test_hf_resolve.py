"""From an `hf:` reference to files, through a Hugging Face of the test's own."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import shutil
import sys
import time
from pathlib import Path

import pytest
from hfstub import TOKEN

from ostinato.errors.huggingface import (
    HubAccessDenied,
    HubCacheNotWritable,
    HubChoiceNeeded,
    HubDiskFull,
    HubDownloadFailed,
    HubFileMissing,
    HubModelMissing,
    HubRateLimited,
    HubRepositoryMissing,
    HubRevisionMissing,
    HubUnreachable,
    PickleRefused,
)
from ostinato.hub import list_models, resolve
from ostinato.hub.hf import client
from ostinato.hub.hf import resolve as hf_resolve

Q4, Q8 = b"GGUF" + b"4" * 300_000, b"GGUF" + b"8" * 200_000
FILES = {"a-Q4_K_M.gguf": Q4, "a-Q8_0.gguf": Q8, "README.md": b"# a", "mmproj-a.gguf": b"GGUF"}


def get(reference: str, **options: bool) -> Path:
    return resolve(reference, progress=False, **options).path


# GGUF


def test_a_gguf_file_is_fetched_once_into_hugging_faces_own_cache(hub, tmp_path, cache):
    commit = hub.publish("org/name", FILES)
    first = resolve("hf:org/name")
    assert first.source == "hugging face"
    assert first.path == tmp_path / "hf/hub/models--org--name/snapshots" / commit / "a-Q4_K_M.gguf"
    assert first.path.read_bytes() == Q4
    assert [file.name for file in first.path.parent.iterdir()] == ["a-Q4_K_M.gguf"]
    hub.seen.clear()
    again = resolve("hf:org/name")
    assert (again.path, again.source) == (first.path, "hugging face cache")
    assert [(seen.method, seen.path.partition("?")[0]) for seen in hub.seen] == [
        ("GET", "/api/models/org/name/revision/main")
    ]
    assert list_models() == []
    assert not cache.exists()


def test_what_huggingface_hub_fetched_is_used(hub):
    from huggingface_hub import hf_hub_download

    hub.publish("org/name", FILES)
    theirs = hf_hub_download("org/name", "a-Q8_0.gguf")
    assert get("hf:org/name:Q8_0", offline=True) == Path(theirs)
    assert resolve("hf:org/name:Q8_0").source == "hugging face cache"
    ours = get("hf:org/name:Q4_K_M")
    assert hf_hub_download("org/name", "a-Q4_K_M.gguf", local_files_only=True) == str(ours)


def test_a_moved_branch_is_noticed_and_only_the_change_fetched(hub):
    hub.publish("org/name", FILES)
    assert get("hf:org/name").read_bytes() == Q4
    hub.publish("org/name", {**FILES, "a-Q4_K_M.gguf": b"GGUF new"})
    moved = resolve("hf:org/name")
    assert (moved.path.read_bytes(), moved.source) == (b"GGUF new", "hugging face")
    assert get("hf:org/name", offline=True) == moved.path


def test_revisions(hub):
    old = hub.publish("org/name", {"a.gguf": b"GGUF old"}, branch="v1")
    hub.publish("org/name", {"a.gguf": b"GGUF pr"}, branch="refs/pr/1")
    hub.publish("org/name", {"a.gguf": b"GGUF new"})
    assert get("hf:org/name").read_bytes() == b"GGUF new"
    assert get("hf:org/name@v1").read_bytes() == b"GGUF old"
    assert get("hf:org/name@refs/pr/1").read_bytes() == b"GGUF pr"
    assert get("hf:org/name@refs/pr/1", offline=True).read_bytes() == b"GGUF pr"
    with pytest.raises(HubRevisionMissing) as caught:
        get("hf:org/name@v2")
    assert caught.value.revision == "v2"
    # A commit and a file: nothing that an answer could change.
    hub.seen.clear()
    assert get(f"hf:org/name:a.gguf@{old}").read_bytes() == b"GGUF old"
    assert hub.seen == []
    assert get(f"hf:org/name@{old}").read_bytes() == b"GGUF old"
    assert len(hub.seen) == 1


def test_all_parts_of_a_split_model(hub):
    parts = {f"Q8_0/a-Q8_0-{i:05}-of-00003.gguf": b"GGUF part %d" % i for i in (1, 2, 3)}
    hub.publish("org/name", {**parts, "README.md": b""})
    path = get("hf:org/name")
    assert path.name == "a-Q8_0-00001-of-00003.gguf"
    assert {f"Q8_0/{file.name}": file.read_bytes() for file in path.parent.iterdir()} == parts
    assert get("hf:org/name:Q8_0", offline=True) == path
    (path.parent / "a-Q8_0-00002-of-00003.gguf").unlink()
    with pytest.raises(HubUnreachable):
        get("hf:org/name:Q8_0", offline=True)
    hub.seen.clear()
    assert resolve("hf:org/name").source == "hugging face"
    assert not [seen for seen in hub.asked("GET", "resolve") if "00001" in seen.path]


def test_choices(hub):
    hub.publish("org/name", {"a-Q8_0.gguf": Q8, "a-Q5_0.gguf": Q4})
    with pytest.raises(HubChoiceNeeded) as caught:
        get("hf:org/name")
    assert "a-Q5_0.gguf (0.3 MB), a-Q8_0.gguf (0.2 MB)" in caught.value.remedy
    with pytest.raises(HubFileMissing) as missing:
        get("hf:org/name:Q5_1")
    assert missing.value.near == ("a-Q5_0.gguf",)
    assert get("hf:org/name:q5_0").read_bytes() == Q4
    assert not hub.asked("GET", "Q8_0")


# Safetensors

CONFIG = {
    "config.json": b"{}", "generation_config.json": b"{}", "tokenizer.json": b"{}",
    "tokenizer_config.json": b"{}", "special_tokens_map.json": b"{}", "chat_template.jinja": b"{{ x }}",
}  # fmt: skip
OTHER = {
    "pytorch_model.bin": b"p",
    "modeling.py": b"p",
    "a.pt": b"p",
    "README.md": b"r",
    "a.safetensors": b"s",
}


def held(path: Path) -> set[str]:
    return {file.relative_to(path).as_posix() for file in path.rglob("*")}


def test_a_safetensors_model_is_a_folder(hub):
    commit = hub.publish("org/name", {**CONFIG, **OTHER, "model.safetensors": b"weights"})
    found = resolve("hf:org/name")
    assert (found.path.name, found.source) == (commit, "hugging face")
    assert held(found.path) == {*CONFIG, "model.safetensors"}
    assert resolve("hf:org/name").source == "hugging face cache"
    assert get("hf:org/name", offline=True) == found.path
    (found.path / "model.safetensors").unlink()
    with pytest.raises(HubUnreachable):
        get("hf:org/name", offline=True)


def test_exactly_the_shards_of_the_index(hub):
    index = {"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}
    weights = {"m-1.safetensors": b"1", "m-2.safetensors": b"2"}
    weights["model.safetensors.index.json"] = json.dumps(index).encode()
    del (few := dict(CONFIG))["chat_template.jinja"]
    hub.publish("org/name", {**few, **OTHER, **weights})
    found = get("hf:org/name")
    assert held(found) == {*few, *weights}
    assert get("hf:org/name", offline=True) == found
    (found / "m-2.safetensors").unlink()
    with pytest.raises(HubUnreachable):
        get("hf:org/name", offline=True)


def test_repositories_without_a_model(hub):
    hub.publish("org/pickled", {"pytorch_model.bin": b"p", "config.json": b"{}"})
    with pytest.raises(PickleRefused):
        get("hf:org/pickled")
    hub.publish("org/empty", {"README.md": b""})
    with pytest.raises(HubModelMissing):
        get("hf:org/empty")
    hub.publish("org/plain", {"model.safetensors": b"", "config.json": b"{}"})
    with pytest.raises(HubFileMissing) as caught:
        get("hf:org/plain:Q4_K_M")
    assert caught.value.remedy == "It has no GGUF model at all."
    assert not hub.asked(word="resolve")


# Who may


def test_a_gated_repository(hub, monkeypatch, capfd):
    hub.publish("org/name", FILES, needs="gated")
    with pytest.raises(HubAccessDenied) as caught:
        get("hf:org/name")
    assert (caught.value.reason, caught.value.token_sent) == ("gated", False)
    assert "Access to model org/name is restricted" in str(caught.value)
    assert "Ask for access on the page of org/name" in caught.value.remedy
    assert "HF_TOKEN" in caught.value.remedy
    assert isinstance(caught.value, PermissionError)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert get("hf:org/name").read_bytes() == Q4
    hub.publish("org/name", {**FILES, "new": b""}, needs="review")
    with pytest.raises(HubAccessDenied) as caught:
        get("hf:org/name:Q8_0")
    assert (caught.value.reason, caught.value.token_sent) == ("gated", True)
    assert TOKEN not in "".join(capfd.readouterr())


def test_a_private_repository(hub, monkeypatch):
    hub.publish("org/name", FILES, needs="private")
    for repo in ("org/name", "org/nothing"):
        with pytest.raises(HubAccessDenied) as caught:
            get(f"hf:{repo}")
        assert (caught.value.reason, caught.value.token_sent) == ("private", False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert get("hf:org/name").read_bytes() == Q4
    with pytest.raises(HubRepositoryMissing):
        get("hf:org/nothing")


def test_a_token_from_the_clients_file(hub, tmp_path):
    hub.publish("org/name", FILES, needs="private")
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "token").write_text(TOKEN)
    assert get("hf:org/name").read_bytes() == Q4


def test_a_refused_token_is_not_shown(hub, monkeypatch, capfd, caplog):
    hub.publish("org/name", FILES)
    monkeypatch.setenv("HF_TOKEN", "hf_aWrongOne12345")
    with pytest.raises(HubAccessDenied) as caught:
        get("hf:org/name")
    assert caught.value.reason == "token"
    shown = f"{caught.value!r} {caught.value} {caught.value.remedy} {capfd.readouterr()} {caplog.text}"
    assert "aWrongOne" not in shown


def test_forbidden(hub):
    hub.status, hub.answer_headers = 403, {"X-Error-Message": "token hf_abcdefghijkl lacks a scope"}
    with pytest.raises(HubAccessDenied) as caught:
        get("hf:org/name")
    assert caught.value.reason == "forbidden"
    assert "lacks a scope" in str(caught.value)
    assert "abcdefghijkl" not in str(caught.value)


# Nobody answers


def test_rate_limits(hub):
    hub.status, hub.answer_headers = 429, {"Retry-After": "42"}
    with pytest.raises(HubRateLimited) as caught:
        get("hf:org/name")
    assert caught.value.remedy == "Wait 42 seconds and try again. An HF_TOKEN raises the limit."
    hub.answer_headers = {"RateLimit": '"api";r=0;t=55'}
    with pytest.raises(HubRateLimited) as caught:
        get("hf:org/name")
    assert caught.value.retry_after == 55
    hub.answer_headers = {}
    with pytest.raises(HubRateLimited) as caught:
        get("hf:org/name")
    assert caught.value.retry_after is None


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503, None])
def test_what_is_cached_is_used_when_nobody_answers(hub, status, caplog):
    hub.publish("org/name", FILES)
    path = get("hf:org/name")
    hub.status = status
    if status is None:
        hub.close()
    with caplog.at_level(logging.WARNING, "ostinato"):
        found = resolve("hf:org/name", progress=False)
    assert (found.path, found.source) == (path, "hugging face cache")
    assert "using what is cached" in caplog.text
    assert get("hf:org/name:q4_k_m") == path


@pytest.mark.parametrize("status", [500, None])
def test_nothing_cached_and_nobody_answers(hub, status):
    hub.publish("org/name", FILES)
    get("hf:org/name")
    hub.status = status
    if status is None:
        hub.close()
    with pytest.raises(HubUnreachable) as caught:
        get("hf:org/name:Q8_0")
    assert caught.value.cached == ("a-Q4_K_M.gguf",)
    assert not caught.value.offline
    assert isinstance(caught.value, ConnectionError)
    with pytest.raises(HubUnreachable):
        get("hf:org/other")


def test_a_server_that_hangs_does_not_hold_up_a_cached_start(hub, monkeypatch):
    hub.publish("org/name", FILES)
    path = get("hf:org/name")
    hub.stalls = True
    monkeypatch.setattr(hf_resolve, "_PATIENCE", 0.2)
    started = time.monotonic()
    assert get("hf:org/name") == path
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("by", ["argument", "OSTINATO_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline_asks_nobody(hub, monkeypatch, by):
    from huggingface_hub import constants

    hub.publish("org/name", {**FILES, "a-Q5_0.gguf": b"GGUF5"})
    path = get("hf:org/name:Q8_0")
    if by == "HF_HUB_OFFLINE":
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    elif by == "OSTINATO_OFFLINE":
        monkeypatch.setenv("OSTINATO_OFFLINE", "1")
    options = {"offline": True} if by == "argument" else {}
    hub.seen.clear()
    assert get("hf:org/name:Q8_0", **options) == path
    assert get("hf:org/name", **options) == path  # the only one there is here
    with pytest.raises(HubUnreachable) as caught:
        get("hf:org/name:Q5_0", **options)
    assert caught.value.offline
    assert caught.value.cached == ("a-Q8_0.gguf",)
    assert "OSTINATO_OFFLINE" in caught.value.remedy
    with pytest.raises(HubUnreachable):
        get("hf:org/never", **options)
    assert hub.seen == []


@pytest.mark.parametrize("text", ["", "../../../etc", "0" * 39, "\0", "g" * 40])
def test_a_damaged_ref_is_no_ref(hub, tmp_path, text):
    hub.publish("org/name", FILES)
    get("hf:org/name")
    (tmp_path / "hf/hub/models--org--name/refs/main").write_text(text)
    with pytest.raises(HubUnreachable):
        get("hf:org/name", offline=True)
    assert get("hf:org/name").read_bytes() == Q4
    assert get("hf:org/name", offline=True).read_bytes() == Q4


# Downloads that break off


def test_a_download_cut_off_in_the_middle_is_resumed(hub, capfd):
    hub.publish("org/name", FILES)
    hub.cuts["a-Q4_K_M.gguf"] = 1
    with contextlib.suppress(HubDownloadFailed):
        get("hf:org/name")  # some versions of the client resume at once, others when they are asked again
    assert get("hf:org/name").read_bytes() == Q4
    ranges = [seen.headers.get("range") for seen in hub.asked("GET", "/cdn/")]
    assert ranges == [None, "bytes=131072-"]  # the whole chunks of what had come
    assert capfd.readouterr() == ("", "")


def test_a_download_that_breaks_off_for_good(hub, monkeypatch):
    """The client gives up; nothing half is taken for whole, and the next try succeeds."""
    import huggingface_hub.file_download as theirs

    hub.publish("org/name", FILES)
    monkeypatch.setattr(theirs.time, "sleep", lambda seconds: hub.close())
    hub.cuts["a-Q4_K_M.gguf"] = 100
    with pytest.raises(HubDownloadFailed) as caught:
        get("hf:org/name")
    assert (caught.value.repo, caught.value.file) == ("org/name", "a-Q4_K_M.gguf")
    with pytest.raises(HubUnreachable):
        get("hf:org/name", offline=True)


def test_a_revision_is_remembered_only_when_all_of_it_is_there(hub, monkeypatch):
    index = {"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}
    files = {**CONFIG, "m-1.safetensors": b"1", "m-2.safetensors": b"2"}
    files["model.safetensors.index.json"] = json.dumps(index).encode()
    hub.publish("org/name", files)
    fetch = client.fetch

    def interrupted(reference, commit, name, **options):
        if name == "m-2.safetensors":
            raise KeyboardInterrupt
        fetch(reference, commit, name, **options)

    monkeypatch.setattr(client, "fetch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        get("hf:org/name")
    monkeypatch.setattr(client, "fetch", fetch)
    with pytest.raises(HubUnreachable):
        get("hf:org/name", offline=True)
    hub.seen.clear()
    get("hf:org/name")
    assert len(hub.asked("GET", "/cdn/")) == 1


def test_a_full_disk_is_found_out_first(hub, tmp_path, monkeypatch):
    hub.publish("org/name", FILES)
    usage = type(shutil.disk_usage("/"))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**12, 10**12, 1000))
    with pytest.raises(HubDiskFull) as caught:
        get("hf:org/name")
    assert caught.value.where == str(tmp_path / "hf/hub")
    assert caught.value.needed > len(Q4)
    assert "HF_HOME" in caught.value.remedy
    assert not hub.asked(word="resolve")


def test_a_disk_that_fills_up_meanwhile(hub, monkeypatch):
    import huggingface_hub.file_download as theirs

    hub.publish("org/name", FILES)

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(theirs, "http_get", full)
    with pytest.raises(HubDiskFull):
        get("hf:org/name")


def test_a_file_where_the_cache_should_be(hub, tmp_path):
    hub.publish("org/name", FILES)
    (tmp_path / "hf").write_text("")
    with pytest.raises(HubCacheNotWritable) as caught:
        get("hf:org/name")
    assert "HF_HOME" in caught.value.remedy


# A server that lies


def test_hostile_names_are_never_fetched(hub, tmp_path):
    hub.publish("org/name", {"a.gguf": Q4})
    hub.extra_siblings = [
        {"rfilename": name, "size": 1} for name in ("../../x.gguf", "/etc/x.gguf", "a\\..\\b.gguf")
    ]
    assert get("hf:org/name").name == "a.gguf"
    assert not list(tmp_path.rglob("x.gguf"))


@pytest.mark.parametrize("commit", ["../../../out", "", "main", None, 3, "A" * 40])
def test_a_hostile_commit_names_no_folder(hub, tmp_path, commit):
    hub.publish("org/name", FILES)
    hub.commit_name = json.loads(json.dumps(commit)) if commit is not None else ""
    with pytest.raises(HubUnreachable):
        get("hf:org/name")
    assert not (tmp_path / "hf").exists()


@pytest.mark.parametrize("status", [200, 204, 302])
def test_an_answer_that_is_none(hub, status):
    hub.status = status  # a captive portal
    with pytest.raises(HubUnreachable):
        get("hf:org/name")


# Watching and telling


class Terminal:
    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return True


def test_progress_is_shown_to_those_who_watch(hub, monkeypatch):
    from huggingface_hub.utils import are_progress_bars_disabled

    hub.publish("org/name", FILES)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    resolve("hf:org/name:Q8_0")
    assert "a-Q8_0.gguf" in terminal.text
    monkeypatch.setattr(sys, "stderr", quiet := Terminal())
    resolve("hf:org/name:Q4_K_M", progress=False)
    assert quiet.text == ""
    assert not are_progress_bars_disabled()


def test_no_telemetry(hub):
    hub.publish("org/name", FILES)
    get("hf:org/name")
    agents = {seen.headers["user-agent"] for seen in hub.seen if "/cdn/" not in seen.path}
    assert all(agent.startswith("ostinato/") for agent in agents)
    assert not [agent for agent in agents if "torch" in agent or "agent/" in agent]


def test_file_modes_are_hugging_faces(hub, tmp_path):
    hub.publish("org/name", FILES)
    old = os.umask(0o022)
    try:
        get("hf:org/name")
    finally:
        os.umask(old)
    assert (tmp_path / "hf/hub/models--org--name/refs/main").stat().st_mode & 0o777 == 0o644

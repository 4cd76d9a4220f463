"""Where things are kept, and what the environment says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ostinato.host import dirs, env


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_the_variable_overrides_the_users_cache_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("OSTINATO_CACHE_DIR", str(tmp_path / "deep" / "er"))
    assert dirs.cache_dir() == tmp_path / "deep" / "er"
    assert dirs.models_dir() == tmp_path / "deep" / "er" / "models"


@pytest.mark.parametrize("value", [None, ""])
def test_without_it_the_platform_decides(tmp_path, monkeypatch, value):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("OSTINATO_CACHE_DIR", raising=False)
    if value is not None:
        monkeypatch.setenv("OSTINATO_CACHE_DIR", value)
    assert dirs.cache_dir().name == "ostinato"


def test_folders_are_private_whatever_the_umask(tmp_path, monkeypatch):
    monkeypatch.setenv("OSTINATO_CACHE_DIR", str(tmp_path / "cache"))
    before = os.umask(0)
    try:
        assert mode(dirs.models_dir()) == mode(dirs.cache_dir()) == 0o700
    finally:
        os.umask(before)


def test_asking_alone_creates_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("OSTINATO_CACHE_DIR", str(tmp_path / "cache"))
    dirs.models_dir(create=False)
    assert not (tmp_path / "cache").exists()


def test_a_file_in_the_way_is_an_os_error(tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("")
    monkeypatch.setenv("OSTINATO_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(FileExistsError):
        dirs.models_dir()


def test_a_relative_cache_dir_does_not_follow_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OSTINATO_CACHE_DIR", "here")
    assert dirs.cache_dir() == tmp_path / "here"


@pytest.mark.parametrize(
    ("value", "on"),
    [
        (None, False),
        ("", False),
        ("0", False),
        ("false", False),
        (" No ", False),
        ("OFF", False),
        ("1", True),
        ("true", True),
        ("yess", True),  # a misspelt wish is a wish
    ],
)
def test_offline(monkeypatch, value, on):
    monkeypatch.delenv("OSTINATO_OFFLINE", raising=False)
    if value is not None:
        monkeypatch.setenv("OSTINATO_OFFLINE", value)
    assert env.offline() is on


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5", "²"])
def test_a_thread_count_that_is_none_is_refused(monkeypatch, value):
    monkeypatch.setenv("OSTINATO_THREADS", value)
    with pytest.raises(ValueError, match="OSTINATO_THREADS"):
        env.threads()

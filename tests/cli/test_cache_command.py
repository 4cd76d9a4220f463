"""`ostinato cache`: path, show, clear."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ostinato.devices.cpu.code_cache import MAX_BYTES, CodeCache

Cli = Callable[..., Any]

OLD, NEW = "a" * 64, "b" * 64


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "code"


@pytest.fixture
def filled(folder: Path) -> CodeCache:
    """Two entries; one was last used two days ago."""
    cache = CodeCache(folder)
    cache.put(OLD, bytes(2_000_000))
    cache.put(NEW, bytes(1500))
    then = time.time() - 2 * 86400 - 5
    os.utime(folder / f"{OLD}.code", (then, then))
    return cache


def test_path_prints_the_folder_alone_and_makes_none(cli: Cli, folder: Path) -> None:
    ran = cli("cache", "path")
    assert (ran.code, ran.out, ran.err) == (0, f"{folder}\n", "")
    assert not folder.exists()


def test_show_of_nothing(cli: Cli, folder: Path) -> None:
    ran = cli("cache", "show")
    assert (ran.code, ran.out) == (0, f"{folder}: 0 entries, 0.0 kB of 268.4 MB\n")
    assert not folder.exists()


def test_show_is_a_table_newest_first(cli: Cli, filled: CodeCache) -> None:
    lines = cli("cache", "show").out.splitlines()
    assert lines[0] == f"{filled.folder}: 2 entries, 2.0 MB of 268.4 MB"
    assert lines[1].split() == ["entry", "size", "last", "used"]
    assert lines[2].split() == [NEW[:12], "1.6", "kB", "just", "now"]
    assert lines[3].split() == [OLD[:12], "2.0", "MB", "2", "days", "ago"]
    assert (
        len({line.index(word) for line, word in zip(lines[1:], ("last", "just", "2 days"), strict=True)}) == 1
    )


def test_show_for_programs(cli: Cli, filled: CodeCache) -> None:
    report = json.loads(cli("cache", "show", "--json").out)
    entries = filled.entries()
    assert report == {
        "path": str(filled.folder), "bytes": sum(entry.nbytes for entry in entries), "cap": MAX_BYTES,
        "not_used_because": None,
        "entries": [{"key": entry.key, "bytes": entry.nbytes, "last_used": entry.used}
                    for entry in reversed(entries)],
    }  # fmt: skip


def test_show_says_why_a_folder_is_not_used(cli: Cli, filled: CodeCache) -> None:
    assert filled.folder is not None
    filled.folder.chmod(0o777)
    assert "not used: others may write to it (mode 0777)" in cli("cache", "show").out
    assert "others may write" in json.loads(cli("cache", "show", "--json").out)["not_used_because"]


def test_clear_says_what_it_freed(cli: Cli, filled: CodeCache) -> None:
    ran = cli("cache", "clear")
    assert (ran.code, ran.out) == (0, "")
    assert f"removed 2 entries (2.0 MB) from {filled.folder}" in ran.err
    assert filled.entries() == []
    again = cli("cache", "clear")
    assert again.code == 0
    assert "removed 0 entries" in again.err


def test_clear_takes_only_what_is_its_own(cli: Cli, filled: CodeCache, tmp_path: Path) -> None:
    assert filled.folder is not None
    mine = [filled.folder / "notes.txt", tmp_path / "cache" / "models" / "mine.gguf"]
    mine[1].parent.mkdir()
    for path in mine:
        path.write_bytes(b"mine")
    assert cli("cache", "clear", "-q").err == ""
    assert all(path.read_bytes() == b"mine" for path in mine)
    assert filled.entries() == []


def test_what_can_not_be_cleared(cli: Cli, folder: Path) -> None:
    folder.parent.mkdir()
    folder.write_text("mine")
    ran = cli("cache", "clear")
    assert (ran.code, ran.out) == (1, "")
    assert str(folder) in ran.err
    assert "OSTINATO_CACHE_DIR" in ran.err


def test_wrong_usage(cli: Cli) -> None:
    assert cli("cache").code == 2
    assert cli("cache", "nosuch").code == 2

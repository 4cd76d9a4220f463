"""`ostinato cache`: path, show, clear, of compiled code and of packed weights."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ostinato.devices.cpu.code_cache import MAX_BYTES, CodeCache
from ostinato.runtime import pack_cache
from ostinato.runtime.pack_cache import PackCache

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


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackCache:
    """One entry."""
    monkeypatch.setattr(pack_cache, "SPARE", 0)
    cache = PackCache(tmp_path / "cache" / "packed")
    cache.keep(NEW, [np.zeros(3_000_000, np.uint8)])
    assert len(cache.entries()) == 1
    return cache


def test_path_prints_the_folders_alone_and_makes_none(cli: Cli, folder: Path) -> None:
    ran = cli("cache", "path")
    assert (ran.code, ran.out, ran.err) == (0, f"{folder}\n{folder.with_name('packed')}\n", "")
    assert cli("cache", "path", "code").out == f"{folder}\n"
    assert cli("cache", "path", "packed").out == f"{folder.with_name('packed')}\n"
    assert not folder.parent.exists()


def test_show_of_nothing(cli: Cli, folder: Path) -> None:
    ran = cli("cache", "show")
    assert (ran.code, ran.out) == (
        0,
        f"compiled code, {folder}: 0 entries, 0.0 kB of 268.4 MB\n"
        f"packed weights, {folder.with_name('packed')}: 0 entries, 0.0 kB of 34359.7 MB\n",
    )
    assert not folder.parent.exists()


def test_show_is_a_table_newest_first(cli: Cli, filled: CodeCache) -> None:
    lines = cli("cache", "show", "code").out.splitlines()
    assert lines[0] == f"compiled code, {filled.folder}: 2 entries, 2.0 MB of 268.4 MB"
    assert lines[1].split() == ["entry", "size", "last", "used"]
    assert lines[2].split() == [NEW[:12], "1.6", "kB", "just", "now"]
    assert lines[3].split() == [OLD[:12], "2.0", "MB", "2", "days", "ago"]
    assert (
        len({line.index(word) for line, word in zip(lines[1:], ("last", "just", "2 days"), strict=True)}) == 1
    )


def test_show_of_packed_weights(cli: Cli, filled: CodeCache, packed: PackCache) -> None:
    lines = cli("cache", "show", "packed").out.splitlines()
    assert lines[0] == f"packed weights, {packed.folder}: 1 entry, 3.0 MB of 34359.7 MB"
    assert lines[2].split() == [NEW[:12], "3.0", "MB", "just", "now"]
    assert len(cli("cache", "show").out.splitlines()) == 4 + 3


def test_show_for_programs(cli: Cli, filled: CodeCache, packed: PackCache) -> None:
    report = json.loads(cli("cache", "show", "--json").out)
    assert report == {
        kind: {
            "path": str(cache.folder), "bytes": sum(entry.nbytes for entry in cache.entries()), "cap": cap,
            "not_used_because": None,
            "entries": [{"key": entry.key, "bytes": entry.nbytes, "last_used": entry.used}
                        for entry in reversed(cache.entries())],
        }
        for kind, cache, cap in (
            ("code", filled, MAX_BYTES), ("packed", packed, pack_cache.MAX_BYTES),
        )
    }  # fmt: skip
    assert json.loads(cli("cache", "show", "packed", "--json").out) == {"packed": report["packed"]}


@pytest.mark.parametrize("kind", ["code", "packed"])
def test_show_says_why_a_folder_is_not_used(
    cli: Cli, filled: CodeCache, packed: PackCache, kind: str
) -> None:
    folder = {"code": filled, "packed": packed}[kind].folder
    assert folder is not None
    folder.chmod(0o777)
    assert cli("cache", "show").out.count("not used: others may write to it (mode 0777)") == 1
    report = json.loads(cli("cache", "show", "--json").out)
    assert [name for name in report if report[name]["not_used_because"]] == [kind]


def test_clear_says_what_it_freed(cli: Cli, filled: CodeCache, packed: PackCache) -> None:
    ran = cli("cache", "clear")
    assert (ran.code, ran.out) == (0, "")
    assert f"removed 2 entries (2.0 MB) from {filled.folder}" in ran.err
    assert f"removed 1 entry (3.0 MB) from {packed.folder}" in ran.err
    assert filled.entries() == packed.entries() == []
    again = cli("cache", "clear")
    assert again.code == 0
    assert again.err.count("removed 0 entries") == 2


def test_one_of_them_can_be_cleared(cli: Cli, filled: CodeCache, packed: PackCache) -> None:
    ran = cli("cache", "clear", "packed")
    assert ran.err.count("removed") == 1
    assert packed.entries() == []
    assert len(filled.entries()) == 2


def test_clear_takes_only_what_is_its_own(
    cli: Cli, filled: CodeCache, packed: PackCache, tmp_path: Path
) -> None:
    assert filled.folder is not None
    assert packed.folder is not None
    models = tmp_path / "cache" / "models"
    models.mkdir()
    mine = [filled.folder / "notes.txt", packed.folder / "notes.txt", models / "mine.gguf"]
    for path in mine:
        path.write_bytes(b"mine")
    assert cli("cache", "clear", "-q").err == ""
    assert all(path.read_bytes() == b"mine" for path in mine)
    assert filled.entries() == packed.entries() == []


@pytest.mark.parametrize("kind", ["code", "packed"])
def test_what_can_not_be_cleared(cli: Cli, folder: Path, kind: str) -> None:
    folder.parent.mkdir()
    folder.with_name(kind).write_text("mine")
    ran = cli("cache", "clear")
    assert (ran.code, ran.out) == (1, "")
    assert str(folder.with_name(kind)) in ran.err
    assert "OSTINATO_CACHE_DIR" in ran.err


def test_wrong_usage(cli: Cli) -> None:
    assert cli("cache").code == 2
    assert cli("cache", "nosuch").code == 2
    assert cli("cache", "clear", "nosuch").code == 2

"""Each test is a process with a cache of its own."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
from packkit import TINY

from ostinato.formats import stamp
from ostinato.runtime import pack_cache
from ostinato.runtime.pack_cache import PackCache


@pytest.fixture(autouse=True)
def _a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was said yet; files just written count as settled, and every disk has room."""
    monkeypatch.setattr(PackCache, "unsaid", threading.Lock())
    monkeypatch.setattr(pack_cache, "SPARE", 0)
    monkeypatch.setattr(stamp, "SETTLED_NS", 0)


@pytest.fixture
def packs(tmp_path: Path) -> PackCache:
    return PackCache(tmp_path / "cache" / "packed")


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    return Path(shutil.copy(TINY, tmp_path / "mine.gguf"))

"""Where ostinato keeps what it can make or fetch again."""

from __future__ import annotations

from pathlib import Path

from ostinato.host import env


def cache_dir(*, create: bool = True) -> Path:
    """The user's cache folder; `OSTINATO_CACHE_DIR` overrides it. Created with mode 0700 unless told not to.

    Raises `OSError` when it cannot be created.
    """
    folder = env.cache_dir()
    if folder is None:
        from platformdirs import user_cache_path

        folder = user_cache_path("ostinato", appauthor=False)
    return private(folder) if create else folder


def models_dir(*, create: bool = True) -> Path:
    """The folder of fetched model files inside `cache_dir()`. Raises `OSError` when it cannot be created."""
    folder = cache_dir(create=create) / "models"
    return private(folder) if create else folder


def code_dir(*, create: bool = True) -> Path:
    """The folder of compiled code inside `cache_dir()`. Raises `OSError` when it cannot be created."""
    folder = cache_dir(create=create) / "code"
    return private(folder) if create else folder


def packed_dir(*, create: bool = True) -> Path:
    """The folder of packed weights inside `cache_dir()`. Raises `OSError` when it cannot be created."""
    folder = cache_dir(create=create) / "packed"
    return private(folder) if create else folder


def private(folder: Path) -> Path:
    """`folder`, created for its owner alone; one that is there already keeps the mode its owner gave it."""
    if not folder.is_dir():
        # mkdir gives `mode` to the last folder only; those above it belong to the system, not to us.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder

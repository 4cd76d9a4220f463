"""A model inside a package that is already installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path, PurePosixPath

from ostinato.hub.aliases import Alias


def find(alias: Alias) -> Path | None:
    """The alias's file in its installed package, unverified, or None. The package's code is not imported."""
    module, *inside = PurePosixPath(alias.member).parts
    try:
        # For a top-level name, finding a spec runs none of the package's code.
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder, *inside).absolute()
        if path.is_file():
            return path
    return None

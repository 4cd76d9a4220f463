"""Which files of a folder make the checkpoint, and what to say of a folder that is none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

from ostinato.errors.checkpoint import GgufFolder, IncompleteCheckpoint, PickledWeights
from ostinato.errors.formats import ModelFileMissing, ModelFileUnreadable, ModelFormatError
from ostinato.formats.safetensors.index import INDEX, SINGLE

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")


def check_folder(path: Path) -> None:
    """`path` is a folder that can be listed."""
    try:
        os.scandir(path).close()
    except FileNotFoundError as error:
        raise ModelFileMissing(str(path)) from error
    except NotADirectoryError as error:
        advice = "Name the folder that holds config.json and the weights."
        raise ModelFormatError(str(path), "folder", "a folder", "a file", advice=advice) from error
    except OSError as error:
        raise ModelFileUnreadable(str(path), error.strerror or str(error)) from error


def weights_file(path: Path) -> Path:
    """The single weights file of the folder `path`, or else the index; in this order, as in transformers.

    Raises `GgufFolder`, `PickledWeights` or `IncompleteCheckpoint` when there is neither.
    """
    # lexists: a dangling link is a missing file, not a folder without weights
    present = [name for name in (SINGLE, INDEX) if os.path.lexists(path / name)]
    if not present:
        refuse_weights(path)
    return path / present[0]


def check_config(path: Path) -> None:
    """The folder describes its model."""
    if not os.path.lexists(path / CONFIG):
        raise IncompleteCheckpoint(str(path), (CONFIG,))


def refuse_weights(path: Path) -> NoReturn:
    """What lies in the folder instead of weights that can be read."""
    names = sorted(os.listdir(path))
    if safetensors := _ending(names, (".safetensors",)):
        missing = (SINGLE, INDEX) if len(safetensors) == 1 else (INDEX,)
        raise IncompleteCheckpoint(str(path), missing, safetensors)
    if ggufs := _ending(names, (".gguf",)):
        raise GgufFolder(str(path), ggufs)
    if pickles := _ending(names, _PICKLES):
        raise PickledWeights(str(path), pickles)
    raise IncompleteCheckpoint(str(path), (SINGLE, INDEX) if CONFIG in names else (CONFIG, SINGLE, INDEX))


def _ending(names: list[str], suffixes: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if name.lower().endswith(suffixes))

"""A Hugging Face model folder, its weights mapped read-only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from ostinato.errors.formats import ModelFileClosed
from ostinato.formats.closeable import Closeable
from ostinato.formats.safetensors import folder, guards
from ostinato.formats.safetensors.config import Config, read_config
from ostinato.formats.safetensors.header import SafeTensor
from ostinato.formats.safetensors.index import INDEX, read_index
from ostinato.formats.safetensors.shard import Shard
from ostinato.formats.stamp import Origin


class Checkpoint(Closeable):
    """An open folder of config.json and safetensors weights, one file or sharded; a context manager.

    Opening reads the configs and the headers of all weight files and checks them against the files' sizes
    and the index; tensor bytes are paged in when `data` views of them are read. Nothing in the folder is
    ever run: code that a config names stays unread. A file may be replaced while it is open, by renaming
    another over it: the views go on showing the old one. It must not be written to or shortened. `data`
    notices when a tensor's end is no longer there, but a page that goes after that, under a view, ends the
    process when it is read, as with any mapping.

    Links to files are followed, wherever they lead, since caches of models are made of them; an index,
    which comes with the model, can only name files in the folder itself.

    Attributes:
        path: The folder as it was named.
        config: config.json.
        generation_config: generation_config.json, empty when there is none.
        tensors: All tensors by name; weight files in the order of their names, each in its header's order.
    """

    path: Path
    config: Config
    generation_config: Config
    tensors: Mapping[str, SafeTensor]

    def __init__(
        self, path: Path, config: Config, generation_config: Config, shards: Mapping[Path, Shard]
    ) -> None:
        self.path = path
        self.config = config
        self.generation_config = generation_config
        self.tensors = MappingProxyType(
            {name: each for shard in shards.values() for name, each in shard.tensors.items()}
        )
        self._shards: Mapping[Path, Shard] | None = shards

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Checkpoint:
        """Maps the weights of the folder `path` and reads their headers.

        Raises:
            ModelFileMissing: There is no such folder, or a link in it leads nowhere.
            ModelFileUnreadable: The operating system refuses it or one of its files.
            IncompleteCheckpoint: It has no config.json or no safetensors weights.
            MissingShards: It lacks weight files that its index names.
            PickledWeights: It has weights only as pickles.
            GgufFolder: It has weights only as GGUF files.
            ModelFormatError: One of its files breaks a rule of its format, or contradicts another.
        """
        path = Path(path)
        folder.check_folder(path)
        weights = folder.weights_file(path)
        folder.check_config(path)
        config = read_config(path / folder.CONFIG)
        generation = path / folder.GENERATION_CONFIG
        present = os.path.lexists(generation)
        generation_config = read_config(generation) if present else Config({}, str(generation))
        return cls(path, config, generation_config, _open_shards(weights))

    def data(self, tensor: SafeTensor) -> NDArray[np.uint8]:
        """The tensor's bytes, a read-only view of the mapping: `[*shape[:-1], bytes of a row]`, uint8.

        A scalar is one row, `[bytes]`. Raises `UnsupportedEncoding` for a dtype that holds no weights,
        `ModelFileClosed` after `close`, and `ModelFileChanged` when the file has become too short.
        """
        if self._shards is None:
            raise ModelFileClosed(str(self.path))
        return self._shards[tensor.file].data(tensor)

    def origin(self, tensor: SafeTensor) -> Origin:
        """Where the tensor's bytes lie. Raises `ModelFileClosed` after `close`."""
        if self._shards is None:
            raise ModelFileClosed(str(self.path))
        return self._shards[tensor.file].origin(tensor)

    def text_file(self, name: str) -> Path | None:
        """The file `name` in this folder, such as tokenizer.json, or None; a path is no name."""
        guards.check_file_name(str(self.path), name)
        path = self.path / name
        return path if os.path.isfile(path) else None

    def close(self) -> None:
        """Lets go of the mappings; each goes when the last view of its data does. Closing twice is fine."""
        shards, self._shards = self._shards, None
        for shard in (shards or {}).values():
            shard.close()

    def __repr__(self) -> str:
        state = "closed" if self._shards is None else "open"
        return f"<Checkpoint {self.path}, {len(self.tensors)} tensors, {state}>"


def _open_shards(weights: Path) -> dict[Path, Shard]:
    """The single weights file, or the files that an index names; none stays open if one is refused."""
    if weights.name != INDEX:
        return {weights: Shard(weights)}
    index = read_index(weights)
    paths = [weights.with_name(name) for name in index]
    missing = [path.name for path in paths if not os.path.exists(path)]
    guards.check_shards_exist(str(weights), missing)
    shards: dict[Path, Shard] = {}
    with ExitStack() as opened:
        for path in paths:
            shard = shards[path] = opened.enter_context(Shard(path))
            guards.check_indexed(str(path), shard.tensors, index[path.name], INDEX)
            guards.check_held(str(weights), index[path.name], shard.tensors, path.name)
        opened.pop_all()
    return shards

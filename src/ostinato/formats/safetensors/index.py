"""The index of a sharded checkpoint: which file holds which tensor.

Its `metadata`, `total_size` among it, isn't read: writers count it differently, and nothing depends on it.
"""

from __future__ import annotations

from pathlib import Path

from ostinato.formats.safetensors import guards
from ostinato.formats.safetensors.strictjson import read_object

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def read_index(path: Path) -> dict[str, set[str]]:
    """Shard name -> names of the tensors that it should hold, the shards sorted by name."""
    file = str(path)
    index = read_object(path, "index", guards.MAX_INDEX_BYTES)
    weight_map = index.get("weight_map")
    guards.check_object(file, "weight_map", weight_map)
    assert isinstance(weight_map, dict)

    shards: dict[str, set[str]] = {}
    for name, shard in weight_map.items():
        guards.check_shard_name(file, f"weight_map.{name}", shard)
        shards.setdefault(str(shard), set()).add(name)
    return dict(sorted(shards.items()))

"""A changed copy of a GGUF file, written with the gguf package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from ostinato.formats.gguf import GgufFile


def rewrite(
    source: Path,
    target: Path,
    *,
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray | None] | None = None,
    quantize: Mapping[str, gguf.GGMLQuantizationType] | None = None,
) -> Path:
    """Copy with some metadata or F32 tensors replaced, added, or (None) left out, and some quantised."""
    with GgufFile.open(source) as file:
        values = {**file.metadata, **(metadata or {})}
        arrays: dict[str, np.ndarray | None] = {
            name: np.array(file.data(tensor)).reshape(-1).view(np.float32).reshape(tensor.shape)
            for name, tensor in file.tensors.items()
        }
    arrays |= tensors or {}
    writer = gguf.GGUFWriter(target, values["general.architecture"])
    for key, value in values.items():
        if value is None or key.startswith("GGUF.") or key == "general.architecture":
            continue
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, int):
            writer.add_int64(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_array(key, value if isinstance(value, list) else value.tolist())
    for name, array in arrays.items():
        if array is None:
            continue
        kind = (quantize or {}).get(name)
        if kind is None:
            writer.add_tensor(name, array)
        else:
            writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target

"""Builds Hugging Face model folders as bytes, valid or broken in any place.

Nothing of the reader under test is used.

Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Files = dict[str, bytes]  # a folder: file name -> contents

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Entry:
    """A tensor; `nbytes` of data follow at `begin`, None behind the tensor before."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    begin: int | None = None


def header(*entries: Entry, metadata: object = None) -> dict[str, Any]:
    """The header of these tensors, valid if they are."""
    out: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    end = 0
    for entry in entries:
        begin = end if entry.begin is None else entry.begin
        end = begin + entry.nbytes
        out[entry.name] = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": [begin, end]}
    return out


def packed(head: object, data: bytes = b"", *, length: int | None = None) -> bytes:
    """A safetensors file of a header, given as JSON value or as bytes, and its data."""
    raw = head if isinstance(head, bytes) else dumps(head)
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def tensors(*entries: Entry, metadata: object = None) -> bytes:
    """A safetensors file in which tensor i is filled with bytes i + 1."""
    head = header(*entries, metadata=metadata)
    body = bytearray(
        max((entry["data_offsets"][1] for entry in head.values() if "dtype" in entry), default=0)
    )
    for index, entry in enumerate(entries):
        begin = head[entry.name]["data_offsets"][0]
        body[begin : begin + entry.nbytes] = bytes([index + 1]) * entry.nbytes
    return packed(head, bytes(body))


def indexed(weight_map: object) -> bytes:
    return dumps({"metadata": {"total_size": 1}, "weight_map": weight_map})


def dumps(value: object) -> bytes:
    return json.dumps(value).encode()


def write(folder: Path, files: Files) -> Path:
    """The folder with these files."""
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "auto_map": {"AutoModel": "modeling_evil.Evil"},
    "num_hidden_layers": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000,
    "head_dim": None,
    "tie_word_embeddings": True,
    "eos_token_id": [1, 2],
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low": {"freq": 1}, "long_factor": [1, 2.5]},
    "time_step_limit": [0.0, float("inf")],
}
ENTRIES = (
    Entry("embed.weight", "F32", (3, 4), 48),
    Entry("q.weight", "BF16", (2, 3), 12),
    Entry("norm.weight", "F16", (5,), 10),
    Entry("scale", "F32", (), 4),
    Entry("none", "F16", (0, 7), 0),
    Entry("steps", "I64", (1,), 8),
    Entry("fp8", "F8_E4M3", (3, 1), 3),
    Entry("fp4", "F4", (2, 3), 3),
)


def small() -> Files:
    """A valid checkpoint in one file, with every kind of field."""
    return {
        "config.json": dumps(CONFIG),
        "generation_config.json": dumps({"eos_token_id": 2, "temperature": 0.7, "do_sample": True}),
        SINGLE: tensors(*ENTRIES, metadata={"format": "pt"}),
    }


def sharded() -> Files:
    """A valid checkpoint in two files and an index."""
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    return {
        "config.json": dumps(CONFIG),
        INDEX: indexed({"b": second, "a": first, "c": second}),
        first: tensors(Entry("a", "F32", (2, 2), 16)),
        second: tensors(Entry("b", "BF16", (2, 4), 16), Entry("c", "F16", (3,), 6)),
    }

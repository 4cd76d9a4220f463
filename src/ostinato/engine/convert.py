"""Any model that loads, as one GGUF file, its matrices in another encoding if wanted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ostinato.errors.model import FamilyIncomplete
from ostinato.formats.encodings import CODECS, ENCODERS, encoder
from ostinato.formats.gguf import GgufFile, GgufTensor
from ostinato.formats.gguf.writer import TensorSource, write_gguf
from ostinato.formats.safetensors import Checkpoint
from ostinato.ir import encoding as enc
from ostinato.ir.encoding import Encoding
from ostinato.models.gguf_rope import FACTORS
from ostinato.models.loader import model_from_checkpoint, model_from_gguf
from ostinato.models.recode import Recode, recoded
from ostinato.text.huggingface.to_gguf import to_gguf_metadata

# llama.cpp's enum llama_ftype, which names a file by the encoding of most of its tensors
_FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "BF16": 32}

Bytes = npt.NDArray[np.uint8]


def convert(source: Path, target: str | os.PathLike[str], encoding: Encoding | None = None) -> None:
    """Write the model at `source` (a GGUF file, or a folder with safetensors) to `target`.

    With `encoding`, every matrix whose rows are whole blocks of it is stored so; vectors stay float32. The
    file appears whole or not at all. Raises what loading raises, NoEncoder, InvalidModelContent.
    """
    if encoding is not None:
        encoder(encoding, tensor="all matrices", file=str(target))
    if source.is_dir():
        with Checkpoint.open(source) as checkpoint:
            metadata, tensors = _from_checkpoint(checkpoint, encoding)
            write_gguf(target, metadata, tensors)
        return
    with GgufFile.open(source) as file:
        model_from_gguf(file)  # what doesn't load is not worth converting
        write_gguf(
            target, _copied(file, encoding), (_source(file, t, encoding) for t in file.tensors.values())
        )


def _copied(file: GgufFile, encoding: Encoding | None) -> dict[str, Any]:
    """The file's metadata but for what speaks of its own layout."""
    metadata = {key: value for key, value in file.metadata.typed().items() if not key.startswith("split.")}
    return metadata | _file_type(encoding)


def _file_type(encoding: Encoding | None) -> dict[str, int]:
    return {} if encoding is None else {"general.file_type": _FILE_TYPES[encoding.name]}


def _source(file: GgufFile, tensor: GgufTensor, encoding: Encoding | None) -> TensorSource:
    return _tensor(tensor.name, tensor.shape, tensor.encoding, encoding, lambda: file.data(tensor))


def _from_checkpoint(
    checkpoint: Checkpoint, encoding: Encoding | None
) -> tuple[dict[str, Any], Iterator[TensorSource]]:
    """Metadata and tensors as GGUF names and orders them."""
    model = model_from_checkpoint(checkpoint)
    to_gguf = model.family.to_gguf
    if to_gguf is None:
        raise FamilyIncomplete(model.family.name, "to_gguf", "written as a GGUF file")
    metadata: dict[str, Any] = {
        **to_gguf(model.config),
        "general.name": checkpoint.path.resolve().name,
        **to_gguf_metadata(checkpoint.path, vocab_size=model.config.vocab_size),
        **_file_type(encoding),
    }

    def tensors() -> Iterator[TensorSource]:
        factors = [factor for rope in model.config.ropes for factor in rope.factors]
        if factors:
            yield TensorSource(FACTORS, (len(factors),), enc.F32, np.asarray(factors, np.float32))
        for name, spec in model.family.weight_specs(model.config).items():
            weight = model.weights[name]
            order = None if spec.gguf_rows is None else np.argsort(spec.gguf_rows())

            def rows(weight: Any = weight, order: Any = order) -> Bytes:
                whole: Bytes = weight.rows()
                if order is None:
                    return whole
                ordered: Bytes = whole.reshape(weight.shape[0], -1)[order]
                return ordered

            yield _tensor(spec.gguf, spec.shape, weight.encoding, encoding, rows)

    return metadata, tensors()


def _tensor(
    name: str,
    shape: tuple[int, ...],
    stored: Encoding,
    encoding: Encoding | None,
    data: Callable[[], Bytes],
) -> TensorSource:
    """A tensor in its target encoding; nothing is read before its turn comes."""
    target = _target(stored, shape, encoding)
    if target == stored:
        return TensorSource(name, shape, stored, lambda: [data()])

    def encoded() -> Iterator[Bytes]:
        raw = data()
        yield ENCODERS[target].encode(CODECS[stored].decode(raw.reshape(-1, stored.row_bytes(shape[-1]))))

    return TensorSource(name, shape, target, encoded)


def _target(stored: Encoding, shape: tuple[int, ...], encoding: Encoding | None) -> Encoding:
    if len(shape) == 1 and stored.is_plain:
        return enc.F32  # llama.cpp adds and multiplies vectors in float32 alone
    return recoded(stored, shape, encoding, Recode.ALL)

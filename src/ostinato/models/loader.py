"""From model files to a `Model`: everything is checked before any weight is read."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ostinato.device.encoded import EncodedTensor
from ostinato.errors.model import (
    FamilyIncomplete,
    MissingTensors,
    TensorShapeMismatch,
    UnexpectedTensors,
    UnknownArchitecture,
)
from ostinato.formats.encodings import codec, encoder
from ostinato.formats.gguf import GgufFile
from ostinato.formats.safetensors import Checkpoint
from ostinato.formats.stamp import Origin
from ostinato.ir.encoding import Encoding
from ostinato.models.contract import Family, Model, RowOrder, WeightSpec
from ostinato.models.families import FAMILIES
from ostinato.models.recode import Recode, recoded
from ostinato.runtime.pack_cache import PackCache
from ostinato.runtime.weights import WeightSet


class FileTensor(Protocol):
    """A tensor as a file's directory lists it."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def encoding(self) -> Encoding: ...


class _Opened(Protocol):
    """A file or folder, open."""

    @property
    def tensors(self) -> Mapping[str, Any]: ...
    def data(self, tensor: Any) -> npt.NDArray[np.uint8]: ...
    def origin(self, tensor: Any) -> Origin: ...


@dataclass(frozen=True, slots=True)
class Wanted:
    """Where a weight lies in the files at hand: tensor name and shape, and which rows in which order."""

    tensor: str
    shape: tuple[int, ...]
    rows: RowOrder | None = None


def load_model(
    path: str | os.PathLike[str], *, weights: Encoding | None = None, families: Sequence[Family] = ()
) -> Model:
    """Open a GGUF file, or a folder with config.json and safetensors, as a model. Tensor bytes stay in the
    files until a device packs them.

    `weights` quantises matrices that the files hold as floats to that encoding on the way (one that
    `formats.encodings` can encode to). Matrices whose rows are no whole blocks of it stay as they are.
    `families` are known beside the built-in ones, and come first for an architecture that both read.

    Raises ModelFormatError and its siblings for bad files, UnknownArchitecture, UnsupportedModel,
    UnsupportedEncoding, MissingTensors, UnexpectedTensors, TensorShapeMismatch, FamilyIncomplete.
    """
    if Path(path).is_dir():
        with Checkpoint.open(path) as checkpoint:
            return model_from_checkpoint(checkpoint, weights=weights, families=families)
    with GgufFile.open(path) as file:
        return model_from_gguf(file, weights=weights, families=families)


def model_from_gguf(
    file: GgufFile,
    *,
    weights: Encoding | None = None,
    families: Sequence[Family] = (),
    packs: PackCache | None = None,
) -> Model:
    """The model in an open file. Its views keep the mapping alive when the file is closed. `packs` keeps its
    packed weights for the next process."""
    known = {name: family for family in (*FAMILIES, *families) for name in family.gguf_architectures}
    family = _family(known, file.path, file.metadata.text("general.architecture"))
    config = family.from_gguf(file)
    specs = family.weight_specs(config)
    wanted = {name: Wanted(s.gguf, s.gguf_shape or s.shape, s.gguf_rows) for name, s in specs.items()}
    return _model(file.path, family, config, specs, wanted, file, weights, packs)


def model_from_checkpoint(
    checkpoint: Checkpoint,
    *,
    weights: Encoding | None = None,
    families: Sequence[Family] = (),
    packs: PackCache | None = None,
) -> Model:
    """The model in an open folder. Its views keep the mappings alive when the folder is closed. `packs` keeps
    its packed weights for the next process."""
    names: tuple[str, ...] = checkpoint.config.texts("architectures", ())
    known = {name: family for family in (*FAMILIES, *families) for name in family.hf_architectures}
    family = _family(known, checkpoint.path, names[0] if names else "")
    if family.from_hf is None:
        raise FamilyIncomplete(family.name, "from_hf", "read from a Hugging Face folder")
    config = family.from_hf(checkpoint)
    specs = family.weight_specs(config)
    wanted = {name: Wanted(spec.hf, spec.shape) for name, spec in specs.items()}
    return _model(checkpoint.path, family, config, specs, wanted, checkpoint, weights, packs)


def _family(known: Mapping[str, Family], path: Path, architecture: str) -> Family:
    family = known.get(architecture)
    if family is None:
        raise UnknownArchitecture(str(path), architecture, tuple(known))
    return family


def _model(
    path: Path,
    family: Family,
    config: Any,
    specs: Mapping[str, WeightSpec],
    wanted: Mapping[str, Wanted],
    file: _Opened,
    weights: Encoding | None,
    packs: PackCache | None,
) -> Model:
    tensors = file.tensors
    check_tensors(path, wanted, tensors, lambda name: family.ignored(config, name))
    if weights is not None:
        encoder(weights, tensor="weights", file=str(path))
    encoded = {}
    for name, where in wanted.items():
        tensor = tensors[where.tensor]
        shape = specs[name].shape
        target = recoded(tensor.encoding, shape, weights, Recode.FLOATS)
        encoded[name] = EncodedTensor(
            name,
            shape,
            target,
            file.data(tensor),
            where.rows() if where.rows else None,
            None if target == tensor.encoding else tensor.encoding,
            None if packs is None else file.origin(tensor),
        )
    return Model(family, config, WeightSet(encoded, packs), path)


def check_tensors(
    path: Path,
    wanted: Mapping[str, Wanted],
    tensors: Mapping[str, FileTensor],
    ignored: Callable[[str], bool],
) -> None:
    """The files' tensors are exactly those of the definition, in their shapes and in known encodings."""
    shapes = {where.tensor: where.shape for where in wanted.values()}
    if missing := [name for name in shapes if name not in tensors]:
        raise MissingTensors(str(path), tuple(missing))
    if extra := [name for name in tensors if name not in shapes and not ignored(name)]:
        raise UnexpectedTensors(str(path), tuple(extra))
    for name, shape in shapes.items():
        tensor = tensors[name]
        if tensor.shape != shape:
            raise TensorShapeMismatch(str(path), name, shape, tensor.shape)
        codec(tensor.encoding, tensor=name, file=str(path))

"""From a model file to a `Model`: everything is checked before anything is read."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ostinato.device.encoded import EncodedTensor
from ostinato.errors.model import MissingTensors, TensorShapeMismatch, UnexpectedTensors, UnknownArchitecture
from ostinato.formats.encodings import codec
from ostinato.formats.gguf import GgufFile
from ostinato.models.contract import Family, Model, WeightSpec
from ostinato.models.families import BY_GGUF_ARCHITECTURE
from ostinato.runtime.weights import WeightSet


def load_model(path: str | os.PathLike[str]) -> Model:
    """Open a GGUF file as a model. Tensor bytes stay in the file until a device packs them.

    Raises ModelFormatError and its siblings for a bad file, UnknownArchitecture, UnsupportedModel,
    UnsupportedEncoding, MissingTensors, UnexpectedTensors, TensorShapeMismatch.
    """
    with GgufFile.open(path) as file:
        return model_from_gguf(file)


def model_from_gguf(file: GgufFile) -> Model:
    """The same from an open file. The model's views keep the mapping alive when the file is closed."""
    architecture = file.metadata.text("general.architecture")
    family = BY_GGUF_ARCHITECTURE.get(architecture)
    if family is None:
        raise UnknownArchitecture(str(file.path), architecture, tuple(BY_GGUF_ARCHITECTURE))
    config = family.from_gguf(file)
    specs = family.weight_specs(config)
    check_tensors(file, family, specs)
    tensors = {name: _encoded(file, name, spec) for name, spec in specs.items()}
    return Model(family, config, WeightSet(tensors), file.path)


def check_tensors(file: GgufFile, family: Family, specs: Mapping[str, WeightSpec]) -> None:
    """The file's tensors are exactly those of the definition, in their shapes and in known encodings."""
    wanted = {spec.gguf: spec for spec in specs.values()}
    if missing := [name for name in wanted if name not in file.tensors]:
        raise MissingTensors(str(file.path), tuple(missing))
    if extra := [name for name in file.tensors if name not in wanted and name not in family.ignored_gguf]:
        raise UnexpectedTensors(str(file.path), tuple(extra))
    for name, spec in wanted.items():
        tensor = file.tensors[name]
        if tensor.shape != spec.shape:
            raise TensorShapeMismatch(str(file.path), name, spec.shape, tensor.shape)
        codec(tensor.encoding, tensor=name, file=str(file.path))


def _encoded(file: GgufFile, name: str, spec: WeightSpec) -> EncodedTensor:
    tensor = file.tensors[spec.gguf]
    order = spec.gguf_rows() if spec.gguf_rows else None
    return EncodedTensor(name, tensor.shape, tensor.encoding, file.data(tensor), order)

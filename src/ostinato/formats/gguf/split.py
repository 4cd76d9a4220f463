"""Models in several files, as llama.cpp's gguf-split and its converters write them.

Part i of N, from 0, is `NAME-{i + 1:05}-of-{N:05}.gguf` and has `split.no` = i and `split.count` = N in its
metadata. The first holds the model's metadata, and in `split.tensors.count` how many tensors all parts have
together; each part has a directory of its own tensors only. A merged model keeps the keys, with a count of
0. Source: https://github.com/ggml-org/llama.cpp/blob/master/tools/gguf-split/gguf-split.cpp
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ostinato.errors.formats import ModelFormatError, ModelPartMissing
from ostinato.formats.gguf.directory import GgufTensor
from ostinato.formats.gguf.header import ALIGNMENT_KEY
from ostinato.formats.gguf.mapped import MappedFile
from ostinato.formats.gguf.metadata import Metadata, MetadataValue

NUMBER_KEY = "split.no"
COUNT_KEY = "split.count"
TENSORS_KEY = "split.tensors.count"

_PART_NAME = re.compile(r"(.*)-([0-9]{5})-of-([0-9]{5})\.gguf", re.DOTALL)
_OWN_KEYS = (NUMBER_KEY, ALIGNMENT_KEY)  # a part says these of itself
_RENAMED = "Give each part back its name, NAME-00001-of-0000N.gguf and so on, or merge them with gguf-split."
_MIXED = "The parts are of different downloads or models; fetch all of them again."


@dataclass(frozen=True, slots=True)
class PartName:
    """A file name read as a part's: `number` from 1, of `count`."""

    stem: str
    number: int
    count: int

    @classmethod
    def of(cls, path: Path) -> PartName | None:
        """None for a plain name; one of a single part is plain, too."""
        found = _PART_NAME.fullmatch(path.name)
        if found is None or int(found[3]) <= 1:
            return None
        return cls(found[1], int(found[2]), int(found[3]))

    def sibling(self, number: int) -> str:
        """The file name of another part."""
        return f"{self.stem}-{number:05}-of-{self.count:05}.gguf"


def other_parts(path: Path, metadata: Metadata) -> Sequence[Path]:
    """The files that belong to the first part at `path`, none for a whole model; all of them are there."""
    file = str(path)
    name = check_name(path, metadata)
    if name is None:
        return ()
    check_number(file, metadata, 0)
    # Asked for before any is opened: the count is a stranger's, and the first one missing ends it.
    for number in range(2, name.count + 1):
        check_present(path.with_name(name.sibling(number)), file, number, name.count)
    return [path.with_name(name.sibling(number)) for number in range(2, name.count + 1)]


def check_part(first: MappedFile, part: MappedFile, index: int) -> None:
    """`part` is number `index`, from 0, of the model that `first` begins."""
    file, head = str(part.path), part.header
    check_number(file, Metadata(head.metadata, file), index)
    check_version(file, first.header.version, head.version)
    check_agreement(file, first.header.metadata, head.metadata)


def join_tensors(files: Sequence[MappedFile]) -> dict[str, GgufTensor]:
    """The tensors of all parts, in order, each with the number of its part."""
    if len(files) == 1:
        return files[0].header.tensors
    tensors: dict[str, GgufTensor] = {}
    for index, file in enumerate(files):
        for name, tensor in file.header.tensors.items():
            check_not_repeated(files, index, name, tensors)
            tensors[name] = replace(tensor, part=index)
    first = str(files[0].path)
    check_total(first, Metadata(files[0].header.metadata, first), len(tensors), len(files))
    return tensors


def check_name(path: Path, metadata: Metadata) -> PartName | None:
    """The name of the first part of a split model; None for a whole one. Name and metadata agree."""
    file, name = str(path), PartName.of(path)
    count = metadata.integer(COUNT_KEY, default=None)
    if name is None:
        check_whole(file, count)
        return None
    check_first(file, name)
    check_count(file, name.count, count)
    return name


def check_whole(file: str, count: int | None) -> None:
    """A file with a plain name is a whole model: its count is absent, 0 (merged) or 1."""
    if count is not None and count not in (0, 1):
        got = f"{count} parts, and a file name that numbers none"
        raise ModelFormatError(file, COUNT_KEY, "a model in one file", got, advice=_RENAMED)


def check_first(file: str, name: PartName) -> None:
    """The part that is named is the first: it alone has the metadata."""
    if name.number != 1:
        got = f"part {name.number} of {name.count}"
        advice = f"Name the first part, {name.sibling(1)}, and keep the others beside it."
        raise ModelFormatError(file, "file name", "the first part of a split model", got, advice=advice)


def check_count(file: str, named: int, count: int | None) -> None:
    """The metadata says as many parts as the file's name."""
    if count != named:
        got = "no such key" if count is None else str(count)
        raise ModelFormatError(file, COUNT_KEY, f"{named}, as the file name says", got, advice=_RENAMED)


def check_number(file: str, metadata: Metadata, index: int) -> None:
    """The part says that it is where its name puts it."""
    number = metadata.integer(NUMBER_KEY)
    if number != index:
        raise ModelFormatError(file, NUMBER_KEY, str(index), str(number), advice=_RENAMED)


def check_present(part: Path, first: str, number: int, count: int) -> None:
    """The part's file exists."""
    if not os.path.exists(part):  # False, too, where the system does not say
        raise ModelPartMissing(str(part), first, number, count)


def check_version(file: str, first: int, version: int) -> None:
    """All parts are of one version of the format: one run of one tool wrote them."""
    if version != first:
        raise ModelFormatError(file, "version", f"{first}, that of part 1", str(version), advice=_MIXED)


def check_agreement(
    file: str, first: Mapping[str, MetadataValue], metadata: Mapping[str, MetadataValue]
) -> None:
    """What a part says of the model, the first says, too; most parts say nothing but the split's numbers."""
    for key, value in metadata.items():
        if key in first and key not in _OWN_KEYS and not _same(value, first[key]):
            raise ModelFormatError(
                file, key, f"{_show(first[key])}, as in part 1", _show(value), advice=_MIXED
            )


def check_not_repeated(
    files: Sequence[MappedFile], index: int, name: str, seen: Mapping[str, GgufTensor]
) -> None:
    """A tensor lies in one part only."""
    if name in seen:
        got = f"a tensor of {files[seen[name].part].path.name}"
        raise ModelFormatError(
            str(files[index].path), name, "a name that no other part has", got, advice=_MIXED
        )


def check_total(file: str, metadata: Metadata, found: int, parts: int) -> None:
    """The parts hold as many tensors as the first one says."""
    total = metadata.integer(TENSORS_KEY)
    if total != found:
        raise ModelFormatError(file, TENSORS_KEY, str(total), f"{found} in {parts} parts", advice=_MIXED)


def _same(one: MetadataValue, other: MetadataValue) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and one.tobytes() == other.tobytes()
    return type(one) is type(other) and one == other


def _show(value: MetadataValue) -> str:
    return f"{len(value)} values" if isinstance(value, list | np.ndarray) else repr(value)

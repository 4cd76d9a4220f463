"""Which GGUF model of a repository is meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from ostinato.errors.huggingface import HubChoice, HubChoiceNeeded, HubFileMissing
from ostinato.hub.hf.names import RepoFile
from ostinato.hub.hf.reference import HubReference

PREFERRED = "Q4_K_M"
"""What is taken where nothing is asked for: the smallest encoding that loses little."""

_SUFFIX = ".gguf"
_PART = re.compile(r"(?P<stem>.+)-(?P<index>\d{5})-of-(?P<count>\d{5})", re.DOTALL)
# A quantisation joined to a name by an underscore: model_q4_0.gguf.
_ENCODING = re.compile(
    r"(?:^|_)((?:I?Q\d|TQ\d|B?F16|F32|FP16|FP32|MXFP4|NVFP4)(?:_[A-Z0-9]+)*)$", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class GgufModel:
    """One model: a file, or all parts of a split one in their order."""

    files: tuple[RepoFile, ...]

    @property
    def name(self) -> str:
        """The name of the first file, which stands for all."""
        return self.files[0].name

    @property
    def choice(self) -> HubChoice:
        """The model as an error shows it."""
        sizes = [file.size for file in self.files]
        known = [size for size in sizes if size is not None]
        return HubChoice(self.name, sum(known) if len(known) == len(sizes) else None, len(sizes))


def models(files: Iterable[RepoFile]) -> tuple[GgufModel, ...]:
    """The GGUF models among `files`: no helper files, and of split ones those whose parts are all there."""
    single: list[GgufModel] = []
    parts: dict[tuple[str, int], dict[int, RepoFile]] = {}
    for file in files:
        if not _is_gguf(file.name) or is_helper(file.name):
            continue
        match = _PART.fullmatch(_stem(file.name))
        if match is None:
            single.append(GgufModel((file,)))
        else:
            parts.setdefault((match["stem"], int(match["count"])), {})[int(match["index"])] = file
    split = [
        GgufModel(tuple(found[index] for index in sorted(found)))
        for (_, count), found in parts.items()
        # Comparing lengths first: the count is a stranger's and may be 99999.
        if len(found) == count and set(found) == set(range(1, count + 1))
    ]
    return tuple(sorted(single + split, key=lambda model: model.name))


def pick(reference: HubReference, found: tuple[GgufModel, ...]) -> GgufModel:
    """The one model that `reference` means. Raises `HubFileMissing`, `HubChoiceNeeded`."""
    if reference.file is not None:
        options = tuple(m for m in found if any(file.name == reference.file for file in m.files))
    elif reference.quant is not None:
        options = tuple(m for m in found if is_called(m.name, reference.quant))
    else:
        options = tuple(m for m in found if is_called(m.name, PREFERRED)) or found
    return require_one(options, reference, found)


def require_one(
    options: tuple[GgufModel, ...], reference: HubReference, found: tuple[GgufModel, ...]
) -> GgufModel:
    """The guard against guessing: exactly one model fits."""
    if not options:
        wanted = reference.selector or _SUFFIX
        names = tuple(model.name for model in found)
        raise HubFileMissing(reference.repo, wanted, near(wanted, names), tuple(m.choice for m in found))
    if len(options) > 1:
        raise HubChoiceNeeded(reference.repo, reference.selector, tuple(m.choice for m in options))
    return options[0]


def is_called(name: str, quant: str) -> bool:
    """Whether `quant` is a whole component of the file's name, whatever its case: Q4_K is not in Q4_K_M."""
    wanted = _split(quant)
    parts = _split(_base(name))
    last = len(parts) - len(wanted)
    for start in range(last + 1):
        run = parts[start : start + len(wanted)]
        ending = _ENCODING.search(run[0])
        if wanted == run or (ending and wanted == [ending[1], *run[1:]]):
            return True
    return False


def is_helper(name: str) -> bool:
    """Whether a GGUF file is something beside a model: a vision projector, an importance matrix."""
    words = re.split(r"[-._]", _base(name))
    encoded = any(_ENCODING.search(part) for part in _split(_base(name)))
    return "mmproj" in words or ("imatrix" in words and not encoded)


def near(wanted: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Up to three of `names` that `wanted` may have been meant to be, the likeliest first."""

    def likeness(name: str) -> float:
        forms = [name.lower(), name.lower().rpartition("/")[2], *_split(_base(name))]
        return max(difflib.SequenceMatcher(None, wanted.lower(), form).ratio() for form in forms)

    rated = sorted(((likeness(name), name) for name in names), key=lambda pair: (-pair[0], pair[1]))
    return tuple(name for ratio, name in rated[:3] if ratio >= 0.75)


def _is_gguf(name: str) -> bool:
    return name.lower().endswith(_SUFFIX)


def _stem(name: str) -> str:
    return name[: -len(_SUFFIX)]


def _base(name: str) -> str:
    """The file's own name in lower case, without folder, suffix and part number."""
    stem = _stem(name).rpartition("/")[2]
    match = _PART.fullmatch(stem)
    return (match["stem"] if match else stem).lower()


def _split(text: str) -> list[str]:
    return re.split(r"[-.]", text.lower())
